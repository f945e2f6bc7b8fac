// SPDX-License-Identifier: MIT OR Apache-2.0
// A small attention problem with its buffers on an App, and its result on the CPU device.
#ifndef TANDEM_TESTS_VULKAN_ATTENTION_H
#define TANDEM_TESTS_VULKAN_ATTENTION_H
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "app.h"

namespace vulkan_app {

constexpr const char* kForward = "fwd f32 b1 hq2 hk1 sq20 sk30 d8 dv8 causal_bottom_right";
constexpr const char* kBackward = "bwd f32 b1 hq2 hk1 sq20 sk30 d8 dv8 causal_bottom_right";
constexpr uint32_t kQueries = 2 * 20 * 8, kKeys = 30 * 8, kRows = 2 * 20;

inline tandem_problem problem_of(const char* line) {
  tandem_problem p;
  REQUIRE(tandem_problem_parse(line, &p) == TANDEM_OK);
  return p;
}

inline float input(uint32_t seed, uint32_t i) {
  return float((i * 2654435761u + seed * 40503u) >> 20 & 255) / 128.0f - 1.0f;
}

struct Tensors {
  App::Buffer q, k, v, o, lse, d_o, d_q, d_k, d_v, workspace;
  explicit Tensors(App& app) {
    const auto floats = [&](uint32_t count) { return app.buffer(count * sizeof(float)); };
    for (App::Buffer* b : {&q, &o, &d_o, &d_q}) *b = floats(kQueries);
    for (App::Buffer* b : {&k, &v, &d_k, &d_v}) *b = floats(kKeys);
    lse = floats(kRows);
    workspace = app.buffer(1 << 16);
    for (uint32_t i = 0; i < kQueries; ++i) {
      q.floats()[i] = input(1, i);
      d_o.floats()[i] = input(4, i);
    }
    for (uint32_t i = 0; i < kKeys; ++i) {
      k.floats()[i] = input(2, i);
      v.floats()[i] = input(3, i);
    }
  }
  tandem_args args(bool backward) const {
    tandem_args a = TANDEM_ARGS_INIT;
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse;
    a.workspace = workspace;
    a.workspace_size = workspace.size;
    if (backward) a.d_o = d_o, a.d_q = d_q, a.d_k = d_k, a.d_v = d_v;
    return a;
  }
};

// o of the inputs that Tensors has, q and k times factor.
inline std::vector<float> expected_o(float factor = 1) {
  std::vector<float> q(kQueries), k(kKeys), v(kKeys), o(kQueries);
  for (uint32_t i = 0; i < kQueries; ++i) q[i] = factor * input(1, i);
  for (uint32_t i = 0; i < kKeys; ++i) k[i] = factor * input(2, i), v[i] = input(3, i);
  tandem_device* device = nullptr;
  REQUIRE(tandem_cpu_device_create(nullptr, &device) == TANDEM_OK);
  tandem_plan* plan = nullptr;
  const tandem_problem problem = problem_of(kForward);
  REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);
  tandem_args args = TANDEM_ARGS_INIT;
  const auto at = [](std::vector<float>& data) {
    return tandem_buffer{uint64_t(uintptr_t(data.data())), 0};
  };
  args.q = at(q), args.k = at(k), args.v = at(v), args.o = at(o);
  REQUIRE(tandem_execute(plan, {0}, &args) == TANDEM_OK);
  tandem_plan_destroy(plan);
  tandem_device_destroy(device);
  return o;
}

inline void check_close(const float* is, const std::vector<float>& expected, float factor = 1) {
  float worst = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    worst = std::fmax(worst, std::fabs(is[i] - factor * expected[i]));
  CHECK(worst < 1e-5f);
}

struct Device {
  tandem_device* device = nullptr;
  explicit Device(const tandem_vk_device_desc& desc,
                  const tandem_device_options* options = nullptr) {
    const tandem_status status = tandem_vk_device_create(&desc, options, &device);
    INFO(tandem_last_message());
    REQUIRE(status == TANDEM_OK);
  }
  ~Device() { tandem_device_destroy(device); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  operator tandem_device*() const { return device; }
};

struct Plan {
  tandem_plan* plan = nullptr;
  tandem_plan_info info{};
  Plan(tandem_device* device, const char* line) {
    const tandem_problem problem = problem_of(line);
    const tandem_status status = tandem_plan_create(device, &problem, &plan);
    INFO(tandem_last_message());
    REQUIRE(status == TANDEM_OK);
    info.struct_size = sizeof(info);
    REQUIRE(tandem_plan_get_info(plan, &info) == TANDEM_OK);
  }
  ~Plan() { tandem_plan_destroy(plan); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  operator const tandem_plan*() const { return plan; }
};

// Whether there is Vulkan to test with; says what is missing otherwise, and fails where there has
// to be one.
bool usable(const App& app);

}  // namespace vulkan_app
#endif
