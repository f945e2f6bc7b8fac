// SPDX-License-Identifier: MIT OR Apache-2.0
// No host memory. Every call on the CPU device, with its first allocation failing, then its second,
// and so on for each that it makes; once alone, and once together with all that come after it. It
// has to end in OUT_OF_MEMORY, with a sentence, out-parameters as they were, and nothing left
// behind. Once with the program's operator new, so that what the library allocates through std:: is
// in it, and once with an application's callbacks. A program of its own for that reason.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <vector>

#include "host_memory.h"

namespace {

// Each kind of plan that the CPU has, and plans that are refused.
constexpr Line kLines[] = {
    {"simd forward", "", "fwd f32 b1 hq2 hk1 sq9 sk11 d8 dv8", TANDEM_OK},
    {"simd backward", "", "bwd bf16 b1 hq2 hk1 sq9 sk11 d8 dv8 causal_top_left", TANDEM_OK},
    {"ref forward", "cpu.simd", "fwd f16 b1 hq2 hk1 sq9 sk11 d8 dv8 left=3", TANDEM_OK},
    {"simd backward of all inputs", "",
     "bwd f32 b2 hq2 hk1 sq5 sk7 d4 dv4 causal_bottom_right elastic dist=4 alibi sink softcap=20 "
     "table=9:u8:1 blocks=64x64:1+1:1x1 spans=1:1x1 q_packed=9 kv_gapped=9 dropout=0.25 "
     "grads=qkvditsa",
     TANDEM_OK},
    {"simd entmax", "", "bwd f32 b1 hq2 hk1 sq5 sk7 d4 dv4 entmax=1.25", TANDEM_OK},
    {"simd largest logit", "", "fwd f32 b1 hq2 hk1 sq5 sk7 d4 dv4 max_logit=1", TANDEM_OK},
    {"ref backward", "cpu.simd",
     "bwd f32 b2 hq2 hk1 sq5 sk7 d4 dv4 causal_bottom_right elastic dist=4 alibi sink softcap=20 "
     "bias:f32:1x2x5 d_bias:f32 keep:2x1x1 q_padded kv_padded dropout=0.25 grads=qkvbdats",
     TANDEM_OK},
    {"ref entmax", "cpu.simd", "bwd f32 b1 hq2 hk1 sq5 sk7 d4 dv4 entmax=1.5", TANDEM_OK},
    {"refused", "cpu.simd,cpu.ref", "fwd f32 b1 hq2 hk1 sq9 sk11 d8 dv8", TANDEM_ERROR_UNSUPPORTED},
};

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
    for (tandem_buffer tandem_args::*b : kBuffers) {
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
  for (From from : {From::operator_new, From::callbacks}) {
    failing = from;
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
}

TEST_CASE("no host memory: problem lines") {
  failing = From::operator_new;
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
  for (From from : {From::operator_new, From::callbacks})
    for (const Line& l : kLines) {
      failing = from;
      CAPTURE(l.what);
      const Device cpu(l.disable);
      tandem_problem problem = parse(l.line);
      tandem_plan* plan = kNoPlan;
      // Once before: the device keeps the largest scratch memory that a plan has asked for.
      if (tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_OK) tandem_plan_destroy(plan);
      plan = kNoPlan;
      problem.scale = 1;
      const int64_t count = fail_each(
          l.what,
          [&] {
            problem.scale += 1;  // a problem that the device does not have yet
            const tandem_status status = tandem_plan_create(cpu.device, &problem, &plan);
            if (status != TANDEM_OK) return status;
            tandem_plan_destroy(plan);
            plan = kNoPlan;
            return status;
          },
          l.status, [&] { return plan == kNoPlan; });
      CHECK(count > 3);
      // The last one once more, which the device has.
      fail_each(
          "cached",
          [&] {
            const tandem_status status = tandem_plan_create(cpu.device, &problem, &plan);
            if (status != TANDEM_OK) return status;
            tandem_plan_destroy(plan);
            plan = kNoPlan;
            return status;
          },
          l.status, [&] { return plan == kNoPlan; });
      fail_each_explain(cpu.device, problem);
      if (l.status != TANDEM_OK) continue;

      REQUIRE(tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_OK);
      tandem_plan_info info;
      fail_each_info(plan, &info);
      REQUIRE(tandem_plan_get_info(plan, &info) == TANDEM_OK);
      const Room room(info.workspace_size);
      const int64_t executes = fail_each(
          "execute", [&] { return tandem_execute(plan, tandem_stream{}, &room.args); }, TANDEM_OK,
          [] { return true; });
      if (std::strcmp(info.path, "ref") != 0) CHECK(executes == 0);
      CHECK(tandem_execute(plan, tandem_stream{}, &room.args) == TANDEM_OK);
      tandem_plan_destroy(plan);
    }
}

TEST_CASE("no host memory: from the device to the result") {
  for (From from : {From::operator_new, From::callbacks})
    for (const Line& l : kLines) {
      if (l.status != TANDEM_OK) continue;
      failing = from;
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

TEST_CASE("regression: no host memory for the sentence about a struct of no version") {
  failing = From::operator_new;
  tandem_problem wrong{};
  wrong.struct_size = 8;
  bool threw = false;
  countdown = 0;
  try {
    tandem_problem_contiguous(&wrong, TANDEM_F32);
  } catch (...) {
    threw = true;
  }
  countdown = -1;
  CHECK(!threw);
  CHECK(wrong.q.dtype == 0);
}

// As tandem.h says at tandem_device_options.
TEST_CASE("an execute of simd allocates for far rows of a backward, and else nothing") {
  failing = From::callbacks;
  const Device cpu("");
  const Room room(100000);
  auto* lse = reinterpret_cast<float*>(uintptr_t(room.args.lse.handle));
  const auto* d_q = reinterpret_cast<const float*>(uintptr_t(room.args.d_q.handle));
  for (const Line& l : kLines) {
    if (*l.disable) continue;
    CAPTURE(l.line);
    const tandem_problem problem = parse(l.line);
    tandem_plan* plan = nullptr;
    REQUIRE(tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_OK);
    for (const float size : {0.0f, 1e6f}) {
      for (int i = 0; i < 64; ++i) lse[i] = size;
      const bool far = size > 0 && problem.direction == TANDEM_BACKWARD;
      const float before = *d_q;
      const int64_t count = fail_each(
          "execute", [&] { return tandem_execute(plan, tandem_stream{}, &room.args); }, TANDEM_OK,
          [&] { return *d_q == before; });
      CHECK((count > 0) == far);
    }
    tandem_plan_destroy(plan);
  }
}

TEST_CASE("no host memory: what is asked of a device") {
  for (From from : {From::operator_new, From::callbacks}) {
    failing = from;
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
}

TEST_CASE("no host memory: failures keep their numbers") {
  failing = From::operator_new;
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

TEST_CASE("an application's host memory: all of a device's comes from it, and goes back") {
  failing = From::callbacks;
  const int64_t before = live();
  int64_t others = 0, asked = 0;
  for (const Line& l : kLines) {
    if (l.status != TANDEM_OK) continue;
    const tandem_problem problem = parse(l.line);
    const tandem_device_options options = options_of(l.disable);
    const Room room(100000);
    tandem_device* device = nullptr;
    tandem_plan *plan = nullptr, *second = nullptr;
    const int64_t with_room = live();
    others = new_calls, asked = callbacks;
    tandem_status status = tandem_cpu_device_create(&options, &device);
    if (status == TANDEM_OK) status = tandem_plan_create(device, &problem, &plan);
    if (status == TANDEM_OK) status = tandem_plan_create(device, &problem, &second);
    if (status == TANDEM_OK) status = tandem_execute(plan, tandem_stream{}, &room.args);
    const tandem_status no_stem = tandem_device_set_cache(device, 3, "xyz");
    tandem_plan_destroy(plan);
    tandem_device_destroy(device);  // too early: the other plan is alive
    const tandem_status early = tandem_execute(second, tandem_stream{}, &room.args);
    tandem_plan_destroy(second);
    others = new_calls - others, asked = callbacks - asked;
    CHECK(status == TANDEM_OK);
    CHECK(no_stem == TANDEM_ERROR_CACHE);
    CHECK(early == TANDEM_ERROR_INVALID_ARGUMENT);
    CHECK(others == 0);
    CHECK(asked > 10);
    CHECK(live() == with_room);
  }
  CHECK(live() == before);
}
