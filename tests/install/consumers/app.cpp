// SPDX-License-Identifier: MIT OR Apache-2.0
// The same in C++, by tandem.hpp.
#include <cstdio>
#include <tandem/tandem.hpp>

int main() try {
  const float q[2] = {1, 0}, k[4] = {0, 3, 0, -2}, v[4] = {1, 10, 3, 30};
  float o[2] = {0, 0};
  const tandem::Device device = tandem::Device::cpu();
  const tandem::Plan plan(device, tandem::parse("fwd f32 b1 hq1 hk1 sq1 sk2 d2 dv2"));
  tandem_args args = tandem::make_args();
  args.q = tandem::host_buffer(const_cast<float*>(q));
  args.k = tandem::host_buffer(const_cast<float*>(k));
  args.v = tandem::host_buffer(const_cast<float*>(v));
  args.o = tandem::host_buffer(o);
  plan.execute(tandem_stream{}, args);
  std::printf("%s: o = %g %g\n", plan.info().name, double(o[0]), double(o[1]));
  return o[0] == 2 && o[1] == 20 ? 0 : 1;
} catch (const tandem::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
