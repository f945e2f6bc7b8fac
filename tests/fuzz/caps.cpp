// SPDX-License-Identifier: MIT OR Apache-2.0
// Capabilities as no recorded device has them: what a driver reports may be any numbers, and a
// caller may disable anything. A plan keeps to what was reported, or is refused.
#include <algorithm>
#include <array>
#include <cmath>

#include "plan/planner.h"
#include "plan/rules.h"
#include "plan_checks.h"

using namespace tandem;

namespace {

// Something that TANDEM_DISABLE takes.
String draw_disabled(fuzz::Bytes& bytes) {
  switch (bytes.byte() % 3) {
    case 0: {
      const PathRow& row = kPaths[size_t(bytes.below(kPathCount))];
      return String(backend_name(row.backend)) + "." + row.name;
    }
    case 1:
      return kernel_name(kKernels[size_t(bytes.below(kKernelCount))]);
    default: {
      static const Vec<const SpeedRule*> rules = speed_rules();
      return rules[size_t(bytes.below(int64_t(rules.size())))]->name;
    }
  }
}

// Characters that a driver may have in a name: any but NUL, as many as Vulkan has room for.
String draw_name(fuzz::Bytes& bytes) {
  String name;
  for (size_t n = size_t(bytes.below(256)); n > 0 && bytes.left() > 0; --n) {
    const char c = char(bytes.byte());
    if (c == 0) break;
    name += c;
  }
  return name;
}

void draw_matrix(fuzz::Bytes& bytes, Caps* caps) {
  if (caps->matrices.empty() || bytes.one_of(2)) {
    const int edge = 8 << bytes.byte() % 3;
    caps->matrices.push_back({edge, edge, edge, "f16"});
  }
  MatrixShape& shape = caps->matrices[size_t(bytes.byte()) % caps->matrices.size()];
  const auto member = bytes.pick({&MatrixShape::m, &MatrixShape::n, &MatrixShape::k});
  if (bytes.one_of(2)) shape.*member = int(uint32_t(bytes.awkward()));
  shape.operands = bytes.one_of(2) ? "bf16" : "f16";
  shape.copies = bytes.one_of(2);
  shape.f16_accumulators = bytes.one_of(2);
}

void spoil(fuzz::Bytes& bytes, Caps* caps) {
  switch (bytes.byte() % 8) {
    case 0:
    case 1: {
      const auto member =
          bytes.pick({&Caps::shared_bytes, &Caps::max_invocations, &Caps::max_groups_x,
                      &Caps::max_groups_y, &Caps::cores, &Caps::clock_mhz, &Caps::memory_gbps,
                      &Caps::push_bytes, &Caps::inline_uniform_bytes, &Caps::api_version});
      const uint32_t any = uint32_t(bytes.awkward());
      // Of shared memory and of invocations, often numbers near those that kernels need. The least
      // ones of shared memory and of workgroups are what Vulkan guarantees.
      if (member == &Caps::shared_bytes)
        caps->*member = any % 2 ? 16384 + 512 * uint32_t(bytes.below(448)) : std::max(any, 16384u);
      else if (member == &Caps::max_invocations && any % 2)
        caps->*member = 32 * uint32_t(bytes.below(33));
      else if (member == &Caps::max_groups_x || member == &Caps::max_groups_y)
        caps->*member = std::max(any, 65535u);
      else
        caps->*member = any;
      break;
    }
    case 2: {
      const auto member = bytes.pick(
          {&Caps::subgroup_min, &Caps::subgroup_max, &Caps::subgroup_size, &Caps::max_subgroups});
      caps->*member = bytes.one_of(2) ? 1u << bytes.byte() % 8 : uint32_t(bytes.awkward());
      break;
    }
    case 3:
    case 4: {
      const auto member = bytes.pick({&Caps::buffer_address,
                                      &Caps::inline_uniform,
                                      &Caps::storage16,
                                      &Caps::float16,
                                      &Caps::bfloat16,
                                      &Caps::int64,
                                      &Caps::memory_model,
                                      &Caps::no_device_scope,
                                      &Caps::subgroup_votes,
                                      &Caps::coopmat_compute,
                                      &Caps::subgroup_control,
                                      &Caps::full_subgroups,
                                      &Caps::subgroup_pin,
                                      &Caps::denormals,
                                      &Caps::infinities,
                                      &Caps::maintenance4,
                                      &Caps::coopmat,
                                      &Caps::bfloat16_coopmat,
                                      &Caps::coopmat_reductions,
                                      &Caps::coopmat_conversions,
                                      &Caps::coopmat_per_element,
                                      &Caps::coopmat_tensors,
                                      &Caps::sm80_code,
                                      &Caps::sm90_code,
                                      &Caps::early_launches});
      caps->*member = !(caps->*member);
      break;
    }
    case 5:
      draw_matrix(bytes, caps);
      break;
    case 6: {
      if (bytes.one_of(4)) {
        caps->name = draw_name(bytes);
      } else if (bytes.one_of(3)) {
        caps->compute_major = int(bytes.below(16)), caps->compute_minor = int(bytes.below(16));
      } else {
        const auto member = bytes.pick({&Caps::vendor_id, &Caps::driver_id, &Caps::driver_version});
        caps->*member = uint32_t(bytes.awkward());
      }
      break;
    }
    default:
      caps->disabled.push_back(draw_disabled(bytes));
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  Caps caps = fuzz::recorded_caps(bytes.byte() % fuzz::recorded_count());
  const tandem_problem p = fuzz::draw_problem(bytes);
  for (int n = bytes.byte() % 8; n > 0; --n) spoil(bytes, &caps);
  tandem_device* device = fuzz::open_recorded(caps);
  std::array<char, 300> text{};
  FUZZ_CHECK(tandem_device_describe(device, text.data(), text.size()) > 1);
  FUZZ_CHECK(tandem_explain(device, &p, text.data(), text.size()) > 1);
  tandem_plan* plan = nullptr;
  const tandem_status status = tandem_plan_create(device, &p, &plan);
  if (status == TANDEM_OK) {
    const NamedPlan& made = *plan->plan;
    fuzz::check_launches(made, caps);
    fuzz::check_workspace(made);
    FUZZ_CHECK_OF(std::isfinite(made.estimated_ms) && made.estimated_ms >= 0,
                  made.full_name.c_str());
    for (const Launch& l : made.launches)
      FUZZ_CHECK_OF(!is_disabled(caps, kernel_name(l.row())), kernel_name(l.row()).c_str());
    tandem_args args = TANDEM_ARGS_INIT;
    uint64_t at = 0;
    for (const ArgUse& use : arg_uses(made)) args.*use.buffer = {at += uint64_t(1) << 50, 0};
    args.workspace_size = made.workspace_size;
    const tandem_status executed = tandem_execute(plan, {0}, &args);
    FUZZ_CHECK_OF(executed == TANDEM_OK || executed == TANDEM_ERROR_INVALID_ARGUMENT ||
                      executed == TANDEM_ERROR_WORKSPACE,
                  made.full_name.c_str());
    tandem_plan_destroy(plan);
  } else {
    FUZZ_CHECK_OF(fuzz::is_refusal(p, status), tandem_status_string(status));
  }
  uint64_t least = 0;
  const tandem_status asked = tandem_least_workspace(device, &p, &least);
  FUZZ_CHECK_OF(status != TANDEM_OK || asked == TANDEM_OK, tandem_status_string(asked));
  tandem_device_destroy(device);
  return 0;
}
