// SPDX-License-Identifier: MIT OR Apache-2.0
// What an application has to enable before it creates its VkDevice.
#include <cstring>

#include "api/border.h"
#include "device.h"

namespace tandem {
namespace {

// Listed if the GPU has them, even where Vulkan 1.3 has them in core. The application's instance
// may be of 1.2, and enabling a promoted extension is always allowed.
enum Extension {
  kInlineUniform,
  kSubgroupSize,
  kMaintenance4,
  kCoopmat,
  kCoopmat2,
  kBfloat16,
  kExtensionCount
};
constexpr const char* kExtensions[kExtensionCount] = {kInlineUniformExtension,
                                                      kSubgroupSizeExtension,
                                                      VK_KHR_MAINTENANCE_4_EXTENSION_NAME,
                                                      VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME,
                                                      VK_NV_COOPERATIVE_MATRIX_2_EXTENSION_NAME,
                                                      VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME};

// Names of every subset of the extensions, so that the returned arrays live as long as the program.
struct Subsets {
  const char* names[1 << kExtensionCount][kExtensionCount] = {};
  Subsets() {
    for (uint32_t set = 0; set < 1u << kExtensionCount; ++set)
      for (uint32_t n = 0, at = 0; n < kExtensionCount; ++n)
        if (set >> n & 1) names[set][at++] = kExtensions[n];
  }
};

// Optional features, besides the two that every path needs. Those that the GPU has are enabled.
struct Optional {
  VkPhysicalDevice16BitStorageFeatures storage16{};
  VkPhysicalDeviceShaderFloat16Int8Features float16{};
  VkPhysicalDeviceVulkanMemoryModelFeatures memory_model{};
  VkPhysicalDeviceSubgroupSizeControlFeatures sizes{};
  VkPhysicalDeviceMaintenance4Features maintenance4{};
  VkPhysicalDeviceCooperativeMatrixFeaturesKHR coopmat{};
  VkPhysicalDeviceCooperativeMatrix2FeaturesNV coopmat2{};
  VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16{};
};

struct Gpu {
  InstanceTable vk;
  uint32_t api_version;
  uint32_t extensions;  // a bit for each Extension that the GPU has
  Optional has;
  bool extension(Extension e) const { return (extensions >> e & 1) != 0; }
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
  Vec<VkExtensionProperties> extensions(count);
  TANDEM_VK_TRY(
      gpu->vk.EnumerateDeviceExtensionProperties(physical, nullptr, &count, extensions.data()),
      "vkEnumerateDeviceExtensionProperties");
  gpu->extensions = 0;
  for (uint32_t i = 0; i < count; ++i)
    for (uint32_t n = 0; n < kExtensionCount; ++n)
      if (std::strcmp(extensions[i].extensionName, kExtensions[n]) == 0) gpu->extensions |= 1u << n;
  if (!gpu->extension(kInlineUniform) && gpu->api_version < VK_API_VERSION_1_3)
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
  const auto ask = [&](auto* s, VkStructureType type, bool known) {
    s->sType = type;
    if (!known) return;
    s->pNext = features.pNext;
    features.pNext = s;
  };
  Optional& has = gpu->has;
  ask(&has.storage16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES, true);
  ask(&has.float16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, true);
  ask(&has.memory_model, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES, true);
  ask(&has.sizes, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
      gpu->api_version >= VK_API_VERSION_1_3 || gpu->extension(kSubgroupSize));
  ask(&has.maintenance4, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
      gpu->api_version >= VK_API_VERSION_1_3 || gpu->extension(kMaintenance4));
  ask(&has.coopmat, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
      gpu->extension(kCoopmat));
  ask(&has.coopmat2, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV,
      gpu->extension(kCoopmat2));
  ask(&has.bfloat16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
      gpu->extension(kBfloat16));
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

// A feature is either in its version's struct or in its own struct. Both at once violate Vulkan's
// rules, so the struct that the application has is patched.
class Chain {
 public:
  Chain(VkPhysicalDeviceFeatures2* chain, tandem_vk_feature_storage* storage)
      : chain_(chain), storage_(storage) {}
  template <typename Own>
  void enable(VkStructureType own, VkBool32 Own::*member) {
    auto* s = in_chain<Own>(chain_, own);
    (s ? s : storage_.link<Own>(chain_, own))->*member = VK_TRUE;
  }
  template <typename Version, typename Own>
  void enable(VkStructureType version, VkBool32 Version::*in_version, VkStructureType own,
              VkBool32 Own::*member) {
    if (auto* s = in_chain<Version>(chain_, version))
      s->*in_version = VK_TRUE;
    else
      enable(own, member);
  }

 private:
  VkPhysicalDeviceFeatures2* chain_;
  Storage storage_;
};

void enable(const Optional& has, Chain features) {
  using V11 = VkPhysicalDeviceVulkan11Features;
  using V12 = VkPhysicalDeviceVulkan12Features;
  using V13 = VkPhysicalDeviceVulkan13Features;
  using Address = VkPhysicalDeviceBufferDeviceAddressFeatures;
  using Uniform = VkPhysicalDeviceInlineUniformBlockFeatures;
  using Storage16 = VkPhysicalDevice16BitStorageFeatures;
  using Float16 = VkPhysicalDeviceShaderFloat16Int8Features;
  using Model = VkPhysicalDeviceVulkanMemoryModelFeatures;
  using Sizes = VkPhysicalDeviceSubgroupSizeControlFeatures;
  using Coopmat = VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
  using Coopmat2 = VkPhysicalDeviceCooperativeMatrix2FeaturesNV;
  using Bfloat16 = VkPhysicalDeviceShaderBfloat16FeaturesKHR;
  static_assert(sizeof(Address) + sizeof(Uniform) + sizeof(Optional) <=
                sizeof(tandem_vk_feature_storage));
  const VkStructureType v11 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                        v12 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                        v13 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES;
  features.enable(v12, &V12::bufferDeviceAddress,
                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
                  &Address::bufferDeviceAddress);
  features.enable(v13, &V13::inlineUniformBlock,
                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_FEATURES,
                  &Uniform::inlineUniformBlock);
  if (has.storage16.storageBuffer16BitAccess)
    features.enable(v11, &V11::storageBuffer16BitAccess, has.storage16.sType,
                    &Storage16::storageBuffer16BitAccess);
  if (has.float16.shaderFloat16)
    features.enable(v12, &V12::shaderFloat16, has.float16.sType, &Float16::shaderFloat16);
  // Without device scope, the memory model would forbid every kernel's atomics.
  if (has.memory_model.vulkanMemoryModel && has.memory_model.vulkanMemoryModelDeviceScope) {
    features.enable(v12, &V12::vulkanMemoryModel, has.memory_model.sType,
                    &Model::vulkanMemoryModel);
    features.enable(v12, &V12::vulkanMemoryModelDeviceScope, has.memory_model.sType,
                    &Model::vulkanMemoryModelDeviceScope);
  }
  if (has.sizes.subgroupSizeControl)
    features.enable(v13, &V13::subgroupSizeControl, has.sizes.sType, &Sizes::subgroupSizeControl);
  if (has.sizes.computeFullSubgroups)
    features.enable(v13, &V13::computeFullSubgroups, has.sizes.sType, &Sizes::computeFullSubgroups);
  if (has.maintenance4.maintenance4)
    features.enable(v13, &V13::maintenance4, has.maintenance4.sType,
                    &VkPhysicalDeviceMaintenance4Features::maintenance4);
  const auto own = [&](const auto& s, auto member) {
    if (s.*member) features.enable(s.sType, member);
  };
  own(has.coopmat, &Coopmat::cooperativeMatrix);
  own(has.coopmat2, &Coopmat2::cooperativeMatrixReductions);
  own(has.coopmat2, &Coopmat2::cooperativeMatrixConversions);
  own(has.coopmat2, &Coopmat2::cooperativeMatrixPerElementOperations);
  own(has.coopmat2, &Coopmat2::cooperativeMatrixTensorAddressing);
  own(has.bfloat16, &Bfloat16::shaderBFloat16Type);
  own(has.bfloat16, &Bfloat16::shaderBFloat16CooperativeMatrix);
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
    static const Subsets subsets;
    *count = 0;
    for (uint32_t n = 0; n < kExtensionCount; ++n) *count += found.extension(Extension(n));
    *names = subsets.names[found.extensions];
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
    enable(found.has, Chain(chain, storage));
    return Status();
  });
}
