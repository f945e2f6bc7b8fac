// SPDX-License-Identifier: MIT OR Apache-2.0
// What the modules of Vulkan plans need, against the limits of a recorded device.
#include "../plan/spirv_shared.h"
#include "../vulkan/keeping_driver.h"
#include "recorded_session.h"

namespace tandem::harness {
namespace {

void check_limits(const tandem::Plan& plan, const Caps& caps) {
  static std::unique_ptr<Device> keeps;
  const auto most = [&](const char* what, uint64_t needed, uint64_t limit) {
    if (needed > limit)
      recorded_faults().insert(text("%s: %s needs %llu %s, the device has %llu", caps.name.c_str(),
                                    plan.name().c_str(), (unsigned long long)needed, what,
                                    (unsigned long long)limit)
                                   .c_str());
  };
  keeping_driver::Kept& kept = keeping_driver::kept();
  kept.modules.clear();
  if (!keeps) keeps = keeping_driver::open();
  std::unique_ptr<Program> program;
  const Status status = keeps->build(plan, &program);
  if (!status.ok()) recorded_faults().insert(status.message().c_str());
  most("bytes of push constants", kept.push_bytes, caps.push_bytes);
  for (const keeping_driver::Words& words : kept.modules) {
    const spirv::Module module(words.data(), words.size());
    const uint64_t invocations = module.invocations({});
    if (invocations == 0) recorded_faults().insert("a module does not state its workgroups");
    most("invocations", invocations, caps.max_invocations);
    most("bytes of shared memory", module.shared_bytes({}), caps.shared_bytes);
  }
  for (const Launch& launch : plan.launches) {
    most("workgroups in x", launch.groups_x, caps.max_groups_x);
    most("workgroups in y", launch.groups_y, caps.max_groups_y);
  }
}

[[maybe_unused]] const bool linked = [] {
  recorded_limits = check_limits;
  return true;
}();

}  // namespace
}  // namespace tandem::harness
