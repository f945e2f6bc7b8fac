// SPDX-License-Identifier: MIT OR Apache-2.0
// Blobs of pipelines that a device must not take: of another GPU, another driver, another build of
// the library, cut off, changed. Each is refused with a sentence, and what it should have held is
// compiled again. A driver in between (vulkan/fake_driver.h) says that it is another one; the other
// build is a program of these files in which one word of one kernel is another
// (tests/CMakeLists.txt).
// And pipelines that several threads want at once.
//   TANDEM_TEST_BLOB    a file
//   TANDEM_TEST_CACHE   "write" it, or read it as the "same" build or as the "changed" one
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "attention.h"
#include "fake_driver.h"

using namespace vulkan_app;

namespace {

using Blob = std::vector<unsigned char>;
constexpr size_t kHeader = 40, kSum = 32, kSize = 24;  // of ours, in front of the driver's

bool says(const char* word) {
  return std::string(tandem_last_message()).find(word) != std::string::npos;
}

Blob blob_of(tandem_device* device) {
  size_t size = 0;
  REQUIRE(tandem_device_get_cache(device, &size, nullptr) == TANDEM_OK);
  Blob blob(size);
  REQUIRE(tandem_device_get_cache(device, &size, blob.data()) == TANDEM_OK);
  blob.resize(size);
  return blob;
}

tandem_status give(tandem_device* device, const Blob& blob) {
  return tandem_device_set_cache(device, blob.size(), blob.data());
}

// With the size and the sum that our header should have for it.
Blob sealed(Blob blob) {
  const uint64_t size = blob.size() - kHeader;
  std::memcpy(&blob[kSize], &size, 8);
  uint64_t sum = 0xcbf29ce484222325u;
  for (size_t n = 0; n < blob.size(); ++n)
    if (n < kSum || n >= kHeader) sum = (sum ^ blob[n]) * 0x100000001b3u;
  std::memcpy(&blob[kSum], &sum, 8);
  return blob;
}

// The device still makes pipelines, and they are right.
void check_works(App& app, const Device& device) {
  const Plan plan(device, kForward);
  const Tensors t(app);
  const tandem_args args = t.args(false);
  app.run([&](VkCommandBuffer cmd) {
    REQUIRE(tandem_execute(plan, tandem_vk_stream(cmd), &args) == TANDEM_OK);
  });
  check_close(t.o.floats(), expected_o());
}

// ---- a driver that says that it is another one
using Change = void (*)(VkPhysicalDeviceProperties2*);
Change change_properties;
PFN_vkGetPhysicalDeviceProperties2 real_properties;
void VKAPI_CALL changed_properties(VkPhysicalDevice gpu, VkPhysicalDeviceProperties2* p) {
  real_properties(gpu, p);
  change_properties(p);
}
VkPhysicalDeviceDriverProperties* driver_of(VkPhysicalDeviceProperties2* p) {
  for (auto* s = static_cast<VkBaseOutStructure*>(p->pNext); s; s = s->pNext)
    if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES)
      return reinterpret_cast<VkPhysicalDeviceDriverProperties*>(s);
  static VkPhysicalDeviceDriverProperties none;
  return &none;
}

}  // namespace

TEST_CASE("Vulkan cache: blobs of another GPU and of another driver") {
  App app;
  if (!usable(app)) return;
  Blob own;
  {
    const Device device(app.desc());
    const Plan plan(device, kForward);
    own = blob_of(device);
    CHECK(give(device, own) == TANDEM_OK);
  }
  const struct {
    const char* what;
    Change change;
    const char* words;
  } rows[] = {
      {"vendor", [](auto* p) { p->properties.vendorID ^= 1; }, "another build, device or driver"},
      {"device", [](auto* p) { p->properties.deviceID ^= 1; }, "another build, device or driver"},
      {"name", [](auto* p) { p->properties.deviceName[0] ^= 1; },
       "another build, device or driver"},
      {"version", [](auto* p) { ++p->properties.driverVersion; },
       "another build, device or driver"},
      {"driver", [](auto* p) { driver_of(p)->driverName[0] ^= 1; },
       "another build, device or driver"},
      {"its build", [](auto* p) { driver_of(p)->driverInfo[0] ^= 1; },
       "another build, device or driver"},
      {"its cache", [](auto* p) { p->properties.pipelineCacheUUID[3] ^= 1; },
       "another build of the driver"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.what);
    tandem_vk_device_desc desc = app.desc();
    desc.gipa = fake_driver::install(app.gipa);
    const char* const name = "vkGetPhysicalDeviceProperties2";
    real_properties =
        reinterpret_cast<PFN_vkGetPhysicalDeviceProperties2>(app.gipa(app.instance, name));
    change_properties = row.change;
    fake_driver::state().replace[name] = reinterpret_cast<PFN_vkVoidFunction>(changed_properties);
    const Device device(desc);
    CHECK(give(device, own) == TANDEM_ERROR_CACHE);
    CHECK(says(row.words));
    check_works(app, device);
  }
}

TEST_CASE("Vulkan cache: blobs that were cut off, grew or changed, also where the sum is right") {
  App app;
  if (!usable(app)) return;
  const Device device(app.desc());
  Blob own;
  {
    const Plan plan(device, kForward);
    own = blob_of(device);
  }
  REQUIRE(own.size() >= kHeader + 32);  // a driver may keep nothing but its header
  for (size_t size = 0; size < own.size(); size += size < kHeader + 64 ? 1 : 509) {
    CAPTURE(size);
    CHECK(tandem_device_set_cache(device, size, own.data()) == TANDEM_ERROR_CACHE);
  }
  Blob longer = own;
  longer.push_back(0);
  CHECK(give(device, longer) == TANDEM_ERROR_CACHE);
  // Where every byte would take long, those that decide anything and some of the driver's.
  const size_t step = own.size() < 20000 ? 1 : 509;
  for (size_t at = 0; at < own.size(); at += at < kHeader + 64 ? 1 : step) {
    CAPTURE(at);
    Blob changed = own;
    changed[at] ^= 1;
    CHECK(give(device, changed) == TANDEM_ERROR_CACHE);
  }
  // Where the header of the driver's own data is wrong: its size, version, vendor, device, build.
  CHECK(give(device, sealed(own)) == TANDEM_OK);
  for (size_t at : {3, 4, 7, 8, 12, 16, 31}) {  // 7: a version beyond the range of its enum
    CAPTURE(at);
    Blob changed = own;
    changed[kHeader + at] ^= at == 7 ? 0x80 : 1;
    CHECK(give(device, sealed(changed)) == TANDEM_ERROR_CACHE);
    CHECK(says("pipeline cache"));
  }
  CHECK(give(device, sealed(Blob(own.begin(), own.begin() + kHeader + 20))) == TANDEM_ERROR_CACHE);
  CHECK(says("shorter than its header"));
  check_works(app, device);
}

TEST_CASE("Vulkan cache: blobs of another process, of this build and of another") {
  const char *file = std::getenv("TANDEM_TEST_BLOB"), *role = std::getenv("TANDEM_TEST_CACHE");
  if (!file || !role) return;
  App app;
  REQUIRE(usable(app));
  const Device device(app.desc());
  if (std::strcmp(role, "write") == 0) {
    const Plan plan(device, kForward);
    const Blob own = blob_of(device);
    std::FILE* f = std::fopen(file, "wb");
    REQUIRE(f);
    CHECK(std::fwrite(own.data(), 1, own.size(), f) == own.size());
    CHECK(std::fclose(f) == 0);
    return;
  }
  Blob blob(size_t(1) << 24);
  std::FILE* f = std::fopen(file, "rb");
  REQUIRE(f);
  blob.resize(std::fread(blob.data(), 1, blob.size(), f));
  std::fclose(f);
  if (std::strcmp(role, "same") == 0) {
    CHECK(give(device, blob) == TANDEM_OK);
  } else {
    CHECK(give(device, blob) == TANDEM_ERROR_CACHE);
    CHECK(says("another build"));
  }
  check_works(app, device);
}

namespace {

// A driver that takes its time for a pipeline, so that threads meet.
PFN_vkCreateComputePipelines real_create;
std::atomic<int> calls_of_create, failing_calls;
VkResult VKAPI_CALL slow_create(VkDevice device, VkPipelineCache cache, uint32_t count,
                                const VkComputePipelineCreateInfo* infos,
                                const VkAllocationCallbacks* allocator, VkPipeline* pipelines) {
  const int call = calls_of_create++;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (call < failing_calls) return *pipelines = VK_NULL_HANDLE, VK_ERROR_OUT_OF_DEVICE_MEMORY;
  return real_create(device, cache, count, infos, allocator, pipelines);
}

}  // namespace

TEST_CASE("Vulkan pipelines: of threads that want one the first compiles it, the others wait") {
  App app;
  if (!usable(app)) return;
  const auto device_function =
      reinterpret_cast<PFN_vkGetDeviceProcAddr>(app.gipa(app.instance, "vkGetDeviceProcAddr"));
  const char* const name = "vkCreateComputePipelines";
  real_create = reinterpret_cast<PFN_vkCreateComputePipelines>(device_function(app.device, name));
  // Plans that differ, and have the same pipelines. Returns how many could not be made.
  const auto make_six = [&](bool at_once) {
    tandem_vk_device_desc desc = app.desc();
    desc.gipa = fake_driver::install(app.gipa);
    fake_driver::state().replace[name] = reinterpret_cast<PFN_vkVoidFunction>(slow_create);
    const Device device(desc);
    calls_of_create = 0;
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (int n = 0; n < 6; ++n) {
      threads.emplace_back([&, n] {
        tandem_problem problem = problem_of(kForward);
        problem.seq_q -= n;
        tandem_plan* plan = nullptr;
        const tandem_status status = tandem_plan_create(device, &problem, &plan);
        if (status == TANDEM_OK) tandem_plan_destroy(plan);
        failed += status == TANDEM_ERROR_DEVICE_OUT_OF_MEMORY;
      });
      if (!at_once) threads.back().join();
    }
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
    return int(failed);
  };
  failing_calls = 0;
  CHECK(make_six(false) == 0);
  const int alone = calls_of_create;
  CHECK(make_six(true) == 0);
  CHECK(calls_of_create == alone);
  // A thread that waited for one that failed compiles it.
  failing_calls = 1;
  CHECK(make_six(true) == 1);
  CHECK(calls_of_create >= alone + 1);
}

namespace {

PFN_vkMergePipelineCaches real_merge;
std::atomic<int> users, merges_beside, uses_beside;  // of the device's pipeline cache
std::atomic<bool> merging;
VkResult VKAPI_CALL using_create(VkDevice device, VkPipelineCache cache, uint32_t count,
                                 const VkComputePipelineCreateInfo* infos,
                                 const VkAllocationCallbacks* allocator, VkPipeline* pipelines) {
  ++users;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const VkResult result = real_create(device, cache, count, infos, allocator, pipelines);
  uses_beside += merging;
  --users;
  return result;
}
VkResult VKAPI_CALL alone_merge(VkDevice device, VkPipelineCache to, uint32_t count,
                                const VkPipelineCache* from) {
  merging = true;
  merges_beside += users > 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const VkResult result = real_merge(device, to, count, from);
  merging = false;
  return result;
}

}  // namespace

// Vulkan: dstCache of vkMergePipelineCaches is the caller's to keep other threads from.
TEST_CASE("regression: Vulkan pipelines, a blob that is set while another thread makes some") {
  App app;
  if (!usable(app)) return;
  const auto device_function =
      reinterpret_cast<PFN_vkGetDeviceProcAddr>(app.gipa(app.instance, "vkGetDeviceProcAddr"));
  const char *const create = "vkCreateComputePipelines", *const merge = "vkMergePipelineCaches";
  real_create = reinterpret_cast<PFN_vkCreateComputePipelines>(device_function(app.device, create));
  real_merge = reinterpret_cast<PFN_vkMergePipelineCaches>(device_function(app.device, merge));
  tandem_vk_device_desc desc = app.desc();
  desc.gipa = fake_driver::install(app.gipa);
  auto& replace = fake_driver::state().replace;
  replace[create] = reinterpret_cast<PFN_vkVoidFunction>(using_create);
  replace[merge] = reinterpret_cast<PFN_vkVoidFunction>(alone_merge);
  const Device device(desc);
  users = merges_beside = uses_beside = 0;
  merging = false;
  const Blob blob = blob_of(device);
  std::atomic<int> failed{0};
  std::thread planner([&] {
    const tandem_problem problem = problem_of(kBackward);
    tandem_plan* plan = nullptr;
    failed += tandem_plan_create(device, &problem, &plan) != TANDEM_OK;
    tandem_plan_destroy(plan);
  });
  while (users == 0 && failed == 0) std::this_thread::yield();
  failed += give(device, blob) != TANDEM_OK;
  planner.join();
  CHECK(int(failed) == 0);
  CHECK(int(merges_beside) == 0);
  CHECK(int(uses_beside) == 0);
}
