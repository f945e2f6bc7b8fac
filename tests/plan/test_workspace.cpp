// SPDX-License-Identifier: MIT OR Apache-2.0
// Limits of the workspace: what plans do without, in which order, and that the least that is
// reported is the least that is possible.
#include <doctest/doctest.h>

#include <string>

#include "plan/thrift.h"
#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

Plan limited(std::string_view line, const Caps& caps, uint64_t limit) {
  Problem p = problem_of(line);
  p.workspace_limit = limit;
  Plan plan;
  const Status status = make_plan(p, caps, &plan);
  REQUIRE_MESSAGE(status.ok(), line << " in " << limit << ": " << status.message());
  CHECK(plan.workspace_size <= limit);
  return plan;
}

uint64_t least_of(std::string_view line, const Caps& caps) {
  uint64_t bytes = UINT64_MAX;
  const Status status = find_least_workspace(problem_of(line), caps, &bytes);
  REQUIRE_MESSAGE(status.ok(), line << ": " << status.message());
  return bytes;
}

// One or more for each use of the workspace.
constexpr const char* kLines[] = {
    "fwd f16 b1 hq8 sq512 d64",
    "fwd f32 b1 hq32 hk8 sq1 sk8192 d128",
    "fwd f16 b2 hq8 hk8 sq16 sk32768 d128",
    "fwd bf16 b1 hq8 sq1 sk8192 d64 splits=7",
    "fwd f16 b2 hq6 sq1100 sk1100 d128 bias:f16:2x6x1100",
    "fwd f16 b2 hq6 sq1100 sk1100 d128 bias:f32:1x1x1",
    "fwd f16 b2 hq6 sq1100 sk1101 d128 bias:f16:2x6x1100",
    "fwd f16 b1 hq4 sq1024 d128 keep:1x1x1024",
    "fwd f16 b1 hq4 sq1024 d64 spans=2:1x1",
    "fwd f16 b1 hq4 sq1024 d64 blocks=128x128:8+2:1x1",
    "fwd f32 b2 hq2 sq300 d64 table=31:u8:1",
    "fwd f16 b1 hq4 sq512 d64 entmax=1.5",
    "bwd f32 b1 hq4 sq512 d64",
    "bwd f16 b2 hq8 hk4 sq1024 d128",
    "bwd f16 b2 hq8 hk4 sq1024 d128 deterministic",
    "bwd f16 b1 hq2 sq2048 d64 causal_top_left",
    "bwd f16 b1 hq2 sq4096 sk256 d128",
    "bwd f16 b1 hq2 sq512 d256",
    "bwd f16 b4 hq4 sq512 d64 bias:f16:1x4x512 grads=qkvb d_bias:f32",
    "bwd f16 b32 hq4 sq512 d64 bias:f16:1x4x512 grads=qkvb d_bias:f32",
    "bwd f16 b4096 hq3 sq49 d32 bias:f16:1x3x49 grads=qkvb d_bias:f16",
    "bwd f16 b2 hq2 sq300 d64 bias:f16:1x1x1 grads=qkvb d_bias:f16",
    "bwd f32 b2 hq2 sq300 d64 elastic dist=256 grads=qkvdt",
    "bwd f16 b1 hq2 sq512 d128 elastic dist=256 grads=qkvdt",
    "bwd f16 b1 hq2 sq512 d128 entmax=1.5",
    "bwd f16 b1 hq2 sq512 d128 spans=1:1x1",
    "bwd f16 b1 hq2 sq1200 d64 keep:1x2x1200",
    "bwd f16 b1 hq4 sq512 d64 alibi sink grads=qkvas",
    "bwd f32 b2 hq2 sq300 d64 table=31:u8:1 grads=qkvi",
    "bwd f16 b3 hq2 sq256 d64 q_packed=700 kv_packed=700",
};

}  // namespace

TEST_CASE("workspace limit: the least that is reported is the least that is possible") {
  for (const Profile& device : profiles())
    for (const char* line : kLines) {
      CAPTURE(std::string(device.id));
      CAPTURE(std::string(line));
      Plan whole;
      if (!make_plan(problem_of(line), device.caps, &whole).ok()) continue;
      const uint64_t least = least_of(line, device.caps);
      CHECK(least <= whole.workspace_size);
      const Plan tight = limited(line, device.caps, std::max<uint64_t>(least, 1));
      CHECK(tight.workspace_size == least);
      if (const auto& unaligned = tight.of<Sm90Plan>().unaligned)
        CHECK(unaligned->workspace_size <= least);
      if (least > 1) {
        Problem p = problem_of(line);
        p.workspace_limit = least - 1;
        Plan none;
        const Status status = make_plan(p, device.caps, &none);
        CHECK(status.code() == TANDEM_ERROR_WORKSPACE);
        const std::string message(status.message());
        CHECK_MESSAGE(
            message.find(text("has %llu bytes", (unsigned long long)least)) != std::string::npos,
            message);
        CHECK(message.find(text("workspace_limit is %llu", (unsigned long long)least - 1)) !=
              std::string::npos);
      }
      // A limit that the planner's choice is within changes nothing.
      const uint64_t size = std::max<uint64_t>(whole.workspace_size, 1);
      CHECK(dump(Status(), limited(line, device.caps, size)) == dump(Status(), whole));
      for (uint64_t limit = size / 2; limit > least; limit /= 2) limited(line, device.caps, limit);
    }
}

TEST_CASE("workspace limit: stored dS of coopmat2 gives way to recomputation") {
  const Caps caps = caps_of("h100_vulkan");
  const char* line = "bwd f16 b2 hq16 sq2048 d128";
  const Plan whole = plan_of(line, caps);
  REQUIRE(whole.scratch[Scratch::ds].present);
  REQUIRE(whole.workspace_size > 100 << 20);
  const Plan tight = limited(line, caps, whole.workspace_size - 1);
  CHECK(std::string(tight.path) == "coopmat2");
  CHECK(!tight.scratch[Scratch::ds].present);
  CHECK(tight.workspace_size < 2 << 20);
}

// Where an lse is far, kernels read two numbers of its row in front of delta. Forward leaves minus
// infinity where there are no keys, but a backward may be given anything.
TEST_CASE("regression: without keys, too, what is in front of delta belongs to the workspace") {
  for (const Profile& device : profiles()) {
    if (device.caps.backend == Backend::cpu) continue;
    for (const char* line : {"bwd f16 b2 hq3 hk3 sq70 sk0 d64", "bwd f32 b2 hq3 hk1 sq70 sk0 d64",
                             "bwd f16 b2 hq3 hk3 sq70 sk0 d64 entmax=1.5"}) {
      Plan plan;
      if (!make_plan(problem_of(line), device.caps, &plan).ok()) continue;
      CHECK_MESSAGE(plan.find(Stem::bwd_origin) == nullptr, device.id << ": " << line);
      const ScratchArray& delta = plan.scratch[Scratch::delta];
      if (delta.present) CHECK_MESSAGE(delta.offset >= 8 * 2 * 3 * 70, device.id << ": " << line);
    }
  }
}

TEST_CASE("workspace limit: keys have fewer splits, down to none") {
  for (const char* device : {"h100_vulkan", "h100_cuda_no_90a"}) {
    CAPTURE(std::string(device));
    const Caps caps = caps_of(device);
    const char* line = "fwd f16 b1 hq8 hk8 sq16 sk32768 d128";
    const Plan whole = plan_of(line, caps);
    const uint32_t splits = whole.launches[0].splits;
    REQUIRE(splits > 8);
    const Plan half = limited(line, caps, whole.workspace_size - 1);
    CHECK(half.launches[0].splits == splits / 2);
    CHECK(std::string(half.path) == whole.path);
    const Plan none = limited(line, caps, std::max<uint64_t>(least_of(line, caps), 1));
    CHECK(none.launches[0].splits == 1);
    CHECK(!none.find(Stem::fwd_combine));
    // A number that the problem asks for stays.
    Plan forced;
    Problem p = problem_of(std::string(line) + " splits=7");
    p.workspace_limit = 1000;
    CHECK(make_plan(p, caps, &forced).code() == TANDEM_ERROR_WORKSPACE);
  }
}

TEST_CASE("workspace limit: bits of a mask, stream-K, parts and the dQ accumulator can be spared") {
  const auto spares = [](const char* line, const char* device, Scratch array) {
    CAPTURE(std::string(line));
    const Caps caps = caps_of(device);
    const Plan whole = plan_of(line, caps);
    REQUIRE(whole.scratch[array].present);
    const Plan tight = limited(line, caps, std::max<uint64_t>(least_of(line, caps), 1));
    CHECK(!tight.scratch[array].present);
  };
  spares("fwd f16 b1 hq4 sq1024 d128 keep:1x1x1024", "h100_cuda", Scratch::packed_keep);
  spares("fwd f16 b2 hq6 sq2240 sk1104 d128 bias:f16:2x6x2240", "h100_cuda",
         Scratch::stream_k_partials);
  spares("bwd f16 b1 hq2 sq2048 d64 causal_top_left", "h100_cuda", Scratch::dkv_partials);
  spares("bwd f16 b2 hq8 hk4 sq1024 d128", "h100_cuda", Scratch::d_q_accum);
  spares("bwd f16 b2 hq8 hk4 sq1024 d128", "h100_cuda_no_90a", Scratch::d_q_accum);
  spares("bwd f16 b1 hq2 sq4096 sk256 d128", "h100_vulkan", Scratch::d_k_parts);
  spares("fwd f16 b1 hq4 sq1024 d64 spans=2:1x1", "h100_vulkan", Scratch::mask_map);
  spares("bwd f16 b2 hq2 sq300 d64 bias:f16:1x1x1 grads=qkvb d_bias:f16", "h100_vulkan",
         Scratch::bias_parts);
}
