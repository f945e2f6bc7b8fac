// SPDX-License-Identifier: MIT OR Apache-2.0
// What an application has to enable before it creates its VkDevice.
#include <cstring>
#include <new>

#include "device.h"

namespace tandem {
namespace {

// Listed wherever the GPU has it, even where Vulkan 1.3 has it in core: the application's instance may
// be of 1.2, and enabling a promoted extension is always allowed.
const char* const kExtensions[] = {kInlineUniformExtension};

struct Gpu {
  InstanceTable vk;
  uint32_t api_version;
  bool inline_uniform_extension;
};

Status inspect(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, VkPhysicalDevice physical,
               Gpu* gpu) {
  if (!instance) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "instance is VK_NULL_HANDLE");
  if (!physical) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "gpu is VK_NULL_HANDLE");
  if (!gipa) TANDEM_TRY(system_loader(&gipa));
  TANDEM_TRY(load_instance(gipa, instance, &gpu->vk));

  VkPhysicalDeviceProperties2 properties{};
  properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  gpu->vk.GetPhysicalDeviceProperties2(physical, &properties);
  gpu->api_version = properties.properties.apiVersion;
  const char* name = properties.properties.deviceName;
  if (gpu->api_version < VK_API_VERSION_1_2)
    return fail(TANDEM_ERROR_MISSING_FEATURE, "%s has Vulkan %u.%u, 1.2 is needed", name,
                VK_API_VERSION_MAJOR(gpu->api_version), VK_API_VERSION_MINOR(gpu->api_version));

  uint32_t count = 0;
  TANDEM_VK_TRY(gpu->vk.EnumerateDeviceExtensionProperties(physical, nullptr, &count, nullptr),
                "vkEnumerateDeviceExtensionProperties");
  std::vector<VkExtensionProperties> extensions(count);
  TANDEM_VK_TRY(
      gpu->vk.EnumerateDeviceExtensionProperties(physical, nullptr, &count, extensions.data()),
      "vkEnumerateDeviceExtensionProperties");
  gpu->inline_uniform_extension = false;
  for (uint32_t i = 0; i < count; ++i)
    if (std::strcmp(extensions[i].extensionName, kInlineUniformExtension) == 0)
      gpu->inline_uniform_extension = true;
  if (!gpu->inline_uniform_extension && gpu->api_version < VK_API_VERSION_1_3)
    return fail(TANDEM_ERROR_MISSING_FEATURE, "%s has neither Vulkan 1.3 nor %s", name,
                kInlineUniformExtension);

  VkPhysicalDeviceBufferDeviceAddressFeatures address{};
  address.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES;
  VkPhysicalDeviceInlineUniformBlockFeatures uniform{};
  uniform.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_FEATURES;
  address.pNext = &uniform;
  VkPhysicalDeviceFeatures2 features{};
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  features.pNext = &address;
  gpu->vk.GetPhysicalDeviceFeatures2(physical, &features);
  if (!address.bufferDeviceAddress)
    return fail(TANDEM_ERROR_MISSING_FEATURE, "%s lacks bufferDeviceAddress", name);
  if (!uniform.inlineUniformBlock)
    return fail(TANDEM_ERROR_MISSING_FEATURE, "%s lacks inlineUniformBlock", name);
  return Status();
}

// Places a new feature struct behind the head of the chain.
class Storage {
 public:
  explicit Storage(tandem_vk_feature_storage* storage)
      : at_(reinterpret_cast<unsigned char*>(storage->opaque)) {}
  template <typename Struct>
  Struct* link(VkPhysicalDeviceFeatures2* chain, VkStructureType type) {
    static_assert(sizeof(Struct) % 8 == 0, "the next struct must be aligned");
    Struct* s = new (at_) Struct{};
    at_ += sizeof(Struct);
    s->sType = type;
    s->pNext = chain->pNext;
    chain->pNext = s;
    return s;
  }

 private:
  unsigned char* at_;
};

template <typename Struct>
Struct* in_chain(VkPhysicalDeviceFeatures2* chain, VkStructureType type) {
  return const_cast<Struct*>(find_struct<Struct>(chain->pNext, type));
}

// A feature stands either in its version's struct or in one of its own; both at once is an error of
// Vulkan's, so what the application chose is patched.
void enable(VkPhysicalDeviceFeatures2* chain, Storage storage) {
  const VkStructureType v12 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                        v13 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
                        own_address =
                            VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
                        own_uniform =
                            VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_FEATURES;
  using Address = VkPhysicalDeviceBufferDeviceAddressFeatures;
  using Uniform = VkPhysicalDeviceInlineUniformBlockFeatures;
  if (auto* s = in_chain<VkPhysicalDeviceVulkan12Features>(chain, v12))
    s->bufferDeviceAddress = VK_TRUE;
  else if (auto* own = in_chain<Address>(chain, own_address))
    own->bufferDeviceAddress = VK_TRUE;
  else
    storage.link<Address>(chain, own_address)->bufferDeviceAddress = VK_TRUE;

  if (auto* s = in_chain<VkPhysicalDeviceVulkan13Features>(chain, v13))
    s->inlineUniformBlock = VK_TRUE;
  else if (auto* own = in_chain<Uniform>(chain, own_uniform))
    own->inlineUniformBlock = VK_TRUE;
  else
    storage.link<Uniform>(chain, own_uniform)->inlineUniformBlock = VK_TRUE;
}

// Behind the C border.
template <typename Body>
tandem_status border(Body body) {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(Status(TANDEM_ERROR_OUT_OF_MEMORY, "out of host memory"));
  }
}

}  // namespace
}  // namespace tandem

using namespace tandem;

extern "C" tandem_status tandem_vk_required_extensions(PFN_vkGetInstanceProcAddr gipa,
                                                       VkInstance instance, VkPhysicalDevice gpu,
                                                       uint32_t* count, const char* const** names) {
  return border([&]() -> Status {
    if (!count) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "count is NULL");
    if (!names) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "names is NULL");
    Gpu found;
    TANDEM_TRY(inspect(gipa, instance, gpu, &found));
    *count = found.inline_uniform_extension ? 1 : 0;
    *names = kExtensions;
    return Status();
  });
}

extern "C" tandem_status tandem_vk_required_features(PFN_vkGetInstanceProcAddr gipa,
                                                     VkInstance instance, VkPhysicalDevice gpu,
                                                     VkPhysicalDeviceFeatures2* chain,
                                                     tandem_vk_feature_storage* storage) {
  return border([&]() -> Status {
    if (!chain) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "chain is NULL");
    if (!storage) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "storage is NULL");
    if (chain->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                  "chain->sType is %d, must be VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2",
                  int(chain->sType));
    Gpu found;
    TANDEM_TRY(inspect(gipa, instance, gpu, &found));
    enable(chain, Storage(storage));
    return Status();
  });
}
