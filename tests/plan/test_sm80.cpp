// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans of the path cuda.sm80 for f32 problems: which it takes, by which kernels, and what they access at once.
#include <string>

#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

std::string refusal(const Plan& plan) {
  for (const Refusal& r : plan.refusals)
    if (r.candidate.rfind("cuda.sm80", 0) == 0) return r.reason.c_str();
  return "";
}

}  // namespace

TEST_CASE("sm80 takes plain f32 attention, with sums of d_q in any order unless told otherwise") {
  for (const char* id : {"h100_cuda", "a100_cuda"}) {
    const std::string line = "bwd f32 b2 hq4 hk2 sq500 sk700 d64 causal_bottom_right";
    const Plan fused = plan_of(line, id), fixed = plan_of(line + " deterministic", id);
    CHECK(std::string(fused.path) == "sm80");
    CHECK(stems(fused) == "bwd_dot bwd_dkv_dq");
    CHECK(fused.unordered() == TANDEM_GRAD_Q);
    CHECK(std::string(fixed.path) == "sm80");
    CHECK(stems(fixed) == "bwd_dot bwd_dkv bwd_dq");
    CHECK(fixed.unordered() == 0);
    for (const Plan* plan : {&fused, &fixed})
      for (const Launch& l : plan->launches) {
        if (!l.as<Sm80Launch>()) continue;
        CHECK(kAmpereTiles[l.of<Sm80Launch>().row].bytes == 4);
        CHECK(l.wide_elements() == 4);
        CHECK_FALSE(l.rounds_to_tf32());
      }
    CHECK(std::string(plan_of("fwd f32 hq4 sq500 d128", id).path) == "sm80");
  }
  CHECK(std::string(plan_of("fwd f32 hq4 sq500 d64", "v100_cuda").path) == "simt");
}

TEST_CASE("sm80 rounds f32 operands where TANDEM_FLAG_TF32 allows it") {
  const Plan plan = plan_of("bwd f32 b2 hq4 sq500 d64 tf32");
  for (const Launch& l : plan.launches)
    CHECK(l.rounds_to_tf32() ==
          (l.stem == Stem::bwd_dot || (l.as<Sm80Launch>() && l.stem != Stem::bwd_dq_cast)));
  CHECK(stems(plan) == "bwd_dot bwd_dkv_dq");
  CHECK(stems(plan_of("bwd f32 b2 hq4 sq3000 d64 tf32")) == "bwd_dot bwd_dkv_dq bwd_dq_cast");
}

TEST_CASE("sm80 leaves f32 problems with optional inputs and wide heads to simt, and says so") {
  const Plan sink = plan_of("fwd f32 hq4 sq500 d64 sink"), wide = plan_of("bwd f32 hq4 sq500 d192");
  CHECK(std::string(sink.path) == "simt");
  CHECK(refusal(sink).find("sink") != std::string::npos);
  CHECK(std::string(wide.path) == "simt");
  CHECK(std::string(plan_of("fwd f32 hq4 sq500 d192").path) == "sm80");
  CHECK(refusal(wide).find("192 is beyond") != std::string::npos);
  // Their 16-bit versions are not.
  Caps caps = caps_of("h100_cuda");
  REQUIRE(parse_disabled("cuda.sm90", &caps.disabled).ok());
  Plan plan;
  REQUIRE(make_plan(problem_of("fwd f16 hq4 sq500 d64 sink"), caps, &plan).ok());
  CHECK(std::string(plan.path) == "sm80");
}

TEST_CASE(
    "sm80 forms d_q beside d_k and d_v up to heads of 256, in the tile that shared memory allows") {
  const auto tile = [](const Caps& caps, const char* line) -> std::string {
    Plan plan;
    REQUIRE(make_plan(problem_of(line), caps, &plan).ok());
    for (const Launch& l : plan.launches)
      if (l.stem == Stem::bwd_dkv_dq) return l.tile.name;
    return stems(plan);
  };
  const char* line = "bwd bf16 b2 hq4 sq500 d256";
  Caps h100 = caps_of("h100_cuda"), a100 = caps_of("a100_cuda");
  REQUIRE(parse_disabled("cuda.sm90", &h100.disabled).ok());
  CHECK(tile(h100, line) == "a_dkvq256");
  CHECK(tile(a100, line) == "a_dkvq256n");
  CHECK(tile(h100, "bwd bf16 b2 hq4 sq500 d256 deterministic") == "bwd_dot bwd_dkv bwd_dq");
  // 99 KiB, as on the desktop: forward, each warp has its own rows.
  Caps small = a100;
  small.shared_bytes = 99 * 1024;
  const auto forward = [&](const Caps& caps, const char* line = "fwd bf16 b8 hq8 sq500 d256") {
    Plan plan;
    REQUIRE(make_plan(problem_of(line), caps, &plan).ok());
    return std::string(plan.launches[0].tile.name);
  };
  CHECK(forward(h100) == "a_fwd256");
  CHECK(forward(a100) == "a_fwd256s");
  CHECK(forward(small) == "a_fwd256n");
  // Few tiles, which leave multiprocessors without work, with a mask more of it; and few rows.
  CHECK(forward(h100, "fwd bf16 b2 hq8 sq500 d256") == "a_fwd256s");
  CHECK(forward(h100, "fwd bf16 b3 hq8 sq500 d256") == "a_fwd256");
  CHECK(forward(h100, "fwd bf16 b3 hq8 sq500 d256 causal_top_left") == "a_fwd256s");
  CHECK(forward(h100, "fwd bf16 b16 hq8 sq64 d256") == "a_fwd256s");
  for (const Caps& caps : {h100, a100, small}) {
    CHECK(forward(caps, "fwd bf16 b99 hq8 sq16 sk500 d200") == "a_fwd256d");
    CHECK(forward(caps, "fwd bf16 b1 hq8 sq16 sk500 d128") == "a_fwd128d");
    CHECK(forward(caps, "fwd bf16 b1 hq8 sq17 sk500 d128") == "a_fwd128");
    CHECK(forward(caps, "fwd bf16 b1 hq32 hk4 sq1 sk500 d64") == "a_fwd64d");
    CHECK(forward(caps, "fwd bf16 b1 hq8 sq70 d64") == "a_fwd64");
  }
  // Few keys: not the tile of fewer keys if it is wider, as sums of d_q would be.
  CHECK(tile(h100, "bwd bf16 b2 hq4 hk2 sq32 sk32 d64") == "a_dkvq64");
}

TEST_CASE("sm80: which problems are of whole heads") {
  const auto tile = [](const char* line) {
    const Plan plan = plan_of(line, "h100_cuda");
    return std::string(has_whole_heads(plan) ? plan.launches[0].tile.name : "");
  };
  CHECK(tile("bwd bf16 b2 hq4 sq32 sk32 d64") == "a_bwdw64");
  CHECK(tile("bwd f16 b2 hq4 sq64 sk1 d32 causal_top_left") == "a_bwdw32");
  CHECK(tile("bwd f16 b2 hq4 sq49 sk49 d24 bias:f32:1x4x49 grads=qkvb d_bias:f32 keep:2x1x1") ==
        "a_bwdw32");
  CHECK(tile("fwd f16 b2 hq4 sq49 sk49 d40 bias:f16:2x1x49") == "a_fwdw64");
  CHECK(tile("fwd f16 b2 hq4 hk2 sq17 sk49 d32") == "a_fwdw32");
  // Too large, other optional inputs, sums over query heads, few rows, f32.
  for (const char* line :
       {"bwd f16 b2 hq4 sq65 sk49 d32", "bwd f16 b2 hq4 sq49 sk65 d32", "bwd f16 b2 hq4 sq49 d72",
        "bwd f16 b2 hq4 sq49 d32 alibi", "bwd f16 b2 hq4 sq49 d32 kv_padded",
        "bwd f16 b2 hq4 hk2 sq49 d32", "fwd f16 b2 hq4 sq16 sk49 d32", "bwd f32 b2 hq4 sq49 d32",
        "bwd f16 b2 hq4 sq49 d32 bias:f16:1x1x49 grads=qkvb d_bias:f16",
        "bwd f16 b2 hq4 sq49 d32 elastic"}) {
    CAPTURE(std::string(line));
    CHECK(tile(line).empty());
  }
  // As many slices as the SMs have work for, and their sums.
  const Plan swin =
      plan_of("bwd f16 b4096 hq3 sq49 sk49 d32 bias:f16:1x3x49 grads=qkvb d_bias:f16", "h100_cuda");
  CHECK(swin.launches[0].splits == 352);
  CHECK(swin.find_sum(TANDEM_GRAD_BIAS)->splits == 352);
  CHECK(plan_of("bwd f16 b1 hq4 sq49 d32 bias:f16:1x4x49 grads=qkvb d_bias:f16", "h100_cuda")
            .find_sum(TANDEM_GRAD_BIAS) == nullptr);
}
