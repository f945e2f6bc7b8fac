// SPDX-License-Identifier: MIT OR Apache-2.0
// SPIR-V as the library hands it to the driver of a recorded device (tests/plan/profiles.inc), for
// the problems of the gates: for translators and compilers that are no Vulkan drivers.
//
//   tandem_modules DEVICE FOLDER [PATH]
//
// PATH: scalar, or coopmat, as if the driver had matrices of 8x8x8 f16 and no quirk. Files are
// called PATH.KERNEL.NUMBER.spv; of modules with the same words there is one.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#define DOCTEST_CONFIG_IMPLEMENT
#include "gates.h"
#include "plan/quirks.h"
#include "tests/plan/plan_fixture.h"
#include "vulkan/device.h"

namespace gates {
namespace {

// ---- a driver that keeps modules, and nothing else ----

using Words = std::vector<uint32_t>;
std::vector<Words> g_modules;

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

VkResult VKAPI_CALL keep_module(VkDevice, const VkShaderModuleCreateInfo* info,
                                const VkAllocationCallbacks*, VkShaderModule* module) {
  g_modules.emplace_back(info->pCode, info->pCode + info->codeSize / 4);
  make(module);
  return VK_SUCCESS;
}

void VKAPI_CALL get_properties(VkPhysicalDevice, VkPhysicalDeviceProperties2* properties) {
  properties->properties.apiVersion = VK_API_VERSION_1_3;
}

template <typename Function>
PFN_vkVoidFunction as_void(Function function) {
  return reinterpret_cast<PFN_vkVoidFunction>(function);
}

PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice, const char* name) {
  if (std::strcmp(name, "vkCreateShaderModule") == 0) return as_void(keep_module);
#define TANDEM_STUB(used) \
  if (std::strcmp(name, "vk" #used) == 0) return as_void(Stub<PFN_vk##used>::call);
  TANDEM_VK_USED(TANDEM_STUB)
#undef TANDEM_STUB
  return nullptr;
}

PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance, const char* name) {
  if (std::strcmp(name, "vkGetDeviceProcAddr") == 0) return as_void(device_proc);
  if (std::strcmp(name, "vkGetPhysicalDeviceProperties2") == 0) return as_void(get_properties);
#define TANDEM_STUB(used) \
  if (std::strcmp(name, "vk" #used) == 0) return as_void(Stub<PFN_vk##used>::call);
  TANDEM_STUB(GetPhysicalDeviceFeatures2)
  TANDEM_STUB(EnumerateDeviceExtensionProperties)
#undef TANDEM_STUB
  return nullptr;
}

void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message().c_str());
}

// A new one for each job: a device does not make a pipeline again.
std::unique_ptr<Device> open() {
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
  desc.gipa = instance_proc;
  desc.features = &features;
  make(&desc.instance);
  make(&desc.gpu);
  make(&desc.device);
  DeviceOptions options;
  options.threads = 1;
  std::unique_ptr<Device> device;
  check(VulkanDevice::open(options, desc, &device));
  return device;
}

// ---- ----

Caps caps_for(const char* device, const std::string& path) {
  for (const plan_fixture::Profile& profile : plan_fixture::profiles()) {
    if (std::strcmp(profile.id, device) != 0) continue;
    Caps caps = profile.caps;
    if (path == "scalar") return caps;
    caps.driver_id = kAnyDriver;  // every quirk is one driver's
    caps.coopmat = caps.memory_model = caps.subgroup_control = caps.full_subgroups = true;
    caps.subgroup_pin = true;
    caps.max_subgroups = caps.max_invocations / caps.subgroup_size;
    caps.matrices = {{8, 8, 8, "f16"}};
    return caps;
  }
  throw std::runtime_error(std::string("no recorded device ") + device);
}

void write(const std::string& file, const Words& words) {
  std::FILE* out = std::fopen(file.c_str(), "wb");
  const bool whole = out && std::fwrite(words.data(), 4, words.size(), out) == words.size();
  if (!out || std::fclose(out) != 0 || !whole) throw std::runtime_error("cannot write " + file);
}

int run(int argc, char** argv) {
  const std::string path = argc == 4 ? argv[3] : "scalar";
  if ((argc != 3 && argc != 4) || (path != "scalar" && path != "coopmat"))
    return std::puts("usage: tandem_modules DEVICE FOLDER [scalar | coopmat]"), 2;
  const std::vector<Job> jobs = jobs_for(caps_for(argv[1], path), false);
  std::set<Words> seen;
  std::map<std::string, int> numbers;  // of a kernel's modules
  for (const Job& job : jobs) {
    if (path != job.plan.path) continue;
    g_modules.clear();
    const std::unique_ptr<Device> device = open();
    std::unique_ptr<Program> program;
    check(device->build(job.plan, &program));
    const std::string kernel = path + "." + stem_name(job.plan.launches[0].stem);
    for (const Words& words : g_modules)
      if (seen.insert(words).second)
        write(
            std::string(argv[2]) + "/" + kernel + "." + std::to_string(numbers[kernel]++) + ".spv",
            words);
  }
  const std::vector<String> missing = missing_kernels(jobs);
  for (const String& kernel : missing) std::printf("FAILED: no module of %s\n", kernel.c_str());
  for (const auto& [kernel, count] : numbers)
    std::printf("%s: %d modules\n", kernel.c_str(), count);
  return seen.empty() || !missing.empty();
}

}  // namespace
}  // namespace gates

int main(int argc, char** argv) {
  try {
    return gates::run(argc, argv);
  } catch (const std::exception& e) {
    std::printf("FAILED: %s\n", e.what());
    return 1;
  }
}
