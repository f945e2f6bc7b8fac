/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What an application in C does first: a device, a plan, one forward. Two keys with the same score
 * are averaged. */
#include <stdio.h>
#include <tandem/tandem.h>
#include <tandem/tandem_cuda.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, tandem_last_message());
  return 1;
}

static tandem_buffer host(const void* address) {
  tandem_buffer b;
  b.handle = (uint64_t)(uintptr_t)address;
  b.offset = 0;
  return b;
}

int main(void) {
  const float q[2] = {1, 0}, k[4] = {0, 3, 0, -2}, v[4] = {1, 10, 3, 30};
  float o[2] = {0, 0};
  const uint32_t built =
      (uint32_t)TANDEM_VERSION_MAJOR << 22 | TANDEM_VERSION_MINOR << 12 | TANDEM_VERSION_PATCH;
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  tandem_args args = TANDEM_ARGS_INIT;
  tandem_stream none = {0};
  tandem_device* device = NULL;
  tandem_device* cuda = NULL;
  tandem_plan* plan = NULL;
  tandem_problem problem;

  if (tandem_version() != built) return failed("the library is of another version than the header");
  options.threads = 1;
  if (tandem_cpu_device_create(&options, &device) != TANDEM_OK) return failed("device");
  if (tandem_problem_parse("fwd f32 b1 hq1 hk1 sq1 sk2 d2 dv2", &problem) != TANDEM_OK)
    return failed("problem");
  if (tandem_plan_create(device, &problem, &plan) != TANDEM_OK) return failed("plan");
  args.q = host(q), args.k = host(k), args.v = host(v), args.o = host(o);
  if (tandem_execute(plan, none, &args) != TANDEM_OK) return failed("execute");
  tandem_plan_destroy(plan);
  tandem_device_destroy(device);
  /* Whatever the build has: an ordinal that no machine has is refused, and nothing is missing at
   * load. */
  if (tandem_cuda_device_create(9999, NULL, &cuda) == TANDEM_OK) return failed("no such device");
  printf("o = %g %g\n", (double)o[0], (double)o[1]);
  return o[0] == 2 && o[1] == 20 ? 0 : 1;
}
