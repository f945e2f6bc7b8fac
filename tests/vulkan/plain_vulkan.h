// SPDX-License-Identifier: MIT OR Apache-2.0
// A VkDevice as an application makes it, by plain Vulkan and without Tandem's own functions.
#ifndef TANDEM_TESTS_VULKAN_PLAIN_VULKAN_H
#define TANDEM_TESTS_VULKAN_PLAIN_VULKAN_H
#include "tandem/tandem_vulkan.h"

namespace plain_vulkan {

template <typename Function>
Function get(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, const char* name) {
  return reinterpret_cast<Function>(gipa(instance, name));
}

inline VkResult make_instance(PFN_vkGetInstanceProcAddr gipa, VkInstance* instance) {
  VkApplicationInfo app{};
  app.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  app.apiVersion = VK_API_VERSION_1_3;
  VkInstanceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pApplicationInfo = &app;
  return get<PFN_vkCreateInstance>(gipa, nullptr, "vkCreateInstance")(&info, nullptr, instance);
}

// VK_NULL_HANDLE where there is none.
inline VkPhysicalDevice first_gpu(PFN_vkGetInstanceProcAddr gipa, VkInstance instance) {
  VkPhysicalDevice gpu = VK_NULL_HANDLE;
  uint32_t count = 1;
  get<PFN_vkEnumeratePhysicalDevices>(gipa, instance, "vkEnumeratePhysicalDevices")(instance,
                                                                                    &count, &gpu);
  return gpu;
}

// desc: of a VkDevice that is now made, with a queue of a family, and set in it.
inline VkResult make_device(tandem_vk_device_desc* desc, uint32_t family = 0) {
  const float priority = 1;
  VkDeviceQueueCreateInfo queue{};
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueFamilyIndex = family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkDeviceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  info.pNext = desc->features;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = desc->extension_count;
  info.ppEnabledExtensionNames = desc->extensions;
  return get<PFN_vkCreateDevice>(desc->gipa, desc->instance, "vkCreateDevice")(
      desc->gpu, &info, nullptr, &desc->device);
}

inline tandem_vk_device_desc describe(PFN_vkGetInstanceProcAddr gipa, VkInstance instance,
                                      VkPhysicalDevice gpu,
                                      const VkPhysicalDeviceFeatures2* features,
                                      const char* const* extensions, uint32_t extension_count) {
  tandem_vk_device_desc desc = TANDEM_VK_DEVICE_DESC_INIT;
  desc.api_version = VK_API_VERSION_1_3;
  desc.instance = instance;
  desc.gpu = gpu;
  desc.gipa = gipa;
  desc.extension_count = extension_count;
  desc.extensions = extensions;
  desc.features = features;
  return desc;
}

}  // namespace plain_vulkan
#endif
