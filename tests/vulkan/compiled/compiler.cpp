// SPDX-License-Identifier: MIT OR Apache-2.0
#include "compiler.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "shaders/spec_ids.h"
#include "tests/vulkan/plain_vulkan.h"
#include "vulkan/device.h"

namespace compiled {
namespace {

using namespace tandem;

void check(VkResult result, const char* what) {
  if (result != VK_SUCCESS)
    throw std::runtime_error(std::string(what) + ": VkResult " + std::to_string(result));
}
void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message().c_str());
}

// Whether it has a pipeline for wide tensors, too: an address of 0 is as aligned as can be.
bool goes_wide(const Plan& plan, const Launch& launch) {
  return is_tiled(launch.stem) && make_push(plan, launch, Addresses{}).all_wide;
}

// The library's view of the driver: the driver's functions, but for the one that makes pipelines.
// These are plain functions without a context, so what they need is global: one Compiler at a time.
struct Driver {
  PFN_vkGetInstanceProcAddr gipa = nullptr;
  PFN_vkGetDeviceProcAddr gdpa = nullptr;
  PFN_vkCreateComputePipelines create = nullptr;
  PFN_vkCreateShaderModule create_module = nullptr;
  PFN_vkDestroyPipeline destroy = nullptr;
  PFN_vkGetPipelineExecutablePropertiesKHR properties = nullptr;
  PFN_vkGetPipelineExecutableStatisticsKHR statistics = nullptr;
  PFN_vkGetPipelineExecutableInternalRepresentationsKHR representations = nullptr;
} g_driver;
struct Wanted {
  bool narrow;
  std::vector<Figures> figures;
};
thread_local Wanted* t_wanted = nullptr;

struct Planted {
  bool is = false;
  const uint32_t* words = nullptr;
  size_t bytes = 0;
} g_planted;

// The specialization constant WIDE (src/kernels/abi/tile.inc); a kernel without it counts as wide.
bool is_wide(const VkSpecializationInfo& constants) {
  for (uint32_t i = 0; i < constants.mapEntryCount; ++i) {
    if (constants.pMapEntries[i].constantID != TANDEM_ID_WIDE) continue;
    uint32_t value;
    std::memcpy(&value, static_cast<const char*>(constants.pData) + constants.pMapEntries[i].offset,
                4);
    return value != 0;
  }
  return true;
}

void read_statistic(const VkPipelineExecutableStatisticKHR& s, Figures* f) {
  int value = 0;
  switch (s.format) {
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR:
      value = int(s.value.u64);
      break;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
      value = int(s.value.i64);
      break;
    default:
      return;
  }
  const struct {
    const char* name;
    int Figures::*member;
  } known[] = {{"VGPRs", &Figures::vgprs},
               {"Spilled VGPRs", &Figures::spilled_vgprs},
               {"Spilled SGPRs", &Figures::spilled_sgprs},
               {"Scratch size", &Figures::scratch_bytes},
               {"LDS size", &Figures::shared_bytes},
               {"Subgroups per SIMD", &Figures::waves},
               {"Code size", &Figures::code_bytes},
               {"Latency", &Figures::latency},
               {"Inverse Throughput", &Figures::inverse_throughput}};
  for (const auto& k : known)
    if (std::strcmp(s.name, k.name) == 0) f->*k.member = value;
  f->statistics.emplace_back(s.name, value);
}

// Matrix instructions in the driver's own text of the program: the last representation that has
// any. RADV gives its compiler's listing, and a disassembly where it was built with one.
int count_products(VkDevice device, const VkPipelineExecutableInfoKHR& which) {
  using Text = VkPipelineExecutableInternalRepresentationKHR;
  uint32_t count = 0;
  check(g_driver.representations(device, &which, &count, nullptr), "representations");
  Text none{};
  none.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
  std::vector<Text> all(count, none);
  check(g_driver.representations(device, &which, &count, all.data()), "representations");
  std::vector<std::string> texts(count);
  for (uint32_t i = 0; i < count; ++i) {
    texts[i].resize(all[i].dataSize);
    all[i].pData = texts[i].data();
  }
  check(g_driver.representations(device, &which, &count, all.data()), "representations");
  int products = 0;
  for (const std::string& text : texts) {
    int found = 0;
    for (const char* product : {"v_wmma_", "dpas.", "hmma."})  // of AMD, Intel, NVIDIA
      for (size_t at = 0; (at = text.find(product, at)) != std::string::npos; ++at) ++found;
    if (found > 0) products = found;
  }
  return products;
}

Figures figures_of(VkDevice device, VkPipeline pipeline) {
  VkPipelineInfoKHR info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR;
  info.pipeline = pipeline;
  uint32_t count = 1;
  VkPipelineExecutablePropertiesKHR properties{};
  properties.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR;
  check(g_driver.properties(device, &info, &count, &properties), "executables");
  VkPipelineExecutableInfoKHR which{};
  which.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR;
  which.pipeline = pipeline;
  check(g_driver.statistics(device, &which, &count, nullptr), "statistics");
  VkPipelineExecutableStatisticKHR none{};
  none.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
  std::vector<VkPipelineExecutableStatisticKHR> all(count, none);
  check(g_driver.statistics(device, &which, &count, all.data()), "statistics");
  Figures f;
  f.subgroup = int(properties.subgroupSize);
  for (const auto& s : all) read_statistic(s, &f);
  f.products = count_products(device, which);
  return f;
}

// What stands for a pipeline that is not made: the library keeps it, and destroys it, and nothing
// is recorded.
VkPipeline left_out() { return VkPipeline(~uint64_t(0)); }

VKAPI_ATTR void VKAPI_CALL destroy_pipeline(VkDevice device, VkPipeline pipeline,
                                            const VkAllocationCallbacks* allocator) {
  if (pipeline != left_out()) g_driver.destroy(device, pipeline, allocator);
}

VKAPI_ATTR VkResult VKAPI_CALL create_module(VkDevice device, const VkShaderModuleCreateInfo* given,
                                             const VkAllocationCallbacks* allocator,
                                             VkShaderModule* module) {
  VkShaderModuleCreateInfo info = *given;
  if (g_planted.words) {
    info.pCode = g_planted.words;
    info.codeSize = g_planted.bytes;
  }
  return g_driver.create_module(device, &info, allocator, module);
}

VKAPI_ATTR VkResult VKAPI_CALL create_pipelines(VkDevice device, VkPipelineCache, uint32_t count,
                                                const VkComputePipelineCreateInfo* infos,
                                                const VkAllocationCallbacks* allocator,
                                                VkPipeline* pipelines) {
  if (g_planted.is && !g_planted.words) std::raise(SIGSEGV);
  for (uint32_t i = 0; i < count; ++i) {
    pipelines[i] = VK_NULL_HANDLE;
    if (t_wanted && !t_wanted->narrow && !is_wide(*infos[i].stage.pSpecializationInfo)) {
      pipelines[i] = left_out();
      t_wanted->figures.emplace_back();
      continue;
    }
    VkComputePipelineCreateInfo info = infos[i];
    info.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR |
                  VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
    const VkResult result =
        g_driver.create(device, VK_NULL_HANDLE, 1, &info, allocator, &pipelines[i]);
    if (result != VK_SUCCESS) return result;
    if (t_wanted) t_wanted->figures.push_back(figures_of(device, pipelines[i]));
  }
  return VK_SUCCESS;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char* name) {
  if (std::strcmp(name, "vkCreateComputePipelines") == 0)
    return reinterpret_cast<PFN_vkVoidFunction>(create_pipelines);
  if (std::strcmp(name, "vkCreateShaderModule") == 0)
    return reinterpret_cast<PFN_vkVoidFunction>(create_module);
  if (std::strcmp(name, "vkDestroyPipeline") == 0)
    return reinterpret_cast<PFN_vkVoidFunction>(destroy_pipeline);
  return g_driver.gdpa(device, name);
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance instance, const char* name) {
  if (std::strcmp(name, "vkGetDeviceProcAddr") == 0)
    return reinterpret_cast<PFN_vkVoidFunction>(device_function);
  return g_driver.gipa(instance, name);
}

}  // namespace

long long Figures::statistic(std::initializer_list<const char*> names) const {
  for (const char* name : names)
    for (const auto& s : statistics)
      if (s.first == name) return s.second;
  return -1;
}

void plant(const uint32_t* words, size_t bytes) { g_planted = {true, words, bytes}; }

struct Compiler::State {
  VkInstance instance = VK_NULL_HANDLE;
  VkPhysicalDevice gpu = VK_NULL_HANDLE;
  VkDevice device = VK_NULL_HANDLE;
  std::vector<const char*> extensions;
  VkPhysicalDeviceFeatures2 features{};
  VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR executables{};
  tandem_vk_feature_storage storage{};
  std::unique_ptr<Device> asked;  // for its caps

  tandem_vk_device_desc describe() const {
    tandem_vk_device_desc desc = plain_vulkan::describe(
        g_driver.gipa, instance, gpu, &features, extensions.data(), uint32_t(extensions.size()));
    desc.device = device;
    return desc;
  }
  // A new one for each plan: a device keeps its pipelines, and would not make one again for the
  // next plan.
  std::unique_ptr<Device> open() const {
    tandem_vk_device_desc desc = describe();
    desc.gipa = instance_function;
    std::unique_ptr<Device> opened;
    DeviceOptions options;
    options.threads = 1;  // this one, whose t_wanted takes what is made, in order
    check(parse_disabled(std::getenv("TANDEM_DISABLE"), &options.disabled));
    check(VulkanDevice::open(options, desc, &opened));
    return opened;
  }
};

Compiler::Compiler() : state_(new State) {
  State& s = *state_;
  check(system_loader(&g_driver.gipa));
  check(plain_vulkan::make_instance(g_driver.gipa, &s.instance), "vkCreateInstance");
  s.gpu = plain_vulkan::first_gpu(g_driver.gipa, s.instance);
  if (!s.gpu) throw std::runtime_error("no Vulkan device");

  uint32_t count = 0;
  const char* const* names = nullptr;
  if (tandem_vk_required_extensions(g_driver.gipa, s.instance, s.gpu, &count, &names) != TANDEM_OK)
    throw std::runtime_error(tandem_last_message());
  s.extensions.assign(names, names + count);
  s.extensions.push_back(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
  s.executables.sType =
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR;
  s.executables.pipelineExecutableInfo = VK_TRUE;
  s.features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  s.features.pNext = &s.executables;
  if (tandem_vk_required_features(g_driver.gipa, s.instance, s.gpu, &s.features, &s.storage) !=
      TANDEM_OK)
    throw std::runtime_error(tandem_last_message());
  tandem_vk_device_desc desc = s.describe();
  check(plain_vulkan::make_device(&desc), "vkCreateDevice");
  s.device = desc.device;

  g_driver.gdpa =
      plain_vulkan::get<PFN_vkGetDeviceProcAddr>(g_driver.gipa, s.instance, "vkGetDeviceProcAddr");
  const auto of_device = [&](auto* function, const char* name) {
    *function =
        reinterpret_cast<std::remove_pointer_t<decltype(function)>>(g_driver.gdpa(s.device, name));
    if (!*function) throw std::runtime_error(std::string("no ") + name);
  };
  of_device(&g_driver.create, "vkCreateComputePipelines");
  of_device(&g_driver.create_module, "vkCreateShaderModule");
  of_device(&g_driver.destroy, "vkDestroyPipeline");
  of_device(&g_driver.properties, "vkGetPipelineExecutablePropertiesKHR");
  of_device(&g_driver.statistics, "vkGetPipelineExecutableStatisticsKHR");
  of_device(&g_driver.representations, "vkGetPipelineExecutableInternalRepresentationsKHR");
  s.asked = s.open();
}

// Instance and device end with the process: RADV without a GPU is not made for more.
Compiler::~Compiler() = default;

const Caps& Compiler::caps() const { return state_->asked->caps(); }
String Compiler::driver() const { return caps().driver; }

std::vector<Compiled> Compiler::compile(const Plan& plan, bool narrow) const {
  Wanted wanted{narrow, {}};
  const std::unique_ptr<Device> device = state_->open();
  t_wanted = &wanted;
  std::unique_ptr<Program> program;
  const Status status = device->build(plan, &program);
  t_wanted = nullptr;
  check(status);
  const std::vector<Figures>& figures = wanted.figures;
  // In the order in which VulkanDevice::build() makes them: of each launch the pipeline for any
  // tensors, then the one for wide ones where there is one.
  std::vector<Compiled> all;
  size_t next = 0;
  for (const Launch& launch : plan.launches) {
    if (launch.joins()) continue;  // an earlier one does its work
    const bool wide = goes_wide(plan, launch);
    for (bool w : {false, true}) {
      if (w && !wide) continue;
      if (next == figures.size()) throw std::runtime_error("a pipeline was not made");
      const Figures& f = figures[next++];
      if (!wide || w || narrow) all.push_back({&launch, w, f});
    }
  }
  if (next != figures.size()) throw std::runtime_error("more pipelines were made than expected");
  return all;
}

}  // namespace compiled
