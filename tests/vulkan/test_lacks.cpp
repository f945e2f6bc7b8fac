// SPDX-License-Identifier: MIT OR Apache-2.0
// Devices that have less than the one at hand, by a driver in between (vulkan/fake_driver.h):
// limits, features, extensions, matrices. What is missing is not used, and a sentence names it.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>

#include "../plan/spirv_shared.h"
#include "attention.h"
#include "faked.h"

using namespace vulkan_app;

namespace {

// What a device of less says, in place of the one behind it.
struct Less {
  bool votes = true, compute_votes = true, compute_matrices = true, f16_sums = true;
  bool addresses = true, uniforms = true, extensions = true, infinities = true;
  uint32_t uniform_bytes = 0, version = 0;  // 0: as it is
  const char* extension = nullptr;          // the only one, where extensions is false
} less;

template <typename Function>
Function behind(const char* name, VkInstance instance) {
  return reinterpret_cast<Function>(fake_driver::state().real(instance, name));
}
VkInstance less_instance = VK_NULL_HANDLE;

void VKAPI_CALL less_properties(VkPhysicalDevice gpu, VkPhysicalDeviceProperties2* properties) {
  behind<PFN_vkGetPhysicalDeviceProperties2>("vkGetPhysicalDeviceProperties2", less_instance)(
      gpu, properties);
  if (less.version) properties->properties.apiVersion = less.version;
  for (auto* s = static_cast<VkBaseOutStructure*>(properties->pNext); s; s = s->pNext) {
    if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES) {
      auto* own = reinterpret_cast<VkPhysicalDeviceSubgroupProperties*>(s);
      if (!less.votes) own->supportedOperations &= ~uint32_t(VK_SUBGROUP_FEATURE_VOTE_BIT);
      if (!less.compute_votes) own->supportedStages &= ~uint32_t(VK_SHADER_STAGE_COMPUTE_BIT);
    }
    if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES)
      reinterpret_cast<VkPhysicalDeviceFloatControlsProperties*>(s)
          ->shaderSignedZeroInfNanPreserveFloat32 = VkBool32(less.infinities);
    if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_KHR &&
        !less.compute_matrices)
      reinterpret_cast<VkPhysicalDeviceCooperativeMatrixPropertiesKHR*>(s)
          ->cooperativeMatrixSupportedStages &= ~uint32_t(VK_SHADER_STAGE_COMPUTE_BIT);
    if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES && less.uniform_bytes)
      reinterpret_cast<VkPhysicalDeviceVulkan13Properties*>(s)->maxInlineUniformTotalSize =
          less.uniform_bytes;
    // Of vendors' extensions, which no driver of a CPU has.
    if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV)
      reinterpret_cast<VkPhysicalDeviceShaderSMBuiltinsPropertiesNV*>(s)->shaderSMCount = 132;
    if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_2_AMD)
      reinterpret_cast<VkPhysicalDeviceShaderCoreProperties2AMD*>(s)->activeComputeUnitCount = 96;
  }
}

void VKAPI_CALL less_features(VkPhysicalDevice gpu, VkPhysicalDeviceFeatures2* features) {
  behind<PFN_vkGetPhysicalDeviceFeatures2>("vkGetPhysicalDeviceFeatures2", less_instance)(gpu,
                                                                                          features);
  for (auto* s = static_cast<VkBaseOutStructure*>(features->pNext); s; s = s->pNext) {
    if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES)
      reinterpret_cast<VkPhysicalDeviceBufferDeviceAddressFeatures*>(s)->bufferDeviceAddress &=
          VkBool32(less.addresses);
    if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_FEATURES)
      reinterpret_cast<VkPhysicalDeviceInlineUniformBlockFeatures*>(s)->inlineUniformBlock &=
          VkBool32(less.uniforms);
  }
}

VkResult VKAPI_CALL less_extensions(VkPhysicalDevice gpu, const char* layer, uint32_t* count,
                                    VkExtensionProperties* list) {
  if (less.extensions)
    return behind<PFN_vkEnumerateDeviceExtensionProperties>("vkEnumerateDeviceExtensionProperties",
                                                            less_instance)(gpu, layer, count, list);
  *count = less.extension ? 1 : 0;
  if (list && less.extension)
    std::snprintf(list->extensionName, sizeof(list->extensionName), "%s", less.extension);
  return VK_SUCCESS;
}

VkResult VKAPI_CALL less_matrices(VkPhysicalDevice gpu, uint32_t* count,
                                  VkCooperativeMatrixPropertiesKHR* list) {
  const char* const name = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
  const VkResult result = behind<PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR>(
      name, less_instance)(gpu, count, list);
  for (uint32_t n = 0; list && n < *count && !less.f16_sums; ++n)
    for (VkComponentTypeKHR* type : {&list[n].CType, &list[n].ResultType})
      if (*type == VK_COMPONENT_TYPE_FLOAT16_KHR) *type = VK_COMPONENT_TYPE_SINT32_KHR;
  return result;
}

// Of the modules that a driver was given, by several threads: how many, and how many of them keep
// infinities.
std::atomic<uint32_t> modules{0}, keeping{0};
VkResult VKAPI_CALL count_module(VkDevice, const VkShaderModuleCreateInfo* info,
                                 const VkAllocationCallbacks*, VkShaderModule* module) {
  const spirv::Module read(info->pCode, info->codeSize / 4);
  const auto& capabilities = read.capabilities();
  ++modules;
  keeping += std::count(capabilities.begin(), capabilities.end(), 4466u) == 1;
  *module = reinterpret_cast<VkShaderModule>(uintptr_t(0x1000));
  return VK_SUCCESS;
}
void VKAPI_CALL drop_module(VkDevice, VkShaderModule, const VkAllocationCallbacks*) {}

tandem_vk_device_desc less_desc(const App& app) {
  const tandem_vk_device_desc desc = fake_desc(app);
  less = Less();
  less_instance = app.instance;
  const auto put = [](const char* name, auto function) {
    fake_driver::state().replace[name] = reinterpret_cast<PFN_vkVoidFunction>(function);
  };
  put("vkGetPhysicalDeviceProperties2", less_properties);
  put("vkGetPhysicalDeviceFeatures2", less_features);
  put("vkEnumerateDeviceExtensionProperties", less_extensions);
  put("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", less_matrices);
  return desc;
}

}  // namespace

TEST_CASE("Vulkan lacks: what a device says that it lacks is not used; a sentence names it") {
  App app;
  if (!usable(app)) return;
  const tandem_vk_device_desc desc = less_desc(app);
  const char* const line = "fwd f16 b1 hq1 hk1 sq20 sk30 d16 dv16";
  const auto path = [&] {
    const Device device(desc);
    return std::string(Plan(device, line).info.path);
  };
  const bool matrices = path() != "scalar";

  const struct {
    bool Less::*member;
    const char* words;
  } rows[] = {{&Less::votes, "subgroups do not vote"},
              {&Less::compute_votes, "subgroups do not vote"},
              {&Less::compute_matrices, "no cooperative matrices in compute shaders"},
              {&Less::f16_sums, "no accumulators of f16"}};
  for (const auto& row : rows) {
    less = Less();
    less.*row.member = false;
    CAPTURE(row.words);
    CHECK(path() == "scalar");
    if (!matrices) continue;
    const Device device(desc);
    const tandem_problem problem = problem_of(line);
    std::string words(tandem_explain(device, &problem, nullptr, 0) + 1, ' ');
    tandem_explain(device, &problem, words.data(), words.size());
    INFO(words);
    CHECK(words.find(row.words) != std::string::npos);
  }

  less = Less();
  less.uniform_bytes = 256;  // the least that the specification allows
  tandem_device* none = untouched<tandem_device>();
  CHECK(tandem_vk_device_create(&desc, nullptr, &none) == TANDEM_ERROR_MISSING_FEATURE);
  CHECK(says("the device has 256 bytes of inline uniform blocks a pipeline, 432 are needed"));
  less.uniform_bytes = 432;
  CHECK((path() == "scalar") == !matrices);

  // Without the memory model atomics may have device scope; with it alone they may not.
  less = Less();
  using Model = VkPhysicalDeviceVulkanMemoryModelFeatures;
  auto* model = const_cast<Model*>(tandem::find_struct<Model>(
      app.features.pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES));
  if (model) {
    model->vulkanMemoryModelDeviceScope = VK_FALSE;
    CHECK(tandem_vk_device_create(&desc, nullptr, &none) == TANDEM_ERROR_MISSING_FEATURE);
    CHECK(says("vulkanMemoryModelDeviceScope"));
    model->vulkanMemoryModel = VK_FALSE;
    CHECK(path() == "scalar");
  }
  CHECK(none == untouched<tandem_device>());
  CHECK(fake_driver::state().live == 0);
}

TEST_CASE("Vulkan lacks: modules keep infinities where the device can") {
  App app;
  if (!usable(app)) return;
  const tandem_vk_device_desc desc = less_desc(app);
  fake_driver::state().replace["vkCreateShaderModule"] =
      reinterpret_cast<PFN_vkVoidFunction>(count_module);
  fake_driver::state().replace["vkDestroyShaderModule"] =
      reinterpret_cast<PFN_vkVoidFunction>(drop_module);
  for (const bool keeps : {true, false}) {
    less = Less();
    less.infinities = keeps;
    for (const char* line : {"bwd f16 b1 hq1 hk1 sq20 sk30 d16 dv16", "bwd f32 b1 sq20 d16"}) {
      CAPTURE(line);
      modules = 0, keeping = 0;
      const Device device(desc);
      const Plan plan(device, line);
      CHECK(modules > 0);
      CHECK(keeping == (keeps ? modules.load() : 0));
    }
  }
}

TEST_CASE("Vulkan lacks: a device without what every path needs has nothing to enable") {
  App app;
  if (!usable(app)) return;
  const tandem_vk_device_desc desc = less_desc(app);
  const auto refused = [&](const char* words) {
    CAPTURE(words);
    uint32_t count = 77;
    const char* const* names = untouched<const char* const>();
    CHECK(tandem_vk_required_extensions(desc.gipa, app.instance, app.gpu, &count, &names) ==
          TANDEM_ERROR_MISSING_FEATURE);
    CHECK(says(words));
    CHECK(count == 77);
    CHECK(names == untouched<const char* const>());
    VkPhysicalDeviceFeatures2 chain{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, nullptr, {}};
    tandem_vk_feature_storage storage{};
    CHECK(tandem_vk_required_features(desc.gipa, app.instance, app.gpu, &chain, &storage) ==
          TANDEM_ERROR_MISSING_FEATURE);
    CHECK(says(words));
    CHECK(chain.pNext == nullptr);
  };
  less.addresses = false;
  refused("lacks bufferDeviceAddress");
  less = Less();
  less.uniforms = false;
  refused("lacks inlineUniformBlock");
  less = Less();
  less.extensions = false;
  less.version = VK_API_VERSION_1_2;
  refused("has neither Vulkan 1.3 nor VK_EXT_inline_uniform_block");
  less = Less();
  less.version = VK_API_VERSION_1_1;
  refused("has Vulkan 1.1, 1.2 is needed");
  tandem_device* none = untouched<tandem_device>();
  CHECK(tandem_vk_device_create(&desc, nullptr, &none) == TANDEM_ERROR_MISSING_FEATURE);
  CHECK(says("has Vulkan 1.1, 1.2 is needed"));
  CHECK(none == untouched<tandem_device>());
}

TEST_CASE("Vulkan lacks: compute units are known by a vendor's extension alone") {
  App app;
  if (!usable(app)) return;
  const tandem_vk_device_desc desc = less_desc(app);
  less.extensions = false;
  const struct {
    const char *extension, *cores;
  } rows[] = {{VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME, "132"},
              {VK_AMD_SHADER_CORE_PROPERTIES_2_EXTENSION_NAME, "96"},
              {nullptr, "0"}};
  for (const auto& row : rows) {
    less.extension = row.extension;
    const Device device(desc);
    std::string text(tandem_device_describe(device, nullptr, 0) + 1, ' ');
    tandem_device_describe(device, text.data(), text.size());
    CAPTURE(text);
    CHECK(text.find("cores                " + std::string(row.cores) + "\n") != std::string::npos);
  }
}

TEST_CASE("Vulkan lacks: the system's loader serves where the application gives none") {
  App app;
  if (!usable(app)) return;
  tandem_vk_device_desc desc = app.desc();
  desc.gipa = nullptr;
  const Device device(desc);
  uint32_t count = 0;
  const char* const* names = nullptr;
  CHECK(tandem_vk_required_extensions(nullptr, app.instance, app.gpu, &count, &names) == TANDEM_OK);
  CHECK(count == app.extension_count);
}
