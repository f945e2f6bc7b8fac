// SPDX-License-Identifier: MIT OR Apache-2.0
// What the handles of the C API point to, and checks of handles that were freed too early. A device
// has a list of its plans. If it is destroyed before them, it frees what they have of the GPU, and
// they refuse to be executed. Builds with assertions also check which handles are alive.
#ifndef TANDEM_SRC_API_HANDLES_H
#define TANDEM_SRC_API_HANDLES_H
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#include "plan_cache.h"
#include "warned.h"

#ifndef TANDEM_CHECK_HANDLES
#ifdef NDEBUG
#define TANDEM_CHECK_HANDLES 0
#else
#define TANDEM_CHECK_HANDLES 1
#endif
#endif

namespace tandem {
struct Handle : HostObject {
  const uint64_t born = fork_count();           // the process that it was made in
  Handle *earlier = nullptr, *later = nullptr;  // list of live handles, where that is checked
};
}  // namespace tandem

struct tandem_device : tandem::Handle {
  tandem::HostMemory memory;
  std::unique_ptr<tandem::Device> device;
  tandem::PlanCache cache;
  tandem::Warned warned;
  tandem::ForkMutex mutex;  // of the list of its plans
  tandem_plan* plans = nullptr;
};

struct tandem_plan : tandem::Handle {
  tandem::HostMemory memory;
  std::shared_ptr<const tandem::NamedPlan> plan;
  std::shared_ptr<const tandem::Program> program;  // null: the device is gone
  tandem_device* device = nullptr;
  tandem_plan *before = nullptr, *after = nullptr;  // among the device's plans
};

namespace tandem {

inline void join_device(tandem_plan* plan, tandem_device* device) noexcept {
  const std::lock_guard<ForkMutex> lock(device->mutex);
  plan->device = device;
  plan->after = device->plans;
  if (plan->after) plan->after->before = plan;
  device->plans = plan;
}

inline void leave_device(tandem_plan* plan) noexcept {
  if (!plan->device) return;
  const std::lock_guard<ForkMutex> lock(plan->device->mutex);
  (plan->before ? plan->before->after : plan->device->plans) = plan->after;
  if (plan->after) plan->after->before = plan->before;
}

// Releases the plans' programs; returns the number of plans.
inline int orphan_plans(tandem_device* device) noexcept {
  const std::lock_guard<ForkMutex> lock(device->mutex);
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
  ForkMutex mutex;
  Handle* first = nullptr;
};
inline LiveHandles& live_handles() {
  // Never destroyed: an application may destroy devices at exit.
  alignas(LiveHandles) static unsigned char room[sizeof(LiveHandles)];
  static LiveHandles* live = new (room) LiveHandles;
  return *live;
}
#endif

inline void add_handle([[maybe_unused]] Handle* handle) noexcept {
#if TANDEM_CHECK_HANDLES
  LiveHandles& live = live_handles();
  const std::lock_guard<ForkMutex> lock(live.mutex);
  handle->later = live.first;
  if (handle->later) handle->later->earlier = handle;
  live.first = handle;
#endif
}

inline void remove_handle([[maybe_unused]] Handle* handle) noexcept {
#if TANDEM_CHECK_HANDLES
  LiveHandles& live = live_handles();
  const std::lock_guard<ForkMutex> lock(live.mutex);
  (handle->earlier ? handle->earlier->later : live.first) = handle->later;
  if (handle->later) handle->later->earlier = handle->earlier;
#endif
}

// Whether an ancestor process made it, with a driver that does not work in this one. A driver may
// not be asked for anything then, not even to release what it has.
inline bool left_behind(const tandem_device& device) {
  return device.born != fork_count() && device.device->caps().backend != Backend::cpu;
}
inline bool left_behind(const tandem_plan& plan) {
  return plan.born != fork_count() && plan.plan->backend != Backend::cpu;
}
template <typename Made>
Status check_process(const char* what, const Made& made) {
  if (!left_behind(made)) return Status();
  return fail(TANDEM_ERROR_INVALID_ARGUMENT,
              "%s was made before this process was forked, and GPU drivers do not survive a fork: "
              "make devices in the process that uses them",
              what);
}

// Checks a handle that a function was given.
inline Status check_handle(const char* what, const Handle* handle) {
  if (!handle) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is NULL", what);
#if TANDEM_CHECK_HANDLES
  LiveHandles& live = live_handles();
  const std::lock_guard<ForkMutex> lock(live.mutex);
  const Handle* found = live.first;
  while (found && found != handle) found = found->later;
  if (!found)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "%s is 0x%llx, which is not alive: destroyed before, or never made", what,
                static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(handle)));
#endif
  return Status();
}

}  // namespace tandem
#endif
