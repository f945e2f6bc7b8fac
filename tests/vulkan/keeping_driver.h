// SPDX-License-Identifier: MIT OR Apache-2.0
// A driver that keeps the SPIR-V that it is given, and does nothing else: what the library hands to
// the driver of a device that is not there. Plans are made for that device, the VulkanDevice is one
// of Vulkan 1.3 with what every path needs.
#ifndef TANDEM_TESTS_VULKAN_KEEPING_DRIVER_H
#define TANDEM_TESTS_VULKAN_KEEPING_DRIVER_H
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "vulkan/device.h"

namespace keeping_driver {

using Words = std::vector<uint32_t>;

// Of all devices; one thread at a time.
struct Kept {
  std::vector<Words> modules;
  uint32_t push_bytes = 0;     // of the largest pipeline layout
  uint32_t uniform_bytes = 0;  // likewise, of its inline uniform blocks
};
inline Kept& kept() {
  static Kept k;
  return k;
}

namespace detail {

template <typename T>
void make(T) {}
template <typename T>
void make(T** handle) {
  static uintptr_t next = 0x1000;
  *handle = reinterpret_cast<T*>(++next);
}

template <typename Function>
struct Stub;
template <typename R, typename... A>
struct Stub<R(VKAPI_PTR*)(A...)> {
  static R VKAPI_CALL call(A... a) {
    (make(a), ...);
    return R();  // VK_SUCCESS is 0
  }
};

inline VkResult VKAPI_CALL keep_module(VkDevice, const VkShaderModuleCreateInfo* info,
                                       const VkAllocationCallbacks*, VkShaderModule* module) {
  kept().modules.emplace_back(info->pCode, info->pCode + info->codeSize / 4);
  make(module);
  return VK_SUCCESS;
}

// Each pipeline layout has one set, and each set layout is for one pipeline layout.
inline VkResult VKAPI_CALL keep_set_layout(VkDevice, const VkDescriptorSetLayoutCreateInfo* info,
                                           const VkAllocationCallbacks*,
                                           VkDescriptorSetLayout* layout) {
  uint32_t bytes = 0;
  for (uint32_t n = 0; n < info->bindingCount; ++n) bytes += info->pBindings[n].descriptorCount;
  kept().uniform_bytes = std::max(kept().uniform_bytes, bytes);
  make(layout);
  return VK_SUCCESS;
}

inline VkResult VKAPI_CALL keep_layout(VkDevice, const VkPipelineLayoutCreateInfo* info,
                                       const VkAllocationCallbacks*, VkPipelineLayout* layout) {
  for (uint32_t n = 0; n < info->pushConstantRangeCount; ++n) {
    const VkPushConstantRange& range = info->pPushConstantRanges[n];
    kept().push_bytes = std::max(kept().push_bytes, range.offset + range.size);
  }
  make(layout);
  return VK_SUCCESS;
}

inline void VKAPI_CALL get_properties(VkPhysicalDevice, VkPhysicalDeviceProperties2* properties) {
  properties->properties.apiVersion = VK_API_VERSION_1_3;
  properties->properties.limits.maxPushConstantsSize = 128;
}

template <typename Function>
PFN_vkVoidFunction as_void(Function function) {
  return reinterpret_cast<PFN_vkVoidFunction>(function);
}

inline PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice, const char* name) {
  if (std::strcmp(name, "vkCreateShaderModule") == 0) return as_void(keep_module);
  if (std::strcmp(name, "vkCreatePipelineLayout") == 0) return as_void(keep_layout);
  if (std::strcmp(name, "vkCreateDescriptorSetLayout") == 0) return as_void(keep_set_layout);
#define TANDEM_STUB(used) \
  if (std::strcmp(name, "vk" #used) == 0) return as_void(Stub<PFN_vk##used>::call);
  TANDEM_VK_USED(TANDEM_STUB)
#undef TANDEM_STUB
  return nullptr;
}

inline PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance, const char* name) {
  if (std::strcmp(name, "vkGetDeviceProcAddr") == 0) return as_void(device_proc);
  if (std::strcmp(name, "vkGetPhysicalDeviceProperties2") == 0) return as_void(get_properties);
#define TANDEM_STUB(used) \
  if (std::strcmp(name, "vk" #used) == 0) return as_void(Stub<PFN_vk##used>::call);
  TANDEM_STUB(GetPhysicalDeviceFeatures2)
  TANDEM_STUB(EnumerateDeviceExtensionProperties)
#undef TANDEM_STUB
  return nullptr;
}

}  // namespace detail

// A device of this driver. It makes each pipeline once, as others do. Throws std::runtime_error.
inline std::unique_ptr<tandem::Device> open() {
  VkPhysicalDeviceVulkan13Features v13{};
  v13.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES;
  v13.inlineUniformBlock = VK_TRUE;
  VkPhysicalDeviceVulkan12Features v12{};
  v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  v12.pNext = &v13;
  v12.bufferDeviceAddress = VK_TRUE;
  VkPhysicalDeviceFeatures2 features{};
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  features.pNext = &v12;
  tandem_vk_device_desc desc = TANDEM_VK_DEVICE_DESC_INIT;
  desc.api_version = VK_API_VERSION_1_3;
  desc.gipa = detail::instance_proc;
  desc.features = &features;
  detail::make(&desc.instance);
  detail::make(&desc.gpu);
  detail::make(&desc.device);
  tandem::DeviceOptions options;
  options.threads = 1;
  std::unique_ptr<tandem::Device> device;
  const tandem::Status status = tandem::VulkanDevice::open(options, desc, &device);
  if (!status.ok()) throw std::runtime_error(status.message().c_str());
  return device;
}

}  // namespace keeping_driver
#endif
