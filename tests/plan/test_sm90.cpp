// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans of the path cuda.sm90: who gets it, and who not and why; launches, workspace, and what runs at addresses that
// TMA does not take.
#include <string>
#include <vector>

#include "plan/sm90/bwd_cluster_schedule.h"
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
      {"bwd f16 hq2 sq100 d136 softcap=3", "head sizes go up to 128"},
      {"fwd f16 b2 hq2 sq100 d64 q_packed=0", "a size is 0"},
      {"fwd bf16 hq2 sq100 sk104 d64 bias:f16:1x2x100", "this one of f16"},
      {"bwd bf16 hq2 sq100 d64 bias:bf16:1x2x100 alibi", "has alibi"},
      {"bwd bf16 hq2 sq100 sk104 d136 bias:bf16:1x2x100", "up to 128"},
      {"bwd bf16 hq2 sq100 sk104 d64 bias:f16:1x2x100", "this one of f16"},
      {"fwd bf16 hq2 sq100 sk104 d136 bias:f32:1x2x100", "up to 128"},
      {"bwd bf16 hq2 sq100 sk104 d64 bias:bf16:1x2x1 grads=qkvb d_bias:f32", "not over rows"},
      {"bwd bf16 hq2 sq100 sk104 d64 bias:bf16:1x1x100 grads=qkvb d_bias:f32", "not over heads"},
      {"fwd f16 hq2 sq100 sk2000 d64 splits=3", "does not split"},
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

TEST_CASE("sm90 takes lengths, sinks, softcap, ALiBi, masks and dropout with softmax") {
  const struct {
    const char* line;
    const char* stems;
    HopperVariant set;
  } rows[] = {
      {"fwd f16 b2 hq4 hk2 sq300 sk200 d64 q_padded", "fwd", HopperVariant::varlen},
      {"fwd f16 b2 hq4 hk2 sq300 sk200 d128 kv_packed=250 sink", "fwd", HopperVariant::varlen},
      {"fwd bf16 hq4 sq300 d80 softcap=3 sink alibi", "fwd", HopperVariant::softcap_alibi},
      {"bwd bf16 hq4 sq300 d256 sink grads=qkvs", "bwd_dot bwd_dkv bwd_dq bwd_head_sums",
       HopperVariant::plain},
      {"bwd bf16 hq4 sq300 d256 sink grads=s", "bwd_dot bwd_head_sums", HopperVariant::plain},
      {"bwd bf16 b3 hq4 sq300 sk400 d128 sink q_packed=500 kv_padded", "bwd_dot bwd_dkv_dq",
       HopperVariant::varlen},
      {"bwd bf16 b3 hq4 sq300 d64 alibi grads=qkva", "bwd_dot bwd_dkv_dq bwd_head_sums",
       HopperVariant::softcap_alibi},
      {"bwd bf16 b3 hq4 hk2 sq3000 d64 alibi grads=qkva",
       "bwd_dot bwd_dkv_dq bwd_dq_cast bwd_head_sums", HopperVariant::softcap_alibi},
      {"bwd bf16 b3 hq4 sq300 d64 alibi grads=a", "bwd_dot bwd_dkv_dq bwd_head_sums",
       HopperVariant::softcap_alibi},
      {"fwd bf16 b2 hq4 sq300 d192 dv128 q_packed=500 kv_packed=500", "fwd",
       HopperVariant::softcap_alibi},
      {"fwd bf16 hq4 sq300 d256 sink", "fwd", HopperVariant::softcap_alibi},
      {"fwd bf16 hq4 sq300 d128 keep:1x4x1", "fwd", HopperVariant::masked},
      {"fwd bf16 b2 hq4 sq300 d40 dropout=0.1 softcap=3 kv_packed=500", "fwd",
       HopperVariant::masked},
      {"fwd bf16 hq4 sq300 d64 dist=30 alibi sink", "fwd", HopperVariant::masked},
      {"bwd bf16 b2 hq4 sq300 d128 keep:2x1x300 dropout=0.1 q_padded", "bwd_dot bwd_dkv_dq",
       HopperVariant::masked},
      {"bwd bf16 b2 hq4 sq3000 d128 keep:2x1x3000 dropout=0.1 q_padded",
       "bwd_dot bwd_dkv_dq bwd_dq_cast", HopperVariant::masked},
      {"bwd bf16 hq4 sq300 d64 keep:1x1x300 dist=40 softcap=4 alibi grads=qkva",
       "bwd_dot bwd_dkv_dq bwd_head_sums", HopperVariant::masked},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.line));
    const Plan plan = plan_of(row.line);
    CHECK(refusal(plan) == "");
    CHECK(stems(plan) == row.stems);
    CHECK(hopper_variant(plan.problem) == row.set);
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
               {"fwd f16 hq2 sq3000 d192 dv128", "h192"}};
  for (const auto& row : alone) {
    CAPTURE(std::string(row.line));
    CHECK(std::string(plan_of(row.line).tile().name) == row.tile);
  }
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
    for (int64_t d : {8, 40, 64, 72, 96, 128, 136, 192, 200, 256})
      for (int64_t dv : {8, 64, 128, 192, 256})
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
              if (std::max(d, dv) <= kBwdShapes[n].d) fit = n;
          } else {
            for (int n = kFwdTileCount; n-- > 0;) {
              const FwdTile& t = kFwdTiles[n];
              const bool fast = p.seq_kv >= t.from && (!t.to || p.banded() || p.seq_kv <= t.to);
              if (fast && !t.bias && d <= t.d && dv <= t.dv) fit = n;
            }
          }
          if (fit < 0) {
            CHECK(p.backward);
            CHECK(refusal(plan).find("is beyond its") != std::string::npos);
            continue;
          }
          REQUIRE(std::string(plan.path) == "sm90");
          const bool wide = p.backward && std::max(d, dv) > kMaxFusedHeadDim;
          CHECK(stems(plan) == (wide ? "bwd_dot bwd_dkv bwd_dq"
                                : p.backward && !fuses_dq_postprocess(plan)
                                    ? "bwd_dot bwd_dkv_dq bwd_dq_cast"
                                : p.backward ? "bwd_dot bwd_dkv_dq"
                                             : "fwd"));
          for (const Launch& l : plan.launches) {
            CHECK(std::string(kKernels[l.kernel].path) == "sm90");
            CHECK(l.shared_bytes <= caps.shared_bytes);
            if (l.stem != Stem::bwd_dq)
              CHECK((row_of(l) == fit) == (l.stem != Stem::bwd_dot && l.stem != Stem::bwd_origin));
          }
          if (const Launch* l = plan.find(Stem::fwd)) {
            const FwdTile& t = kFwdTiles[fit];
            CHECK(l->tiles == ceil_div(p.seq_q, t.rows()));
            CHECK(l->total == l->tiles * p.heads_q * p.batch);
            CHECK(l->groups_x == std::min<uint32_t>(l->total, caps.cores));
            CHECK(l->groups_y == 1);
            CHECK(l->invocations() == t.threads());
            CHECK(l->shared_bytes == uint32_t(fwd_plain_shared_bytes(t)));
            CHECK(plan.workspace_size == 0);
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
          CHECK(fused.groups_x * fused.groups_y == fused.total * uint32_t(std::max(1, parts.most)));
          CHECK(fused.invocations() == kBwdThreads);
          CHECK(fused.shared_bytes == uint32_t(bwd_plain_shared_bytes(s)));
          const int64_t a_head = p.heads_q / p.heads_kv * p.seq_q * d * 4;
          const auto rounds_together = [&](const BwdParts& of) {
            return std::max<int64_t>(fused.total, of.workgroups) <= caps.cores &&
                   a_head <= std::max<int64_t>(1 << 20, fused.tiles << (p.banded() ? 16 : 17));
          };
          const bool together = rounds_together(parts);
          CHECK(fused.of<Sm90Launch>().cooperative_postprocess == together);
          CHECK((cast == nullptr) == (together || a_head <= 1 << 20));
          if (cast) {
            CHECK(cast->total == ceil_div(p.seq_q, 64) * ceil_div(s.d, 64) * p.heads_q * p.batch);
            CHECK(cast->groups_x * cast->groups_y == cast->total);
            CHECK(cast->invocations() == kCastGroup);
          }
          // delta, then the sums: whole tiles of whole panels; a number per head of keys, two where its workgroups round together.
          const int64_t heads = p.batch * p.heads_q,
                        counts = p.batch * p.heads_kv * (together ? 8 : 4);
          const int64_t delta = ceil_div(heads * p.seq_q * 4, 256) * 256;
          const int64_t sums = heads * ceil_div(p.seq_q, s.br) * s.br * ceil_div(s.d, 64) * 64 * 4;
          CHECK(plan.scratch[Scratch::delta].offset == far_size(p));
          CHECK(plan.scratch[Scratch::d_q_accum].offset == far_size(p) + uint64_t(delta));
          // Where tiles of keys have parts, two counters a tile more, then the partial sums.
          const auto zeroed = [&](int64_t before, const BwdParts& of) {
            return of.most > 1 ? ceil_div(before, 256) * 256 + 8 * int64_t(fused.total) : before;
          };
          const int64_t partials =
              parts.most > 1 ? int64_t(fused.total) * parts.most * bwd_partial_floats(s) * 4 : 0;
          CHECK(partials <= kMaxPartialBytes);
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
          const int64_t words = p.batch * p.heads_kv * (rounds_together(in_turn) ? 8 : 4);
          CHECK(turns.zeroed_size ==
                uint64_t(zeroed(sums + ceil_div(numbers, 256) * 256 + words, in_turn)));
          CHECK(turns.unordered() == 0);
          const int64_t walk = p.heads_q / p.heads_kv * ceil_div(p.seq_q, s.br);
          const int64_t beside = p.band.right == TANDEM_BAND_OPEN
                                     ? 5 * caps.cores / (4 * std::min<int64_t>(fused.tiles, walk))
                                     : 1;
          CHECK(turns.find(Stem::bwd_dkv_dq)->of<Sm90Launch>().interleaved_heads ==
                std::max<int64_t>(1, beside));
          CHECK(bwd_dkv_dq_block(turns, *turns.find(Stem::bwd_dkv_dq)).deterministic == 1);
          CHECK(fused.of<Sm90Launch>().interleaved_heads == 0);
          CHECK(bwd_dkv_dq_block(plan, fused).deterministic == 0);
        }
}

TEST_CASE("sm90: in a fixed order as many heads side by side as the device has tiles of keys for") {
  const auto beside = [](const std::string& line) {
    const Plan plan = plan_of("bwd bf16 b4 hq8 d64 deterministic " + line);
    return plan.find(Stem::bwd_dkv_dq)->of<Sm90Launch>().interleaved_heads;
  };
  CHECK(beside("sq1024 sk1024") == 20);
  CHECK(beside("sq4096 sk4096") == 5);
  CHECK(beside("sq256 sk4096") == 82);  // short walks
  CHECK(beside("hk2 sq256 sk4096") == 20);
  CHECK(beside("sq1024 sk1024 kv_padded") == 20);
  CHECK(beside("sq16384 sk16384") == 1);
  // Each begins where it is the first.
  CHECK(beside("sq1024 sk1024 causal_top_left") == 1);
  CHECK(beside("sq1024 sk1024 left=100 right=100") == 1);
}

// Each visited query tile is in one part, parts differ by one at most, and no part is empty.
TEST_CASE("sm90: parts of a tile of keys") {
  for (int pairs : {0, 1, 2, 7, 16, 71, 1136})
    for (int longest : {1, 2, 3, 16, 100, 2000}) {
      const int parts = bwd_part_count(pairs, longest);
      CHECK(bwd_part_begin(pairs, parts, 0) == 0);
      CHECK(bwd_part_begin(pairs, parts, parts) == pairs);
      for (int n = 0; n < parts; ++n) {
        const int size = bwd_part_begin(pairs, parts, n + 1) - bwd_part_begin(pairs, parts, n);
        CHECK(size <= longest);
        CHECK((size == pairs / parts || size == pairs / parts + 1));
        CHECK((size > 0 || pairs == 0));
      }
    }
  const auto parts_of = [](const std::string& line) {
    const Plan plan = plan_of("bwd bf16 " + line);
    const Launch& l = *plan.find(Stem::bwd_dkv_dq);
    const BwdParts& parts = l.of<Sm90Launch>().parts;
    CHECK(std::string(kKernels[l.kernel].variant) == (l.of<Sm90Launch>().persistent ? "persistent"
                                                      : parts.most > 0              ? "plain_parts"
                                                                                    : "plain"));
    CHECK(parts.most <= kMaxBwdParts);
    CHECK((parts.workgroups >= int64_t(l.total) || parts.most == 0));
    return parts.most;
  };
  // Few tiles of keys for 132 multiprocessors.
  CHECK(parts_of("b8 hq8 sq4096 sk77 d40") == 2);
  CHECK(parts_of("b4 hq71 hk1 sq2048 sk2048 d64 causal_top_left") == 14);
  CHECK(parts_of("b1 hq2 sq2048 sk2048 d128") == 4);
  CHECK(parts_of("b1 hq2 sq2048 sk2048 d128 deterministic") == 4);
  // Enough of them, but of unequal lengths: the longest ones come first.
  CHECK(parts_of("b1 hq64 hk8 sq4096 sk4096 d128 causal_top_left") == 1);
  // In a fixed order parts would wait for each other where a mask cuts their tiles.
  CHECK(parts_of("b4 hq71 hk1 sq2048 sk2048 d64 causal_top_left deterministic") == 0);
  CHECK(parts_of("b1 hq64 hk1 sq2048 sk128 d64 causal_top_left deterministic") > 1);
  // A full device, and one query tile.
  CHECK(parts_of("b2 hq16 sq1024 sk1024 d64") == 0);
  CHECK(parts_of("b16 hq16 sq1024 sk1024 d64") == 0);
  CHECK(parts_of("b1 hq1 sq128 sk128 d64") == 0);
}

TEST_CASE("sm90: workgroups of many tiles of keys go on from one to the next") {
  const auto is_persistent = [](const std::string& line) {
    const Plan plan = plan_of("bwd bf16 b4 hq16 " + line);
    const Launch& fused = *plan.find(Stem::bwd_dkv_dq);
    if (fused.of<Sm90Launch>().persistent) {
      // As many as there are multiprocessors; bwd_dq_cast makes d_q; a word among those that are zeroed.
      CHECK(fused.groups_x == 132);
      CHECK(fused.groups_y == 1);
      CHECK(plan.find(Stem::bwd_dq_cast) != nullptr);
      CHECK(plan.scratch[Scratch::tile_counter].offset >= plan.scratch[Scratch::d_q_accum].offset);
      CHECK(plan.scratch[Scratch::tile_counter].offset + 4 <=
            plan.scratch[Scratch::d_q_accum].offset + plan.zeroed_size);
    } else {
      CHECK(plan.scratch[Scratch::tile_counter].offset == 0);
      CHECK(fused.groups_x * fused.groups_y >= fused.total);
    }
    return fused.of<Sm90Launch>().persistent;
  };
  // Four for each of 132.
  CHECK(is_persistent("sq1024 sk1152 d64"));
  CHECK(!is_persistent("sq1024 sk1024 d64"));
  CHECK(is_persistent("sq1024 sk1152 d128 deterministic"));
  CHECK(is_persistent("sq1024 sk1152 d96 causal_top_left grads=qk"));
  CHECK(is_persistent("hk4 sq1024 sk4224 d64"));
  CHECK(!is_persistent("hk4 sq1024 sk4096 d64"));
  // Not without one of the kinds of gradients, nor with optional inputs but sinks.
  CHECK(!is_persistent("sq1024 sk4096 d64 grads=q"));
  CHECK(!is_persistent("sq1024 sk4096 d64 grads=kv"));
  CHECK(is_persistent("sq1024 sk4096 d64 sink grads=qkvs"));
  CHECK(!is_persistent("sq1024 sk4096 d64 kv_padded"));
  CHECK(!is_persistent("sq1024 sk4096 d64 dropout=0.1"));
}

TEST_CASE(
    "sm90: bwd_dot zeroes the sums of d_q of the first heads, bwd_dkv_dq those of the others") {
  const auto ahead = [](const std::string& line) {
    const Plan plan = plan_of("bwd bf16 b4 hq64 d64 " + line);
    const Launch& fused = *plan.find(Stem::bwd_dkv_dq);
    if (fused.of<Sm90Launch>().eager_zero_heads == 0) {
      CHECK(plan.of<Sm90Plan>().lazy_zero.bytes == 0);
      CHECK(plan.of<Sm90Plan>().lazy_zero.eager_bytes == 0);
      return 0;
    }
    // Whole heads, then words: two of each head of keys.
    const Problem& p = plan.problem;
    const BwdShape& s = kBwdShapes[fused.of<Sm90Launch>().row];
    const int64_t head = bwd_dq_accum_bytes(s, p.heads_q / p.heads_kv, p.seq_q);
    CHECK(plan.of<Sm90Plan>().lazy_zero.eager_bytes ==
          uint64_t(fused.of<Sm90Launch>().eager_zero_heads * head));
    CHECK(plan.of<Sm90Plan>().lazy_zero.bytes == uint64_t(p.batch * p.heads_kv * head));
    CHECK(plan.of<Sm90Plan>().lazy_zero.eager_bytes < plan.of<Sm90Plan>().lazy_zero.bytes);
    CHECK(plan.scratch[Scratch::lazy_zero_counters].offset >=
          plan.scratch[Scratch::d_q_accum].offset + plan.of<Sm90Plan>().lazy_zero.bytes);
    CHECK(plan.scratch[Scratch::d_q_accum].offset + plan.zeroed_size >=
          plan.scratch[Scratch::lazy_zero_counters].offset + uint64_t(8 * p.batch * p.heads_kv));
    return int(fused.of<Sm90Launch>().eager_zero_heads);
  };
  // Of 132 multiprocessors: as many heads as run at a time, and one.
  CHECK(ahead("sq1024 sk1024") == 18);
  CHECK(ahead("sq4096 sk4096") == 6);
  CHECK(ahead("sq4096 sk128") == 133);
  CHECK(ahead("hk2 sq1024 sk4096") == 6);
  CHECK(ahead("hk1 sq1024 sk1024") == 0);  // there are not so many
  CHECK(ahead("sq1024 sk1024 kv_padded softcap=20") == 18);
  // In a fixed order no fewer than are started side by side.
  CHECK(ahead("sq1024 sk1024 deterministic") == 21);
  // Kernels without a warp that has nothing else to do; packed rows, whose heads are not of one size; no sums.
  CHECK(ahead("sq1024 sk1024 dropout=0.1") == 0);
  CHECK(ahead("sq1024 sk1024 bias:bf16:1x64x1024") == 0);
  CHECK(ahead("sq1024 sk1024 entmax=1.5") == 0);
  CHECK(ahead("sq1024 sk1024 q_packed=4096 kv_packed=4096") == 0);
  CHECK(ahead("sq1024 sk1024 grads=kv") == 0);
}

TEST_CASE(
    "sm90: with a bias of the whole batch bwd_dot zeroes the sums of each entry's first heads") {
  const auto ahead = [](const std::string& line) {
    const Plan plan = plan_of("bwd bf16 b4 " + line);
    const Launch& fused = *plan.find(Stem::bwd_dkv_dq);
    if (fused.of<Sm90Launch>().eager_zero_heads == 0) return 0;
    const Problem& p = plan.problem;
    const BwdShape& s = kBwdShapes[fused.of<Sm90Launch>().row];
    CHECK(plan.of<Sm90Plan>().lazy_zero.slices == 4);
    CHECK(plan.of<Sm90Plan>().lazy_zero.eager_bytes ==
          uint64_t(fused.of<Sm90Launch>().eager_zero_heads *
                   bwd_dq_accum_bytes(s, p.group(), p.seq_q)));
    CHECK(plan.of<Sm90Plan>().lazy_zero.bytes ==
          uint64_t(bwd_dq_accum_bytes(s, p.batch * p.heads_q, p.seq_q)));
    // Two words a head.
    CHECK(plan.scratch[Scratch::d_q_accum].offset + plan.zeroed_size >=
          plan.scratch[Scratch::lazy_zero_counters].offset +
              uint64_t(bwd_lazy_zero_bytes(p.batch, p.heads_kv)));
    return int(fused.of<Sm90Launch>().eager_zero_heads);
  };
  const std::string sums = " d_bias:bf16 grads=qkvb";
  // As many as run at a time, and one.
  CHECK(ahead("hq16 sq2048 sk2048 d64 bias:bf16:1x16x2048" + sums) == 4);
  CHECK(ahead("hq32 sq4096 sk4096 d64 bias:bf16:1x32x4096" + sums) == 3);
  CHECK(ahead("hq64 sq1024 sk1024 d64 bias:bf16:1x64x1024" + sums) == 6);
  CHECK(ahead("hq4 sq2048 sk2048 d64 bias:bf16:1x4x2048" + sums) == 0);  // there are no more
  CHECK(ahead("hq16 sq2048 sk2048 d128 bias:bf16:1x16x2048" + sums) == 4);
  CHECK(ahead("hq64 hk16 sq2048 sk2048 d96 bias:bf16:1x64x2048" + sums) == 4);
  // No clusters of two beside the others: a fixed order, a bias of each entry, no gradient of it.
  CHECK(ahead("hq16 sq2048 sk2048 d64 deterministic bias:bf16:1x16x2048" + sums) == 0);
  CHECK(ahead("hq16 sq2048 sk2048 d64 bias:bf16:4x16x2048" + sums) == 0);
  CHECK(ahead("hq16 sq2048 sk2048 d64 bias:bf16:1x16x2048") == 0);
}

TEST_CASE("sm90: d_bias of a large batch is summed in slices of the batch") {
  const auto find = [](const char* line, Plan* plan) {
    *plan = plan_of(line);
    CHECK(plan->path == "sm90");
    return plan->find(Stem::bwd_dkv_dq);
  };
  Plan plan;
  CHECK(find("bwd bf16 b8 hq2 sq100 sk104 d64 bias:bf16:1x2x100 grads=qkvb d_bias:f32", &plan)
            ->splits == 1);
  for (const char* line :
       {"bwd bf16 b9 hq2 sq100 sk104 d64 bias:bf16:1x2x100 grads=qkvb d_bias:f32",
        "bwd bf16 b384 hq4 hk4 sq384 sk384 d32 bias:bf16:1x4x384 grads=qkvb d_bias:bf16",
        "bwd f16 b4096 hq3 sq48 sk80 d32 bias:f16:1x3x48 grads=b d_bias:f16 deterministic"}) {
    CAPTURE(std::string(line));
    const Launch* dkv = find(line, &plan);
    const Problem& p = plan.problem;
    const int passes = dkv->of<Sm90Launch>().passes;
    CHECK(std::string(kKernels[dkv->kernel].variant) == "bias_slices");
    // Each entry is in a slice, and no slice is empty.
    CHECK(int64_t(dkv->splits) * passes * kSliceCluster >= p.batch);
    CHECK(int64_t(dkv->splits - 1) * passes * kSliceCluster < p.batch);
    const Launch* sum = plan.find_sum(TANDEM_GRAD_BIAS);
    CHECK(sum->splits == dkv->splits);
    CHECK(plan.scratch[Scratch::bias_parts].size ==
          uint64_t(dkv->splits) * p.heads_q * p.seq_q * bias_parts_pitch(p.seq_kv) * 4);
  }
  // As many slices as SMs have work, and not one for each cluster's worth of entries.
  CHECK(bwd_slices(384, 12, 132, 6, 2359296).count < 12);
  CHECK(bwd_slices(4096, 3, 132, 1, 32928).count >= 8);
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

TEST_CASE("CUDA: small operations are no launches of their own where another can do them") {
  const struct {
    const char* line;
    const char* stems;  // in brackets: done by an earlier launch
  } rows[] = {
      {"bwd bf16 hq2 sq512 d64", "bwd_dot bwd_dkv_dq"},
      // All workgroups of a head round, if there are multiprocessors for those of all heads and they have 128 KiB each
      // or, with a mask, 64.
      {"bwd bf16 hq2 sq4096 d128", "bwd_dot bwd_dkv_dq"},
      {"bwd bf16 hq2 sq4096 d128 deterministic alibi sink grads=qkvas",
       "bwd_dot bwd_dkv_dq (bwd_head_sums)"},
      {"bwd bf16 hq4 sq4096 d128", "bwd_dot bwd_dkv_dq"},
      {"bwd bf16 hq5 sq4096 d128", "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      {"bwd bf16 hq4 hk2 sq4096 d128", "bwd_dot bwd_dkv_dq"},
      {"bwd bf16 hq6 hk2 sq4096 d128", "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      {"bwd bf16 hq2 sq4096 d128 causal_top_left", "bwd_dot bwd_dkv_dq"},
      {"bwd bf16 hq4 hk2 sq4096 d128 causal_top_left", "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      {"bwd bf16 hq2 sq4096 d128 dropout=0.1", "bwd_dot bwd_dkv_dq"},
      {"bwd bf16 hq2 sq4096 d128 entmax=1.5", "bwd_row_sums bwd_dkv_dq"},
      {"bwd bf16 b4 hq2 sq4096 d128 q_packed=4096 kv_packed=4096",
       "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      {"bwd bf16 hq2 sq4096 d128 bias:bf16:1x2x4096 d_bias:bf16 grads=qkvb",
       "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      {"bwd bf16 hq2 sq512 d256", "bwd_dot bwd_dkv (bwd_dq)"},
      {"bwd bf16 hq2 sq512 d256 sink grads=qkvs", "bwd_dot bwd_dkv (bwd_dq) (bwd_head_sums)"},
      {"bwd bf16 hq2 sq512 d256 sink grads=kvs", "bwd_dot bwd_dkv (bwd_head_sums)"},
      {"bwd bf16 hq2 sq512 d256 sink grads=qs", "bwd_dot bwd_dq (bwd_head_sums)"},
      {"bwd bf16 hq2 sq512 d256 sink grads=s", "bwd_dot bwd_head_sums"},
      {"bwd bf16 hq2 sq512 d64 sink grads=qkvs", "bwd_dot bwd_dkv_dq (bwd_head_sums)"},
      {"bwd bf16 hq2 sq512 d64 sink grads=kvs", "bwd_dot bwd_dkv_dq (bwd_head_sums)"},
      {"bwd bf16 hq2 sq512 d64 sink grads=s", "bwd_dot bwd_head_sums"},
      {"bwd bf16 hq2 sq512 d64 alibi grads=a", "bwd_dot bwd_dkv_dq (bwd_head_sums)"},
      {"bwd bf16 hq2 sq512 d64 keep:1x1x512 dropout=0.1 alibi sink grads=qkvas",
       "bwd_dot bwd_dkv_dq (bwd_head_sums)"},
      {"bwd bf16 hq2 sq512 d128 bias:bf16:1x2x512 d_bias:bf16 grads=qkvb", "bwd_dot bwd_dkv_dq"},
      {"bwd bf16 b17 hq2 sq512 d64 sink grads=qkvs", "bwd_dot bwd_dkv_dq bwd_head_sums"},
      {"bwd bf16 b20 hq2 sq520 d128 dropout=0.1", "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      {"bwd bf16 b3 hq17 sq512 d128 dropout=0.1", "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      {"bwd f32 hq17 sq512 d128", "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      // d_q of 4 MiB in all, and 256 KiB a head, is the last that a bias's workgroups round.
      {"bwd bf16 b4 hq4 sq512 d128 bias:bf16:1x4x512 d_bias:bf16 grads=qkvb", "bwd_dot bwd_dkv_dq"},
      {"bwd bf16 b4 hq8 sq512 d128 bias:bf16:1x8x512 d_bias:bf16 grads=qkvb",
       "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      {"bwd bf16 hq16 hk2 sq4096 d64 sink grads=qkvs",
       "bwd_dot bwd_dkv_dq bwd_dq_cast (bwd_head_sums)"},
      {"bwd bf16 hq2 sq512 d64 elastic dist=8 grads=qkvdt",
       "bwd_row_sums_dq bwd_dkv_dist (bwd_head_sums) (bwd_sum_splits)"},
      {"bwd bf16 hq2 sq512 d64 elastic grads=qkvt", "bwd_row_sums_dq bwd_dkv_dist (bwd_head_sums)"},
      {"bwd bf16 hq2 sq100 d64 elastic dist=8 grads=qkd", "bwd_row_sums_dq bwd_dkv_dist"},
      // Many parts of many entries are added up faster by many workgroups.
      {"bwd bf16 b4 hq8 hk2 sq512 d64 elastic dist=64 grads=qkvd",
       "bwd_row_sums_dq bwd_dkv_dist (bwd_sum_splits)"},
      {"bwd bf16 b4 hq8 hk2 sq512 d64 elastic dist=65 grads=qkvd",
       "bwd_row_sums_dq bwd_dkv_dist bwd_sum_splits"},
      {"bwd bf16 b16 hq8 sq8192 d64 elastic dist=8 grads=qkvd",
       "bwd_row_sums_dq bwd_dkv_dist bwd_sum_splits"},
      // sm80
      {"bwd f32 hq2 sq512 d128", "bwd_dot bwd_dkv_dq"},
      {"bwd f32 hq4 hk2 sq513 d64", "bwd_dot bwd_dkv_dq bwd_dq_cast"},
      {"bwd bf16 hq2 sq512 d64 alibi sink elastic grads=qkvats",
       "bwd_row_sums bwd_dkv (bwd_dq) (bwd_head_sums)"},
      {"bwd bf16 hq20 sq512 d64 alibi sink elastic grads=qkvats",  // more than multiprocessors
       "bwd_row_sums bwd_dkv bwd_dq (bwd_head_sums)"},
      {"bwd bf16 hq2 sq512 d64 alibi sink elastic grads=qats", "bwd_row_sums bwd_dq bwd_head_sums"},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.line));
    const Plan plan = plan_of(row.line);
    CAPTURE(plan.name());
    std::string said;
    for (const Launch& l : plan.launches)
      if (l.stem != Stem::bwd_origin)
        said += std::string(said.empty() ? "" : " ") + (l.joins ? "(" : "") + stem_name(l.stem) +
                (l.joins ? ")" : "");
    CHECK(said == row.stems);
    const bool counts = said.find("(bwd_sum_splits)") != std::string::npos;
    CHECK((plan.scratch[Scratch::sum_counts].offset > 0) == counts);
    CHECK((explain(problem_of(row.line), caps_of("h100_cuda")).find("in an earlier launch") !=
           std::string::npos) == (said.find('(') != std::string::npos));
  }
}

TEST_CASE("sm90 leaves few rows of few heads to the paths that split their keys") {
  const auto path = [](const char* line) { return std::string(plan_of(line, "h100_cuda").path); };
  CHECK(path("fwd f16 b1 hq44 sq1 sk100000 d64") == "sm80");
  CHECK(path("fwd f16 b1 hq45 sq1 sk100000 d64") == "sm90");
  CHECK(path("fwd f16 b1 hq44 sq33 sk100000 d64") == "sm90");
  CHECK(path("fwd f16 b1 hq44 sq32 sk511 d64") == "sm90");
  CHECK(path("fwd f16 b4 hq44 hk11 sq1 sk512 d64") == "sm80");  // 44 heads of 4 rows
  // Rows that share keys are one tile of the other path.
  CHECK(path("fwd f16 b99 hq32 hk8 sq8 sk8192 d64") == "sm80");
  CHECK(path("fwd f16 b99 hq32 hk8 sq9 sk8192 d64") == "sm90");
  CHECK(path("fwd f16 b99 hq32 hk32 sq1 sk2048 d64") == "sm80");
  CHECK(path("fwd f16 b99 hq32 hk32 sq1 sk2049 d64") == "sm90");
}

TEST_CASE("sm90: what runs where inputs lie at other addresses") {
  for (const char* line :
       {"fwd f16 b2 hq4 sq500 d128", "bwd bf16 b2 hq4 hk2 sq500 d128",
        "fwd f16 b4 hq16 sq1 sk100000 d64", "fwd f16 b2 hq4 sq500 d128 tile=128x128"})
    for (const char* disabled : {"", "cuda.simt"}) {
      CAPTURE(std::string(line));
      Caps caps = caps_of("h100_cuda");
      REQUIRE(parse_disabled(disabled, &caps.disabled).ok());
      const Plan plan = plan_of(line, caps);
      const bool has = plan.of<Sm90Plan>().unaligned != nullptr;
      REQUIRE(has);
      const Plan& other = *plan.of<Sm90Plan>().unaligned;
      CHECK(std::string(other.path) != "sm90");
      CHECK(other.workspace_size <= plan.workspace_size);
      CHECK(other.problem.gradients == plan.problem.gradients);
      if (!plan.problem.backward) CHECK(plan.workspace_size == 0);
      CHECK(explain(plan.problem, caps).find("16 bytes: " + other.name()) != std::string::npos);
    }
  const bool has = plan_of("fwd f32 b2 hq4 sq500 d128").of<Sm90Plan>().unaligned != nullptr;
  CHECK(!has);
}

TEST_CASE("sm90: what is said of d_q's rounding") {
  const auto says = [](const std::string& line, const char* words) {
    return explain(plan_of(line).problem, caps_of("h100_cuda")).find(words) != std::string::npos;
  };
  const char *early = "beside the last workgroups", *together = "round d_q together";
  CHECK(says("bwd bf16 hq2 sq4096 d128", together));
  CHECK(!says("bwd bf16 hq2 sq4096 d128", early));
  CHECK(says("bwd bf16 hq16 sq4096 d128", early));
  CHECK(!says("bwd bf16 hq16 sq4096 d128", together));
  CHECK(!says("bwd bf16 hq16 sq1024 d128", early));
  CHECK(!says("bwd bf16 hq32 sq1024 d128", together));
}

TEST_CASE("sm90: when q is multiplied by the scale, so that products begin as the bias") {
  const auto scales_q = [](const std::string& line) {
    const Plan plan = plan_of("fwd b1 hq2 sq512 " + line);
    const bool says =
        explain(plan.problem, caps_of("h100_cuda")).find("q times the scale") != std::string::npos;
    CHECK(plan.find(Stem::fwd)->of<Sm90Launch>().scales_q == says);
    return says;
  };
  const std::string bias = " bias:bf16:1x2x512";
  CHECK(scales_q("bf16 d64" + bias));  // a scale of 1 / 8
  CHECK(scales_q("bf16 d40 scale=0x1p-3" + bias));
  CHECK(!scales_q("bf16 d40" + bias));
  CHECK(!scales_q("bf16 d128 scale=0x1p-3" + bias));
  CHECK(!scales_q("f16 d64 bias:f16:1x2x512"));  // 1 / 8 of small numbers is rounded
  CHECK(!scales_q("bf16 d64"));
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

TEST_CASE("sm90: drivers that start no kernel early") {
  Caps caps = caps_of("h100_cuda");
  for (bool can : {true, false}) {
    caps.early_launches = can;
    const auto says = [&](const std::string& line, const char* words) {
      return explain(plan_of(line).problem, caps).find(words) != std::string::npos;
    };
    const char *forward = "begins while the kernel before it ends", *pairs = "clusters of two";
    CHECK(says("fwd bf16 hq4 sq500 d128", forward) == can);
    CHECK(says("fwd bf16 hq4 sq500 sk504 d128 bias:bf16:1x4x500", forward) == can);
    CHECK(!says("fwd bf16 hq4 sq500 d128 softcap=20", forward));
    CHECK(says("bwd bf16 hq16 sq4096 d128", "beside the last workgroups") == can);
    const std::string sums = "bwd bf16 b4 hq64 sq512 d64 bias:bf16:1x64x512 d_bias:bf16 grads=qkvb";
    CHECK(says(sums, pairs) == can);
    CHECK(!says(sums + " deterministic", pairs));
    Plan plan;
    REQUIRE(make_plan(plan_of(sums).problem, caps, &plan).ok());
    CHECK((plan.scratch[Scratch::pass_sums].offset > 0) == can);
  }
}
