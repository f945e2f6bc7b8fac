// SPDX-License-Identifier: MIT OR Apache-2.0
// The library inside an application's own Vulkan: its passes around attention with the barriers of
// tandem_vulkan.h, its allocator, its debug names, timestamps, several devices. A program of its
// own, so that it also runs under synchronisation validation. TANDEM_TEST_MISTAKE then names a
// mistake of the application, which the layer has to report.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "attention.h"
#include "counting.h"
#include "touch.h"

using namespace vulkan_app;

namespace {

constexpr VkPipelineStageFlags kCompute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                               kTransfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
constexpr VkAccessFlags kShaderRead = VK_ACCESS_SHADER_READ_BIT,
                        kShaderWrite = VK_ACCESS_SHADER_WRITE_BIT;

bool mistake(const char* kind) {
  const char* name = std::getenv("TANDEM_TEST_MISTAKE");
  return name && std::string(name) == kind;
}

}  // namespace

TEST_CASE("Vulkan engine: passes of the application before and behind attention") {
  App app;
  if (!usable(app)) return;
  Touch touch(app);
  tandem_vk_device_desc desc = app.desc();
  desc.gipa = touch.gipa();
  const Device device(desc);
  const Plan forward(device, kForward), backward(device, kBackward);
  const Tensors t(app), in(app);
  for (const App::Buffer* b : {&t.q, &t.k, &t.v, &t.d_o}) touch.know(*b, Touch::read);
  for (const App::Buffer* b : {&t.d_q, &t.d_k, &t.d_v}) touch.know(*b, Touch::write);
  for (const App::Buffer* b : {&t.o, &t.lse, &t.workspace}) touch.know(*b, Touch::scratch);
  touch.without_barriers = mistake("between");
  ScalePass scale(app);
  const App::Buffer result = app.buffer(t.o.size), copied = app.buffer(t.o.size),
                    gradient = app.buffer(t.d_k.size);
  const auto copy = [&](const App::Buffer& from, const App::Buffer& to) {
    const VkBufferCopy all{0, 0, from.size};
    app.vk.vkCmdCopyBuffer(app.cmd, from.buffer, to.buffer, 1, &all);
  };
  const tandem_stream stream = tandem_vk_stream(app.cmd);
  app.begin();
  for (int frame = 0; frame < 2; ++frame) {
    touch.restart();
    scale.record(app.cmd, in.q, t.q, kQueries, 0.5f);
    scale.record(app.cmd, in.k, t.k, kKeys, 0.5f);
    copy(in.v, t.v);
    // Our writes, for attention to read, and to write around.
    if (!mistake("before"))
      app.barrier(kCompute | kTransfer, kShaderWrite | VK_ACCESS_TRANSFER_WRITE_BIT, kCompute,
                  kShaderRead | kShaderWrite);
    const tandem_args args = t.args(false), more = t.args(true);
    REQUIRE(tandem_execute(forward, stream, &args) == TANDEM_OK);
    // o, lse and the workspace go from one execute to the next.
    if (!mistake("two")) app.barrier(kCompute, kShaderWrite, kCompute, kShaderRead | kShaderWrite);
    REQUIRE(tandem_execute(backward, stream, &more) == TANDEM_OK);
    // Its results, for us to read.
    if (!mistake("after"))
      app.barrier(kCompute, kShaderWrite, kCompute | kTransfer,
                  kShaderRead | VK_ACCESS_TRANSFER_READ_BIT);
    copy(t.o, copied);
    scale.record(app.cmd, t.o, result, kQueries, 3);
    scale.record(app.cmd, t.d_k, gradient, kKeys, 1);
    // The next frame writes what this one reads: attention its outputs, and we its inputs.
    if (!mistake("frame"))
      app.barrier(kCompute | kTransfer, kShaderWrite | VK_ACCESS_TRANSFER_WRITE_BIT,
                  kCompute | kTransfer, kShaderWrite | VK_ACCESS_TRANSFER_WRITE_BIT);
  }
  app.submit();
  const std::vector<float> o = expected_o(0.5f);
  check_close(copied.floats(), o);
  check_close(result.floats(), o, 3);
  CHECK(touch.dispatches >= 6);
  CHECK(touch.barriers >= 2);
  CHECK(touch.touched > 2 * touch.dispatches);
}

TEST_CASE("Vulkan engine: a plan and its device that are destroyed while the GPU needs them") {
  if (!mistake("early")) return;  // for the validation layer alone: it is undefined
  App app;
  if (!usable(app)) return;
  const Tensors t(app);
  {
    const Device device(app.desc());
    const Plan plan(device, kForward);
    app.begin();
    const tandem_args args = t.args(false);
    REQUIRE(tandem_execute(plan, tandem_vk_stream(app.cmd), &args) == TANDEM_OK);
  }
  app.submit();
}

namespace {

// Everything that makes or destroys something.
void use_everything(const tandem_vk_device_desc& desc) {
  const Device device(desc);
  const Plan forward(device, kForward), backward(device, kBackward);
  size_t size = 0;
  REQUIRE(tandem_device_get_cache(device, &size, nullptr) == TANDEM_OK);
  std::vector<char> blob(size);
  REQUIRE(tandem_device_get_cache(device, &size, blob.data()) == TANDEM_OK);
  REQUIRE(tandem_device_set_cache(device, size, blob.data()) == TANDEM_OK);
}

}  // namespace

TEST_CASE(
    "Vulkan engine: the application's allocator serves all that is made, and gets all of it back") {
  App app;
  if (!usable(app)) return;
  tandem_vk_device_desc desc = app.desc();
  desc.gipa = fake_driver::install(app.gipa);
  Counting counting;
  desc.allocator = &counting.callbacks;
  use_everything(desc);
  const fake_driver::State& driver = fake_driver::state();
  CHECK(counting.allocations > 0);  // this driver does use it
  CHECK(counting.live == 0);
  CHECK(driver.live == 0);
  CHECK(driver.with_allocator > 20);
  CHECK(driver.without_allocator == 0);

  fake_driver::install(app.gipa);
  desc.allocator = nullptr;
  use_everything(desc);
  CHECK(driver.with_allocator == 0);
  CHECK(driver.without_allocator > 20);
  CHECK(driver.live == 0);

  // A copy is kept: the struct itself may go.
  auto copy = std::make_unique<VkAllocationCallbacks>(counting.callbacks);
  desc.allocator = copy.get();
  const Device device(desc);
  copy.reset();
  const int64_t before = counting.allocations;
  const Plan plan(device, kForward);
  CHECK(counting.allocations > before);
}

namespace {

// What a device shows with a queue; without vulkan.coopmat2, which needs no copies.
std::string shown(const tandem_vk_device_desc& desc) {
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.disable = "vulkan.coopmat2";
  const Device device(desc, &options);
  std::string text(tandem_device_describe(device, nullptr, 0) + 1, '\0');
  tandem_device_describe(device, &text[0], text.size());
  const size_t at = text.find("matrix_copies");
  return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
}

}  // namespace

TEST_CASE(
    "Vulkan engine: on a queue a device shows how matrices lie; what fails there is left out") {
  App app;
  if (!usable(app)) return;
  tandem_vk_device_desc desc = app.desc();
  desc.gipa = fake_driver::install(app.gipa);
  fake_driver::State& driver = fake_driver::state();
  CHECK(shown(desc) == "");
  desc.queue = app.queue;
  desc.queue_family = app.family;
  Counting counting;
  desc.allocator = &counting.callbacks;
  driver.without_allocator = 0;
  const std::string all = shown(desc);
  MESSAGE(all);
  CHECK(driver.live == 0);
  CHECK(driver.without_allocator == 0);
  CHECK(counting.live == 0);
  desc.allocator = nullptr;
  if (all.empty()) return;
  for (const char* name :
       {"vkCreateBuffer", "vkAllocateMemory", "vkBindBufferMemory", "vkMapMemory", "vkCreateFence",
        "vkCreateShaderModule", "vkCreateComputePipelines", "vkCreateCommandPool",
        "vkAllocateCommandBuffers", "vkBeginCommandBuffer", "vkEndCommandBuffer",
        "vkQueueSubmit"}) {
    CAPTURE(name);
    driver.before = [&](const char* called) {
      return std::strcmp(called, name) == 0 ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_SUCCESS;
    };
    CHECK(shown(desc) == "");
    CHECK(driver.live == 0);
  }
  driver.before = nullptr;
  driver.replace["vkCreateFence"] = nullptr;
  CHECK(shown(desc) == "");
  driver.replace.clear();
  CHECK(shown(desc) == all);
}

TEST_CASE("Vulkan engine: a device description of an older version") {
  App app;
  if (!usable(app)) return;
  tandem_vk_device_desc desc = app.desc();
  desc.struct_size = uint32_t(offsetof(tandem_vk_device_desc, allocator));
  // Behind its end stands what the caller has there.
  std::memset(reinterpret_cast<char*>(&desc) + desc.struct_size, 0x5a,
              sizeof(desc) - desc.struct_size);
  const Device device(desc);
  const Plan plan(device, kForward);
  const Tensors t(app);
  app.run([&](VkCommandBuffer cmd) {
    const tandem_args args = t.args(false);
    CHECK(tandem_execute(plan, tandem_vk_stream(cmd), &args) == TANDEM_OK);
  });
  check_close(t.o.floats(), expected_o());
}

namespace {

// What debug utils get, and the dispatches and timestamps between.
struct Heard {
  std::vector<std::string> names, events;
  int64_t handles = 0;
};
Heard heard;
const tandem::VkTable* table = nullptr;

VkResult VKAPI_CALL hear_name(VkDevice, const VkDebugUtilsObjectNameInfoEXT* info) {
  CHECK(info->objectHandle != 0);
  heard.names.push_back(info->pObjectName);
  return VK_SUCCESS;
}
void VKAPI_CALL hear_begin(VkCommandBuffer, const VkDebugUtilsLabelEXT* label) {
  heard.events.push_back(std::string("<") + label->pLabelName);
}
void VKAPI_CALL hear_end(VkCommandBuffer) { heard.events.push_back(">"); }
void VKAPI_CALL hear_dispatch(VkCommandBuffer cmd, uint32_t x, uint32_t y, uint32_t z) {
  heard.events.push_back("dispatch");
  table->vkCmdDispatch(cmd, x, y, z);
}
void VKAPI_CALL hear_stamp(VkCommandBuffer cmd, VkPipelineStageFlagBits stage, VkQueryPool pool,
                           uint32_t query) {
  heard.events.push_back("stamp " + std::to_string(query));
  table->vkCmdWriteTimestamp(cmd, stage, pool, query);
}

PFN_vkGetInstanceProcAddr listen(const App& app) {
  heard = Heard();
  table = &app.vk;
  const PFN_vkGetInstanceProcAddr gipa = fake_driver::install(app.gipa);
  auto& replace = fake_driver::state().replace;
  replace["vkSetDebugUtilsObjectNameEXT"] = reinterpret_cast<PFN_vkVoidFunction>(hear_name);
  replace["vkCmdBeginDebugUtilsLabelEXT"] = reinterpret_cast<PFN_vkVoidFunction>(hear_begin);
  replace["vkCmdEndDebugUtilsLabelEXT"] = reinterpret_cast<PFN_vkVoidFunction>(hear_end);
  replace["vkCmdDispatch"] = reinterpret_cast<PFN_vkVoidFunction>(hear_dispatch);
  replace["vkCmdWriteTimestamp"] = reinterpret_cast<PFN_vkVoidFunction>(hear_stamp);
  return gipa;
}

std::string stem_of(uint32_t kernel) {
  tandem_kernel_info info{};
  info.struct_size = sizeof(info);
  REQUIRE(tandem_kernel_get(kernel, &info) == TANDEM_OK);
  return info.stem;
}

}  // namespace

TEST_CASE("Vulkan engine: names and labels where debug utils are enabled, and only there") {
  App app;
  if (!usable(app)) return;
  const Tensors t(app);
  const tandem_args args = t.args(true);
  const char* const others[] = {"VK_KHR_surface", VK_EXT_DEBUG_UTILS_EXTENSION_NAME};
  for (uint32_t count : {0u, 1u, 2u}) {
    tandem_vk_device_desc desc = app.desc();
    desc.gipa = listen(app);
    desc.instance_extension_count = count;
    desc.instance_extensions = count > 0 ? others : nullptr;
    const Device device(desc);
    const Plan plan(device, kBackward);
    app.run([&](VkCommandBuffer cmd) {
      CHECK(tandem_execute(plan, tandem_vk_stream(cmd), &args) == TANDEM_OK);
    });
    std::vector<std::string> expected;
    const bool on = count == 2;
    const std::string path = std::string("vulkan.") + plan.info.path;
    if (on)
      expected.push_back("<tandem bwd " + path + " " + std::to_string(plan.info.tile_rows) + "x" +
                         std::to_string(plan.info.tile_cols));
    for (uint32_t n = 0; n < plan.info.kernel_count; ++n) {
      if (on) expected.push_back("<" + stem_of(plan.info.kernels[n]));
      expected.push_back("dispatch");
      if (on) expected.push_back(">");
    }
    if (on) expected.push_back(">");
    CHECK(heard.events == expected);
    // Each object that was made, the sets of the pool, and the shader modules, which are gone
    // already.
    int64_t pipelines = 0;
    for (const std::string& name : heard.names)
      pipelines += name.find(" bwd_dkv t") != std::string::npos;
    CHECK((int64_t(heard.names.size()) >= fake_driver::state().live + plan.info.kernel_count) ==
          on);
    CHECK((pipelines >= 2) == on);
    if (!on) CHECK(heard.names.empty());
  }
}

TEST_CASE("Vulkan engine: timestamps of each kernel") {
  App app;
  if (!usable(app)) return;
  const Tensors t(app);
  auto info = made<VkQueryPoolCreateInfo>(VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO);
  info.queryType = VK_QUERY_TYPE_TIMESTAMP;
  info.queryCount = 16;
  VkQueryPool pool = VK_NULL_HANDLE;
  REQUIRE(app.vk.vkCreateQueryPool(app.device, &info, nullptr, &pool) == VK_SUCCESS);
  tandem_vk_device_desc desc = app.desc();
  desc.gipa = listen(app);
  const Device device(desc);
  const Plan plan(device, kBackward);
  const tandem_args args = t.args(true);
  if (app.timestamp_bits == 0) {
    MESSAGE("this queue family has no timestamps");
    app.vk.vkDestroyQueryPool(app.device, pool, nullptr);
    return;
  }
  constexpr uint32_t kFirst = 3;
  app.run([&](VkCommandBuffer cmd) {
    app.vk.vkCmdResetQueryPool(cmd, pool, 0, 16);
    CHECK(tandem_vk_execute_timed(plan, cmd, &args, pool, kFirst) == TANDEM_OK);
  });
  const uint32_t count = plan.info.kernel_count;
  REQUIRE(count >= 3);
  uint64_t stamps[16][2] = {};  // with availability
  app.vk.vkGetQueryPoolResults(app.device, pool, 0, 16, sizeof(stamps), stamps, sizeof(stamps[0]),
                               VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WITH_AVAILABILITY_BIT);
  for (uint32_t n = 0; n < 16; ++n) {
    CAPTURE(n);
    CHECK((stamps[n][1] != 0) == (n >= kFirst && n <= kFirst + count));
    if (n > kFirst && n <= kFirst + count) CHECK(stamps[n][0] >= stamps[n - 1][0]);
  }
  CHECK(stamps[kFirst + count][0] > stamps[kFirst][0]);
  // Which kernel stands between which two.
  std::vector<std::string> expected{"stamp 3"};
  for (uint32_t n = 0; n < count; ++n) {
    expected.push_back("<" + stem_of(plan.info.kernels[n]));
    expected.push_back("dispatch");
    expected.push_back("stamp " + std::to_string(kFirst + n + 1));
    expected.push_back(">");
  }
  std::vector<std::string> is = heard.events;
  REQUIRE(is.size() == expected.size() + 2);
  is.erase(is.begin());  // the label of the whole
  is.pop_back();
  CHECK(is == expected);

  // A plan without kernels, and calls that fail.
  tandem_problem nothing = problem_of(kForward);
  nothing.seq_q = 0;
  tandem_plan* empty = nullptr;
  REQUIRE(tandem_plan_create(device, &nothing, &empty) == TANDEM_OK);
  tandem_device* cpu = nullptr;
  REQUIRE(tandem_cpu_device_create(nullptr, &cpu) == TANDEM_OK);
  heard = Heard();
  app.run([&](VkCommandBuffer cmd) {
    app.vk.vkCmdResetQueryPool(cmd, pool, 0, 16);
    const tandem_args none = TANDEM_ARGS_INIT;
    CHECK(tandem_vk_execute_timed(empty, cmd, &none, pool, 7) == TANDEM_OK);
    CHECK(heard.events == std::vector<std::string>{"<tandem fwd vulkan.scalar", "stamp 7", ">"});
    heard = Heard();
    constexpr tandem_status argument = TANDEM_ERROR_INVALID_ARGUMENT;
    CHECK(tandem_vk_execute_timed(plan, cmd, &none, pool, 0) == argument);
    CHECK(tandem_vk_execute_timed(plan, cmd, &args, VK_NULL_HANDLE, 0) == argument);
    CHECK(std::string(tandem_last_message()).find("pool") != std::string::npos);
    CHECK(tandem_vk_execute_timed(nullptr, cmd, &args, pool, 0) == argument);
    CHECK(tandem_vk_execute_timed(plan, VK_NULL_HANDLE, &args, pool, 0) == argument);
    const Plan on_cpu(cpu, kForward);
    const tandem_args a = t.args(false);
    CHECK(tandem_vk_execute_timed(on_cpu, cmd, &a, pool, 0) == argument);
    CHECK(std::string(tandem_last_message()).find("plan is for cpu") != std::string::npos);
    CHECK(heard.events.empty());
  });
  tandem_device_destroy(cpu);
  tandem_plan_destroy(empty);
  app.vk.vkDestroyQueryPool(app.device, pool, nullptr);
}

TEST_CASE(
    "Vulkan engine: several Tandem devices on a VkDevice, several VkDevices, several instances") {
  App one;
  if (!usable(one)) return;
  App same(&one), other;
  const std::vector<float> expected = expected_o();
  const auto run = [&](App& app, const tandem_plan* plan) {
    const Tensors t(app);
    app.run([&](VkCommandBuffer cmd) {
      const tandem_args args = t.args(false);
      CHECK(tandem_execute(plan, tandem_vk_stream(cmd), &args) == TANDEM_OK);
    });
    check_close(t.o.floats(), expected);
    return std::vector<float>(t.o.floats(), t.o.floats() + kQueries);
  };
  auto first = std::make_unique<Device>(one.desc());
  const Device second(one.desc()), third(same.desc()), fourth(other.desc());
  auto plan = std::make_unique<Plan>(*first, kForward);
  const Plan of_second(second, kForward), of_third(third, kForward), of_fourth(fourth, kForward);
  const std::vector<float> o = run(one, *plan);
  CHECK(run(one, of_second) == o);
  CHECK(run(same, of_third) == o);
  CHECK(run(other, of_fourth) == o);
  // One goes, the others stay.
  plan.reset();
  first.reset();
  CHECK(run(one, of_second) == o);
  CHECK(run(same, of_third) == o);
}

namespace {
std::set<VkPipelineCache> caches;  // that pipelines were made with
VkResult VKAPI_CALL note_cache(VkDevice device, VkPipelineCache cache, uint32_t count,
                               const VkComputePipelineCreateInfo* info,
                               const VkAllocationCallbacks* a, VkPipeline* pipelines) {
  caches.insert(cache);
  return table->vkCreateComputePipelines(device, cache, count, info, a, pipelines);
}
}  // namespace

TEST_CASE("Vulkan engine: the application's pipeline cache, and a secondary command buffer") {
  App app;
  if (!usable(app)) return;
  const auto info = made<VkPipelineCacheCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO);
  VkPipelineCache cache = VK_NULL_HANDLE;
  REQUIRE(app.vk.vkCreatePipelineCache(app.device, &info, nullptr, &cache) == VK_SUCCESS);
  {
    tandem_vk_device_desc desc = app.desc();
    desc.cache = cache;
    desc.gipa = fake_driver::install(app.gipa);
    table = &app.vk;
    caches.clear();
    fake_driver::state().replace["vkCreateComputePipelines"] =
        reinterpret_cast<PFN_vkVoidFunction>(note_cache);
    const Device device(desc);
    const Plan plan(device, kForward);
    CHECK(caches == std::set<VkPipelineCache>{cache});
    size_t size = 0;
    REQUIRE(tandem_device_get_cache(device, &size, nullptr) == TANDEM_OK);
    std::vector<char> blob(size);
    REQUIRE(tandem_device_get_cache(device, &size, blob.data()) == TANDEM_OK);
    CHECK(tandem_device_set_cache(device, size, blob.data()) == TANDEM_ERROR_INVALID_ARGUMENT);

    auto allocate =
        made<VkCommandBufferAllocateInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO);
    allocate.commandPool = app.pool;
    allocate.level = VK_COMMAND_BUFFER_LEVEL_SECONDARY;
    allocate.commandBufferCount = 1;
    VkCommandBuffer secondary = VK_NULL_HANDLE;
    REQUIRE(app.vk.vkAllocateCommandBuffers(app.device, &allocate, &secondary) == VK_SUCCESS);
    const auto inherits =
        made<VkCommandBufferInheritanceInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO);
    auto begin = made<VkCommandBufferBeginInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
    begin.pInheritanceInfo = &inherits;
    const Tensors t(app);
    const tandem_args args = t.args(false);
    REQUIRE(app.vk.vkBeginCommandBuffer(secondary, &begin) == VK_SUCCESS);
    CHECK(tandem_execute(plan, tandem_vk_stream(secondary), &args) == TANDEM_OK);
    REQUIRE(app.vk.vkEndCommandBuffer(secondary) == VK_SUCCESS);
    app.run([&](VkCommandBuffer cmd) { app.vk.vkCmdExecuteCommands(cmd, 1, &secondary); });
    check_close(t.o.floats(), expected_o());
  }
  size_t size = 0;  // it is still there
  CHECK(app.vk.vkGetPipelineCacheData(app.device, cache, &size, nullptr) == VK_SUCCESS);
  app.vk.vkDestroyPipelineCache(app.device, cache, nullptr);
}
