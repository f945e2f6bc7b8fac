// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans of the path cuda.sm80: which f32 problems it takes, by which kernels, and what they access
// at once; tiles of wide heads; sums of d_bias.
#include <string>

#include "plan/sm80/heuristics.h"
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

TEST_CASE("sm80 leaves f32 problems with other inputs and wide heads to simt, and says so") {
  const Plan capped = plan_of("fwd f32 hq4 sq500 d64 sink softcap=9"),
             wide = plan_of("bwd f32 hq4 sq500 d192"),
             wide_sink = plan_of("fwd f32 hq4 sq500 d192 sink");
  CHECK(std::string(capped.path) == "simt");
  CHECK(refusal(capped).find("this one has softcap") != std::string::npos);
  CHECK(std::string(wide.path) == "simt");
  CHECK(std::string(wide_sink.path) == "simt");
  CHECK(refusal(wide_sink).find("192 is beyond its 128") != std::string::npos);
  CHECK(std::string(plan_of("fwd f32 hq4 sq500 d192").path) == "sm80");
  CHECK(refusal(wide).find("192 is beyond") != std::string::npos);
  // Their 16-bit versions are not.
  Caps caps = caps_of("h100_cuda");
  REQUIRE(parse_disabled("cuda.sm90", &caps.disabled).ok());
  Plan plan;
  REQUIRE(make_plan(problem_of("fwd f16 hq4 sq500 d64 sink softcap=9"), caps, &plan).ok());
  CHECK(std::string(plan.path) == "sm80");
}

TEST_CASE("sm80 takes f32 attention with a bias, keep, lengths or a sink") {
  const auto launches = [](const std::string& line, const Caps& caps) {
    const Plan plan = plan_of(line, caps);
    REQUIRE(std::string(plan.path) == "sm80");
    for (const Launch& l : plan.launches) {
      CHECK(l.shared_bytes <= caps.shared_bytes);
      CHECK_FALSE(l.rounds_to_tf32());
      if (l.as<Sm80Launch>() && l.stem != Stem::bwd_dq_cast)
        CHECK(String(kKernels[l.kernel].variant) == "f32_inputs");
    }
    return stems(plan);
  };
  const Caps h100 = caps_of("h100_cuda"), a100 = caps_of("a100_cuda");
  Caps small = a100;
  small.shared_bytes = 99 * 1024;
  for (const Caps& caps : {h100, a100, small}) {
    for (const char* line :
         {"fwd f32 b32 hq8 sq500 d64 sink", "fwd f32 b32 hq8 sq500 d128 bias:f32:1x8x500",
          "fwd f32 b32 hq8 sq500 d8 keep:32x1x1 tf32"})
      CHECK(launches(line, caps) == "fwd");
    // All keys of a head in a workgroup: d_q has a fixed order.
    const std::string graph = "bwd f32 b64 hq32 sq128 d24 bias:f32:64x32x128 d_bias:f32 grads=qkvb";
    CHECK(launches(graph, caps) == "bwd_dot bwd_dkv_dq");
    CHECK(launches(graph + " deterministic", caps) == "bwd_dot bwd_dkv_dq");
    CHECK(plan_of(graph, caps).unordered() == 0);
    CHECK(std::string(plan_of(graph, caps).find(Stem::bwd_dkv_dq)->tile.name) == "f_dkvqi32w");
    CHECK(launches("bwd f32 b256 hq4 sq40 d16 kv_padded", caps) == "bwd_dot bwd_dkv_dq");
    // More keys, a bias that entries share, and sums in a fixed order.
    const std::string t5 = "bwd f32 b16 hq16 sq512 d64 bias:f32:1x16x512 d_bias:f32 grads=qkvb";
    CHECK(launches(t5, caps) == "bwd_dot bwd_dkv_dq bwd_dq_cast bwd_dbias");
    CHECK(plan_of(t5, caps).unordered() == TANDEM_GRAD_Q);
    CHECK(launches(t5 + " deterministic", caps) == "bwd_dot bwd_dkv bwd_dq bwd_dbias");
    CHECK(launches("bwd f32 b8 hq8 sq850 d32 kv_padded", caps) == "bwd_dot bwd_dkv_dq bwd_dq_cast");
    CHECK(launches("bwd f32 b8 hq8 sq850 d32 q_packed=3000 kv_packed=3000", caps) ==
          "bwd_dot bwd_dkv_dq");
    CHECK(launches("bwd f32 b2 hq8 sq300 d64 sink grads=qkvs", caps) ==
          "bwd_dot bwd_dkv_dq bwd_head_sums");
  }
  CHECK(launches("bwd f32 b2 hq8 sq300 d128 bias:f32:1x8x300 d_bias:f32 grads=b", h100) ==
        "bwd_dot bwd_dbias");
  CHECK(std::string(
            plan_of("bwd f32 b2 hq8 sq300 d128 bias:f32:1x8x300 d_bias:f32 grads=b", small).path) ==
        "simt");
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
  const auto forward = [&](const Caps& caps, const char* with = "fwd bf16 b8 hq8 sq500 d256") {
    Plan plan;
    REQUIRE(make_plan(problem_of(with), caps, &plan).ok());
    return std::string(plan.launches[0].tile.name);
  };
  CHECK(forward(h100) == "a_fwd256");
  CHECK(forward(a100) == "a_fwd256s");
  CHECK(forward(small) == "a_fwd256n");
  // Few tiles, which leave SMs without work, with a mask more of it; and few rows.
  CHECK(forward(h100, "fwd bf16 b2 hq8 sq500 d256") == "a_fwd256s");
  CHECK(forward(h100, "fwd bf16 b3 hq8 sq500 d256") == "a_fwd256");
  CHECK(forward(h100, "fwd bf16 b3 hq8 sq500 d256 causal_top_left") == "a_fwd256s");
  CHECK(forward(h100, "fwd bf16 b16 hq8 sq64 d256") == "a_fwd256s");
  for (const Caps& caps : {h100, a100, small}) {
    CHECK(forward(caps, "fwd bf16 b99 hq8 sq16 sk500 d200") == "a_fwd256d");
    CHECK(forward(caps, "fwd bf16 b1 hq8 sq16 sk500 d128") ==
          (caps.shared_bytes < 100 << 10 ? "a_fwd128d" : "a_fwd128m"));
    CHECK(forward(caps, "fwd bf16 b1 hq8 sq16 sk200 d128") == "a_fwd128d");
    CHECK(forward(caps, "fwd bf16 b1 hq8 sq17 sk500 d128") == "a_fwd128");
    CHECK(forward(caps, "fwd bf16 b1 hq32 hk4 sq1 sk500 d64") == "a_fwd64d");
    CHECK(forward(caps, "fwd bf16 b1 hq8 sq70 d64") == "a_fwd64");
    // The same with optional inputs.
    CHECK(forward(caps, "fwd bf16 b32 hq8 hk1 sq1 sk8192 d128 kv_padded") == "a_fwdl128d");
    CHECK(forward(caps, "fwd bf16 b32 hq8 hk1 sq1 sk8192 d64 kv_padded") == "a_fwdl64d");
    CHECK(forward(caps, "fwd bf16 b32 hq8 hk1 sq1 sk8192 d128 q_padded") == "a_fwdx128d");
    CHECK(forward(caps, "fwd bf16 b2 hq8 hk2 sq4 sk900 d40 kv_padded sink") == "a_fwdx64d");
    CHECK(forward(caps, "fwd f16 b8 hq8 hk4 sq1 sk4096 d256 softcap=50") == "a_fwdx256d");
    CHECK(forward(caps, "fwd f16 b8 hq8 sq16 sk300 d128 entmax=1.5") == "a_fwdx128d");
    CHECK(forward(caps, "fwd bf16 b2 hq8 hk2 sq17 sk900 d128 kv_padded") == "a_fwdx128");
  }
  // Key warps, where an SM has room for them and each of them has one workgroup at most.
  CHECK(forward(h100, "fwd bf16 b1 hq64 hk8 sq1 sk32768 d128") == "a_fwd128k4");
  CHECK(forward(h100, "fwd bf16 b33 hq32 hk4 sq1 sk4096 d128") == "a_fwd128k4");
  CHECK(forward(h100, "fwd bf16 b34 hq32 hk4 sq1 sk4096 d128") == "a_fwd128m");
  CHECK(forward(h100, "fwd bf16 b1 hq64 hk8 sq1 sk1000 d128") == "a_fwd128m");
  CHECK(forward(a100, "fwd bf16 b1 hq64 hk8 sq1 sk32768 d128") == "a_fwd128m");
  // cuda.sm90 leaves to it what it would split, few rows, and sinks of rows.
  const Caps both = caps_of("h100_cuda");
  for (int batch : {1, 2, 4, 8, 16, 32, 44, 64}) {
    const std::string decode =
        "fwd bf16 hq8 hk1 sq1 sk8192 d128 kv_padded b" + std::to_string(batch);
    CHECK(forward(both, decode.c_str()) == "a_fwdl128d");
  }
  CHECK(forward(both, "fwd bf16 b8 hq32 hk8 sq1 sk8192 d128") == "a_fwd128k4");
  CHECK(forward(both, "fwd bf16 b8 hq64 hk8 sq1 sk8192 d64") == "a_fwd64m");
  CHECK(forward(both, "fwd bf16 b8 hq64 hk8 sq1 sk8192 d64 sink") == "a_fwdx64d");
  for (const char* others : {"fwd bf16 b2 hq8 hk1 sq500 sk8192 d128 kv_padded",
                             "fwd bf16 b8 hq64 hk8 sq2 sk8192 d64 sink"})
    CHECK(std::string(plan_of(others, both).path) == "sm90");
  // Few keys: not the tile of fewer keys if it is wider, as sums of d_q would be.
  CHECK(tile(h100, "bwd bf16 b2 hq4 hk2 sq32 sk32 d64") == "a_dkvq64");
}

TEST_CASE("sm80 has each tile of its kernels that a problem with lengths asks for") {
  Caps caps = caps_of("h100_cuda");
  REQUIRE(parse_disabled("cuda.sm90", &caps.disabled).ok());
  int asked = 0;
  for (const AmpereTile& t : kAmpereTiles) {
    if (t.stem != Stem::fwd || t.bytes != 2) continue;
    if (t.table != TileTable::ampere_full && t.table != TileTable::ampere_lengths) continue;
    const std::string line = "fwd bf16 b2 hq4 sq8 sk900 kv_padded d" + std::to_string(t.width) +
                             " tile=" + std::to_string(t.br) + "x" + std::to_string(t.bc);
    CAPTURE(line);
    const Plan plan = plan_of(line, caps);
    CHECK(std::string(plan.path) == "sm80");
    CHECK((plan.launches[0].tile.br == t.br && plan.launches[0].tile.bc == t.bc));
    ++asked;
  }
  CHECK(asked >= 8);
  // And the others where all of few rows are switched off.
  const char* line = "fwd bf16 b2 hq4 sq8 sk900 kv_padded d64";
  CHECK(std::string(plan_of(line, caps).launches[0].tile.name) == "a_fwdl64d");
  REQUIRE(parse_disabled("cuda.sm90,a_fwdl64d,a_fwdl128d", &caps.disabled).ok());
  CHECK(std::string(plan_of(line, caps).launches[0].tile.name) == "a_fwdx64d");
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
  // Larger tiles, where each SM has several heads.
  CHECK(tile("fwd bf16 b128 hq16 sq64 sk64 d80") == "a_fwdw128");
  CHECK(tile("fwd f16 b256 hq12 sq77 sk77 d64 causal_top_left") == "a_fwdw64l");
  CHECK(tile("fwd bf16 b384 hq8 sq128 sk128 d32") == "a_fwdw32l");
  CHECK(tile("fwd f16 b32 hq64 sq128 sk128 d8 bias:f16:32x64x128").empty());
  CHECK(tile("bwd bf16 b600 hq8 sq144 sk144 d64 keep:600x1x144") == "a_bwdw64x");
  CHECK(tile("bwd bf16 b384 hq8 sq128 sk128 d32") == "a_bwdw32l");
  CHECK(tile("fwd bf16 b1024 hq4 sq32 sk128 d32 bias:bf16:1024x4x32") == "a_fwdw32s");
  CHECK(tile("bwd bf16 b1024 hq4 sq32 sk128 d32 bias:bf16:1024x4x32 grads=qkvb d_bias:bf16") ==
        "a_bwdw32s");
  CHECK(tile("fwd bf16 b65 hq4 sq77 sk77 d64").empty());
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

TEST_CASE("sm80 sums d_bias on tensor cores, in tiles by the heads' width and by what they waste") {
  const auto dbias = [](const Caps& caps, const std::string& line) -> std::string {
    const Plan plan = plan_of(line + " grads=qkvb", caps);
    const Launch* l = plan.find(Stem::bwd_dbias);
    REQUIRE(std::string(plan.path) == "sm80");
    REQUIRE(l);
    CHECK(l->shared_bytes <= caps.shared_bytes);
    CHECK(bool(plan.find(Stem::bwd_sum_splits)) == (l->splits > 1));
    CHECK(l->total ==
          l->tiles * uint32_t(plan.problem.bias.heads * plan.problem.bias.batch) * l->splits);
    CHECK(l->splits <= l->members);
    // Members of a bias of one row are tiles of its query rows.
    const int64_t q_tiles = (plan.problem.seq_q + l->tile.br - 1) / l->tile.br;
    CHECK(bwd_dbias_block(plan, *l).q_tiles == (plan.problem.bias.rows == 1 ? q_tiles : 1));
    return std::string(l->tile.name) + " " + kKernels[l->kernel].variant + " " +
           std::to_string(l->splits);
  };
  const Caps h100 = caps_of("h100_cuda_no_90a");
  Caps a100 = h100, small = h100;
  a100.shared_bytes = 163 * 1024, small.shared_bytes = 99 * 1024;
  // T5, and triangle attention, whose 72 tiles leave SMs without work.
  const std::string t5 = "bwd bf16 b16 hq16 hk16 sq512 d64 bias:bf16:1x16x512 d_bias:bf16",
                    triangle = "bwd bf16 b128 hq8 hk8 sq384 d32 bias:bf16:1x8x384 d_bias:bf16";
  CHECK(dbias(h100, t5) == "a_dbias64 mma_bias 1");
  CHECK(dbias(h100, triangle) == "a_dbias32 mma_bias 5");
  CHECK(dbias(small, t5) == "a_dbias64s mma_bias 1");
  CHECK(dbias(small, triangle) == "a_dbias32 mma_bias 5");
  // Heads of 128 have 192 KiB in tiles.
  const std::string wide = "bwd f16 b16 hq16 hk16 sq512 d128 bias:f32:1x16x512 d_bias:f32";
  CHECK(dbias(h100, wide) == "a_dbias128 mma_bias 1");
  CHECK(dbias(a100, wide) == "a_dbias128s mma_bias 1");
  // Windows of 49 queries, and rows that one tile of 128 has no use for.
  CHECK(dbias(h100, "bwd f16 b4096 hq6 hk3 sq49 d32 bias:f16:1x6x49 d_bias:f16").substr(0, 11) ==
        "a_dbias32s ");
  CHECK(dbias(h100, "bwd f16 b512 hq3 hk3 sq192 d64 bias:f16:1x3x192 d_bias:f16").substr(0, 10) ==
        "a_dbias64s");
  CHECK(dbias(h100, "bwd f16 b512 hq3 hk3 sq197 d64 bias:f16:1x3x197 d_bias:f16").substr(0, 10) ==
        "a_dbias64 ");
  // So little that larger tiles would leave SMs idle, whatever the splits.
  CHECK(dbias(h100, "bwd f16 b2 hq8 hk8 sq256 d64 bias:f16:1x8x256 d_bias:f16") ==
        "a_dbias64s mma_bias 1");
  // What stands beside the bias.
  for (const char* beside : {" keep:16x1x1", " q_padded kv_padded", " sink", " causal_top_left"})
    CHECK(dbias(h100, t5 + beside) == "a_dbias64 mma_bias 1");
  for (const char* beside :
       {" softcap=3", " alibi", " dropout=0.1", " elastic", " entmax=1.5", " dist=30"})
    CHECK(dbias(h100, t5 + beside).substr(0, 19) == "a_dbiasx64 mma_full");
  // Wider heads are simt's.
  const Plan simt =
      plan_of("bwd f16 b4 hq4 hk4 sq300 d136 bias:f16:1x4x300 d_bias:f16 grads=b", h100);
  CHECK(std::string(simt.path) == "sm80");
  REQUIRE(simt.find(Stem::bwd_dbias));
  CHECK(simt.find(Stem::bwd_dbias)->as<SimtLaunch>());
  CHECK(std::string(kKernels[simt.find(Stem::bwd_dbias)->kernel].variant) == "full");
  // Without its tiles, all are.
  Caps off = h100;
  REQUIRE(parse_disabled("a_dbias64,a_dbias64s,a_dbias128,a_dbias128s", &off.disabled).ok());
  CHECK(plan_of(t5 + " grads=b", off).find(Stem::bwd_dbias)->as<SimtLaunch>());
}

TEST_CASE("sm80 splits a sum of d_bias where that ends first") {
  // One wave of workgroups with and without, and twice as many members each.
  CHECK(sm80_splits_of_dbias(132, 16, 132) == 1);
  CHECK(sm80_splits_of_dbias(66, 64, 132) == 2);
  CHECK(sm80_splits_of_dbias(66, 2, 132) == 1);  // no longer than the sum of parts
  CHECK(sm80_splits_of_dbias(1, 1000, 132) == 125);
  CHECK(sm80_splits_of_dbias(1, 0, 132) == 1);
  // Never more partial sums than four waves leave, nor than members.
  for (int64_t groups : {1, 5, 72, 100, 131, 300, 10000})
    for (int64_t members : {1, 2, 15, 128, 100000}) {
      const int64_t n = sm80_splits_of_dbias(groups, members, 132);
      CHECK(n >= 1);
      CHECK(n <= members);
      CHECK((n == 1 || n * groups <= 4 * 132));
    }
}
