// SPDX-License-Identifier: MIT OR Apache-2.0
// Vulkan's part of the border: bad device descriptions, a device with something missing or not
// enabled, foreign cache blobs. The rows that need a driver are left out, in words, where there is
// none, unless TANDEM_NEED_VULKAN is set.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include "../vulkan/plain_vulkan.h"
#include "api_fixture.h"
#include "tandem/tandem_vulkan.h"

namespace {

using plain_vulkan::get;

PFN_vkGetInstanceProcAddr loader() {
#if defined(_WIN32)
  HMODULE module = LoadLibraryA("vulkan-1.dll");
  return module ? reinterpret_cast<PFN_vkGetInstanceProcAddr>(
                      reinterpret_cast<void*>(GetProcAddress(module, "vkGetInstanceProcAddr")))
                : nullptr;
#else
  void* module = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  return module
             ? reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(module, "vkGetInstanceProcAddr"))
             : nullptr;
#endif
}

// The first GPU with a device made as tandem_vulkan.h says, by plain Vulkan; or with what is needed
// alone; or with the chain of an application that has the structs of Vulkan's versions in it.
enum class Wanted { all, needed, versions };
struct Gpu {
  VkPhysicalDeviceBufferDeviceAddressFeatures address{};
  VkPhysicalDeviceInlineUniformBlockFeatures uniform{};
  VkPhysicalDeviceVulkan11Features v11{};
  VkPhysicalDeviceVulkan12Features v12{};
  VkPhysicalDeviceVulkan13Features v13{};
  PFN_vkGetInstanceProcAddr gipa = loader();
  VkInstance instance = VK_NULL_HANDLE;
  VkPhysicalDevice gpu = VK_NULL_HANDLE;
  VkDevice device = VK_NULL_HANDLE;
  VkPhysicalDeviceFeatures2 features{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, nullptr, {}};
  tandem_vk_feature_storage storage{};
  uint32_t extension_count = 0;
  const char* const* extensions = nullptr;
  std::string missing;

  explicit Gpu(Wanted wanted = Wanted::all) {
    if (!gipa) {
      missing = "no Vulkan loader";
      return;
    }
    if (plain_vulkan::make_instance(gipa, &instance) != VK_SUCCESS) {
      missing = "no Vulkan driver";
      return;
    }
    gpu = plain_vulkan::first_gpu(gipa, instance);
    if (!gpu) {
      missing = "no Vulkan device";
      return;
    }
    const auto link = [&](auto* s, VkStructureType type) {
      s->sType = type;
      s->pNext = features.pNext;
      features.pNext = s;
    };
    if (wanted == Wanted::versions) {
      link(&v11, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
      link(&v12, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
      link(&v13, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES);
    }
    if (wanted == Wanted::needed) {
      link(&address, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES);
      link(&uniform, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_FEATURES);
      address.bufferDeviceAddress = uniform.inlineUniformBlock = VK_TRUE;
    } else {
      REQUIRE(tandem_vk_required_extensions(gipa, instance, gpu, &extension_count, &extensions) ==
              TANDEM_OK);
      REQUIRE(tandem_vk_required_features(gipa, instance, gpu, &features, &storage) == TANDEM_OK);
    }
    tandem_vk_device_desc made = desc();
    REQUIRE(plain_vulkan::make_device(&made) == VK_SUCCESS);
    device = made.device;
  }
  ~Gpu() {
    if (device) get<PFN_vkDestroyDevice>(gipa, instance, "vkDestroyDevice")(device, nullptr);
    if (instance)
      get<PFN_vkDestroyInstance>(gipa, instance, "vkDestroyInstance")(instance, nullptr);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  tandem_vk_device_desc desc() const {
    tandem_vk_device_desc d =
        plain_vulkan::describe(gipa, instance, gpu, &features, extensions, extension_count);
    d.device = device;
    return d;
  }
  bool usable() const {
    if (missing.empty()) return true;
    MESSAGE("left out: " << missing);
    CHECK(std::getenv("TANDEM_NEED_VULKAN") == nullptr);
    return false;
  }
};

template <typename Handle>
Handle fake() {
  return reinterpret_cast<Handle>(uintptr_t(0x1000));
}

struct Row {
  const char* what;
  std::function<void(tandem_vk_device_desc&)> spoil;
  tandem_status status;
  const char* word;
};

void check_rows(const tandem_vk_device_desc& good, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    CAPTURE(std::string(row.what));
    tandem_vk_device_desc desc = good;
    row.spoil(desc);
    tandem_device* device = untouched<tandem_device>();
    CHECK(tandem_vk_device_create(&desc, nullptr, &device) == row.status);
    CHECK(device == untouched<tandem_device>());
    const std::string message = tandem_last_message();
    CAPTURE(message);
    CHECK(message.find(row.word) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("Vulkan: a spoiled device description") {
  tandem_vk_device_desc desc = TANDEM_VK_DEVICE_DESC_INIT;
  desc.instance = fake<VkInstance>();
  desc.gpu = fake<VkPhysicalDevice>();
  desc.device = fake<VkDevice>();
  constexpr tandem_status argument = TANDEM_ERROR_INVALID_ARGUMENT;
  constexpr tandem_status structure = TANDEM_ERROR_INVALID_STRUCT;
  using D = tandem_vk_device_desc;
  static const char* const names[] = {"VK_KHR_swapchain", nullptr};
  static VkPhysicalDeviceFeatures2 unset{};
  static const VkAllocationCallbacks no_callbacks{};
  check_rows(
      desc,
      {{"short", [](D& d) { d.struct_size = 8; }, structure, "desc.struct_size is 8"},
       {"next", [](D& d) { d.next = &d; }, structure, "desc.next"},
       {"reserved", [](D& d) { d.reserved = 6; }, argument, "desc.reserved is 6"},
       {"version 0", [](D& d) { d.api_version = 0; }, argument, "desc.api_version is 0.0"},
       {"version 1.1", [](D& d) { d.api_version = VK_API_VERSION_1_1; }, argument, "1.1"},
       {"instance", [](D& d) { d.instance = VK_NULL_HANDLE; }, argument, "desc.instance"},
       {"gpu", [](D& d) { d.gpu = VK_NULL_HANDLE; }, argument, "desc.gpu"},
       {"device", [](D& d) { d.device = VK_NULL_HANDLE; }, argument, "desc.device"},
       {"extensions", [](D& d) { d.extension_count = 3; }, argument, "extension_count is 3"},
       {"an extension", [](D& d) { d.extension_count = 2, d.extensions = names; }, argument,
        "desc.extensions[1]"},
       {"features", [](D& d) { d.features = &unset; }, argument, "desc.features->sType is 0"},
       {"reserved2", [](D& d) { d.reserved2 = 9; }, argument, "desc.reserved2 is 9"},
       {"reserved3", [](D& d) { d.reserved3 = 2; }, argument, "desc.reserved3 is 2"},
       {"half an allocator", [](D& d) { d.allocator = &no_callbacks; }, argument, "desc.allocator"},
       {"instance extensions", [](D& d) { d.instance_extension_count = 4; }, argument,
        "instance_extension_count is 4"},
       {"an instance extension",
        [](D& d) { d.instance_extension_count = 2, d.instance_extensions = names; }, argument,
        "desc.instance_extensions[1]"}});
  tandem_device* device = untouched<tandem_device>();
  CHECK(tandem_vk_device_create(nullptr, nullptr, &device) == argument);
  CHECK(device == untouched<tandem_device>());
  CHECK(tandem_vk_device_create(&desc, nullptr, nullptr) == argument);

  uint32_t count = 77;
  const char* const* list = nullptr;
  VkPhysicalDeviceFeatures2 chain{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, nullptr, {}};
  tandem_vk_feature_storage storage{};
  const auto gpu = fake<VkPhysicalDevice>();
  const auto instance = fake<VkInstance>();
  CHECK(tandem_vk_required_extensions(nullptr, instance, gpu, nullptr, &list) == argument);
  CHECK(tandem_vk_required_extensions(nullptr, instance, gpu, &count, nullptr) == argument);
  CHECK(tandem_vk_required_extensions(nullptr, VK_NULL_HANDLE, gpu, &count, &list) == argument);
  CHECK(tandem_vk_required_features(nullptr, instance, VK_NULL_HANDLE, &chain, &storage) ==
        argument);
  CHECK(tandem_vk_required_features(nullptr, instance, gpu, nullptr, &storage) == argument);
  CHECK(tandem_vk_required_features(nullptr, instance, gpu, &chain, nullptr) == argument);
  CHECK(count == 77);
  CHECK(list == nullptr);
  CHECK(chain.pNext == nullptr);
}

TEST_CASE("Vulkan: what was not enabled is missed by name") {
  Gpu gpu;
  if (!gpu.usable()) return;
  constexpr tandem_status missing = TANDEM_ERROR_MISSING_FEATURE;
  using D = tandem_vk_device_desc;
  static const VkPhysicalDeviceFeatures2 nothing{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, nullptr, {}};
  static VkPhysicalDeviceBufferDeviceAddressFeatures address{};
  address.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES;
  address.bufferDeviceAddress = VK_TRUE;
  static VkPhysicalDeviceFeatures2 no_uniform{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &address, {}};
  check_rows(
      gpu.desc(),
      {{"no features at all", [](D& d) { d.features = nullptr; }, missing, "bufferDeviceAddress"},
       {"none on", [](D& d) { d.features = &nothing; }, missing, "bufferDeviceAddress"},
       {"no inline uniforms", [](D& d) { d.features = &no_uniform; }, missing,
        "inlineUniformBlock"},
       {"1.2 without the extension",
        [](D& d) {
          d.api_version = VK_API_VERSION_1_2;
          d.extension_count = 0;
        },
        missing, "VK_EXT_inline_uniform_block"}});
  const tandem_vk_device_desc desc = gpu.desc();
  tandem_device* device = nullptr;
  REQUIRE(tandem_vk_device_create(&desc, nullptr, &device) == TANDEM_OK);

  // Its cache: it accepts a blob of its own, none of another device, and none that was changed.
  size_t size = 0;
  tandem_problem problem = good_problem();
  tandem_plan* plan = nullptr;
  REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);
  REQUIRE(tandem_device_get_cache(device, &size, nullptr) == TANDEM_OK);
  std::vector<unsigned char> blob(size);
  REQUIRE(tandem_device_get_cache(device, &size, blob.data()) == TANDEM_OK);
  CHECK(tandem_device_set_cache(device, size, blob.data()) == TANDEM_OK);
  for (size_t at : {size_t(0), size_t(9), size_t(17), size_t(25), size_t(33), size - 1}) {
    CAPTURE(at);
    std::vector<unsigned char> changed(blob.begin(), blob.begin() + std::ptrdiff_t(size));
    changed[at] ^= 4;
    CHECK(tandem_device_set_cache(device, size, changed.data()) == TANDEM_ERROR_CACHE);
  }
  CHECK(tandem_device_set_cache(device, size - 1, blob.data()) == TANDEM_ERROR_CACHE);
  CpuDevice cpu;
  CHECK(tandem_device_set_cache(cpu.device, size, blob.data()) == TANDEM_ERROR_CACHE);

  // Arguments are checked before anything is recorded, so that no command buffer is needed here.
  tandem_args args = TANDEM_ARGS_INIT;
  CHECK(tandem_execute(plan, {0x1000}, &args) == TANDEM_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(tandem_last_message()).find("args.q") != std::string::npos);

  // A disabled path leaves nothing, and the refusal says why.
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.disable = "vulkan.coopmat2,vulkan.coopmat,vulkan.scalar";
  tandem_device* bare = nullptr;
  REQUIRE(tandem_vk_device_create(&desc, &options, &bare) == TANDEM_OK);
  tandem_plan* none = untouched<tandem_plan>();
  CHECK(tandem_plan_create(bare, &problem, &none) == TANDEM_ERROR_UNSUPPORTED);
  CHECK(none == untouched<tandem_plan>());
  CHECK(std::string(tandem_last_message()).find("disabled") != std::string::npos);
  tandem_device_destroy(bare);
  tandem_plan_destroy(plan);
  tandem_device_destroy(device);
}

TEST_CASE(
    "Vulkan: without the optional features there are plans, and words about what is missing") {
  Gpu all, needed(Wanted::needed);
  if (!all.usable()) return;
  tandem_problem problem = good_problem();
  tandem_problem_contiguous(&problem, TANDEM_F16);
  const auto plan_on = [&](const Gpu& gpu, std::string* words) {
    const tandem_vk_device_desc desc = gpu.desc();
    tandem_device* device = nullptr;
    REQUIRE(tandem_vk_device_create(&desc, nullptr, &device) == TANDEM_OK);
    words->resize(tandem_explain(device, &problem, nullptr, 0) + 1);
    tandem_explain(device, &problem, words->data(), words->size());
    tandem_plan* plan = nullptr;
    REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);
    tandem_plan_info info{};
    info.struct_size = sizeof(info);
    CHECK(tandem_plan_get_info(plan, &info) == TANDEM_OK);
    tandem_plan_destroy(plan);
    tandem_device_destroy(device);
    return std::string(info.path);
  };
  std::string words;
  CHECK(plan_on(needed, &words) == "scalar");
  CHECK(words.find("did not enable cooperativeMatrix") != std::string::npos);
  const std::string path = plan_on(all, &words);
  bool matrices = false;
  for (uint32_t n = 0; n < all.extension_count; ++n)
    matrices |= std::strcmp(all.extensions[n], VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME) == 0;
  INFO(words);
  CHECK((path != "scalar") == matrices);

  // Only the extensions, or only the features, are not enough; and nothing breaks.
  all.extension_count = 0;
  CHECK(plan_on(all, &words) == "scalar");
}

TEST_CASE("Vulkan: features go into the structs of the versions where an application has them") {
  Gpu plain, gpu(Wanted::versions);
  if (!gpu.usable()) return;
  CHECK(gpu.v12.bufferDeviceAddress);
  CHECK(gpu.v13.inlineUniformBlock);
  const auto count = [](const Gpu& g, VkStructureType type) {
    int n = 0;
    for (auto* s = static_cast<const VkBaseInStructure*>(g.features.pNext); s; s = s->pNext)
      n += s->sType == type;
    return n;
  };
  const struct {
    VkStructureType own;
    VkBool32 there;
  } rows[] = {
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
       gpu.v12.bufferDeviceAddress},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_FEATURES, gpu.v13.inlineUniformBlock},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES, gpu.v11.storageBuffer16BitAccess},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, gpu.v12.shaderFloat16},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES, gpu.v12.vulkanMemoryModel},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES, gpu.v13.maintenance4},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
       gpu.v13.subgroupSizeControl || gpu.v13.computeFullSubgroups}};
  for (const auto& row : rows) {
    CAPTURE(int(row.own));
    CHECK(count(gpu, row.own) == 0);
    CHECK((count(plain, row.own) == 1) == bool(row.there));
  }
  const tandem_vk_device_desc desc = gpu.desc();
  tandem_device* device = nullptr;
  REQUIRE(tandem_vk_device_create(&desc, nullptr, &device) == TANDEM_OK);
  tandem_device_destroy(device);
}
