// SPDX-License-Identifier: MIT OR Apache-2.0
// No host memory. Every call on the CPU device, with its first allocation failing, then its second, and so on for each
// that it makes; once alone, and once together with all that come after it. It has to end in OUT_OF_MEMORY, with a
// sentence, out-parameters as they were, and nothing left behind. The program's operator new does it, so that what the
// library allocates through std:: is in it. A program of its own for that reason.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace {

std::atomic<int64_t> live{0};
std::atomic<int64_t> countdown{-1};  // allocations that still succeed; below 0: all do
std::atomic<bool> lasting{false};    // whether those after the failed one fail, too
std::atomic<int64_t> failures{0};

bool fails() {
  int64_t left = countdown.load();
  while (left >= 0) {
    const int64_t next = left > 0 ? left - 1 : lasting ? 0 : -1;
    if (!countdown.compare_exchange_weak(left, next)) continue;
    if (left > 0) return false;
    ++failures;
    return true;
  }
  return false;
}

void* allocate(size_t size, size_t alignment) noexcept {
  if (fails()) return nullptr;
  const size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded > 0 ? rounded : alignment);
  if (p) ++live;
  return p;
}
void* allocate_or_throw(size_t size, size_t alignment) {
  if (void* p = allocate(size, alignment)) return p;
  throw std::bad_alloc();
}
void release(void* p) noexcept {
  if (p) --live;
  std::free(p);
}
constexpr size_t kAlign = alignof(std::max_align_t);

}  // namespace

void* operator new(size_t n) { return allocate_or_throw(n, kAlign); }
void* operator new[](size_t n) { return allocate_or_throw(n, kAlign); }
void* operator new(size_t n, std::align_val_t a) { return allocate_or_throw(n, size_t(a)); }
void* operator new[](size_t n, std::align_val_t a) { return allocate_or_throw(n, size_t(a)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n, kAlign); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n, kAlign); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { release(p); }

namespace {

tandem_device* const kNoDevice = reinterpret_cast<tandem_device*>(uintptr_t(0x5a5a));
tandem_plan* const kNoPlan = reinterpret_cast<tandem_plan*>(uintptr_t(0x5a5a));

// This thread's last message keeps its memory: have it grow once, before anything is counted.
void warm_up() {
  tandem_problem problem;
  CHECK(tandem_problem_parse(std::string(100000, 'x').c_str(), &problem) != TANDEM_OK);
}

// Runs call, which says how it ended and leaves nothing behind, until no allocation fails in it. usual is how it ends
// with enough memory. untouched, called after each failure, says whether its results are as they were.
int64_t fail_each(const std::string& what, const std::function<tandem_status()>& call,
                  tandem_status usual, const std::function<bool()>& untouched) {
  CAPTURE(what);
  warm_up();
  int64_t most = 0;
  for (bool all_after : {false, true}) {
    lasting = all_after;
    for (int64_t i = 0;; ++i) {
      failures = 0;
      const int64_t before = live;
      countdown = i;
      const tandem_status status = call();
      countdown = -1;
      const int64_t failed = failures, after = live;
      if (failed == 0) {
        CHECK(status == usual);
        most = i > most ? i : most;
        break;
      }
      CAPTURE(i);
      CAPTURE(all_after);
      REQUIRE(after == before);
      // A failure that was on its way already may lose its sentence, not its number.
      if (usual == TANDEM_OK || status != usual) REQUIRE(status == TANDEM_ERROR_OUT_OF_MEMORY);
      REQUIRE(std::strlen(tandem_last_message()) > 0);
      REQUIRE(untouched());
    }
  }
  return most;
}

struct Line {
  const char* what;
  const char* disable;
  const char* line;
  tandem_status status;
};
// Each kind of plan that the CPU has, and plans that are refused.
constexpr Line kLines[] = {
    {"simd forward", "", "fwd f32 b1 hq2 hk1 sq9 sk11 d8 dv8", TANDEM_OK},
    {"simd backward", "", "bwd bf16 b1 hq2 hk1 sq9 sk11 d8 dv8 causal_top_left", TANDEM_OK},
    {"ref forward", "cpu.simd", "fwd f16 b1 hq2 hk1 sq9 sk11 d8 dv8 left=3", TANDEM_OK},
    {"ref backward", "",
     "bwd f32 b2 hq2 hk1 sq5 sk7 d4 dv4 causal_bottom_right elastic dist=4 alibi sink softcap=20 "
     "bias:f32:1x2x5 d_bias:f32 keep:2x1x1 q_padded kv_padded dropout=0.25 grads=qkvbdats",
     TANDEM_OK},
    {"entmax", "", "bwd f32 b1 hq2 hk1 sq5 sk7 d4 dv4 entmax=1.5", TANDEM_OK},
    {"refused", "cpu.simd,cpu.ref", "fwd f32 b1 hq2 hk1 sq9 sk11 d8 dv8", TANDEM_ERROR_UNSUPPORTED},
};

tandem_problem parse(const char* line) {
  tandem_problem problem;
  const tandem_status status = tandem_problem_parse(line, &problem);
  INFO(line << ": " << tandem_last_message());
  REQUIRE(status == TANDEM_OK);
  return problem;
}

tandem_device_options options_of(const char* disable) {
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.threads = 2;  // what fails on a worker's thread has to come back
  options.disable = disable;
  options.log = [](void*, tandem_log_level, const char*) {};
  return options;
}

struct Device {
  tandem_device* device = nullptr;
  explicit Device(const char* disable) {
    const tandem_device_options options = options_of(disable);
    REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
  }
  ~Device() { tandem_device_destroy(device); }
};

// Room for every tensor of a small problem, zeros, all in one place each.
struct Room {
  std::vector<std::vector<double>> memory;
  tandem_args args = TANDEM_ARGS_INIT;
  explicit Room(uint64_t workspace_size) {
    using A = tandem_args;
    for (tandem_buffer A::*b :
         {&A::q,           &A::k,       &A::v,     &A::o,         &A::lse,        &A::d_o,
          &A::d_q,         &A::d_k,     &A::d_v,   &A::bias,      &A::keep,       &A::dist_bias,
          &A::slope,       &A::tau,     &A::sink,  &A::lengths_q, &A::lengths_kv, &A::d_bias,
          &A::d_dist_bias, &A::d_slope, &A::d_tau, &A::d_sink,    &A::workspace}) {
      memory.emplace_back(1024 + workspace_size);
      args.*b = {(uint64_t(uintptr_t(memory.back().data())) + 255) / 256 * 256, 0};
    }
    args.workspace_size = workspace_size;
    for (const tandem_buffer& b : {args.lengths_q, args.lengths_kv})
      for (int i = 0; i < 8; ++i) reinterpret_cast<int32_t*>(uintptr_t(b.handle))[i] = 4;
  }
};

}  // namespace

TEST_CASE("no host memory: a device") {
  tandem_device* device = kNoDevice;
  const tandem_device_options options = options_of("cpu.ref,t64k32");
  const int64_t count = fail_each(
      "device",
      [&] {
        const tandem_status status = tandem_cpu_device_create(&options, &device);
        if (status != TANDEM_OK) return status;
        tandem_device_destroy(device);
        device = kNoDevice;
        return status;
      },
      TANDEM_OK, [&] { return device == kNoDevice; });
  CHECK(count > 3);
}

TEST_CASE("no host memory: problem lines") {
  for (const Line& l : kLines) {
    tandem_problem problem, before;
    std::memset(&problem, 0x5a, sizeof problem);
    before = problem;
    fail_each(
        l.line,
        [&] {
          const tandem_status status = tandem_problem_parse(l.line, &problem);
          if (status == TANDEM_OK) problem = before;
          return status;
        },
        TANDEM_OK, [&] { return std::memcmp(&problem, &before, sizeof problem) == 0; });
    const tandem_problem parsed = parse(l.line);
    std::vector<char> text(1000, 'x');
    fail_each(
        "print",
        [&] {
          text[0] = 'x';
          return tandem_problem_print(&parsed, text.data(), text.size()) > 0
                     ? TANDEM_OK
                     : TANDEM_ERROR_OUT_OF_MEMORY;
        },
        TANDEM_OK, [&] { return text[0] == 'x'; });
  }
}

TEST_CASE("no host memory: plans and what is asked of them") {
  for (const Line& l : kLines) {
    CAPTURE(l.what);
    const Device cpu(l.disable);
    const tandem_problem problem = parse(l.line);
    tandem_plan* plan = kNoPlan;
    // Once before: the device keeps the largest scratch memory that a plan has asked for.
    if (tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_OK) tandem_plan_destroy(plan);
    plan = kNoPlan;
    const int64_t count = fail_each(
        l.what,
        [&] {
          const tandem_status status = tandem_plan_create(cpu.device, &problem, &plan);
          if (status != TANDEM_OK) return status;
          tandem_plan_destroy(plan);
          plan = kNoPlan;
          return status;
        },
        l.status, [&] { return plan == kNoPlan; });
    CHECK(count > 3);
    std::vector<char> text(10000, 'x');
    fail_each(
        "explain",
        [&] {
          text[0] = 'x';
          return tandem_explain(cpu.device, &problem, text.data(), text.size()) > 0
                     ? TANDEM_OK
                     : TANDEM_ERROR_OUT_OF_MEMORY;
        },
        TANDEM_OK, [&] { return text[0] == 'x'; });
    if (l.status != TANDEM_OK) continue;

    REQUIRE(tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_OK);
    tandem_plan_info info{};
    info.struct_size = sizeof info;
    fail_each(
        "plan info",
        [&] {
          info.name[0] = 0;
          return tandem_plan_get_info(plan, &info);
        },
        TANDEM_OK, [&] { return info.backend[0] == 0 && info.name[0] == 0; });
    REQUIRE(tandem_plan_get_info(plan, &info) == TANDEM_OK);
    const Room room(info.workspace_size);
    fail_each(
        "execute", [&] { return tandem_execute(plan, tandem_stream{}, &room.args); }, TANDEM_OK,
        [] { return true; });
    CHECK(tandem_execute(plan, tandem_stream{}, &room.args) == TANDEM_OK);
    tandem_plan_destroy(plan);
  }
}

TEST_CASE("no host memory: from the device to the result") {
  for (const Line& l : kLines) {
    if (l.status != TANDEM_OK) continue;
    CAPTURE(l.what);
    const tandem_device_options options = options_of(l.disable);
    const tandem_problem problem = parse(l.line);
    const Room room(100000);
    fail_each(
        std::string(l.what) + ", all of it",
        [&] {
          tandem_device* device = nullptr;
          tandem_plan* plan = nullptr;
          tandem_status status = tandem_cpu_device_create(&options, &device);
          if (status == TANDEM_OK) status = tandem_plan_create(device, &problem, &plan);
          if (status == TANDEM_OK) status = tandem_execute(plan, tandem_stream{}, &room.args);
          tandem_plan_destroy(plan);
          tandem_device_destroy(device);
          return status;
        },
        TANDEM_OK, [] { return true; });
  }
}

TEST_CASE("no host memory: what is asked of a device") {
  const Device cpu("");
  std::vector<char> text(10000, 'x');
  fail_each(
      "describe",
      [&] {
        text[0] = 'x';
        return tandem_device_describe(cpu.device, text.data(), text.size()) > 0
                   ? TANDEM_OK
                   : TANDEM_ERROR_OUT_OF_MEMORY;
      },
      TANDEM_OK, [&] { return text[0] == 'x'; });

  tandem_device_info info{};
  info.struct_size = sizeof info;
  fail_each(
      "device info", [&] { return tandem_device_get_info(cpu.device, &info); }, TANDEM_OK,
      [&] { return info.backend[0] == 0; });

  size_t size = 0;
  REQUIRE(tandem_device_get_cache(cpu.device, &size, nullptr) == TANDEM_OK);
  std::vector<uint8_t> blob(size, 0x5a);
  const std::vector<uint8_t> before = blob;
  fail_each(
      "get_cache",
      [&] {
        blob = before;  // as long as it was: allocates nothing
        return tandem_device_get_cache(cpu.device, &size, blob.data());
      },
      TANDEM_OK, [&] { return blob == before && size == blob.size(); });
  fail_each(
      "set_cache", [&] { return tandem_device_set_cache(cpu.device, blob.size(), blob.data()); },
      TANDEM_OK, [] { return true; });
}

TEST_CASE("no host memory: failures keep their numbers") {
  const Device cpu("");
  tandem_problem problem;
  tandem_problem_init(&problem);
  problem.head_dim = 4096;
  tandem_plan* plan = kNoPlan;
  fail_each(
      "a problem that is refused", [&] { return tandem_plan_create(cpu.device, &problem, &plan); },
      tandem_plan_create(cpu.device, &problem, &plan), [&] { return plan == kNoPlan; });
  fail_each(
      "no such word", [&] { return tandem_problem_parse("fwd f32 nonsense", &problem); },
      TANDEM_ERROR_INVALID_ARGUMENT, [] { return true; });
}
