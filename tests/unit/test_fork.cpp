// SPDX-License-Identifier: MIT OR Apache-2.0
// fork(): a child goes on with the CPU device and the plans of its parent, whatever other threads
// of the parent were doing with them, gets the same bits, and can destroy them. Devices of GPUs:
// test_handles.cpp.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cpu_tensors.h"
#include "in_child.h"
#include "tandem/tandem.h"

namespace {

// The two paths; both are worth several threads.
const char* const kLines[] = {"bwd f32 b2 hq4 hk2 sq128 sk128 d32 dv32",
                              "fwd f32 b2 hq4 hk2 sq70 sk90 d16 dv16 alibi"};

using Tensors = CpuTensors<1 << 15>;

struct Parent {
  tandem_device* device = nullptr;
  std::vector<tandem_plan*> plans;
  std::vector<Tensors> expected{std::size(kLines)};

  explicit Parent(uint32_t threads) {
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.threads = threads;
    REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
    for (size_t n = 0; n < std::size(kLines); ++n) {
      tandem_problem problem;
      REQUIRE(tandem_problem_parse(kLines[n], &problem) == TANDEM_OK);
      tandem_plan* plan = nullptr;
      REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);
      plans.push_back(plan);
      REQUIRE(tandem_execute(plan, tandem_stream{}, &expected[n].args()) == TANDEM_OK);
    }
  }
  // 0, or a number for what went wrong.
  int run() const {
    for (size_t n = 0; n < plans.size(); ++n) {
      const Tensors own;
      if (tandem_execute(plans[n], tandem_stream{}, &own.args()) != TANDEM_OK) return 1;
      if (!(own == expected[n])) return 2;
    }
    return 0;
  }
  // A problem that no other call has planned.
  int plan(int scale) const {
    tandem_problem problem;
    tandem_plan* own = nullptr;
    if (tandem_problem_parse(kLines[0], &problem) != TANDEM_OK) return 3;
    problem.scale = float(scale + 1) / 1024;
    if (tandem_plan_create(device, &problem, &own) != TANDEM_OK) return 4;
    const Tensors tensors;
    if (tandem_execute(own, tandem_stream{}, &tensors.args()) != TANDEM_OK) return 5;
    tandem_plan_destroy(own);
    return 0;
  }
  void destroy() {
    for (tandem_plan* p : plans) tandem_plan_destroy(p);
    plans.clear();
    tandem_device_destroy(device);
    device = nullptr;
  }
  int use_all(int scale) {
    if (const int wrong = run()) return wrong;
    if (const int wrong = plan(scale)) return wrong;
    destroy();
    return 0;
  }
};

}  // namespace

#if TANDEM_FORK_TESTS

TEST_CASE("fork: a child executes on its parent's CPU device") {
  for (const uint32_t threads : {1u, 2u, 5u}) {
    CAPTURE(threads);
    Parent parent(threads);
    CHECK(in_child([&] { return parent.run(); }) == 0);
    CHECK(in_child([&] { return parent.use_all(0); }) == 0);
    CHECK(parent.run() == 0);
    parent.destroy();
  }
}

TEST_CASE("fork: a child destroys its parent's CPU device") {
  Parent parent(4);
  CHECK(in_child([&] { return parent.destroy(), 0; }) == 0);
  CHECK(parent.run() == 0);
  parent.destroy();
}

TEST_CASE("fork: a child of a child, and several threads of a child") {
  Parent parent(3);
  CHECK(in_child([&] {
          if (in_child([&] { return parent.use_all(1); }, 30) != 0) return 10;
          std::atomic<int> wrong{0};
          std::vector<std::thread> threads;
          for (int t = 0; t < 4; ++t)
            threads.emplace_back([&, t] { wrong += parent.run() + parent.plan(t) != 0; });
          for (std::thread& t : threads) t.join();
          if (wrong != 0) return 11;
          if (in_child([&] { return parent.use_all(1); }, 30) != 0) return 12;
          return parent.use_all(2);
        }) == 0);
  CHECK(parent.use_all(3) == 0);
}

TEST_CASE("fork: while other threads of the parent execute and plan") {
  Parent parent(3);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, rounds{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (int n = 0; !stop; ++n, ++rounds)
        wrong += parent.run() != 0 || parent.plan(1000 * t + n % 900) != 0;
    });
  while (rounds < 3) std::this_thread::yield();
  for (int n = 0; n < 20; ++n) {
    CAPTURE(n);
    REQUIRE(in_child([&] { return parent.use_all(5000 + n); }) == 0);
  }
  stop = true;
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  parent.destroy();
}

TEST_CASE("regression: fork, while another thread of the parent raises max_logit") {
  tandem_problem problem;  // of tiles that do little else
  REQUIRE(tandem_problem_parse("fwd f32 b16 hq512 hk512 sq1 sk1 d1 dv1 max_logit=1", &problem) ==
          TANDEM_OK);
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.threads = 2;
  tandem_device* device = nullptr;
  REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
  tandem_plan* plan = nullptr;
  REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);
  std::vector<float> in(16 * 512, 1), o(in.size()), top(512);
  const auto run = [&] {
    tandem_args args = TANDEM_ARGS_INIT;
    args.q = args.k = args.v = {uint64_t(uintptr_t(in.data())), 0};
    args.o = {uint64_t(uintptr_t(o.data())), 0};
    args.max_logit = {uint64_t(uintptr_t(top.data())), 0};
    return tandem_execute(plan, tandem_stream{}, &args) == TANDEM_OK ? 0 : 1;
  };
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, rounds{0};
  std::thread other([&] {
    for (; !stop; ++rounds) wrong += run();
  });
  while (rounds < 3) std::this_thread::yield();
  int ended = 0;
  for (int n = 0; n < 40 && ended == 0; ++n) ended = in_child(run, 20);
  CHECK(ended == 0);
  stop = true;
  other.join();
  CHECK(wrong == 0);
  tandem_plan_destroy(plan);
  tandem_device_destroy(device);
}

#endif
