// SPDX-License-Identifier: MIT OR Apache-2.0
// What was freed too early. This program has src/api/api.cpp as builds with assertions have it
// (TANDEM_CHECK_HANDLES), so that handles which are gone are recognised; that a device knows its
// plans is so in every build.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "api_fixture.h"

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
