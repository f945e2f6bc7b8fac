// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans of recorded devices: what a plan promises of its launches, its workspace and its slices,
// and what its kernels would get from arguments that are any numbers.
#include <cmath>

#include "plan_checks.h"
#include "tests/plan/plan_fixture.h"

using namespace tandem;
using fuzz::check_launches, fuzz::check_workspace;

namespace {

// Slices in order have each piece's workgroups once.
void check_slices(const tandem_plan* plan, double operations) {
  tandem_slices slices{};
  slices.struct_size = sizeof slices;
  const tandem_status status = tandem_plan_get_slices(plan, operations, &slices);
  if (status != TANDEM_OK) {
    FUZZ_CHECK(status == TANDEM_ERROR_INVALID_ARGUMENT);
    return;
  }
  FUZZ_CHECK(slices.largest >= 0 && slices.largest <= slices.whole * 1.000001);
  const NamedPlan& p = *plan->plan;
  if (slices.count > 200) return;
  const size_t pieces = pieces_of(p).size();
  for (size_t piece = 0; piece < pieces; ++piece) {
    uint32_t at = 0, ranges = 0;
    for (uint32_t n = 0; n < slices.count; ++n) {
      Slicing::Range range;
      if (!p.slicing.range(operations, n, piece, &range)) continue;
      FUZZ_CHECK_OF(range.from == at && range.to > range.from, p.full_name.c_str());
      FUZZ_CHECK_OF(!range.whole || ranges == 0, p.full_name.c_str());
      at = range.to, ++ranges;
    }
    FUZZ_CHECK_OF(ranges > 0, p.full_name.c_str());
  }
}

// The least workspace has a plan, and one byte less has none.
void check_limits(tandem_device* device, tandem_problem p) {
  uint64_t least = 0;
  FUZZ_CHECK(tandem_least_workspace(device, &p, &least) == TANDEM_OK);
  for (const uint64_t limit : {least == 0 ? 1 : least, least - 1}) {
    p.workspace_limit = limit;
    if (limit == 0 || limit == ~uint64_t(0)) continue;
    tandem_plan* plan = nullptr;
    const tandem_status status = tandem_plan_create(device, &p, &plan);
    if (limit < least) {
      FUZZ_CHECK_OF(status == TANDEM_ERROR_WORKSPACE, fuzz::line_of(p));
      continue;
    }
    FUZZ_CHECK_OF(status == TANDEM_OK, fuzz::line_of(p));
    FUZZ_CHECK_OF(plan->plan->workspace_size <= limit, fuzz::line_of(p));
    tandem_plan_destroy(plan);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  const uint8_t index = bytes.byte();
  tandem_device* device = fuzz::recorded_device(index % fuzz::recorded_count());
  const tandem_problem p = fuzz::draw_problem(bytes);
  const auto number = [&] {
    const uint8_t kind = bytes.byte();
    return kind < 200 ? uint64_t(kind) << 40 : uint64_t(bytes.awkward());
  };
  tandem_plan* plan = nullptr;
  const tandem_status status = tandem_plan_create(device, &p, &plan);
  char text[32];
  FUZZ_CHECK(tandem_explain(device, &p, text, sizeof text) > 1);
  if (status != TANDEM_OK) {
    FUZZ_CHECK_OF(fuzz::is_refusal(p, status), tandem_status_string(status));
    return 0;
  }
  const NamedPlan& made = *plan->plan;
  const Caps& caps = device->device->caps();
  check_launches(made, caps);
  check_workspace(made);
  FUZZ_CHECK_OF(std::isfinite(made.estimated_ms) && made.estimated_ms >= 0, made.full_name.c_str());
  if (const Plan* other = made.of<Sm90Plan>().unaligned.get()) {
    check_launches(*other, caps);
    FUZZ_CHECK_OF(other->workspace_size <= made.workspace_size, made.full_name.c_str());
  }
  {  // the same plan once more
    Problem problem;
    Plan again;
    FUZZ_CHECK(make_problem(&p, &problem).ok());
    const Status once_more = make_plan(problem, caps, &again);
    again.refusals = made.refusals;  // which a plan that was made keeps none of
    const String first = plan_fixture::dump(Status(), made),
                 second = plan_fixture::dump(once_more, again);
    FUZZ_CHECK_OF(first == second, std::string(first.c_str()) + "\n  " + second.c_str());
  }
  check_limits(device, p);

  tandem_args args = TANDEM_ARGS_INIT;
  for (const ArgUse& use : arg_uses(made))
    args.*use.buffer = {number(), bytes.one_of(8) ? number() : 0};
  args.workspace_size = bytes.one_of(16) ? number() : made.workspace_size;
  args.dropout_seed = number();
  args.dropout_offset = uint32_t(number());
  const tandem_status executed = tandem_execute(plan, {0}, &args);
  FUZZ_CHECK_OF(executed == TANDEM_OK || executed == TANDEM_ERROR_INVALID_ARGUMENT ||
                    executed == TANDEM_ERROR_WORKSPACE || executed == TANDEM_ERROR_UNSUPPORTED,
                made.full_name.c_str());
  if (p.flags & TANDEM_FLAG_SLICES) {
    check_slices(plan, bytes.value<double>());
    check_slices(plan, std::ldexp(1.0, bytes.byte() % 64));
  }
  tandem_plan_destroy(plan);
  return 0;
}
