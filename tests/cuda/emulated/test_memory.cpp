// SPDX-License-Identifier: MIT OR Apache-2.0
// No host memory, as tests/unit/test_host_memory.cpp has it for the CPU device: every call on a
// CUDA device with its first allocation failing, then its second, and so on. The runtime is the
// emulated one, whose launches only count here.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "../../unit/host_memory.h"
#include "include/cuda_runtime.h"
#include "tandem/tandem_cuda.h"

namespace {

// Each kind of launch that the backend makes ready, and plans that are refused.
constexpr Line kLines[] = {
    {"plain forward", "cuda.sm80", "fwd f32 b1 hq2 hk1 sq9 sk11 d8 dv8", TANDEM_OK},
    {"plain backward", "cuda.sm80", "bwd bf16 b1 hq2 hk1 sq9 sk11 d8 dv8 causal_top_left",
     TANDEM_OK},
    {"splits", "", "fwd f16 b1 hq2 hk1 sq2 sk4000 d8 dv8", TANDEM_OK},
    {"tensor cores", "", "fwd f16 b1 hq2 hk1 sq9 sk11 d8 dv8 left=3", TANDEM_OK},
    {"tensor cores, backward", "", "bwd bf16 b1 hq2 hk1 sq9 sk11 d8 dv8", TANDEM_OK},
    {"tensor cores, in order", "", "bwd f16 b1 hq2 hk1 sq9 sk11 d8 dv8 deterministic", TANDEM_OK},
    {"a fixed set", "", "bwd bf16 b2 hq2 hk1 sq9 sk11 d8 dv8 elastic dist=4 grads=qkvdt",
     TANDEM_OK},
    {"many inputs", "",
     "bwd bf16 b2 hq2 hk1 sq5 sk7 d8 dv8 causal_bottom_right alibi sink softcap=20 bias:f32:1x2x5 "
     "d_bias:f32 keep:2x1x1 q_padded kv_padded dropout=0.25 grads=qkvbas",
     TANDEM_OK},
    {"nothing to launch", "", "bwd f32 b0 hq2 hk1 sq9 sk11 d8 dv8", TANDEM_OK},
    {"refused", "cuda.sm80,cuda.simt", "fwd f32 b1 hq2 hk1 sq9 sk11 d8 dv8",
     TANDEM_ERROR_UNSUPPORTED},
};

// Addresses that are given, and at which nothing is read.
tandem_args args_of(uint64_t workspace_size) {
  tandem_args args = TANDEM_ARGS_INIT;
  uint64_t at = 4096;
  for (tandem_buffer tandem_args::*b : kBuffers) args.*b = {at += 1 << 24, 0};
  args.workspace_size = workspace_size;
  return args;
}

struct Counted {  // launches that do not run
  Counted() { simt::runs_kernels() = false; }
  ~Counted() { simt::runs_kernels() = true; }
};

struct Device {
  tandem_device* device = nullptr;
  explicit Device(const char* disable) {
    const tandem_device_options options = options_of(disable);
    REQUIRE(tandem_cuda_device_create(0, &options, &device) == TANDEM_OK);
  }
  ~Device() { tandem_device_destroy(device); }
};

}  // namespace

TEST_CASE("no host memory: a CUDA device, by its number and by a context") {
  for (From from : {From::operator_new, From::callbacks})
    for (bool own : {false, true}) {
      failing = from;
      const tandem_device_options options = options_of("cuda.simt,t64k32");
      tandem_cuda_device_desc desc = TANDEM_CUDA_DEVICE_DESC_INIT;
      desc.context = simt::context_of(0, 5);
      tandem_device* device = kNoDevice;
      const int64_t count = fail_each(
          "device",
          [&] {
            const tandem_status status =
                own ? tandem_cuda_device_create_with(&desc, &options, &device)
                    : tandem_cuda_device_create(0, &options, &device);
            if (status != TANDEM_OK) return status;
            tandem_device_destroy(device);
            device = kNoDevice;
            return status;
          },
          TANDEM_OK,
          [&] { return device == kNoDevice && simt::retained() == 0 && simt::contexts().empty(); });
      CHECK(count > 3);
      CHECK(simt::retained() == 0);
    }
}

TEST_CASE("no host memory: plans of a CUDA device and what is asked of them") {
  const Counted counted;
  for (From from : {From::operator_new, From::callbacks})
    for (const Line& l : kLines) {
      failing = from;
      CAPTURE(l.what);
      const Device gpu(l.disable);
      tandem_problem problem = parse(l.line);
      tandem_plan* plan = kNoPlan;
      const auto make = [&] {
        const tandem_status status = tandem_plan_create(gpu.device, &problem, &plan);
        if (status != TANDEM_OK) return status;
        tandem_plan_destroy(plan);
        plan = kNoPlan;
        return status;
      };
      const auto untouched = [&] { return plan == kNoPlan && simt::contexts().empty(); };
      make();  // once before: what the device keeps
      problem.scale = 1;
      CHECK(fail_each(
                l.what,
                [&] {
                  problem.scale += 1;  // a problem that the device does not have yet
                  return make();
                },
                l.status, untouched) > 3);
      fail_each("cached", make, l.status, untouched);
      fail_each_explain(gpu.device, problem);
      if (l.status != TANDEM_OK) continue;

      REQUIRE(tandem_plan_create(gpu.device, &problem, &plan) == TANDEM_OK);
      tandem_plan_info info;
      fail_each_info(plan, &info);
      const tandem_args args = args_of(info.workspace_size);
      const int before = simt::launches();
      // Recording allocates nothing, timed or not.
      CHECK(fail_each(
                "execute", [&] { return tandem_execute(plan, tandem_stream{}, &args); }, TANDEM_OK,
                [] { return true; }) == 0);
      std::vector<CUevent_st> events(info.kernel_count + 1);
      std::vector<CUevent_st*> to;
      for (CUevent_st& e : events) to.push_back(&e);
      CHECK(fail_each(
                "timed",
                [&] {
                  return tandem_cuda_execute_timed(plan, nullptr, &args, to.data(),
                                                   uint32_t(to.size()));
                },
                TANDEM_OK, [] { return true; }) == 0);
      CHECK((simt::launches() > before) == (info.kernel_count > 0));
      tandem_plan_destroy(plan);
    }
}

TEST_CASE(
    "an application's host memory: all of a CUDA device's comes from it, and goes back; no device "
    "memory") {
  const Counted counted;
  failing = From::callbacks;
  const int64_t before = live();
  for (const Line& l : kLines) {
    if (l.status != TANDEM_OK) continue;
    CAPTURE(l.what);
    const tandem_problem problem = parse(l.line);
    const tandem_device_options options = options_of(l.disable);
    const tandem_args args = args_of(uint64_t(1) << 30);
    tandem_device* device = nullptr;
    tandem_plan *plan = nullptr, *second = nullptr;
    const int on_device = simt::allocations();
    const int64_t others = new_calls, asked = callbacks;
    tandem_status status = tandem_cuda_device_create(0, &options, &device);
    if (status == TANDEM_OK) status = tandem_plan_create(device, &problem, &plan);
    if (status == TANDEM_OK) status = tandem_plan_create(device, &problem, &second);
    if (status == TANDEM_OK) status = tandem_execute(plan, tandem_stream{}, &args);
    tandem_plan_destroy(plan);
    tandem_device_destroy(device);  // too early: the other plan is alive
    const tandem_status early = tandem_execute(second, tandem_stream{}, &args);
    tandem_plan_destroy(second);
    const int64_t others_after = new_calls, asked_after = callbacks;
    CHECK(status == TANDEM_OK);
    CHECK(early == TANDEM_ERROR_INVALID_ARGUMENT);
    CHECK(others_after == others);
    CHECK(asked_after > asked + 10);
    CHECK(simt::allocations() == on_device);
    CHECK(live() == before);
  }
}
