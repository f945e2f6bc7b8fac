// SPDX-License-Identifier: MIT OR Apache-2.0
// Memory of a Vulkan device. Host: each allocation through an application's callbacks fails once;
// nothing of the library's comes from elsewhere. Device: none, counted by a driver in between. The
// pipelines are not real where nothing runs.
#include <vector>

#include "../unit/host_memory.h"
#include "attention.h"
#include "fake_driver.h"

using namespace vulkan_app;

namespace {

int64_t device_allocations = 0;
PFN_vkAllocateMemory real_allocate = nullptr;

VkResult VKAPI_CALL count_memory(VkDevice device, const VkMemoryAllocateInfo* info,
                                 const VkAllocationCallbacks* callbacks, VkDeviceMemory* memory) {
  ++device_allocations;
  return real_allocate(device, info, callbacks, memory);
}

VkResult VKAPI_CALL name_nothing(VkDevice, const VkDebugUtilsObjectNameInfoEXT*) {
  return VK_SUCCESS;
}

constexpr const char* kFull =
    "bwd f32 b1 hq2 hk1 sq20 sk30 d8 elastic dist=4 bias:f32:1x2x20 d_bias:f32 grads=qkvbdt";

}  // namespace

TEST_CASE("Vulkan memory: each host allocation fails") {
  const App app;
  if (!usable(app)) return;
  tandem_vk_device_desc desc = app.desc();
  desc.gipa = fake_driver::install(app.gipa);
  auto& replace = fake_driver::state().replace;
  fake_driver::make_no_pipelines();
  replace["vkSetDebugUtilsObjectNameEXT"] = reinterpret_cast<PFN_vkVoidFunction>(name_nothing);
  failing = From::callbacks;
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  use_callbacks(&options);
  options.log = [](void*, tandem_log_level, const char*) {};
  const tandem_problem problems[] = {problem_of(kForward), problem_of(kFull)};
  std::vector<char> blob(1 << 20);
  // The library's calls alone: what the driver in between and the driver itself allocate must
  // neither fail nor be counted, and they do not come here.
  tandem_device* device = nullptr;
  const auto everything = [&] {
    device = nullptr;
    tandem_status status = tandem_vk_device_create(&desc, &options, &device);
    if (status != TANDEM_OK) return status;
    for (const tandem_problem& problem : problems) {
      tandem_plan* plan = nullptr;
      status = tandem_plan_create(device, &problem, &plan);
      if (status != TANDEM_OK) break;
      tandem_plan_destroy(plan);
    }
    size_t size = blob.size();
    if (status == TANDEM_OK) status = tandem_device_get_cache(device, &size, blob.data());
    if (status == TANDEM_OK) status = tandem_device_set_cache(device, size, blob.data());
    tandem_device_destroy(device);
    return status;
  };
  const auto in_library = [&] {  // the test's own hooks use operator new
    const int64_t others = new_calls;
    const tandem_status status = everything();
    new_calls = others;
    return status;
  };
  const int64_t count =
      fail_each("Vulkan", in_library, TANDEM_OK, [] { return fake_driver::state().live == 0; });
  CHECK(count > 50);
}

TEST_CASE("Vulkan memory: no device memory, and host memory from the application alone") {
  App app;
  if (!usable(app)) return;
  const Tensors t(app);
  tandem_vk_device_desc desc = app.desc();
  static PFN_vkGetInstanceProcAddr gipa;
  static PFN_vkGetDeviceProcAddr gdpa;
  gipa = app.gipa;
  gdpa = reinterpret_cast<PFN_vkGetDeviceProcAddr>(gipa(app.instance, "vkGetDeviceProcAddr"));
  real_allocate = reinterpret_cast<PFN_vkAllocateMemory>(gdpa(app.device, "vkAllocateMemory"));
  REQUIRE((real_allocate != nullptr));
  // Whatever way the library asks for it, it gets the counting one.
  const auto device_proc = [](VkDevice device, const char* name) -> PFN_vkVoidFunction {
    if (std::strcmp(name, "vkAllocateMemory") == 0)
      return reinterpret_cast<PFN_vkVoidFunction>(count_memory);
    return gdpa(device, name);
  };
  static const PFN_vkGetDeviceProcAddr counting_device = device_proc;
  desc.gipa = [](VkInstance instance, const char* name) -> PFN_vkVoidFunction {
    if (std::strcmp(name, "vkGetDeviceProcAddr") == 0)
      return reinterpret_cast<PFN_vkVoidFunction>(counting_device);
    if (std::strcmp(name, "vkAllocateMemory") == 0)
      return reinterpret_cast<PFN_vkVoidFunction>(count_memory);
    return gipa(instance, name);
  };
  failing = From::callbacks;
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  use_callbacks(&options);
  const tandem_problem problems[] = {problem_of(kForward), problem_of(kBackward)};
  const tandem_args args[] = {t.args(false), t.args(true)};
  app.begin();
  tandem_status status[2][2];
  tandem_device* device = nullptr;
  tandem_plan* plans[2] = {};
  const int64_t others = new_calls, memory = device_allocations;
  const tandem_status opened = tandem_vk_device_create(&desc, &options, &device);
  int64_t asked = 0;
  for (int n = 0; n < 2; ++n) {
    status[n][0] = tandem_plan_create(device, &problems[n], &plans[n]);
    asked = callbacks;
    status[n][1] = tandem_execute(plans[n], tandem_vk_stream(app.cmd), &args[n]);
    asked = callbacks - asked;
    app.barrier(VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT);
    if (asked != 0) break;
  }
  const int64_t others_after = new_calls;
  CHECK(opened == TANDEM_OK);
  for (const auto& row : status)
    for (tandem_status s : row) CHECK(s == TANDEM_OK);
  CHECK(asked == 0);  // recording needs none
  CHECK(others_after == others);
  app.submit();
  check_close(t.o.floats(), expected_o());
  for (tandem_plan* plan : plans) tandem_plan_destroy(plan);
  tandem_device_destroy(device);
  CHECK(device_allocations == memory);
  // The counter counts.
  VkMemoryAllocateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  info.allocationSize = 256;
  VkDeviceMemory one = VK_NULL_HANDLE;
  const auto allocate =
      reinterpret_cast<PFN_vkAllocateMemory>(reinterpret_cast<PFN_vkGetDeviceProcAddr>(
          desc.gipa(app.instance, "vkGetDeviceProcAddr"))(app.device, "vkAllocateMemory"));
  REQUIRE(allocate(app.device, &info, nullptr, &one) == VK_SUCCESS);
  CHECK(device_allocations == memory + 1);
  app.vk.vkFreeMemory(app.device, one, nullptr);
}
