// SPDX-License-Identifier: MIT OR Apache-2.0
// VkAllocationCallbacks of an application's own, that count, and fail on demand.
#ifndef TANDEM_TESTS_VULKAN_COUNTING_H
#define TANDEM_TESTS_VULKAN_COUNTING_H
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "vulkan/vk.h"

namespace vulkan_app {

// An application's allocator, counting. The one after `good` others fails, if good is not below 0.
struct Counting {
  int64_t live = 0, allocations = 0, good = -1, failures = 0;
  std::mutex mutex;  // of these
  VkAllocationCallbacks callbacks{};
  Counting() {
    callbacks.pUserData = this;
    callbacks.pfnAllocation = [](void* user, size_t size, size_t alignment,
                                 VkSystemAllocationScope) -> void* {
      return static_cast<Counting*>(user)->allocate(size, alignment);
    };
    callbacks.pfnReallocation = [](void* user, void* old, size_t size, size_t alignment,
                                   VkSystemAllocationScope) -> void* {
      Counting& c = *static_cast<Counting*>(user);
      void* made = size > 0 ? c.allocate(size, alignment) : nullptr;
      if (made && old) std::memcpy(made, old, std::min(size, size_of(old)));
      if (made || size == 0) c.release(old);
      return made;
    };
    callbacks.pfnFree = [](void* user, void* memory) {
      static_cast<Counting*>(user)->release(memory);
    };
  }
  // The size stands before the memory, which is at the end of its alignment.
  void* allocate(size_t size, size_t alignment) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (good >= 0 && good-- == 0) return ++failures, nullptr;
    const size_t front = std::max(alignment, sizeof(size_t) * 2);
    char* memory =
        static_cast<char*>(std::aligned_alloc(front, (size + 2 * front - 1) / front * front));
    if (!memory) return nullptr;
    ++live, ++allocations;
    std::memcpy(memory + front - sizeof(size_t), &size, sizeof(size));
    std::memcpy(memory + front - 2 * sizeof(size_t), &front, sizeof(front));
    return memory + front;
  }
  static size_t size_of(void* memory) {
    size_t size;
    std::memcpy(&size, static_cast<char*>(memory) - sizeof(size), sizeof(size));
    return size;
  }
  void release(void* memory) {
    if (!memory) return;
    const std::lock_guard<std::mutex> lock(mutex);
    --live;
    size_t front;
    std::memcpy(&front, static_cast<char*>(memory) - 2 * sizeof(size_t), sizeof(front));
    std::free(static_cast<char*>(memory) - front);
  }
};

}  // namespace vulkan_app
#endif
