// SPDX-License-Identifier: MIT OR Apache-2.0
// The C border under what callers do not do on purpose: problems with arbitrary bytes in them, and host memory that
// ends at any allocation. The library takes memory by operator new, which this program replaces. The Vulkan and CUDA
// devices are left out: their drivers allocate by the same operator, and need not survive that.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "api_fixture.h"

namespace {

// Of this thread: allocations until one fails, -1: none does; and whether all after that one fail as well.
thread_local int64_t allocations_left = -1;
thread_local bool all_after = false;

// Allocations of this thread fail from the nth on, or the nth alone, while this lives.
struct Shortage {
  Shortage(int64_t n, bool all) { allocations_left = n, all_after = all; }
  ~Shortage() { allocations_left = -1; }
};

bool allocation_fails() {
  if (allocations_left < 0) return false;
  if (allocations_left > 0) return --allocations_left, false;
  if (!all_after) allocations_left = -1;
  return true;
}

// Runs call with its nth allocation failing, for n = 0, 1, ... until it succeeds, and returns how many it took. It
// returns its status, or TANDEM_OK where there is none and nothing can fail.
int64_t run_out(const char* what, const std::function<tandem_status()>& call) {
  int64_t most = 0;
  for (const bool all : {false, true})
    for (int64_t n = 0;; ++n) {
      tandem_status status;
      {
        const Shortage shortage(n, all);
        status = call();
      }
      INFO(std::string(what) << ": allocation " << n << (all ? " and all after it" : ""));
      if (status == TANDEM_OK) {
        most = std::max(most, n);
        break;
      }
      REQUIRE(status == TANDEM_ERROR_OUT_OF_MEMORY);
      CHECK(std::string(tandem_last_message()) == "out of host memory");
      REQUIRE(n < 10000);
    }
  return most;
}

tandem_problem small_problem() {
  tandem_problem p = good_problem();
  p.batch = 1;
  p.heads_q = p.heads_kv = 1;
  p.seq_q = p.seq_kv = 4;
  p.head_dim = p.head_dim_v = 8;
  p.direction = TANDEM_FORWARD;
  tandem_problem_contiguous(&p, TANDEM_F32);
  return p;
}

}  // namespace

void* operator new(size_t size) {
  if (!allocation_fails())
    if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

TEST_CASE("no memory: every allocation of every call may fail") {
  const tandem_problem problem = small_problem();
  for (const char* disable : {"", "cpu.simd"}) {
    CAPTURE(std::string(disable));
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.threads = 3;
    options.disable = disable;
    CHECK(run_out("device", [&] {
            tandem_device* made = untouched<tandem_device>();
            const tandem_status status = tandem_cpu_device_create(&options, &made);
            if (status == TANDEM_OK)
              tandem_device_destroy(made);
            else if (made != untouched<tandem_device>())
              std::abort();  // there is no memory for a CHECK
            return status;
          }) > 0);
    tandem_device* device = nullptr;
    REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);

    tandem_plan* plan = nullptr;
    CHECK(run_out("plan", [&] {
            tandem_plan* made = untouched<tandem_plan>();
            const tandem_status status = tandem_plan_create(device, &problem, &made);
            if (status == TANDEM_OK)
              tandem_plan_destroy(made);
            else if (made != untouched<tandem_plan>())
              std::abort();
            return status;
          }) > 0);
    REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);

    std::vector<float> q(32, 0.5f), k(32, 0.25f), v(32, 1.f), o(32), lse(4);
    tandem_args args = TANDEM_ARGS_INIT;
    const auto at = [](std::vector<float>& t) {
      return tandem_buffer{uint64_t(uintptr_t(t.data())), 0};
    };
    args.q = at(q), args.k = at(k), args.v = at(v), args.o = at(o), args.lse = at(lse);
    run_out("execute", [&] { return tandem_execute(plan, tandem_stream{}, &args); });
    CHECK(o == std::vector<float>(32, 1.f));
    tandem_plan_destroy(plan);

    // Texts: their size, or 0 where there was no memory for them.
    char text[4096];
    const auto some_text = [&](const std::function<size_t()>& call) {
      return [call] { return call() > 0 ? TANDEM_OK : TANDEM_ERROR_OUT_OF_MEMORY; };
    };
    run_out("describe",
            some_text([&] { return tandem_device_describe(device, text, sizeof(text)); }));
    run_out("explain",
            some_text([&] { return tandem_explain(device, &problem, text, sizeof(text)); }));
    run_out("print", some_text([&] { return tandem_problem_print(&problem, text, sizeof(text)); }));
    const std::string line = text;
    tandem_problem parsed;
    run_out("parse", [&] { return tandem_problem_parse(line.c_str(), &parsed); });
    CHECK(parsed.seq_q == problem.seq_q);
    size_t size = 0;
    run_out("cache", [&] { return tandem_device_get_cache(device, &size, nullptr); });
    tandem_device_destroy(device);
  }
}

TEST_CASE("no memory: a failure that cannot be put into words keeps its number") {
  tandem_problem p = small_problem();
  p.head_dim = 1000;
  CpuDevice cpu(1);
  tandem_plan* plan = untouched<tandem_plan>();
  REQUIRE(tandem_plan_create(cpu.device, &p, &plan) == TANDEM_ERROR_UNSUPPORTED);
  const std::string sentence = tandem_last_message();
  for (int64_t n = 0; n < 50; ++n) {
    tandem_status status;
    {
      const Shortage shortage(n, true);
      status = tandem_plan_create(cpu.device, &p, &plan);
    }
    CHECK((status == TANDEM_ERROR_UNSUPPORTED || status == TANDEM_ERROR_OUT_OF_MEMORY));
    CHECK(std::strlen(tandem_last_message()) > 0);
    if (sentence == tandem_last_message()) return;
  }
  FAIL("the sentence takes more than 50 allocations");
}

TEST_CASE("arbitrary problems: a plan, or a status with a sentence") {
  CpuDevice cpu(1);
  std::mt19937_64 random(23);
  const int64_t values[] = {0,
                            1,
                            2,
                            3,
                            7,
                            -1,
                            64,
                            256,
                            257,
                            65536,
                            (int64_t(1) << 29) - 1,
                            int64_t(1) << 29,
                            std::numeric_limits<int32_t>::max(),
                            std::numeric_limits<int32_t>::min(),
                            int64_t(1) << 32,
                            int64_t(1) << 62,
                            std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min(),
                            0x7fc000007fc00000,
                            0x7f8000003f800000};
  constexpr size_t kFirst = offsetof(tandem_problem, batch);
  int plans = 0, refused = 0;
  for (int n = 0; n < 20000; ++n) {
    tandem_problem p = random() % 2 ? good_problem() : small_problem();
    unsigned char bytes[sizeof(p)];
    std::memcpy(bytes, &p, sizeof(p));
    for (uint64_t spoil = random() % 4; spoil > 0; --spoil) {
      // Members of 4 bytes and of 8 alike; now and then any bits at all.
      const size_t width = random() % 2 ? 4 : 8;
      const size_t place = kFirst + random() % ((sizeof(p) - kFirst) / width) * width;
      const int64_t value =
          random() % 8 ? values[random() % (sizeof(values) / sizeof(*values))] : int64_t(random());
      std::memcpy(bytes + place, &value, width);
    }
    if (random() % 4 == 0) bytes[4 + random() % 4] = (unsigned char)(random() % 3);  // direction
    std::memcpy(&p, bytes, sizeof(p));
    tandem_plan* plan = untouched<tandem_plan>();
    const tandem_status status = tandem_plan_create(cpu.device, &p, &plan);
    const std::string line = text_of([&](char* out, size_t size) {  //
      return tandem_problem_print(&p, out, size);
    });
    INFO(line);
    CHECK(!line.empty());
    CHECK(tandem_explain(cpu.device, &p, nullptr, 0) > 1);
    if (status == TANDEM_OK) {
      ++plans;
      tandem_plan_info info{};
      info.struct_size = sizeof(info);
      CHECK(tandem_plan_get_info(plan, &info) == TANDEM_OK);
      CHECK(info.flops >= 0);
      tandem_plan_destroy(plan);
    } else {
      ++refused;
      CHECK(plan == untouched<tandem_plan>());
      CHECK(std::strlen(tandem_last_message()) > 10);
      // Nothing here is a failure of the machine's, or one that nobody thought of.
      CHECK((status == TANDEM_ERROR_INVALID_ARGUMENT || status == TANDEM_ERROR_INVALID_LAYOUT ||
             status == TANDEM_ERROR_UNSUPPORTED));
    }
  }
  CHECK(plans > 1000);
  CHECK(refused > 1000);
}
