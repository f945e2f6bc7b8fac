// SPDX-License-Identifier: MIT OR Apache-2.0
// What was freed too early. This program has src/api/api.cpp as builds with assertions have it
// (TANDEM_CHECK_HANDLES), so that handles which are gone are recognised; that a device knows its
// plans is so in every build, and that drivers of GPUs are left alone in a child of fork().
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "api/handles.h"
#include "api_fixture.h"
#if defined(__unix__) || defined(__APPLE__)
#include "in_child.h"
#endif

namespace {

constexpr tandem_status kArgument = TANDEM_ERROR_INVALID_ARGUMENT;

bool says(const char* word) {
  return std::string(tandem_last_message()).find(word) != std::string::npos;
}

tandem_plan* plan_on(tandem_device* device) {
  tandem_problem problem = good_problem();
  tandem_plan* plan = nullptr;
  REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);
  return plan;
}

}  // namespace

TEST_CASE("handles: a device that is destroyed before its plans") {
  std::vector<std::string> errors;
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.user = &errors;
  options.log = [](void* user, tandem_log_level level, const char* text) {
    if (level == TANDEM_LOG_ERROR) static_cast<std::vector<std::string>*>(user)->push_back(text);
  };
  tandem_device* device = nullptr;
  REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
  tandem_plan* plans[4];
  for (tandem_plan*& plan : plans) plan = plan_on(device);
  tandem_plan_destroy(plans[1]);  // in the middle of the list
  tandem_device_destroy(device);
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].find("3 plans") != std::string::npos);
  CHECK(says("3 plans"));
  tandem_args args = TANDEM_ARGS_INIT;
  CHECK(tandem_execute(plans[0], {0}, &args) == kArgument);
  CHECK(says("plan has no device"));
  tandem_plan_info info{};
  info.struct_size = sizeof(info);
  CHECK(tandem_plan_get_info(plans[2], &info) == TANDEM_OK);  // what the plan itself knows
  for (int n : {3, 0, 2}) tandem_plan_destroy(plans[n]);

  // In the right order there is nothing to say.
  errors.clear();
  REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
  for (tandem_plan*& plan : plans) plan = plan_on(device);
  for (int n : {2, 3, 0, 1}) tandem_plan_destroy(plans[n]);
  tandem_device_destroy(device);
  CHECK(errors.empty());
}

TEST_CASE("handles: what is gone, and what never was, is recognised") {
  CpuDevice owner;
  tandem_device* device = owner.device;
  tandem_plan* plan = plan_on(device);
  tandem_plan_destroy(plan);
  tandem_args args = TANDEM_ARGS_INIT;
  tandem_plan_info info{};
  info.struct_size = sizeof(info);
  CHECK(tandem_execute(plan, {0}, &args) == kArgument);
  CHECK(says("plan is 0x"));
  CHECK(says("not alive"));
  CHECK(tandem_plan_get_info(plan, &info) == kArgument);
  tandem_plan_destroy(plan);  // once more
  CHECK(says("not alive"));

  tandem_device* gone = nullptr;
  REQUIRE(tandem_cpu_device_create(nullptr, &gone) == TANDEM_OK);
  tandem_device_destroy(gone);
  tandem_problem problem = good_problem();
  tandem_plan* none = untouched<tandem_plan>();
  for (tandem_device* bad : {gone, untouched<tandem_device>()}) {
    CHECK(tandem_plan_create(bad, &problem, &none) == kArgument);
    CHECK(says("device is 0x"));
    tandem_device_info about{};
    about.struct_size = sizeof(about);
    CHECK(tandem_device_get_info(bad, &about) == kArgument);
    CHECK(tandem_device_describe(bad, nullptr, 0) == 0);
    CHECK(tandem_explain(bad, &problem, nullptr, 0) == 0);
    size_t size = 0;
    CHECK(tandem_device_get_cache(bad, &size, nullptr) == kArgument);
    CHECK(tandem_device_set_cache(bad, 1, "") == kArgument);
    tandem_device_destroy(bad);
    CHECK(says("device is 0x"));
  }
  CHECK(none == untouched<tandem_plan>());
}

#if defined(__unix__) || defined(__APPLE__)
namespace {

int driver_calls = 0;

struct DriverProgram : tandem::Program {
  ~DriverProgram() override { ++driver_calls; }
  tandem::Status record(tandem_stream, const tandem_args&) const override {
    return ++driver_calls, tandem::Status();
  }
};

struct DriverDevice : tandem::Device {
  explicit DriverDevice(tandem::Backend backend) { caps_.backend = backend; }
  ~DriverDevice() override { ++driver_calls; }
  tandem::Status build(const tandem::Plan&, std::unique_ptr<tandem::Program>*) override {
    return ++driver_calls, tandem::Status();
  }
  tandem::Status cache_get(tandem::Vec<uint8_t>*) override {
    return ++driver_calls, tandem::Status();
  }
  tandem::Status cache_set(const uint8_t*, size_t) override {
    return ++driver_calls, tandem::Status();
  }
};

}  // namespace

TEST_CASE("handles: a GPU's device and plans in a child of fork()") {
  tandem::watch_forks();
  for (const tandem::Backend backend : {tandem::Backend::vulkan, tandem::Backend::cuda}) {
    auto* device = new tandem_device;
    device->device.reset(new DriverDevice(backend));
    auto* plan = new tandem_plan;
    const auto named = tandem::make_host_shared<tandem::NamedPlan>();
    named->backend = backend;
    plan->plan = named;
    plan->program = std::make_shared<DriverProgram>();
    tandem::add_handle(device);
    tandem::add_handle(plan);
    tandem::join_device(plan, device);
    driver_calls = 0;
    const auto refused = [](tandem_status status) {
      return status == kArgument && says("before this process was forked");
    };
    const auto use = [&] {
      const tandem_args args = TANDEM_ARGS_INIT;
      const tandem_problem problem = good_problem();
      tandem_plan* none = untouched<tandem_plan>();
      size_t size = 0;
      if (!refused(tandem_execute(plan, {0}, &args)) || !says("plan was")) return 1;
      if (!refused(tandem_plan_create(device, &problem, &none)) || !says("device was")) return 2;
      if (!refused(tandem_device_get_cache(device, &size, nullptr))) return 3;
      if (!refused(tandem_device_set_cache(device, 1, ""))) return 4;
      tandem_device_info info{};
      info.struct_size = sizeof info;
      if (tandem_device_get_info(device, &info) != TANDEM_OK) return 5;  // asks no driver
      tandem_plan_destroy(plan);
      tandem_device_destroy(device);
      if (none != untouched<tandem_plan>() || driver_calls != 0) return 6;
      return tandem_execute(plan, {0}, &args) == kArgument && says("not alive") ? 0 : 7;
    };
    CHECK(in_child(use) == 0);
    CHECK(in_child([&] { return in_child(use); }) == 0);
    // In this process all is as before.
    const tandem_args args = TANDEM_ARGS_INIT;
    CHECK(tandem_execute(plan, {0}, &args) == TANDEM_OK);
    tandem_plan_destroy(plan);
    tandem_device_destroy(device);
    CHECK(driver_calls == 2);
  }
}
#endif
