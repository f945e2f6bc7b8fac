// SPDX-License-Identifier: MIT OR Apache-2.0
// The rules for threads that tandem.h gives, used to the full on the CPU device: one device and one
// plan shared by many threads, plans and devices made and destroyed beside them, refusals with each
// thread's own message, a log that is called from everywhere. Results have the bits that one thread
// alone gets. Built by scripts/test once more with ThreadSanitizer, which is what looks for races.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#include <sys/resource.h>
#endif

#include "cpu_tensors.h"
#include "tandem/tandem.h"

namespace {

constexpr int kThreads = 6, kRounds = 4;

// Two paths, forward and backward; d_bias goes through other sums than d_q.
const char* const kLines[] = {
    "fwd f32 b2 hq4 hk2 sq37 sk41 d16 dv8 causal_top_left",
    "bwd f32 b2 hq4 hk2 sq37 sk41 d16 dv8 causal_top_left",
    "bwd f32 b1 hq2 hk1 sq9 sk12 d8 dv8 elastic dist=4 bias:f32:1x2x9 d_bias:f32 grads=qkvbdt"};

struct Device {
  tandem_device* device = nullptr;
  std::atomic<int> logged{0};
  explicit Device(uint32_t threads) {
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.threads = threads;
    options.user = &logged;
    options.log = [](void* user, tandem_log_level, const char* text) {
      *static_cast<std::atomic<int>*>(user) += std::strlen(text) > 0;
    };
    REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
  }
  ~Device() { tandem_device_destroy(device); }
};

using Tensors = CpuTensors<8192>;  // each thread has its own

tandem_problem parse(const char* line) {
  tandem_problem problem;
  REQUIRE(tandem_problem_parse(line, &problem) == TANDEM_OK);
  return problem;
}

// Runs work(thread) on all of them, which start together, and counts what is false.
template <typename Work>
int failures(Work work) {
  std::atomic<int> waiting{kThreads}, failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      for (int round = 0; round < kRounds; ++round) failed += !work(t);
    });
  for (std::thread& t : threads) t.join();
  return failed;
}

}  // namespace

TEST_CASE("threads: one plan, many threads") {
  for (uint32_t workers : {1u, 3u}) {
    Device cpu(workers);
    for (const char* line : kLines) {
      CAPTURE(line);
      const tandem_problem problem = parse(line);
      tandem_plan* plan = nullptr;
      REQUIRE(tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_OK);
      Tensors alone;
      const Tensors before;
      REQUIRE(tandem_execute(plan, tandem_stream{}, &alone.args()) == TANDEM_OK);
      CHECK(!(alone == before));
      CHECK(failures([&](int) {
              Tensors own;
              return tandem_execute(plan, tandem_stream{}, &own.args()) == TANDEM_OK &&
                     own == alone;
            }) == 0);
      tandem_plan_destroy(plan);
    }
  }
}

TEST_CASE("threads: plans of every thread's own on one device") {
  Device cpu(2);
  std::vector<Tensors> alone(std::size(kLines));
  const auto run = [&](const char* line, const Tensors& tensors) {
    tandem_problem problem;
    tandem_plan* plan = nullptr;
    tandem_plan_info info{};
    info.struct_size = sizeof info;
    const bool ok = tandem_problem_parse(line, &problem) == TANDEM_OK &&
                    tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_OK &&
                    tandem_plan_get_info(plan, &info) == TANDEM_OK &&
                    info.workspace_size <= tensors.args().workspace_size &&
                    tandem_explain(cpu.device, &problem, nullptr, 0) > 0 &&
                    tandem_execute(plan, tandem_stream{}, &tensors.args()) == TANDEM_OK;
    tandem_plan_destroy(plan);
    return ok;
  };
  for (size_t n = 0; n < alone.size(); ++n) REQUIRE(run(kLines[n], alone[n]));
  cpu.logged = 0;
  CHECK(failures([&](int t) {
          const size_t n = size_t(t) % alone.size();
          Tensors own;
          return run(kLines[n], own) && own == alone[n];
        }) == 0);
  CHECK(cpu.logged == kThreads * kRounds);
}

TEST_CASE("threads: devices of every thread's own, and messages") {
  CHECK(failures([](int t) {
          tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
          options.threads = 2;
          tandem_device* device = nullptr;
          if (tandem_cpu_device_create(&options, &device) != TANDEM_OK) return false;
          tandem_problem problem;
          const std::string word = "nonsense" + std::to_string(t);
          const bool refused =
              tandem_problem_parse(("fwd f32 " + word).c_str(), &problem) != TANDEM_OK &&
              std::string(tandem_last_message()).find(word) != std::string::npos;
          tandem_device_destroy(device);
          return refused;
        }) == 0);
}

#ifdef __linux__
TEST_CASE("threads: by default as many as the thread that makes the device may use") {
  std::string text;
  std::thread([&] {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    CPU_ZERO(&one);
    for (int n = 0; n < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++n)
      if (CPU_ISSET(n, &allowed)) CPU_SET(n, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) return;
    tandem_device* device = nullptr;
    if (tandem_cpu_device_create(nullptr, &device) != TANDEM_OK) return;
    std::vector<char> room(tandem_device_describe(device, nullptr, 0));
    tandem_device_describe(device, room.data(), room.size());
    text = room.data();
    tandem_device_destroy(device);
  }).join();
  CAPTURE(text);
  const size_t at = text.find("threads");
  REQUIRE(at != std::string::npos);
  CHECK(std::atoi(text.c_str() + at + std::strlen("threads")) == 1);
}

TEST_CASE("threads: a small problem does not wake all") {
  Device cpu(192);
  const tandem_problem problem = parse("fwd f32 b1 hq2 hk2 sq64 sk64 d32 dv32");
  tandem_plan* plan = nullptr;
  REQUIRE(tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_OK);
  const Tensors tensors;
  const auto waits = [] {  // of all threads of this process
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
  };
  REQUIRE(tandem_execute(plan, tandem_stream{}, &tensors.args()) == TANDEM_OK);
  constexpr int kTimes = 50;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // all have begun
  const long before = waits();
  for (int n = 0; n < kTimes; ++n)
    REQUIRE(tandem_execute(plan, tandem_stream{}, &tensors.args()) == TANDEM_OK);
  CHECK(waits() - before < 20 * kTimes);
  tandem_plan_destroy(plan);
}
#endif
