// SPDX-License-Identifier: MIT OR Apache-2.0
// Drivers that fail and drivers that lie, by one in between (vulkan/fake_driver.h): no memory, a
// lost device, matrices that are advertised but do not compile, functions that are not there. Each
// has to end in a status and a sentence, with nothing left behind. The pipelines of most tests here
// are not real: compiling is not what is tested.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "attention.h"
#include "counting.h"
#include "faked.h"

using namespace vulkan_app;

namespace {

// All calls of the library that ask something of the driver, up to the first that fails.
tandem_status use_everything(const tandem_vk_device_desc& desc) {
  tandem_device* device = untouched<tandem_device>();
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.threads = 1;  // calls in the same order every time
  tandem_status status = tandem_vk_device_create(&desc, &options, &device);
  if (status != TANDEM_OK) {
    CHECK(device == untouched<tandem_device>());
    return status;
  }
  for (const char* line : {kForward, kBackward}) {
    const tandem_problem problem = problem_of(line);
    tandem_plan* plan = untouched<tandem_plan>();
    if (status == TANDEM_OK) status = tandem_plan_create(device, &problem, &plan);
    if (status == TANDEM_OK)
      tandem_plan_destroy(plan);
    else
      CHECK(plan == untouched<tandem_plan>());
  }
  size_t size = 0;
  std::vector<char> blob;
  if (status == TANDEM_OK) status = tandem_device_get_cache(device, &size, nullptr);
  if (status == TANDEM_OK) {
    blob.resize(size);
    status = tandem_device_get_cache(device, &size, blob.data());
  }
  if (status == TANDEM_OK) status = tandem_device_set_cache(device, size, blob.data());
  tandem_device_destroy(device);
  return status;
}

}  // namespace

TEST_CASE("Vulkan faults: each call of the driver fails, in each way") {
  App app;
  if (!usable(app)) return;
  const tandem_vk_device_desc desc = fake_desc(app);
  fake_driver::State& driver = fake_driver::state();
  const struct {
    VkResult result;
    tandem_status status;
    const char* words;
  } faults[] = {
      {VK_ERROR_OUT_OF_HOST_MEMORY, TANDEM_ERROR_OUT_OF_MEMORY, "out of host memory"},
      {VK_ERROR_OUT_OF_DEVICE_MEMORY, TANDEM_ERROR_DEVICE_OUT_OF_MEMORY, "out of device memory"},
      {VK_ERROR_DEVICE_LOST, TANDEM_ERROR_DEVICE_LOST, "the device is lost"},
      {VK_ERROR_UNKNOWN, TANDEM_ERROR_BACKEND, "VkResult -13"},
  };
  for (const auto& fault : faults) {
    int failed = 0, calls = 0;
    for (int at = 0;; ++at) {
      std::string name;
      calls = 0;
      driver.before = [&](const char* function) {
        // These return nothing, and cannot fail.
        if (std::strncmp(function, "vkDestroy", 9) == 0 ||
            std::strcmp(function, "vkUpdateDescriptorSets") == 0)
          return VK_SUCCESS;
        if (calls++ != at) return VK_SUCCESS;
        name = function;
        return fault.result;
      };
      const tandem_status status = use_everything(desc);
      CAPTURE(at);
      CAPTURE(name);
      REQUIRE(driver.live == 0);
      if (name.empty()) {
        CHECK(status == TANDEM_OK);
        break;
      }
      ++failed;
      CHECK(status == fault.status);
      CHECK(says(name.c_str()));
      CHECK(says(fault.words));
    }
    CHECK(failed == calls);
    CHECK(failed > 25);
  }
}

TEST_CASE("Vulkan faults: each allocation of the driver fails") {  // the library's: test_memory.cpp
  App app;
  if (!usable(app)) return;
  tandem_vk_device_desc desc = fake_desc(app);
  Counting memory;
  desc.allocator = &memory.callbacks;
  REQUIRE(use_everything(desc) == TANDEM_OK);
  int64_t failed = 0;
  for (;; ++failed) {
    memory.good = failed;
    memory.failures = 0;
    const tandem_status status = use_everything(desc);
    memory.good = -1;
    CAPTURE(failed);
    REQUIRE(memory.live == 0);
    REQUIRE(fake_driver::state().live == 0);
    if (memory.failures == 0) {
      CHECK(status == TANDEM_OK);
      break;
    }
    REQUIRE(status == TANDEM_ERROR_OUT_OF_MEMORY);
    REQUIRE(says("out of host memory"));
  }
  CHECK(failed > 5);
}

TEST_CASE("Vulkan faults: a driver that leaves a function out") {
  App app;
  if (!usable(app)) return;
  const tandem_vk_device_desc desc = fake_desc(app);
  auto& replace = fake_driver::state().replace;
  const auto usual = replace;
  const char* const names[] = {
#define TANDEM_NAME(name) "vk" #name,
      TANDEM_VK_USED(TANDEM_NAME)
#undef TANDEM_NAME
  };
  for (const char* name : names) {
    CAPTURE(std::string(name));
    replace[name] = nullptr;
    CHECK(use_everything(desc) == TANDEM_ERROR_MISSING_FEATURE);
    CHECK(says((std::string(name) + ":").c_str()));
    replace = usual;
  }
  CHECK(use_everything(desc) == TANDEM_OK);
}

namespace {
int lies = 0;  // pipelines that the driver will not make
VkResult VKAPI_CALL make_few(VkDevice device, VkPipelineCache cache, uint32_t count,
                             const VkComputePipelineCreateInfo* info,
                             const VkAllocationCallbacks* a, VkPipeline* pipelines) {
  if (--lies < 0) return fake_driver::make_nothing(device, cache, count, info, a, pipelines);
  std::memset(pipelines, 0, sizeof(*pipelines));
  return lies % 2 == 0 ? VK_SUCCESS : VK_ERROR_UNKNOWN;  // the second lie is worse
}
}  // namespace

TEST_CASE("Vulkan faults: a driver that advertises what it does not compile; the sentence helps") {
  App app;
  if (!usable(app)) return;
  const tandem_vk_device_desc desc = fake_desc(app);
  auto& replace = fake_driver::state().replace;
  replace["vkCreateComputePipelines"] = reinterpret_cast<PFN_vkVoidFunction>(make_few);
  // Path after path lies, until the last; each sentence says how to do without that path.
  std::string disable;
  tandem_problem problem = problem_of("bwd f16 b1 hq1 hk1 sq20 sk30 d16 dv16");
  std::vector<std::string> paths;
  for (bool last = false; !last;) {
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.disable = disable.c_str();
    options.threads = 1;  // of several pipelines the first that fails is the first lie
    const Device device(desc, &options);
    lies = 0;
    tandem_plan* plan = nullptr;
    REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);
    tandem_plan_info info{};
    info.struct_size = sizeof(info);
    REQUIRE(tandem_plan_get_info(plan, &info) == TANDEM_OK);
    tandem_plan_destroy(plan);
    const std::string path = std::string("vulkan.") + info.path;
    CAPTURE(path);
    paths.push_back(path);
    last = path == "vulkan.scalar";

    // Another device has no pipelines yet.
    const Device liar(desc, &options);
    for (int lie : {2, 1}) {
      lies = lie;
      plan = untouched<tandem_plan>();
      CHECK(tandem_plan_create(liar, &problem, &plan) == TANDEM_ERROR_BACKEND);
      CHECK(plan == untouched<tandem_plan>());
      CHECK(says(lie == 2 ? "VkResult -13" : "returned no pipeline"));
      CHECK(says(("add " + path + " to tandem_device_options.disable").c_str()));
    }
    disable += (disable.empty() ? "" : ",") + path;
  }
  bool matrices = false;
  for (uint32_t n = 0; n < app.extension_count; ++n)
    matrices |= std::strcmp(app.extensions[n], VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME) == 0;
  CHECK((paths.size() > 1) == matrices);
}

namespace {
VkResult VKAPI_CALL no_matrices(VkPhysicalDevice, uint32_t*, VkCooperativeMatrixPropertiesKHR*) {
  return VK_ERROR_INITIALIZATION_FAILED;
}
}  // namespace

TEST_CASE("Vulkan faults: matrices that are enabled, but whose shapes the driver does not tell") {
  App app;
  if (!usable(app)) return;
  bool matrices = false;
  for (uint32_t n = 0; n < app.extension_count; ++n)
    matrices |= std::strcmp(app.extensions[n], VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME) == 0;
  if (!matrices) return;
  const tandem_vk_device_desc desc = fake_desc(app);
  const char* const name = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
  auto& replace = fake_driver::state().replace;
  replace[name] = reinterpret_cast<PFN_vkVoidFunction>(no_matrices);
  tandem_device* none = untouched<tandem_device>();
  CHECK(tandem_vk_device_create(&desc, nullptr, &none) == TANDEM_ERROR_BACKEND);
  CHECK(says((std::string(name) + " failed with VkResult -3").c_str()));
  CHECK(none == untouched<tandem_device>());
  CHECK(fake_driver::state().live == 0);
  // Without matrix paths the device is not asked.
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.disable = "vulkan.coopmat2,vulkan.coopmat";
  const Device asked_nothing(desc, &options);

  replace[name] = nullptr;  // no list: no matrices, but all else
  const Device device(desc);
  const Plan plan(device, "fwd f16 b1 hq1 hk1 sq20 sk30 d16 dv16");
  CHECK(std::string(plan.info.path) == "scalar");
}

TEST_CASE(
    "Vulkan faults: a device that is destroyed before its plans leaves nothing on the VkDevice") {
  auto app = std::make_unique<App>();
  if (!usable(*app)) return;
  const tandem_vk_device_desc desc = fake_desc(*app);
  fake_driver::State& driver = fake_driver::state();
  tandem_device* device = nullptr;
  REQUIRE(tandem_vk_device_create(&desc, nullptr, &device) == TANDEM_OK);
  const tandem_problem problem = problem_of(kForward);
  tandem_plan* plans[2] = {};
  for (tandem_plan*& plan : plans)
    REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);
  CHECK(driver.live > 0);
  tandem_device_destroy(device);
  CHECK(says("2 plans of this device are alive"));
  CHECK(driver.live == 0);
  const Tensors t(*app);
  const tandem_args args = t.args(false);
  CHECK(tandem_execute(plans[0], tandem_vk_stream(app->cmd), &args) ==
        TANDEM_ERROR_INVALID_ARGUMENT);
  CHECK(says("plan has no device"));
  app.reset();  // the VkDevice goes, too
  int calls = 0;
  driver.before = [&](const char*) { return ++calls, VK_SUCCESS; };
  for (tandem_plan* plan : plans) tandem_plan_destroy(plan);
  CHECK(calls == 0);
}

namespace {
std::mutex threads_mutex;
std::condition_variable threads_come;
std::set<std::thread::id> threads_seen;
size_t threads_wanted = 0;  // a pipeline is made when so many threads have one to make
bool threads_late = false;

VkResult VKAPI_CALL make_together(VkDevice device, VkPipelineCache cache, uint32_t count,
                                  const VkComputePipelineCreateInfo* infos,
                                  const VkAllocationCallbacks* allocator, VkPipeline* pipelines) {
  std::unique_lock<std::mutex> lock(threads_mutex);
  threads_seen.insert(std::this_thread::get_id());
  threads_come.notify_all();
  threads_late |= !threads_come.wait_for(lock, std::chrono::seconds(60),
                                         [] { return threads_seen.size() >= threads_wanted; });
  return fake_driver::make_nothing(device, cache, count, infos, allocator, pipelines);
}
}  // namespace

TEST_CASE("Vulkan faults: pipelines are made on as many threads as the device may have") {
  App app;
  if (!usable(app)) return;
  const tandem_vk_device_desc desc = fake_desc(app);
  fake_driver::State& driver = fake_driver::state();
  driver.replace["vkCreateComputePipelines"] = reinterpret_cast<PFN_vkVoidFunction>(make_together);
  const tandem_problem problem = problem_of(kBackward);
  Counting memory;
  const struct {
    uint32_t threads;
    bool allocator;
    size_t seen;
  } rows[] = {{1, false, 1}, {4, false, 4}, {0, true, 1}, {3, true, 3}};
  for (const auto& row : rows) {
    CAPTURE(row.threads);
    CAPTURE(row.allocator);
    tandem_vk_device_desc with = desc;
    if (row.allocator) with.allocator = &memory.callbacks;
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.threads = row.threads;
    threads_seen.clear();
    threads_wanted = row.seen;
    threads_late = false;
    driver.before = nullptr;
    {
      const Device device(with, &options);
      const Plan plan(device, kBackward);
    }
    CHECK(threads_seen.size() == row.seen);
    CHECK(!threads_late);
    CHECK((row.seen > 1 || *threads_seen.begin() == std::this_thread::get_id()));
    CHECK(driver.live == 0);

    // Each of them fails in turn: the plan is refused, and what the others made is destroyed.
    int failed = 0;
    for (int at = 0;; ++at) {
      int calls = 0;
      bool injected = false;
      driver.before = [&](const char* function) {
        if (std::strcmp(function, "vkCreateComputePipelines") != 0 || calls++ != at)
          return VK_SUCCESS;
        injected = true;
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
      };
      threads_wanted = 0;
      tandem_plan* plan = untouched<tandem_plan>();
      tandem_status status;
      {
        const Device device(with, &options);
        status = tandem_plan_create(device, &problem, &plan);
        if (status == TANDEM_OK) tandem_plan_destroy(plan);
      }
      CHECK(driver.live == 0);
      if (!injected) {
        CHECK(status == TANDEM_OK);
        break;
      }
      ++failed;
      CHECK(status == TANDEM_ERROR_DEVICE_OUT_OF_MEMORY);
      CHECK(plan == untouched<tandem_plan>());
    }
    CHECK(failed >= 5);
    driver.before = nullptr;
  }
  CHECK(memory.live == 0);
}

TEST_CASE("Vulkan faults: threads that make the same plans while pipelines fail now and then") {
  App app;
  if (!usable(app)) return;
  const tandem_vk_device_desc desc = fake_desc(app);
  fake_driver::State& driver = fake_driver::state();
  int calls = 0;  // under the driver's lock
  driver.before = [&](const char* function) {
    const bool fails = std::strcmp(function, "vkCreateComputePipelines") == 0 && ++calls % 3 == 0;
    return fails ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_SUCCESS;
  };
  const tandem_problem problems[] = {problem_of(kForward), problem_of(kBackward)};
  std::atomic<int> made{0}, failed{0}, others{0};
  for (int round = 0; round < 50; ++round) {
    const Device device(desc);
    std::vector<std::thread> threads;
    for (int n = 0; n < 4; ++n)
      threads.emplace_back([&, n] {
        for (int time = 0; time < 4; ++time) {
          tandem_plan* plan = nullptr;
          const tandem_status status = tandem_plan_create(device, &problems[(n + time) % 2], &plan);
          const bool no_memory = status == TANDEM_ERROR_DEVICE_OUT_OF_MEMORY && says("memory");
          ++(status == TANDEM_OK ? made : no_memory ? failed : others);
          tandem_plan_destroy(plan);
        }
      });
    for (std::thread& t : threads) t.join();
  }
  CHECK(others == 0);
  CHECK(made > 50);
  CHECK(failed > 50);
  CHECK(driver.live == 0);
}

TEST_CASE("Vulkan faults: an address for which the device does without kernels") {
  App app;
  if (!usable(app)) return;
  const Tensors t(app);
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.disable = "unaligned";
  const Device device(app.desc(), &options);
  const Plan plan(device, kForward);
  tandem_args args = t.args(false);
  app.run([&](VkCommandBuffer cmd) {
    CHECK(tandem_execute(plan, tandem_vk_stream(cmd), &args) == TANDEM_OK);
  });
  check_close(t.o.floats(), expected_o());
  args.q.offset += 4;
  app.run([&](VkCommandBuffer cmd) {
    CHECK(tandem_execute(plan, tandem_vk_stream(cmd), &args) == TANDEM_ERROR_INVALID_ARGUMENT);
  });
  CHECK(says("no multiple of 16"));
  // A problem without kernels for wide tensors has those for any.
  const Plan odd(device, "fwd f32 b1 hq2 hk1 sq20 sk30 d7 dv7");
}
