// SPDX-License-Identifier: MIT OR Apache-2.0
// Elements beyond 2^31 and 2^32: one tensor at a time is spread over more than 8 GiB by its
// strides, with only its rows written, and must give the bits of the compact problem.
#include <algorithm>

#include "parity.h"

using namespace parity;

namespace {

constexpr int64_t kRowStride =
    (int64_t(1) << 26) + 64;      // 40 rows: row index times this passes 2^31
constexpr size_t kMargin = 4096;  // bytes behind each output row that must stay as they were

struct Spread {
  Session& session;
  const tandem_problem& problem;
  const Role big;
  tandem_args args = TANDEM_ARGS_INIT;
  std::vector<Buffer> buffers;

  const tandem_tensor& layout(Role role) const { return tensor_of(problem, role); }
  template <typename Row>
  void each_row(Role role, Row row) const {
    const Dims dims = dims_of(problem, role);
    const tandem_tensor& t = layout(role);
    for (int64_t h = 0; h < dims.h; ++h)
      for (int64_t s = 0; s < dims.s; ++s)
        row(h, s, size_t(h * t.stride[1] + s * t.stride[2]) * element_size(t.dtype));
  }
  // values: the compact tensor, or null for an output.
  Buffer& place(Role role, const HostTensor* values) {
    const Dims dims = dims_of(problem, role);
    const tandem_tensor& t = layout(role);
    buffers.push_back(session.buffer(size_t(extent(dims, t)) * element_size(t.dtype) + kMargin));
    Buffer& buffer = buffers.back();
    buffer.fill(0xff);
    if (values)
      each_row(role, [&](int64_t h, int64_t s, size_t at) {
        const size_t from = size_t(values->index(0, h, s, 0)) * element_size(t.dtype);
        buffer.upload(&values->bytes[from], size_t(dims.d) * element_size(t.dtype), at);
      });
    buffer_of(args, role) = buffer.handle();
    return buffer;
  }
  // Number of rows of an output that differ from the compact result, or whose margin was written.
  int wrong_rows(Role role, const Buffer& buffer, const HostTensor& want) const {
    const size_t bytes = size_t(want.dims.d) * element_size(want.layout.dtype);
    std::vector<uint8_t> row(bytes + (role == big ? kMargin : 0));
    int wrong = 0;
    each_row(role, [&](int64_t h, int64_t s, size_t at) {
      buffer.download(row.data(), row.size(), at);
      const size_t from = size_t(want.index(0, h, s, 0)) * element_size(want.layout.dtype);
      wrong += !std::equal(row.begin(), row.begin() + std::ptrdiff_t(bytes), &want.bytes[from]) ||
               !std::all_of(row.begin() + std::ptrdiff_t(bytes), row.end(),
                            [](uint8_t x) { return x == 0xff; });
    });
    return wrong;
  }
};

void check_big(Target& target, Role big) {
  const Shape shape = {1, 2, 2, 40, 40, 64, 64};
  const tandem_problem compact = problem(TANDEM_BACKWARD, TANDEM_F16, shape, kTopLeft);
  tandem_problem p = compact;
  tandem_tensor& t = tensor_of(p, big);
  t.stride[2] = kRowStride;
  t.stride[1] = 40 * kRowStride;
  t.stride[0] = 80 * kRowStride;
  INFO(target.name << ": " << std::string(role_name(big)) << " spread: " << print(p));

  Case test(compact, seed_of("big"));
  Outputs want;
  const CaseResult result = test.run_and_judge(*target.session, &want);
  REQUIRE_MESSAGE(result.ok, result.message);
  count(result.kernels);

  const size_t rows = size_t(shape.hq * shape.sq);
  Buffer lse = target.session->buffer(rows * 4);
  lse.fill(0xff);
  if (big == Role::q || big == Role::k || big == Role::v || big == Role::o) {
    tandem_problem f = p;
    f.direction = TANDEM_FORWARD;
    const Plan plan(*target.session, f);
    Spread run{*target.session, f, big, TANDEM_ARGS_INIT, {}};
    run.buffers.reserve(8);
    for (Role role : {Role::q, Role::k, Role::v}) run.place(role, &test.input(role));
    const Buffer& o = run.place(Role::o, nullptr);
    run.args.lse = lse.handle();
    target.session->run(plan, run.args);
    CHECK(run.wrong_rows(Role::o, o, want.o) == 0);
    CHECK(lse.download_as<float>() == want.lse);
    for (const Buffer& b : run.buffers) CHECK(b.broken_guard() == "");
  }
  lse.upload(want.lse);
  const Plan plan(*target.session, p);
  Spread run{*target.session, p, big, TANDEM_ARGS_INIT, {}};
  run.buffers.reserve(8);
  for (Role role : {Role::q, Role::k, Role::v, Role::d_o}) run.place(role, &test.input(role));
  run.place(Role::o, &want.o);
  const Buffer& d_q = run.place(Role::d_q, nullptr);
  const Buffer& d_k = run.place(Role::d_k, nullptr);
  const Buffer& d_v = run.place(Role::d_v, nullptr);
  Buffer workspace = target.session->buffer(size_t(plan.info().workspace_size));
  workspace.fill(0xff);
  run.args.lse = lse.handle();
  run.args.workspace = workspace.handle();
  run.args.workspace_size = plan.info().workspace_size;
  target.session->run(plan, run.args);
  CHECK(run.wrong_rows(Role::d_q, d_q, want.d_q) == 0);
  CHECK(run.wrong_rows(Role::d_k, d_k, want.d_k) == 0);
  CHECK(run.wrong_rows(Role::d_v, d_v, want.d_v) == 0);
  for (const Buffer& b : run.buffers) CHECK(b.broken_guard() == "");
}

}  // namespace

TEST_CASE("big: elements beyond 2^32" * doctest::skip(!at_least(Tier::device))) {
  for (Target& target : targets()) {
    if (target.session->on_cpu()) continue;
    for (Role role : kRoles) check_big(target, role);
  }
}
