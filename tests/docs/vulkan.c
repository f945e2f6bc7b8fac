/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What stands around the block that uses Vulkan: an instance, a GPU, memory and a command buffer,
 * as an application has them. The block makes the device and records a forward and a backward. */
#define VK_NO_PROTOTYPES
#define VOLK_IMPLEMENTATION
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem/tandem_vulkan.h>
#include <volk.h>

enum { HEADS = 2, S = 16, D = 8, N = HEADS * S * D, ROWS = HEADS * S };

static void check(tandem_status status) {
  if (status != TANDEM_OK) fprintf(stderr, "%s\n", tandem_last_message()), exit(1);
}
static void good(VkResult result, const char* what) {
  if (result != VK_SUCCESS) fprintf(stderr, "%s: VkResult %d\n", what, (int)result), exit(1);
}

static uint32_t family; /* with compute */

/* The application's own vkCreateDevice, with what Tandem asks for. */
static VkDevice create_device(VkPhysicalDevice gpu, const VkPhysicalDeviceFeatures2* features,
                              uint32_t extension_count, const char* const* extensions) {
  VkQueueFamilyProperties families[16];
  uint32_t count = 16;
  const float priority = 1;
  VkDevice device;
  vkGetPhysicalDeviceQueueFamilyProperties(gpu, &count, families);
  while (!(families[family].queueFlags & VK_QUEUE_COMPUTE_BIT)) ++family;
  const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                         .queueFamilyIndex = family,
                                         .queueCount = 1,
                                         .pQueuePriorities = &priority};
  const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                   .pNext = features,
                                   .queueCreateInfoCount = 1,
                                   .pQueueCreateInfos = &queue,
                                   .enabledExtensionCount = extension_count,
                                   .ppEnabledExtensionNames = extensions};
  good(vkCreateDevice(gpu, &info, NULL, &device), "vkCreateDevice");
  volkLoadDevice(device);
  return device;
}

/* One buffer in memory that the host sees. */
static VkBuffer create_buffer(VkPhysicalDevice gpu, VkDevice device, VkDeviceSize bytes,
                              float** mapped) {
  const VkBufferCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
      .size = bytes,
      .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT};
  const VkMemoryPropertyFlags wanted =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                           .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
  VkMemoryRequirements needs;
  VkPhysicalDeviceMemoryProperties memory;
  VkDeviceMemory allocated;
  VkBuffer buffer;
  uint32_t type = 0;
  good(vkCreateBuffer(device, &info, NULL, &buffer), "vkCreateBuffer");
  vkGetBufferMemoryRequirements(device, buffer, &needs);
  vkGetPhysicalDeviceMemoryProperties(gpu, &memory);
  while (!(needs.memoryTypeBits >> type & 1) ||
         (memory.memoryTypes[type].propertyFlags & wanted) != wanted)
    ++type;
  const VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                         .pNext = &flags,
                                         .allocationSize = needs.size,
                                         .memoryTypeIndex = type};
  good(vkAllocateMemory(device, &allocate, NULL, &allocated), "vkAllocateMemory");
  good(vkBindBufferMemory(device, buffer, allocated, 0), "vkBindBufferMemory");
  good(vkMapMemory(device, allocated, 0, bytes, 0, (void**)mapped), "vkMapMemory");
  return buffer;
}

static VkCommandBuffer begin_commands(VkDevice device) {
  const VkCommandPoolCreateInfo pool_info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                             .queueFamilyIndex = family};
  const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                      .commandBufferCount = 1};
  VkCommandBuffer cmd;
  good(vkCreateCommandPool(device, &pool_info, NULL, &info.commandPool), "vkCreateCommandPool");
  good(vkAllocateCommandBuffers(device, &info, &cmd), "vkAllocateCommandBuffers");
  good(vkBeginCommandBuffer(cmd, &begin), "vkBeginCommandBuffer");
  return cmd;
}

static void submit_and_wait(VkDevice device, VkCommandBuffer cmd) {
  const VkSubmitInfo info = {
      .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &cmd};
  const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                   .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                                   .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
  VkQueue queue;
  vkCmdPipelineBarrier(cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                       &barrier, 0, NULL, 0, NULL);
  good(vkEndCommandBuffer(cmd), "vkEndCommandBuffer");
  vkGetDeviceQueue(device, family, 0, &queue);
  good(vkQueueSubmit(queue, 1, &info, VK_NULL_HANDLE), "vkQueueSubmit");
  good(vkQueueWaitIdle(queue), "vkQueueWaitIdle");
}

int main(void) {
  const VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                 .apiVersion = VK_API_VERSION_1_2};
  const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                     .pApplicationInfo = &app};
  VkInstance instance;
  VkPhysicalDevice gpu;
  uint32_t count = 1;
  good(volkInitialize(), "volkInitialize");
  good(vkCreateInstance(&info, NULL, &instance), "vkCreateInstance");
  volkLoadInstance(instance);
  vkEnumeratePhysicalDevices(instance, &count, &gpu);
  if (count == 0) return puts("no Vulkan device"), 77;
#include "block.inc"
  for (int i = 0; i < N; ++i) { /* o averages numbers of v, which are 0 to 6/7 */
    const float o = data[3 * N + i];
    if (!(o >= 0 && o <= 1)) return fprintf(stderr, "o[%d] is %g\n", i, o), 1;
  }
  printf("o %g, d_q %g\n", data[4 * N - 1], data[6 * N - 1]);
  return 0;
}
