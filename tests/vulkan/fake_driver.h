// SPDX-License-Identifier: MIT OR Apache-2.0
// A driver in between: tandem_vk_device_desc.gipa of a test. It sees each function of the device
// that the library calls, before the real one, and may fail it, leave it out or stand in for it.
// One device at a time.
#ifndef TANDEM_TESTS_VULKAN_FAKE_DRIVER_H
#define TANDEM_TESTS_VULKAN_FAKE_DRIVER_H
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>

#include "vulkan/vk.h"

namespace fake_driver {

struct State {
  PFN_vkGetInstanceProcAddr real = nullptr;
  PFN_vkGetDeviceProcAddr real_device = nullptr;
  // Called before each function; what is not VK_SUCCESS is returned in place of calling it, by
  // functions that return a VkResult.
  std::function<VkResult(const char* name)> before;
  std::function<void()> after;
  // By name: another function in place of the real one, or nullptr for none.
  std::map<std::string, PFN_vkVoidFunction> replace;
  int64_t live = 0;                                   // objects made and not destroyed
  int64_t with_allocator = 0, without_allocator = 0;  // calls that take VkAllocationCallbacks
};
inline State& state() {
  static State s;
  return s;
}

namespace detail {

// Of the state, while pipelines are made on several threads. Not held in the real functions.
inline std::recursive_mutex& mutex() {
  static std::recursive_mutex m;
  return m;
}

template <typename T>
void note(const T&) {}
inline void note(const VkAllocationCallbacks* a) {
  ++(a ? state().with_allocator : state().without_allocator);
}

// What a failed call leaves behind is garbage.
template <typename T>
void poison(T) {}
template <typename T>
void poison(T** handle) {
  *handle = reinterpret_cast<T*>(uintptr_t(0xdddddddd));
}

template <typename... A>
void poison_last(A... a) {
  (poison(a), ...);
}

template <int Index, typename F>
struct Hook;
template <int Index, typename R, typename... A>
struct Hook<Index, R(VKAPI_PTR*)(A...)> {
  static inline R(VKAPI_PTR* real)(A...) = nullptr;
  static inline const char* name = "";
  static R VKAPI_CALL call(A... a) {
    State& s = state();
    std::unique_lock<std::recursive_mutex> lock(mutex());
    const VkResult injected = s.before ? s.before(name) : VK_SUCCESS;
    const bool creates = std::strncmp(name, "vkCreate", 8) == 0;
    if constexpr (std::is_same_v<R, VkResult>) {
      if (injected != VK_SUCCESS) {
        if (creates) poison_last(a...);
        if (s.after) s.after();
        return injected;
      }
    }
    (note(a), ...);
    s.live -= std::strncmp(name, "vkDestroy", 9) == 0;
    lock.unlock();
    if constexpr (std::is_void_v<R>) {
      real(a...);
      lock.lock();
      if (s.after) s.after();
    } else {
      const R result = real(a...);
      lock.lock();
      if constexpr (std::is_same_v<R, VkResult>) s.live += creates && result == VK_SUCCESS;
      if (s.after) s.after();
      return result;
    }
  }
};

enum Index {
#define TANDEM_INDEX(name) k##name,
  TANDEM_VK_USED(TANDEM_INDEX) TANDEM_VK_PROBED(TANDEM_INDEX)
#undef TANDEM_INDEX
};

inline PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char* name) {
  State& s = state();
  const auto replaced = s.replace.find(name);
  const bool other = replaced != s.replace.end();
  if (other && !replaced->second) return nullptr;
  const PFN_vkVoidFunction behind = other ? replaced->second : s.real_device(device, name);
#define TANDEM_HOOK(n)                                    \
  if (std::strcmp(name, "vk" #n) == 0) {                  \
    using H = Hook<k##n, PFN_vk##n>;                      \
    H::name = "vk" #n;                                    \
    H::real = reinterpret_cast<PFN_vk##n>(behind);        \
    return reinterpret_cast<PFN_vkVoidFunction>(H::call); \
  }
  TANDEM_VK_USED(TANDEM_HOOK)
  TANDEM_VK_PROBED(TANDEM_HOOK)
#undef TANDEM_HOOK
  return behind;
}

inline PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance, const char* name) {
  State& s = state();
  const auto replaced = s.replace.find(name);
  if (replaced != s.replace.end()) return replaced->second;
  const PFN_vkVoidFunction real = s.real(instance, name);
  if (std::strcmp(name, "vkGetDeviceProcAddr") != 0) return real;
  s.real_device = reinterpret_cast<PFN_vkGetDeviceProcAddr>(real);
  return reinterpret_cast<PFN_vkVoidFunction>(device_proc);
}

}  // namespace detail

// Between the library and real from now on, with nothing injected.
inline PFN_vkGetInstanceProcAddr install(PFN_vkGetInstanceProcAddr real) {
  state() = State();
  state().real = real;
  return detail::instance_proc;
}

// Pipelines that are not real, for tests that run none.
inline VkResult VKAPI_CALL make_nothing(VkDevice, VkPipelineCache, uint32_t,
                                        const VkComputePipelineCreateInfo*,
                                        const VkAllocationCallbacks*, VkPipeline* pipelines) {
  static uint64_t next = 0x1000;
  const uint64_t made = ++next;
  std::memcpy(pipelines, &made, sizeof(*pipelines));
  return VK_SUCCESS;
}
inline void VKAPI_CALL destroy_nothing(VkDevice, VkPipeline, const VkAllocationCallbacks*) {}
inline void make_no_pipelines() {
  auto& replace = state().replace;
  replace["vkCreateComputePipelines"] = reinterpret_cast<PFN_vkVoidFunction>(make_nothing);
  replace["vkDestroyPipeline"] = reinterpret_cast<PFN_vkVoidFunction>(destroy_nothing);
}

}  // namespace fake_driver
#endif
