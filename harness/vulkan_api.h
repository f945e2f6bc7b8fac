// SPDX-License-Identifier: MIT OR Apache-2.0
// The Vulkan entry points that sessions use, in a table per device. A table of its own instead of
// Volk: the library has Volk inside, and two copies of Volk's globals in one static program would
// clash.
#ifndef TANDEM_HARNESS_VULKAN_API_H
#define TANDEM_HARNESS_VULKAN_API_H
#include <vulkan/vulkan_core.h>

#include <string>

namespace tandem::harness {

#define TANDEM_VK_INSTANCE_FUNCTIONS(X)       \
  X(vkDestroyInstance)                        \
  X(vkEnumeratePhysicalDevices)               \
  X(vkGetPhysicalDeviceProperties)            \
  X(vkGetPhysicalDeviceProperties2)           \
  X(vkGetPhysicalDeviceFeatures)              \
  X(vkGetPhysicalDeviceMemoryProperties)      \
  X(vkGetPhysicalDeviceQueueFamilyProperties) \
  X(vkCreateDevice)                           \
  X(vkGetDeviceProcAddr)

#define TANDEM_VK_DEVICE_FUNCTIONS(X) \
  X(vkDestroyDevice)                  \
  X(vkGetDeviceQueue)                 \
  X(vkDeviceWaitIdle)                 \
  X(vkCreateCommandPool)              \
  X(vkDestroyCommandPool)             \
  X(vkAllocateCommandBuffers)         \
  X(vkBeginCommandBuffer)             \
  X(vkEndCommandBuffer)               \
  X(vkQueueSubmit)                    \
  X(vkQueueBindSparse)                \
  X(vkCreateFence)                    \
  X(vkDestroyFence)                   \
  X(vkResetFences)                    \
  X(vkWaitForFences)                  \
  X(vkCreateQueryPool)                \
  X(vkDestroyQueryPool)               \
  X(vkGetQueryPoolResults)            \
  X(vkCmdResetQueryPool)              \
  X(vkCmdWriteTimestamp)              \
  X(vkCmdPipelineBarrier)             \
  X(vkCmdCopyBuffer)                  \
  X(vkCmdFillBuffer)                  \
  X(vkCreateBuffer)                   \
  X(vkDestroyBuffer)                  \
  X(vkGetBufferMemoryRequirements)    \
  X(vkGetBufferDeviceAddress)         \
  X(vkAllocateMemory)                 \
  X(vkFreeMemory)                     \
  X(vkBindBufferMemory)               \
  X(vkMapMemory)

// The loader of this machine, opened once and kept. gipa is null and reason says why when there is
// none.
struct VulkanLoader {
  PFN_vkGetInstanceProcAddr gipa = nullptr;
  std::string reason;
};
const VulkanLoader& vulkan_loader();

struct VulkanApi {
#define TANDEM_VK_MEMBER(name) PFN_##name name = nullptr;
  TANDEM_VK_INSTANCE_FUNCTIONS(TANDEM_VK_MEMBER)
  TANDEM_VK_DEVICE_FUNCTIONS(TANDEM_VK_MEMBER)
#undef TANDEM_VK_MEMBER
  PFN_vkCreateDebugUtilsMessengerEXT vkCreateDebugUtilsMessengerEXT = nullptr;  // null: no layer
  PFN_vkDestroyDebugUtilsMessengerEXT vkDestroyDebugUtilsMessengerEXT = nullptr;
  void load_instance(VkInstance instance);
  void load_device(VkDevice device);
};

// "VK_ERROR_OUT_OF_DEVICE_MEMORY", or the number.
std::string vk_result_name(VkResult result);
// Throws Error unless the result is VK_SUCCESS.
void vk(VkResult result, const char* what);

// A Vulkan struct with its type, everything else zero.
template <typename T>
T made(VkStructureType type, void* next = nullptr) {
  T t{};
  t.sType = type;
  t.pNext = next;
  return t;
}

// An instance with a debug messenger that prints and counts what validation layers say.
struct VulkanInstance {
  VulkanApi api;
  VkInstance handle = VK_NULL_HANDLE;
  VkDebugUtilsMessengerEXT messenger = VK_NULL_HANDLE;
  uint32_t api_version = 0;
  int messages = 0;
  VulkanInstance();  // throws Error, NO_BACKEND without a loader or driver
  ~VulkanInstance();
  VulkanInstance(const VulkanInstance&) = delete;
  VulkanInstance& operator=(const VulkanInstance&) = delete;
};

}  // namespace tandem::harness
#endif
