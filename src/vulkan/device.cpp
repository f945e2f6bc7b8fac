// SPDX-License-Identifier: MIT OR Apache-2.0
// Opens a device: checks the description, loads functions, reads the capabilities that planning
// needs.
#include "device.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/structs.h"
#include "base/usable_threads.h"
#include "plan/planner.h"
#include "probe.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace tandem {

template <>
inline constexpr size_t kFirstSize<tandem_vk_device_desc> = offsetof(tandem_vk_device_desc,
                                                                     allocator);

Status vk_status(VkResult result, const char* what) {
  switch (result) {
    case VK_SUCCESS:
      return Status();
    case VK_ERROR_DEVICE_LOST:
      return fail(TANDEM_ERROR_DEVICE_LOST, "%s: the device is lost", what);
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return fail(TANDEM_ERROR_OUT_OF_MEMORY, "%s: out of host memory", what);
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_OUT_OF_POOL_MEMORY:
    case VK_ERROR_FRAGMENTED_POOL:
      return fail(TANDEM_ERROR_DEVICE_OUT_OF_MEMORY, "%s: out of device memory (VkResult %d)", what,
                  int(result));
    default:
      return fail(TANDEM_ERROR_BACKEND, "%s failed with VkResult %d", what, int(result));
  }
}

Status system_loader(PFN_vkGetInstanceProcAddr* gipa) {
#if defined(_WIN32)
  // Not from the current folder, where any program may have put a file.
  HMODULE module = LoadLibraryExW(L"vulkan-1.dll", nullptr, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
  if (!module)
    return fail(TANDEM_ERROR_NO_BACKEND, "no Vulkan loader: vulkan-1.dll cannot be opened");
  void* symbol = reinterpret_cast<void*>(GetProcAddress(module, "vkGetInstanceProcAddr"));
#else
  void* module = nullptr;
  for (const char* name :
       {"libvulkan.so.1", "libvulkan.so", "libvulkan.1.dylib", "libMoltenVK.dylib"})
    if ((module = dlopen(name, RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
  if (!module)
    return fail(TANDEM_ERROR_NO_BACKEND, "no Vulkan loader: libvulkan.so.1 cannot be opened");
  void* symbol = dlsym(module, "vkGetInstanceProcAddr");
#endif
  if (!symbol)
    return fail(TANDEM_ERROR_NO_BACKEND, "the Vulkan loader has no vkGetInstanceProcAddr");
  *gipa = reinterpret_cast<PFN_vkGetInstanceProcAddr>(symbol);
  return Status();
}

Status load_instance(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, InstanceTable* table) {
#define TANDEM_LOAD(name)                                                    \
  table->name = reinterpret_cast<PFN_vk##name>(gipa(instance, "vk" #name));  \
  if (!table->name)                                                          \
    return fail(TANDEM_ERROR_MISSING_FEATURE, "the instance has no vk" #name \
                                              " (Vulkan 1.2 is "             \
                                              "needed)");
  TANDEM_LOAD(GetDeviceProcAddr)
  TANDEM_LOAD(GetPhysicalDeviceProperties2)
  TANDEM_LOAD(GetPhysicalDeviceFeatures2)
  TANDEM_LOAD(EnumerateDeviceExtensionProperties)
#undef TANDEM_LOAD
  return Status();
}

namespace {

// Extensions and features that the application enabled. All are off unless it lists them.
class Enabled {
 public:
  explicit Enabled(const tandem_vk_device_desc& desc) : desc_(desc) {
    if (desc.features) chain_ = desc.features->pNext;
  }
  bool extension(const char* name) const {
    for (uint32_t i = 0; i < desc_.extension_count; ++i)
      if (std::strcmp(desc_.extensions[i], name) == 0) return true;
    return false;
  }
  template <typename Struct>
  bool feature(VkStructureType type, VkBool32 Struct::*member) const {
    const Struct* s = find_struct<Struct>(chain_, type);
    return s && s->*member;
  }
  bool core(VkBool32 VkPhysicalDeviceFeatures::*member) const {
    return desc_.features && desc_.features->features.*member;
  }

 private:
  const tandem_vk_device_desc& desc_;
  const void* chain_ = nullptr;
};

void read_features(const Enabled& on, uint32_t version, Caps* caps) {
  using V11 = VkPhysicalDeviceVulkan11Features;
  using V12 = VkPhysicalDeviceVulkan12Features;
  using V13 = VkPhysicalDeviceVulkan13Features;
  const VkStructureType v11 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                        v12 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                        v13 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES;
  caps->buffer_address =
      on.feature(v12, &V12::bufferDeviceAddress) ||
      on.feature(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
                 &VkPhysicalDeviceBufferDeviceAddressFeatures::bufferDeviceAddress);
  caps->inline_uniform =
      (version >= VK_API_VERSION_1_3 || on.extension(kInlineUniformExtension)) &&
      (on.feature(v13, &V13::inlineUniformBlock) ||
       on.feature(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_FEATURES,
                  &VkPhysicalDeviceInlineUniformBlockFeatures::inlineUniformBlock));
  caps->storage16 = on.feature(v11, &V11::storageBuffer16BitAccess) ||
                    on.feature(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES,
                               &VkPhysicalDevice16BitStorageFeatures::storageBuffer16BitAccess);
  caps->float16 = on.feature(v12, &V12::shaderFloat16) ||
                  on.feature(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES,
                             &VkPhysicalDeviceShaderFloat16Int8Features::shaderFloat16);
#ifdef VK_KHR_shader_bfloat16
  caps->bfloat16 = on.extension(VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME) &&
                   on.feature(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
                              &VkPhysicalDeviceShaderBfloat16FeaturesKHR::shaderBFloat16Type);
#endif
  caps->bfloat16_coopmat =
      caps->bfloat16 &&
      on.feature(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
                 &VkPhysicalDeviceShaderBfloat16FeaturesKHR::shaderBFloat16CooperativeMatrix);
  caps->int64 = on.core(&VkPhysicalDeviceFeatures::shaderInt64);
  using Model = VkPhysicalDeviceVulkanMemoryModelFeatures;
  const VkStructureType model = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES;
  const bool any_scope = on.feature(v12, &V12::vulkanMemoryModel) ||
                         on.feature(model, &Model::vulkanMemoryModel),
             device_scope = on.feature(v12, &V12::vulkanMemoryModelDeviceScope) ||
                            on.feature(model, &Model::vulkanMemoryModelDeviceScope);
  caps->memory_model = any_scope && device_scope;
  caps->no_device_scope = any_scope && !device_scope;
  using Sizes = VkPhysicalDeviceSubgroupSizeControlFeatures;
  const VkStructureType sizes = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES;
  if (version >= VK_API_VERSION_1_3 || on.extension(kSubgroupSizeExtension)) {
    caps->subgroup_control = on.feature(v13, &V13::subgroupSizeControl) ||
                             on.feature(sizes, &Sizes::subgroupSizeControl);
    caps->full_subgroups = on.feature(v13, &V13::computeFullSubgroups) ||
                           on.feature(sizes, &Sizes::computeFullSubgroups);
  }
  caps->maintenance4 =
      (version >= VK_API_VERSION_1_3 || on.extension(VK_KHR_MAINTENANCE_4_EXTENSION_NAME)) &&
      (on.feature(v13, &V13::maintenance4) ||
       on.feature(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
                  &VkPhysicalDeviceMaintenance4Features::maintenance4));
  using Nv = VkPhysicalDeviceCooperativeMatrix2FeaturesNV;
  const VkStructureType nv = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV;
  caps->coopmat = on.extension(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME) &&
                  on.feature(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
                             &VkPhysicalDeviceCooperativeMatrixFeaturesKHR::cooperativeMatrix);
  if (caps->coopmat && on.extension(VK_NV_COOPERATIVE_MATRIX_2_EXTENSION_NAME)) {
    caps->coopmat_reductions = on.feature(nv, &Nv::cooperativeMatrixReductions);
    caps->coopmat_conversions = on.feature(nv, &Nv::cooperativeMatrixConversions);
    caps->coopmat_per_element = on.feature(nv, &Nv::cooperativeMatrixPerElementOperations);
    caps->coopmat_tensors = on.feature(nv, &Nv::cooperativeMatrixTensorAddressing);
  }
}

// The entries of the device's cooperative-matrix list that Caps has. Some drivers crash when the
// list is read, so it is not read if both matrix paths are disabled.
Status read_matrices(PFN_vkGetInstanceProcAddr gipa, const tandem_vk_device_desc& desc,
                     Caps* caps) {
  const auto off = [&](const char* path) {
    return std::find(caps->disabled.begin(), caps->disabled.end(), path) != caps->disabled.end();
  };
  if (!caps->coopmat || (off("vulkan.coopmat") && off("vulkan.coopmat2"))) return Status();
  const auto list = reinterpret_cast<PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR>(
      gipa(desc.instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
  if (!list) return Status();
  uint32_t count = 0;
  const char* const what = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
  TANDEM_VK_TRY(list(desc.gpu, &count, nullptr), what);
  VkCooperativeMatrixPropertiesKHR one{};
  one.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
  Vec<VkCooperativeMatrixPropertiesKHR> all(count, one);
  TANDEM_VK_TRY(list(desc.gpu, &count, all.data()), what);
  all.resize(std::min<size_t>(all.size(), count));
  // A type of matrix has to be one of an entry, be it of another entry than the product's.
  const auto f16_sums = [&](const VkCooperativeMatrixPropertiesKHR& of) {
    return std::any_of(all.begin(), all.end(), [&](const VkCooperativeMatrixPropertiesKHR& m) {
      return m.scope == of.scope && m.MSize == of.MSize && m.NSize == of.NSize &&
             (m.CType == VK_COMPONENT_TYPE_FLOAT16_KHR ||
              m.ResultType == VK_COMPONENT_TYPE_FLOAT16_KHR);
    });
  };
  for (const VkCooperativeMatrixPropertiesKHR& m : all) {
    const bool half = m.AType == VK_COMPONENT_TYPE_FLOAT16_KHR,
               brain = m.AType == VK_COMPONENT_TYPE_BFLOAT16_KHR;
    if (m.scope != VK_SCOPE_SUBGROUP_KHR || m.BType != m.AType || !(half || brain) ||
        m.CType != VK_COMPONENT_TYPE_FLOAT32_KHR || m.ResultType != VK_COMPONENT_TYPE_FLOAT32_KHR ||
        m.saturatingAccumulation)
      continue;
    const char* operands = half ? "f16" : "bf16";
    caps->matrices.push_back(
        {int(m.MSize), int(m.NSize), int(m.KSize), operands, false, f16_sums(m)});
  }
  return Status();
}

// Compute units, if a vendor's extension reports them. The properties of an extension can be read
// if the GPU has it, enabled or not.
uint32_t read_cores(const InstanceTable& vk, VkPhysicalDevice gpu) {
  uint32_t count = 0;
  if (vk.EnumerateDeviceExtensionProperties(gpu, nullptr, &count, nullptr) != VK_SUCCESS) return 0;
  Vec<VkExtensionProperties> extensions(count);
  if (vk.EnumerateDeviceExtensionProperties(gpu, nullptr, &count, extensions.data()) != VK_SUCCESS)
    return 0;
  auto has = [&](const char* name) {
    for (uint32_t i = 0; i < count; ++i)
      if (std::strcmp(extensions[i].extensionName, name) == 0) return true;
    return false;
  };
  VkPhysicalDeviceProperties2 properties{};
  properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  if (has(VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME)) {
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV sm{};
    sm.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV;
    properties.pNext = &sm;
    vk.GetPhysicalDeviceProperties2(gpu, &properties);
    return sm.shaderSMCount;
  }
  if (has(VK_AMD_SHADER_CORE_PROPERTIES_2_EXTENSION_NAME)) {
    VkPhysicalDeviceShaderCoreProperties2AMD cu{};
    cu.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_2_AMD;
    properties.pNext = &cu;
    vk.GetPhysicalDeviceProperties2(gpu, &properties);
    return cu.activeComputeUnitCount;
  }
  return 0;
}

// Threads that make the pipelines of a plan: as many as a backward on a matrix path has pipelines,
// where there are processors for them.
unsigned default_threads() { return std::min(8u, usable_threads()); }

Status check_desc(const tandem_vk_device_desc* given, tandem_vk_device_desc* desc) {
  TANDEM_TRY(read_struct("desc", given, desc));
  if (desc->next) return fail(TANDEM_ERROR_INVALID_STRUCT, "desc.next is not NULL");
  if (desc->reserved != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.reserved is %u, must be 0", desc->reserved);
  if (desc->api_version < VK_API_VERSION_1_2)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.api_version is %u.%u, at least 1.2 is needed",
                VK_API_VERSION_MAJOR(desc->api_version), VK_API_VERSION_MINOR(desc->api_version));
  if (!desc->instance)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.instance is VK_NULL_HANDLE");
  if (!desc->gpu) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.gpu is VK_NULL_HANDLE");
  if (!desc->device) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.device is VK_NULL_HANDLE");
  if (desc->extension_count > 0 && !desc->extensions)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.extensions is NULL, extension_count is %u",
                desc->extension_count);
  for (uint32_t i = 0; i < desc->extension_count; ++i)
    if (!desc->extensions[i])
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.extensions[%u] is NULL", i);
  if (desc->features && desc->features->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "desc.features->sType is %d, must be VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2",
                int(desc->features->sType));
  if (desc->reserved2 != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.reserved2 is %u, must be 0", desc->reserved2);
  if (desc->reserved3 != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.reserved3 is %u, must be 0", desc->reserved3);
  const VkAllocationCallbacks* a = desc->allocator;
  if (a && !(a->pfnAllocation && a->pfnReallocation && a->pfnFree))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "desc.allocator lacks pfnAllocation, pfnReallocation or pfnFree");
  if (desc->instance_extension_count > 0 && !desc->instance_extensions)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "desc.instance_extensions is NULL, instance_extension_count is %u",
                desc->instance_extension_count);
  for (uint32_t i = 0; i < desc->instance_extension_count; ++i)
    if (!desc->instance_extensions[i])
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc.instance_extensions[%u] is NULL", i);
  return Status();
}

bool debug_utils_enabled(const tandem_vk_device_desc& desc) {
  for (uint32_t i = 0; i < desc.instance_extension_count; ++i)
    if (std::strcmp(desc.instance_extensions[i], VK_EXT_DEBUG_UTILS_EXTENSION_NAME) == 0)
      return true;
  return false;
}

// Finds missing functions of a driver that advertises them, before a call jumps to address 0.
Status check_table(const VkTable& vk) {
#define TANDEM_USED(name)                     \
  if (!vk.vk##name)                           \
    return fail(TANDEM_ERROR_MISSING_FEATURE, \
                "the device has no vk" #name ": its driver, or desc.gipa, leaves it out");
  TANDEM_VK_USED(TANDEM_USED)
#undef TANDEM_USED
  return Status();
}

}  // namespace

Status VulkanDevice::open(const DeviceOptions& options, const tandem_vk_device_desc& desc,
                          std::unique_ptr<Device>* device) {
  PFN_vkGetInstanceProcAddr gipa = desc.gipa;
  if (!gipa) TANDEM_TRY(system_loader(&gipa));
  InstanceTable instance;
  TANDEM_TRY(load_instance(gipa, desc.instance, &instance));

  VkPhysicalDeviceDriverProperties driver{};
  driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
  VkPhysicalDeviceSubgroupProperties subgroup{};
  subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES;
  subgroup.pNext = &driver;
  VkPhysicalDeviceFloatControlsProperties floats{};
  floats.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES;
  floats.pNext = &subgroup;
  VkPhysicalDeviceSubgroupSizeControlProperties sizes{};
  sizes.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES;
  VkPhysicalDeviceVulkan13Properties v13{};
  v13.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES;
  VkPhysicalDeviceCooperativeMatrixPropertiesKHR coopmat{};
  coopmat.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
  VkPhysicalDeviceProperties2 properties{};
  properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  properties.pNext = &floats;
  instance.GetPhysicalDeviceProperties2(desc.gpu, &properties);
  const VkPhysicalDeviceProperties& base = properties.properties;
  const VkPhysicalDeviceLimits& limits = base.limits;
  const uint32_t version = std::min(base.apiVersion, desc.api_version);
  if (version < VK_API_VERSION_1_2)
    return fail(TANDEM_ERROR_MISSING_FEATURE, "%s has Vulkan %u.%u, 1.2 is needed", base.deviceName,
                VK_API_VERSION_MAJOR(base.apiVersion), VK_API_VERSION_MINOR(base.apiVersion));
  const Enabled enabled(desc);
  // A second call, with more structs.
  const auto ask = [&](auto* s, bool known) {
    if (!known) return;
    s->pNext = properties.pNext;
    properties.pNext = s;
  };
  ask(&sizes, version >= VK_API_VERSION_1_3 || enabled.extension(kSubgroupSizeExtension));
  ask(&v13, version >= VK_API_VERSION_1_3);
  ask(&coopmat, enabled.extension(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME));
  instance.GetPhysicalDeviceProperties2(desc.gpu, &properties);

  std::unique_ptr<VulkanDevice> made(new VulkanDevice);
  made->log_ = options.log;
  Caps& caps = made->caps_;
  caps.backend = Backend::vulkan;
  caps.disabled = options.disabled;
  caps.name = base.deviceName;
  caps.driver = text("%s %s", driver.driverName, driver.driverInfo);
  caps.vendor_id = base.vendorID;
  caps.device_id = base.deviceID;
  caps.driver_id = uint32_t(driver.driverID);
  caps.driver_version = base.driverVersion;
  caps.api_version = version;
  caps.shared_bytes = limits.maxComputeSharedMemorySize;
  caps.max_invocations =
      std::min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0]);
  caps.max_groups_x = limits.maxComputeWorkGroupCount[0];
  caps.max_groups_y = limits.maxComputeWorkGroupCount[1];
  caps.push_bytes = limits.maxPushConstantsSize;
  caps.subgroup_size = subgroup.subgroupSize;
  caps.subgroup_min = sizes.minSubgroupSize ? sizes.minSubgroupSize : subgroup.subgroupSize;
  caps.subgroup_max = sizes.maxSubgroupSize ? sizes.maxSubgroupSize : subgroup.subgroupSize;
  caps.subgroup_pin = (sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
  caps.max_subgroups = sizes.maxComputeWorkgroupSubgroups;
  caps.subgroup_votes = (subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0 &&
                        (subgroup.supportedOperations & VK_SUBGROUP_FEATURE_VOTE_BIT) != 0;
  caps.coopmat_compute =
      (coopmat.cooperativeMatrixSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
  caps.inline_uniform_bytes = v13.maxInlineUniformTotalSize;
  caps.denormals = floats.shaderDenormPreserveFloat32 == VK_TRUE &&
                   floats.denormBehaviorIndependence != VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE;
  caps.infinities = floats.shaderSignedZeroInfNanPreserveFloat32 == VK_TRUE;
  caps.cores = read_cores(instance, desc.gpu);
  read_features(enabled, version, &caps);
  TANDEM_TRY(read_matrices(gipa, desc, &caps));
  // No path works without these two, so it fails here and not plan by plan.
  if (!caps.buffer_address)
    return fail(TANDEM_ERROR_MISSING_FEATURE,
                "bufferDeviceAddress is not enabled in desc.features: see "
                "tandem_vk_required_features()");
  if (!caps.inline_uniform)
    return fail(TANDEM_ERROR_MISSING_FEATURE,
                "inlineUniformBlock is not enabled in desc.features, or %s (before Vulkan 1.3) is "
                "not in desc.extensions: see tandem_vk_required_features()",
                kInlineUniformExtension);
  const String missing = missing_capability(caps);
  if (!missing.empty()) return fail(TANDEM_ERROR_MISSING_FEATURE, "%s", missing.c_str());

  std::memcpy(made->cache_uuid_, base.pipelineCacheUUID, VK_UUID_SIZE);
  made->device_ = desc.device;
  load_table(&made->vk_, instance.GetDeviceProcAddr, desc.device);
  TANDEM_TRY(check_table(made->vk_));
  if (desc.allocator) {
    made->allocator_ = *desc.allocator;
    made->own_allocator_ = true;
  }
  if (desc.queue) probe_matrix_copies(gipa, made->vk_, desc, &caps);
  if (debug_utils_enabled(desc)) made->debug_.load(instance.GetDeviceProcAddr, desc.device);
  // An application's callbacks come on the thread that called, unless it asks for threads.
  const bool callbacks = desc.allocator || HostScope::current().allocate;
  made->threads_ = options.threads ? options.threads : callbacks ? 1 : default_threads();
  made->specialise_ = !is_disabled(caps, kSpecialiseWord);
  made->unaligned_ = !is_disabled(caps, kUnalignedWord);
  made->cache_ = desc.cache;
  if (!made->cache_) TANDEM_TRY(made->make_cache());
  TANDEM_TRY(made->make_layouts());
  *device = std::move(made);
  return Status();
}

Status open_vulkan_device(const DeviceOptions& options, const void* desc,
                          std::unique_ptr<Device>* device) {
  tandem_vk_device_desc checked;
  TANDEM_TRY(check_desc(static_cast<const tandem_vk_device_desc*>(desc), &checked));
  return VulkanDevice::open(options, checked, device);
}

}  // namespace tandem

extern "C" tandem_status tandem_vk_device_create(const tandem_vk_device_desc* desc,
                                                 const tandem_device_options* options,
                                                 tandem_device** device) {
  return tandem::create_device(options, device, tandem::open_vulkan_device, desc);
}
