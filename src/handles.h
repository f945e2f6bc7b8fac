// SPDX-License-Identifier: MIT OR Apache-2.0
// What the handles of the C API point to, and what is known of those that were freed too early. A device
// knows its plans: destroyed before them, it takes along what they have of the GPU, and they refuse to be
// executed. Builds with assertions also know which handles are alive.
#ifndef TANDEM_SRC_HANDLES_H
#define TANDEM_SRC_HANDLES_H
#include <memory>
#include <mutex>
#include <set>

#include "plan_cache.h"

#ifndef TANDEM_CHECK_HANDLES
#ifdef NDEBUG
#define TANDEM_CHECK_HANDLES 0
#else
#define TANDEM_CHECK_HANDLES 1
#endif
#endif

struct tandem_device : tandem::HostObject {
  tandem::HostMemory memory;
  std::unique_ptr<tandem::Device> device;
  tandem::PlanCache cache;
  std::mutex mutex;  // of the list of its plans
  tandem_plan* plans = nullptr;
};

struct tandem_plan : tandem::HostObject {
  tandem::HostMemory memory;
  std::shared_ptr<const tandem::NamedPlan> plan;
  std::shared_ptr<const tandem::Program> program;  // null: the device is gone
  tandem_device* device = nullptr;
  tandem_plan *before = nullptr, *after = nullptr;  // among the device's plans
};

namespace tandem {

inline void join_device(tandem_plan* plan, tandem_device* device) noexcept {
  const std::lock_guard<std::mutex> lock(device->mutex);
  plan->device = device;
  plan->after = device->plans;
  if (plan->after) plan->after->before = plan;
  device->plans = plan;
}

inline void leave_device(tandem_plan* plan) noexcept {
  if (!plan->device) return;
  const std::lock_guard<std::mutex> lock(plan->device->mutex);
  (plan->before ? plan->before->after : plan->device->plans) = plan->after;
  if (plan->after) plan->after->before = plan->before;
}

// Ends what the plans have of the device; how many there were.
inline int orphan_plans(tandem_device* device) noexcept {
  const std::lock_guard<std::mutex> lock(device->mutex);
  int count = 0;
  for (tandem_plan* plan = device->plans; plan; plan = plan->after, ++count) {
    plan->program.reset();
    plan->device = nullptr;
  }
  device->plans = nullptr;
  return count;
}

#if TANDEM_CHECK_HANDLES
struct LiveHandles {
  std::mutex mutex;
  std::set<const void*> all;
};
inline LiveHandles& live_handles() {
  static LiveHandles* live = new LiveHandles;  // kept: an application may destroy devices at exit
  return *live;
}
#endif

inline void add_handle([[maybe_unused]] const void* handle) {
#if TANDEM_CHECK_HANDLES
  const std::lock_guard<std::mutex> lock(live_handles().mutex);
  live_handles().all.insert(handle);
#endif
}

inline void remove_handle([[maybe_unused]] const void* handle) noexcept {
#if TANDEM_CHECK_HANDLES
  const std::lock_guard<std::mutex> lock(live_handles().mutex);
  live_handles().all.erase(handle);
#endif
}

// Of a handle that a function was given.
inline Status check_handle(const char* what, const void* handle) {
  if (!handle) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is NULL", what);
#if TANDEM_CHECK_HANDLES
  const std::lock_guard<std::mutex> lock(live_handles().mutex);
  if (live_handles().all.count(handle) == 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "%s is %p, which is not alive: destroyed before, or never made", what, handle);
#endif
  return Status();
}

}  // namespace tandem
#endif
