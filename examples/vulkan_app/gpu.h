// SPDX-License-Identifier: MIT OR Apache-2.0
// The application's own Vulkan: what an engine has long before it has attention. Of Tandem it
// knows two functions, which say what to enable.
#ifndef TANDEM_EXAMPLES_VULKAN_APP_GPU_H
#define TANDEM_EXAMPLES_VULKAN_APP_GPU_H
#include <functional>
#include <string>
#include <vector>

#include "tandem/tandem_vulkan.h"

// The functions that this application calls. The loader is opened at run time, nothing is linked.
// clang-format off
#define APP_VK_FUNCTIONS(X)                                                                         \
  X(AllocateCommandBuffers) X(AllocateMemory) X(BeginCommandBuffer) X(BindBufferMemory)             \
  X(CmdCopyBuffer) X(CmdPipelineBarrier) X(CmdResetQueryPool) X(CreateBuffer) X(CreateCommandPool)  \
  X(CreateDevice) X(CreateQueryPool) X(CreateSemaphore) X(DestroyBuffer) X(DestroyCommandPool)      \
  X(DestroyDevice) X(DestroyInstance) X(DestroyQueryPool) X(DestroySemaphore) X(DeviceWaitIdle)     \
  X(EndCommandBuffer) X(EnumeratePhysicalDevices) X(FreeMemory) X(GetBufferMemoryRequirements)      \
  X(GetDeviceQueue) X(GetPhysicalDeviceMemoryProperties) X(GetPhysicalDeviceProperties)             \
  X(GetPhysicalDeviceQueueFamilyProperties) X(GetQueryPoolResults) X(MapMemory) X(QueueSubmit)      \
  X(WaitSemaphores)
// clang-format on

void vk(VkResult result, const char* what);  // throws unless it is VK_SUCCESS

template <typename T>
T made(VkStructureType type, const void* next = nullptr) {
  T t{};
  t.sType = type;
  t.pNext = const_cast<void*>(next);
  return t;
}

struct Queue {
  VkQueue handle;
  uint32_t family, index;
  VkCommandPool pool;
};

struct Buffer {
  VkBuffer handle;
  VkDeviceSize bytes;
  float* mapped;  // of buffers for the host
};

struct Point {  // on a timeline
  VkSemaphore semaphore;
  uint64_t value;
};

// What is done last, first; also where a constructor fails half way.
struct Goodbyes : std::vector<std::function<void()>> {
  ~Goodbyes() {
    for (; !empty(); pop_back()) back()();
  }
};

// Owns all that it makes. The GPU has to be idle when it goes.
class Gpu {
 public:
  explicit Gpu(uint32_t index);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  Buffer buffer(VkDeviceSize bytes, VkBufferUsageFlags usage, bool for_host);
  VkSemaphore timeline();
  VkQueryPool stamps(uint32_t count);
  VkCommandBuffer commands(const Queue& queue);
  void begin(VkCommandBuffer cmd);
  // Ends and submits cmd, which waits for a point in these stages, and raises another.
  void submit(const Queue& queue, VkCommandBuffer cmd, Point wait, VkPipelineStageFlags stages,
              Point raise);
  void wait(Point point);

#define APP_VK_MEMBER(name) PFN_vk##name name = nullptr;
  APP_VK_FUNCTIONS(APP_VK_MEMBER)
  tandem_vk_device_desc desc = TANDEM_VK_DEVICE_DESC_INIT;  // all that Tandem gets of this
  VkDevice device = VK_NULL_HANDLE;
  VkPhysicalDeviceProperties properties{};
  Queue render{}, compute{};  // the same queue twice where there is only one
  bool timestamps = false;    // on the compute queue

 private:
  void choose_queues();

  VkPhysicalDeviceVulkan12Features vulkan12_{};
  VkPhysicalDeviceFeatures2 features_{};
  tandem_vk_feature_storage tandem_features_{};
  Goodbyes goodbyes_;
};

#endif
