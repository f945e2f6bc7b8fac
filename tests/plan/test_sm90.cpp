// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans of the path cuda.sm90: which problems it takes, and why it refuses the others.
#include <string>
#include <vector>

#include "kernels/kernel_rows.h"
#include "plan/sm90/heuristics.h"
#include "plan/sm90/rules.h"
#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

// Why the path, or a row of it, was not taken; "" where it was.
std::string refusal(const Plan& plan, const std::string& candidate = "cuda.sm90") {
  std::string reasons;
  for (const Refusal& r : plan.refusals)
    if (r.candidate.rfind(candidate, 0) == 0) reasons += r.reason + "; ";
  return std::string(plan.path) == "sm90" ? "" : reasons;
}

}  // namespace

TEST_CASE(
    "sm90 takes plain attention of 16-bit elements on Hopper alone, with a build that has the "
    "code") {
  const std::string line = "fwd f16 b2 hq4 hk2 sq1000 sk900 d128 causal_bottom_right";
  CHECK(std::string(plan_of(line).path) == "sm90");
  Caps caps = caps_of("h100_cuda");
  CHECK(refusal(plan_of("fwd f32 hq4 sq1000 d128")).find("f16 or bf16") != std::string::npos);
  caps.sm90_code = false;
  CHECK(refusal(plan_of(line, caps)).find("sm_90a") != std::string::npos);
  for (const auto& [major, minor] : {std::pair<int, int>{8, 0}, {9, 1}, {10, 0}, {12, 0}}) {
    caps = caps_of("h100_cuda");
    caps.compute_major = major;
    caps.compute_minor = minor;
    CHECK(refusal(plan_of(line, caps)).find("is not 9.0") != std::string::npos);
  }
  caps = caps_of("h100_cuda");
  REQUIRE(parse_disabled("cuda.sm90", &caps.disabled).ok());
  CHECK(refusal(plan_of(line, caps)).find("disabled") != std::string::npos);
  caps.disabled = {"h128"};
  const Plan without = plan_of(line, caps);
  CHECK(std::string(without.tile().name) == "h192");
  caps = caps_of("h100_cuda");
  caps.shared_bytes = 160 * 1024;
  CHECK(refusal(plan_of(line, caps)).find("bytes of shared memory") != std::string::npos);
}

TEST_CASE("sm90 refuses by name what TMA or its kernels cannot do") {
  const struct {
    const char* line;
    const char* word;
  } rows[] = {
      {"fwd f16 hq2 sq100 d60", "q has 60 features"},
      {"fwd f16 hq2 sq100 d64 dv36", "v has 36 features"},
      {"bwd f16 hq2 sq100 d64 elastic grads=qv", "not one alone"},
      {"bwd f16 hq2 sq100 d136 elastic", "up to 128"},
      {"bwd f16 hq2 sq100 d64 elastic dist=1025", "up to 1024 entries"},
      {"bwd f16 hq2 sq100 d64 elastic sink", "has sink"},
      {"fwd f16 hq2 sq100 d64 elastic softcap=3", "has softcap"},
      {"fwd f16 hq2 sq100 d64 elastic dist=3000", "up to 2048 entries"},
      {"fwd f16 hq2 sq100 d136 entmax=1.5", "up to 128"},
      {"bwd f16 hq2 sq100 d64 entmax=1.5 alibi", "has alibi"},
      {"bwd f16 hq2 sq100 d64 entmax=1.5 tile=64x64", "different tiles"},
      {"bwd f16 hq2 sq100 d64 dist=30 grads=qkvd", "with elastic softmax alone"},
      {"fwd f16 b2 hq2 sq100 d136 dropout=0.5", "with dropout, head sizes go up to 128"},
      {"bwd f16 b2 hq2 sq100 d104 softcap=3 keep:1x1x100",
       "registers do not suffice for softcap, keep"},
      {"bwd f16 b2 hq2 sq100 d136 kv_padded", "head sizes go up to 128 in backward"},
      {"bwd f16 hq2 sq100 d136 softcap=3 alibi", "head sizes go up to 128"},
      {"fwd f16 b2 hq2 sq100 d64 q_packed=0", "a size is 0"},
      {"fwd bf16 hq2 sq100 sk104 d64 bias:f16:1x2x100", "this one of f16"},
      {"bwd bf16 hq2 sq100 d64 bias:bf16:1x2x100 alibi", "has alibi"},
      {"bwd bf16 hq2 sq100 sk104 d136 bias:bf16:1x2x100", "up to 128"},
      {"bwd bf16 hq2 sq100 sk104 d64 bias:f16:1x2x100", "this one of f16"},
      {"fwd bf16 hq2 sq100 sk104 d136 bias:f32:1x2x100", "up to 128"},
      {"fwd bf16 b2 hq2 sq100 sk104 d64 bias:bf16:1x2x100 kv_packed=150", "a tensor is packed"},
      {"bwd bf16 b2 hq2 sq100 sk104 d64 bias:f32:1x2x100 kv_padded sink", "has sink"},
      {"bwd bf16 hq2 sq100 sk104 d64 bias:bf16:1x2x1 grads=qkvb d_bias:f32", "not over rows"},
      {"bwd bf16 hq2 sq100 sk104 d64 bias:bf16:1x1x100 grads=qkvb d_bias:f32", "not over heads"},
      {"bwd bf16 b4 hq2 sq100 sk104 d64 bias:bf16:2x2x100", "this bias has 2"},
      {"bwd bf16 b4 hq2 sq100 sk104 d64 bias:bf16:1x2x100 keep:2x1x1", "this mask has 2"},
      {"bwd bf16 b4 hq2 sq100 sk104 d64 alibi slopes=2", "slopes and sinks are of the whole batch"},
      {"fwd bf16 b4 hq2 sq100 sk104 d64 sink sinks=4", "slopes and sinks are of the whole batch"},
      {"fwd f16 hq2 sq100 sk2000 d64 splits=3", "does not split"},
      {"fwd f16 b2 hq2 sq100 d512 q_padded kv_padded", "lengths are of keys alone"},
      {"fwd f16 b2 hq2 sq100 d512 kv_padded sink", "with or without lengths of keys"},
      {"fwd f16 hq2 sq100 d512 batch_invariant", "not batch-invariant"},
      {"fwd f16 hq2 sq1 sk2000 d64", "idle"},
      {"fwd f16 hq2 sq100 sk0 d64", "a size is 0"},
      {"fwd f16 hq2 sq1000 d64 tile=64x64", "192x128 is not the tile 64x64"},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.line));
    const std::string why = refusal(plan_of(row.line));
    INFO(why);
    CHECK(why.find(row.word) != std::string::npos);
    CHECK(explain(problem_of(row.line), caps_of("h100_cuda")).find(row.word) != std::string::npos);
  }
  // Strides, of inputs alone.
  const auto strided = [](tandem_tensor tandem_problem::*tensor, int dim, int64_t stride) {
    tandem_problem given;
    REQUIRE(parse_problem("bwd f16 b2 hq4 hk2 sq100 sk90 d64", &given).ok());
    (given.*tensor).stride[dim] = stride;
    Problem p;
    const Status status = make_problem(&given, &p);
    REQUIRE_MESSAGE(status.ok(), status.message());
    Plan plan;
    REQUIRE(make_plan(p, caps_of("h100_cuda"), &plan).ok());
    return refusal(plan);
  };
  CHECK(strided(&tandem_problem::q, 0, 4 * 100 * 64 + 4).find("batch entries of q") !=
        std::string::npos);
  CHECK(strided(&tandem_problem::k, 1, 90 * 64 + 2).find("heads of k") != std::string::npos);
  CHECK(strided(&tandem_problem::v, 1, 0).find("heads of v") != std::string::npos);
  CHECK(strided(&tandem_problem::d_o, 1, 100 * 64 + 8) == "");
  CHECK(strided(&tandem_problem::o, 0, 4 * 100 * 64 + 1) == "");
  CHECK(strided(&tandem_problem::d_q, 0, 4 * 100 * 64 + 1) == "");
  CHECK(strided(&tandem_problem::d_k, 0, 4 * 90 * 64 + 3) == "");
  // A dimension of size 1 has no step.
  tandem_problem one;
  REQUIRE(parse_problem("fwd f16 b1 hq1 sq100 d64", &one).ok());
  one.q.stride[0] = one.q.stride[1] = 1;
  Problem p;
  REQUIRE(make_problem(&one, &p).ok());
  Plan plan;
  REQUIRE(make_plan(p, caps_of("h100_cuda"), &plan).ok());
  CHECK(std::string(plan.path) == "sm90");
}

TEST_CASE("sm90: padded lengths beside a dense bias") {
  const auto kernels = [](const Plan& plan) {
    std::string names;
    for (const Launch& l : plan.launches) names += kernel_name(kKernels[l.kernel]) + String("\n");
    return names;
  };
  for (const char* lengths : {" q_padded", " kv_padded", " q_padded kv_padded"})
    for (const char* keep : {"", " keep:1x1x1", " keep:1x1x512"}) {
      const std::string rest = std::string("hq4 hk4 sq512 sk512 d64") + lengths + keep;
      for (const char* bias : {"bf16", "f32"}) {
        const bool f32 = bias == std::string("f32");
        const Plan fwd = plan_of(std::string("fwd bf16 b4 bias:") + bias + ":1x4x512 " + rest);
        CAPTURE(fwd.name());
        REQUIRE(std::string(fwd.path) == "sm90");
        // A mask with a row for each query becomes bits first.
        const std::string packs =
            keep == std::string(" keep:1x1x512") ? "cuda.sm90.pack_keep\n" : "";
        CHECK(kernels(fwd) ==
              packs + (f32 ? "cuda.sm90.fwd.bias_f32_lengths\n" : "cuda.sm90.fwd.bias_lengths\n"));
        // Tiles of different lengths are not shared.
        const Launch& launch = fwd.launches.back();
        CHECK(launch.of<Sm90Launch>().stream_k_units == 0);
        CHECK(launch.of<Sm90Launch>().short_tiles == 0);
        CHECK(!launch.has(trait::scales_q));
        for (const char* batch : {"b1 ", "b4 ", "b8 ", "b9 ", "b64 "}) {
          const Plan bwd = plan_of(std::string("bwd bf16 bias:") + bias +
                                   ":1x4x512 d_bias:f32 grads=qkvb " + batch + rest);
          REQUIRE(std::string(bwd.path) == "sm90");
          const std::string form = std::string(f32 ? "bias_f32" : "bias_lengths") +
                                   (bwd.problem.batch > kMaxCluster ? "_slices\n" : "\n");
          CHECK(kernels(bwd).find(packs + "cuda.sm90.bwd_dot.zero_full\n") == 0);
          CHECK(kernels(bwd).find("cuda.sm90.bwd_dkv_dq." + form) != std::string::npos);
          CHECK(bwd.find(Stem::bwd_dq_cast) != nullptr);
        }
      }
    }
}

TEST_CASE("sm90 takes lengths, sinks, softcap, ALiBi, masks and dropout with softmax") {
  const struct {
    const char* line;
    const char* stems;
    const char* variant;
  } rows[] = {
      {"fwd f16 b2 hq4 hk2 sq300 sk200 d64 q_padded", "fwd", "varlen"},
      {"fwd f16 b2 hq4 hk2 sq300 sk200 d128 kv_packed=250 sink", "fwd", "varlen"},
      {"fwd bf16 hq4 sq300 d80 softcap=3 sink alibi", "fwd", "softcap_alibi"},
      {"bwd bf16 hq4 sq300 d256 sink grads=qkvs", "bwd_dot bwd_dkv bwd_dq bwd_head_sums", "only"},
      {"bwd bf16 hq4 sq300 d256 sink grads=s", "bwd_dot bwd_head_sums", "only"},
      {"bwd bf16 hq4 hk2 sq300 d256 softcap=50", "bwd_dot bwd_dkv bwd_dq", "softcap"},
      {"bwd f16 hq4 sq300 d192 dv128 softcap=50 sink grads=qs", "bwd_dot bwd_dq bwd_head_sums",
       "softcap"},
      {"bwd bf16 b3 hq4 sq300 sk400 d128 sink q_packed=500 kv_padded", "bwd_dot bwd_dkv_dq",
       "varlen"},
      {"bwd bf16 b3 hq4 sq300 d64 alibi grads=qkva", "bwd_dot bwd_dkv_dq bwd_head_sums",
       "softcap_alibi"},
      {"bwd bf16 b3 hq4 hk2 sq3000 d64 alibi grads=qkva",
       "bwd_dot bwd_dkv_dq bwd_dq_cast bwd_head_sums", "softcap_alibi"},
      {"bwd bf16 b3 hq4 sq300 d64 alibi grads=a", "bwd_dot bwd_dkv_dq bwd_head_sums",
       "softcap_alibi"},
      {"fwd bf16 b2 hq4 sq300 d192 dv128 q_packed=500 kv_packed=500", "fwd", "softcap_alibi"},
      {"fwd bf16 hq4 sq300 d256 sink", "fwd", "softcap_alibi"},
      {"fwd bf16 hq4 sq300 d128 keep:1x4x1", "fwd", "masked"},
      {"fwd bf16 b2 hq4 sq300 d40 dropout=0.1 softcap=3 kv_packed=500", "fwd", "masked"},
      {"fwd bf16 hq4 sq300 d64 dist=30 alibi sink", "fwd", "masked"},
      {"bwd bf16 b2 hq4 sq300 d128 keep:2x1x300 dropout=0.1 q_padded", "bwd_dot bwd_dkv_dq",
       "masked"},
      {"bwd bf16 b2 hq4 sq3000 d128 keep:2x1x3000 dropout=0.1 q_padded",
       "pack_keep bwd_dot bwd_dkv_dq bwd_dq_cast", "masked"},
      // A mask that few queries of many heads share is packed in the backward.
      {"bwd bf16 hq64 hk8 sq100 sk4096 d128 keep:1x8x100",
       "pack_keep bwd_dot bwd_dkv_dq bwd_dq_cast", "masks"},
      {"bwd bf16 hq64 hk8 sq100 sk4096 d128 keep:1x64x100", "bwd_dot bwd_dkv_dq bwd_dq_cast",
       "masks"},
      {"fwd bf16 hq64 hk8 sq100 sk4096 d128 keep:1x8x100", "fwd", "masked"},
      {"bwd bf16 b2 hq4 sq300 d128 blocks=64x64:4+2:1x1", "expand_blocks bwd_dot bwd_dkv_dq",
       "masks"},
      {"bwd bf16 b2 hq4 sq3000 d128 blocks=64x64:4+2:1x1",
       "expand_blocks bwd_dot bwd_dkv_dq bwd_dq_cast", "masks"},
      {"bwd bf16 b2 hq4 sq300 d128 q_gapped=500 kv_gapped=400", "place_entries bwd_dot bwd_dkv_dq",
       "varlen"},
      {"bwd bf16 b2 hq4 sq3000 d128 q_gapped=5000", "place_entries bwd_dot bwd_dkv_dq bwd_dq_cast",
       "varlen"},
      {"bwd bf16 b2 hq4 sq300 d128 spans=2:1x1 q_padded", "mask_map bwd_dot bwd_dkv_dq", "masks"},
      {"bwd bf16 hq4 sq300 d64 keep:1x1x300 dist=40 softcap=4 alibi grads=qkva",
       "bwd_dot bwd_dkv_dq bwd_head_sums", "masked"},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.line));
    const Plan plan = plan_of(row.line);
    CHECK(refusal(plan) == "");
    CHECK(stems(plan) == row.stems);
    CHECK(std::string(kKernels[sm90_kernel(plan.problem)].variant) == row.variant);
  }
  // Softcap and ALiBi keep numbers of each element: tiles of 64 rows.
  CHECK(std::string(plan_of("bwd f16 hq2 sq100 d64").tile().name) == "hb64");
  CHECK(std::string(plan_of("bwd f16 b2 hq2 sq100 d64 kv_padded").tile().name) == "hb64");
  const Plan capped = plan_of("bwd f16 hq2 sq100 d64 softcap=3");
  CHECK(std::string(capped.tile().name) == "hb96");
  REQUIRE(!capped.refusals.empty());
  CHECK(capped.refusals.back().candidate == "cuda.sm90 hb64");
  CHECK(capped.refusals.back().reason.find("registers do not suffice") != std::string::npos);
  // Who makes bits of masks needs registers: two warpgroups compute, whatever the row says.
  const Plan masked = plan_of("fwd f16 hq2 sq500 d64 keep:1x1x500");
  CHECK(masked.tile().br == 128);
  CHECK(masked.launches.front().invocations() == 384);
  const Launch& bits = masked.launches.front();
  CHECK(bits.shared_bytes ==
        uint32_t(fwd_masked_shared_bytes(kFwdTiles[bits.of<Sm90Launch>().row])));
  CHECK(std::string(plan_of("bwd f16 hq2 sq500 d64 dropout=0.5").tile().name) == "hb96");
  CHECK(std::string(plan_of("bwd f16 hq2 sq500 d128 dropout=0.5").tile().name) == "hb128");
  // Softmax alone has tiles of its own, by the number of keys, unless the problem asks for others.
  const struct {
    const char *line, *tile;
  } alone[] = {{"fwd f16 hq2 sq3000 d64", "h64a"},
               {"fwd f16 hq2 sq300 sk8200 d64", "h64"},
               {"fwd f16 hq2 sq300 sk8200 d64 causal_bottom_right", "h64a"},
               {"fwd f16 hq2 sq300 sk8200 d64 tile=256x64", "h64a"},
               {"fwd f16 b2 hq2 sq3000 d64 kv_padded", "h64"},
               {"fwd f16 hq2 sq3000 d64 elastic", "h64"},
               {"fwd f16 hq2 sq3000 d64 elastic causal_top_left", "h64a"},
               {"fwd f16 hq2 sq300 d128 elastic causal_top_left", "h128a"},
               {"fwd f16 hq2 sq3000 sk3064 d128 elastic dist=9 causal_bottom_right", "h128a"},
               {"fwd f16 hq2 sq3000 sk3065 d128 elastic dist=9 causal_bottom_right", "h128"},
               {"fwd f16 hq2 sq3000 sk2999 d64 elastic causal_top_left", "h64"},
               {"fwd f16 hq2 sq3000 d64 elastic causal_top_left left=99", "h64"},
               {"fwd f16 hq2 sq3000 d128 entmax=1.5", "h128"},
               {"fwd f16 hq2 sq2048 d128", "h128a"},
               {"fwd f16 hq2 sq2047 d128", "h128"},
               {"fwd bf16 hq12 sq32760 sk512 d128", "h128a"},
               {"fwd bf16 b32 hq16 sq729 d72", "h72a"},
               {"fwd bf16 b32 hq16 sq729 d80", "h80a"},
               {"fwd bf16 b32 hq16 sq729 d96", "h96a"},
               {"fwd bf16 b32 hq16 sq729 d72 kv_padded", "h96"},
               {"fwd bf16 b32 hq16 sq729 d72 elastic", "h128"},
               {"fwd bf16 b64 hq16 sq256 d72", "h72a"},
               {"fwd bf16 b64 hq16 sq257 d80", "h96a"},
               {"fwd bf16 b4 hq32 sq2048 d80 causal_top_left", "h96"},
               {"fwd f16 hq2 sq3000 d192 dv128", "h192"}};
  for (const auto& row : alone) {
    CAPTURE(std::string(row.line));
    CHECK(std::string(plan_of(row.line).tile().name) == row.tile);
  }
  // A device that does not say how many SMs it has.
  Caps unknown = caps_of("h100_cuda");
  unknown.cores = 0;
  CHECK(plan_of("fwd bf16 b32 hq16 sq729 d72", unknown).path == std::string("sm90"));
  // A part of d_slope of each warp of each tile of keys, whatever the rows.
  const Plan sloped = plan_of("bwd f16 b2 hq3 sq1 sk300 d64 alibi grads=a");
  CHECK(sloped.slope_parts == 3 * kBwdParts);
  CHECK(sloped.workspace_size >=
        sloped.scratch[Scratch::slope_rows].offset + 4 * 2 * 3 * 3 * kBwdParts);
  // Sums of packed queries: as many tiles as entries can begin, not the longest length each.
  const Plan packed = plan_of("bwd f16 b8 hq3 sq4096 d128 q_packed=5000 kv_packed=5000");
  CHECK(packed.zeroed_size == uint64_t(3 * (5000 / 64 + 8) * 64 * 128 * 4 + 8 * 3 * 4));
}

TEST_CASE(
    "sm90: each head size gets the first tile that it fits, and as many workgroups as there is "
    "work") {
  for (const char* direction : {"fwd", "bwd"})
    for (int64_t d : {8, 40, 64, 72, 96, 128, 136, 192, 200, 256, 264, 384, 512, 520, 576})
      for (int64_t dv : {8, 64, 128, 192, 256, 320, 512, 576})
        for (const char* rest :
             {"b1 hq2 hk1 sq1 sk1", "b3 hq8 hk2 sq300 sk1000 causal_top_left",
              "b2 hq4 hk4 sq5000 sk333 causal_bottom_right left=40", "b1 hq2 hk1 sq3000 sk9000"}) {
          const String line =
              text("%s bf16 %s d%lld dv%lld", direction, rest, (long long)d, (long long)dv);
          CAPTURE(line);
          Caps caps = caps_of("h100_cuda");
          caps.disabled = {"cuda.sm80"};
          const Plan plan = plan_of(line, caps);
          const Problem& p = plan.problem;
          int fit = -1;
          if (p.backward) {
            for (int n = kBwdShapeCount; n-- > 0;)
              if (d <= kBwdShapes[n].d && dv <= kBwdShapes[n].dv()) fit = n;
          } else {
            for (int n = kFwdTileCount; n-- > 0;) {
              const FwdTile& t = kFwdTiles[n];
              const bool fast = p.seq_kv >= t.from && (!t.to || p.banded() || p.seq_kv <= t.to);
              const bool filled = !t.halves_o() || (p.seq_q <= 64) == (t.cluster() == 1);
              if (fast && !t.bias && d <= t.d && dv <= t.dv && filled &&
                  pays_more_rows(p, caps.cores, t))
                fit = n;
            }
          }
          if (fit < 0) {
            CHECK(p.backward);
            CHECK(refusal(plan).find("is beyond its") != std::string::npos);
            continue;
          }
          REQUIRE(std::string(plan.path) == "sm90");
          const bool two_sided = p.backward && kBwdShapes[fit].two_sided();
          const bool wide = p.backward && std::max(d, dv) > kMaxFusedHeadDim && !two_sided;
          const bool splits = plan.find(Stem::fwd_combine) != nullptr;
          CHECK((!splits || std::max(d, dv) > kMaxWholeHeadDim));
          CHECK(stems(plan) == (wide ? "bwd_dot bwd_dkv bwd_dq"
                                : two_sided || (p.backward && !fuses_dq_postprocess(plan))
                                    ? "bwd_dot bwd_dkv_dq bwd_dq_cast"
                                : p.backward ? "bwd_dot bwd_dkv_dq"
                                : splits     ? "fwd fwd_combine"
                                             : "fwd"));
          for (const Launch& l : plan.launches) {
            CHECK(std::string(kKernels[l.kernel].path) == "sm90");
            CHECK(l.shared_bytes <= caps.shared_bytes);
            if (l.stem != Stem::bwd_dq)
              CHECK((row_of(l) == fit) == (l.stem != Stem::bwd_dot && l.stem != Stem::bwd_origin &&
                                           l.stem != Stem::fwd_combine));
          }
          if (const Launch* l = plan.find(Stem::fwd)) {
            const FwdTile& t = kFwdTiles[fit];
            CHECK(l->tiles == ceil_div(p.seq_q, t.rows()));
            CHECK(l->total == l->tiles * p.heads_q * p.batch * l->splits);
            CHECK((l->splits > 1) == splits);
            const uint32_t size = uint32_t(t.cluster());
            CHECK(l->groups_x == size * std::min<uint32_t>(l->total, caps.cores / size));
            CHECK(l->groups_y == 1);
            CHECK(l->invocations() == t.threads());
            CHECK(l->shared_bytes == uint32_t(fwd_plain_shared_bytes(t)));
            CHECK((plan.workspace_size == 0) == !splits);
            continue;
          }
          const BwdShape& s = kBwdShapes[fit];
          CHECK(s.wide == wide);
          if (wide) {  // two kernels, and delta alone between them; whatever the order
            const Launch &keys = *plan.find(Stem::bwd_dkv), &rows = *plan.find(Stem::bwd_dq);
            const DqShape& r = kDqShapes[rows.of<Sm90Launch>().row];
            CHECK(keys.total == ceil_div(p.seq_kv, s.bc) * p.heads_kv * p.batch);
            CHECK(keys.shared_bytes == uint32_t(bwd_shared_bytes(s)));
            CHECK(r.d == s.d);
            CHECK(rows.total == ceil_div(p.seq_q, r.br) * p.heads_q * p.batch);
            CHECK(rows.shared_bytes == uint32_t(dq_shared_bytes(r)));
            for (const Launch* l : {&keys, &rows}) {
              CHECK(l->invocations() == kBwdThreads);
              CHECK(l->groups_x * l->groups_y == l->total);
            }
            for (const char* order : {"", " deterministic"}) {
              const Plan ordered = plan_of(line + order);
              CHECK(ordered.workspace_size ==
                    far_size(p) + uint64_t(p.batch * p.heads_q * p.seq_q * 4));
              CHECK(ordered.zeroed_size == 0);
              CHECK(ordered.unordered() == 0);
            }
            continue;
          }
          const Launch& fused = *plan.find(Stem::bwd_dkv_dq);
          const Launch* cast = plan.find(Stem::bwd_dq_cast);
          CHECK(fused.tiles == ceil_div(p.seq_kv, s.bc));
          CHECK(fused.total == fused.tiles * p.heads_kv * p.batch);
          const BwdParts& parts = fused.of<Sm90Launch>().parts;
          CHECK(fused.groups_x * fused.groups_y == fused.total * uint32_t(std::max(1, parts.most)) *
                                                       (two_sided ? kTwoSidedCluster : 1));
          CHECK(fused.invocations() == kBwdThreads);
          CHECK(fused.shared_bytes ==
                uint32_t(two_sided ? bwd_two_sided_shared_bytes(s) : bwd_plain_shared_bytes(s)));
          const int64_t a_head = p.heads_q / p.heads_kv * p.seq_q * d * 4;
          const auto rounds_together = [&](const BwdParts& of) {
            return !two_sided && std::max<int64_t>(fused.total, of.workgroups) <= caps.cores &&
                   a_head <= std::max<int64_t>(1 << 20, fused.tiles << (p.banded() ? 16 : 17));
          };
          const bool together = rounds_together(parts);
          CHECK(fused.of<Sm90Launch>().cooperative_postprocess == together);
          CHECK((cast == nullptr) == (together || (!two_sided && a_head <= 1 << 20)));
          if (cast) {
            CHECK(cast->total == ceil_div(p.seq_q, 64) * ceil_div(s.d, 64) * p.heads_q * p.batch);
            CHECK(cast->groups_x * cast->groups_y == cast->total);
            CHECK(cast->invocations() == kCastGroup);
          }
          // delta, then the sums: whole tiles of whole panels; a number per head of keys, two where
          // its workgroups round together.
          const int64_t heads = p.batch * p.heads_q,
                        counts = two_sided ? 0 : p.batch * p.heads_kv * (together ? 8 : 4);
          const int64_t delta = ceil_div(heads * p.seq_q * 4, 256) * 256;
          const int64_t sums = heads * ceil_div(p.seq_q, s.br) * s.br * ceil_div(s.d, 64) * 64 * 4;
          CHECK(plan.scratch[Scratch::delta].offset == far_size(p));
          CHECK(plan.scratch[Scratch::d_q_accum].offset == far_size(p) + uint64_t(delta));
          // Where tiles of keys have parts, two counters a tile and side more, then the partial
          // sums.
          const auto zeroed = [&](int64_t before, const BwdParts& of) {
            return of.most > 1
                       ? ceil_div(before, 256) * 256 + (two_sided ? 16 : 8) * int64_t(fused.total)
                       : before;
          };
          const int64_t partials =
              parts.most > 1 ? int64_t(fused.total) * parts.most * bwd_partial_floats(s) * 4 : 0;
          CHECK(partials <= (two_sided ? kMaxTwoSidedPartialBytes : kMaxPartialBytes));
          CHECK(plan.zeroed_size == uint64_t(zeroed(sums + counts, parts)));
          CHECK(plan.workspace_size ==
                far_size(p) + uint64_t(delta + partials +
                                       (partials ? ceil_div(zeroed(sums + counts, parts), 256) * 256
                                                 : sums + counts)));
          CHECK(plan.unordered() == TANDEM_GRAD_Q);
          // In turn: a number per tile of queries more, zeroed along.
          const Plan turns = plan_of(line + " deterministic");
          CHECK(turns.scratch[Scratch::dq_semaphores].offset ==
                far_size(p) + uint64_t(delta + sums));
          const int64_t numbers = 4 * heads * (s.br / 64) * ceil_div(p.seq_q, s.br);
          const BwdParts& in_turn = turns.find(Stem::bwd_dkv_dq)->of<Sm90Launch>().parts;
          const int64_t words =
              two_sided ? 0 : p.batch * p.heads_kv * (rounds_together(in_turn) ? 8 : 4);
          CHECK(turns.zeroed_size ==
                uint64_t(zeroed(sums + (words ? ceil_div(numbers, 256) * 256 + words : numbers),
                                in_turn)));
          CHECK(turns.unordered() == 0);
          const int64_t q_loop = p.heads_q / p.heads_kv * ceil_div(p.seq_q, s.br);
          const int64_t beside = p.band.right == TANDEM_BAND_OPEN
                                     ? 5 * caps.cores / (4 * std::min<int64_t>(fused.tiles, q_loop))
                                     : 1;
          CHECK(turns.find(Stem::bwd_dkv_dq)->of<Sm90Launch>().interleaved_heads ==
                std::max<int64_t>(1, beside));
          CHECK(bwd_dkv_dq_block(turns, *turns.find(Stem::bwd_dkv_dq)).deterministic == 1);
          CHECK(fused.of<Sm90Launch>().interleaved_heads == 0);
          CHECK(bwd_dkv_dq_block(plan, fused).deterministic == 0);
        }
}

TEST_CASE("sm90: which kernels run for which gradients") {
  const auto of = [](const char* grads) {
    return plan_of(std::string("bwd f16 hq2 sq300 d64 grads=") + grads);
  };
  CHECK(stems(of("qkv")) == "bwd_dot bwd_dkv_dq");
  CHECK(stems(of("q")) == "bwd_dot bwd_dkv_dq");
  for (const char* grads : {"k", "v", "kv"}) {
    const Plan plan = of(grads);
    CHECK(stems(plan) == "bwd_dot bwd_dkv_dq");
    CHECK(plan.zeroed_size == 0);
    CHECK(plan.unordered() == 0);
  }
  const auto wide = [](const char* grads) {
    return plan_of(std::string("bwd f16 hq2 sq300 d136 grads=") + grads);
  };
  CHECK(stems(wide("q")) == "bwd_dot bwd_dq");
  for (const char* grads : {"k", "v", "kv"}) CHECK(stems(wide(grads)) == "bwd_dot bwd_dkv");
  // Narrow heads do not fall to the tiles of wide ones.
  Caps caps = caps_of("h100_cuda");
  caps.disabled = {"hb64", "hb96", "hb128"};
  CHECK(refusal(plan_of("bwd f16 hq2 sq300 d64", caps)).find("heads over 128") !=
        std::string::npos);
}

TEST_CASE("sm90 leaves few rows of few heads to the paths that split their keys") {
  const auto path = [](const char* line) { return std::string(plan_of(line, "h100_cuda").path); };
  CHECK(path("fwd f16 b1 hq44 sq1 sk100000 d64") == "sm80");
  CHECK(path("fwd f16 b1 hq44 sq17 sk100000 d64") == "sm80");
  CHECK(path("fwd f16 b1 hq45 sq17 sk100000 d64") == "sm90");
  CHECK(path("fwd f16 b1 hq44 sq33 sk100000 d64") == "sm90");
  CHECK(path("fwd f16 b1 hq44 sq32 sk511 d64") == "sm90");
  CHECK(path("fwd f16 b4 hq44 hk11 sq1 sk512 d64") == "sm80");  // 44 heads of 4 rows
  // Rows that share keys are one tile of the other path.
  CHECK(path("fwd f16 b99 hq32 hk8 sq8 sk8192 d64") == "sm80");
  CHECK(path("fwd f16 b99 hq32 hk8 sq9 sk8192 d64") == "sm90");
  CHECK(path("fwd f16 b99 hq32 hk32 sq1 sk2048 d64") == "sm80");
  CHECK(path("fwd f16 b99 hq32 hk32 sq1 sk2048 d136") == "sm80");
  CHECK(path("fwd f16 b99 hq32 hk32 sq1 sk2049 d136") == "sm90");
  // Few rows of many keys, of heads up to 128.
  CHECK(path("fwd f16 b99 hq32 hk32 sq16 sk512 d128") == "sm80");
  CHECK(path("fwd f16 b99 hq32 hk32 sq16 sk511 d128") == "sm90");
  CHECK(path("fwd f16 b99 hq32 hk32 sq17 sk512 d128") == "sm90");
  CHECK(path("fwd f16 b99 hq32 hk8 sq8 sk8192 d64 q_padded kv_padded") == "sm80");
  CHECK(path("fwd f16 b99 hq32 hk8 sq8 sk8192 d64 q_packed=99 kv_packed=8192") == "sm90");
  CHECK(path("fwd f16 b99 hq32 hk32 sq1 sk2048 d64 kv_padded") == "sm80");
  CHECK(path("fwd f16 b99 hq32 hk8 sq8 sk8192 d64 softcap=9") == "sm90");
}

TEST_CASE("sm90: forward with a bias takes no scale that is 0 or next to it") {
  for (const char* scale : {"0", "1e-13", "-0.125"}) {
    CAPTURE(scale);
    const Plan plan =
        plan_of(std::string("fwd bf16 b1 hq2 sq512 d64 bias:bf16:1x2x512 scale=") + scale);
    CHECK(std::string(plan.path) == "sm80");
    CHECK(explain(plan.problem, caps_of("h100_cuda")).find("the scale is over 1e-12") !=
          std::string::npos);
  }
}

TEST_CASE("sm90: a bias with one row for all queries has kernels that read the row") {
  for (const char* line :
       {"fwd f16 b4 hq8 sq300 sk197 d64 bias:f16:4x1x1", "fwd bf16 hq8 sq300 d128 bias:f32:1x8x1",
        "fwd f16 b4 hq8 hk2 sq300 d256 bias:f32:1x2x1 sink kv_padded scale=0",
        "fwd f16 hq8 sq300 d64 bias:f16:1x1x300 bias=0,0,0,1",
        "bwd f16 b4 hq8 sq300 sk320 d64 bias:f16:4x1x1",
        "bwd bf16 b4 hq8 sq300 d128 bias:f32:1x1x1 q_packed=700 kv_packed=700 sink grads=qkvs"}) {
    CAPTURE(line);
    const Plan plan = plan_of(line);
    CHECK(refusal(plan) == "");
    CHECK(sm90_has(plan.problem, trait::one_row));
    const Launch* launch = plan.find(plan.problem.backward ? Stem::bwd_dkv_dq : Stem::fwd);
    REQUIRE(launch);
    CHECK(std::string(kKernels[launch->kernel].variant) == "row_bias");
    CHECK(!plan.find(Stem::pack_bias));
    CHECK(!plan.scratch[Scratch::packed_bias].present);
    // The row may lie anywhere.
    Addresses a;
    a.bias = 2;
    CHECK(sm90_takes(plan, a));
  }
  // With as many tiles of keys as plain softmax needs for it, workgroups are persistent.
  for (const char* more : {"", " sink grads=qkvs", " kv_padded"}) {
    const Plan plan = plan_of(std::string("bwd f16 b32 hq12 sq512 d64 bias:f16:32x1x1") + more);
    CAPTURE(plan.name());
    const Launch& launch = *plan.find(Stem::bwd_dkv_dq);
    const bool persistent = !plan.problem.has_lengths();
    CHECK(launch.has(trait::persistent) == persistent);
    CHECK(std::string(kKernels[launch.kernel].variant) ==
          (persistent ? "row_bias_persistent" : "row_bias"));
  }
  // Four warpgroups where there is no mask.
  const auto tile = [](const char* line) { return std::string(plan_of(line).tile().name); };
  CHECK(tile("fwd f16 b32 hq12 sq512 d64 bias:f16:32x1x1") == "h64a");
  CHECK(tile("fwd f16 b32 hq12 sq512 d64 bias:f16:32x1x1 causal_top_left") == "h64");
  for (const char* line : {"fwd f16 b4 hq8 sq300 d64 bias:f16:4x1x300",
                           "fwd f16 b4 hq8 sq300 d64 bias:f16:4x1x1 keep:1x1x1",
                           "fwd f16 b4 hq8 sq300 d64 bias:f16:4x1x1 causal_top_left",
                           "bwd f16 b4 hq8 sq300 d64 bias:f16:4x8x1 grads=qkvb d_bias:f16",
                           "bwd f16 b4 hq8 sq300 d256 bias:f16:4x8x1"}) {
    CAPTURE(line);
    CHECK(has_bias_tiles(problem_of(line)));
  }
}
