// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans of the path cuda.sm90: launches, workspace, and what runs at addresses that TMA does not
// take.
#include <string>
#include <vector>

#include "plan/sm90/bwd_cluster_schedule.h"
#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

TEST_CASE("sm90: in a fixed order heads are interleaved, as many as give the SMs tiles of keys") {
  const auto beside = [](const std::string& line) {
    const Plan plan = plan_of("bwd bf16 b4 hq8 d64 deterministic " + line);
    return plan.find(Stem::bwd_dkv_dq)->of<Sm90Launch>().interleaved_heads;
  };
  CHECK(beside("sq1024 sk1024") == 20);
  CHECK(beside("sq4096 sk4096") == 5);
  CHECK(beside("sq256 sk4096") == 82);  // short Q loops
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
    const bool two_sided = has_two_sides(plan.problem);
    CHECK(std::string(kKernels[l.kernel].variant) == (two_sided                    ? "two_sided"
                                                      : l.has(trait::persistent)   ? "persistent"
                                                      : l.has(trait::heads_inside) ? "grouped_parts"
                                                      : parts.most > 0             ? "plain_parts"
                                                                                   : "plain"));
    CHECK(parts.most <= kMaxBwdParts);
    CHECK((parts.workgroups >= int64_t(l.total) || parts.most == 0));
    return parts.most;
  };
  // Few tiles of keys for 132 SMs.
  CHECK(parts_of("b8 hq8 sq4096 sk77 d40") == 2);
  CHECK(parts_of("b4 hq71 hk1 sq2048 sk2048 d64 causal_top_left") == 14);
  CHECK(parts_of("b1 hq2 sq2048 sk2048 d128") == 4);
  CHECK(parts_of("b1 hq2 sq2048 sk2048 d128 deterministic") == 4);
  // Enough of them, but of unequal lengths: the longest ones come first.
  CHECK(parts_of("b1 hq64 hk8 sq4096 sk4096 d128 causal_top_left") == 1);
  // 34 and 8 MB of rows share a key head.
  const auto visits_inside = [](const std::string& line) {
    const Plan plan = plan_of("bwd bf16 b1 sk2048 d128 causal_top_left " + line);
    return plan.find(Stem::bwd_dkv_dq)->has(trait::heads_inside);
  };
  CHECK(visits_inside("hq64 hk8 sq4096"));
  CHECK(!visits_inside("hq32 hk8 sq2048"));
  // In a fixed order parts would wait for each other where a mask cuts their tiles.
  CHECK(parts_of("b4 hq71 hk1 sq2048 sk2048 d64 causal_top_left deterministic") == 0);
  CHECK(parts_of("b1 hq64 hk1 sq2048 sk128 d64 causal_top_left deterministic") > 1);
  // A full device, and one query tile.
  CHECK(parts_of("b2 hq16 sq1024 sk1024 d64") == 0);
  CHECK(parts_of("b16 hq16 sq1024 sk1024 d64") == 0);
  CHECK(parts_of("b1 hq1 sq128 sk128 d64") == 0);
  // Heads over 256: 66 clusters, tiles of 64 keys.
  CHECK(parts_of("b1 hq128 hk1 sq4096 sk4096 d576 dv512 causal_bottom_right") > 2);
  CHECK(parts_of("b1 hq2 sq1024 sk1024 d512 dv512") == 2);
  CHECK(parts_of("b1 hq1 sq4096 sk4096 d512 dv512") == 0);
  CHECK(parts_of("b1 hq16 sq4096 sk4096 d512 dv512") == 0);
}

TEST_CASE("sm90: many tiles of keys have persistent workgroups") {
  const auto is_persistent = [](const std::string& line) {
    const Plan plan = plan_of("bwd bf16 b4 hq16 " + line);
    const Launch& fused = *plan.find(Stem::bwd_dkv_dq);
    if (fused.has(trait::persistent)) {
      // As many as there are SMs; bwd_dq_cast makes d_q; a word among those that are
      // zeroed.
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
    return fused.has(trait::persistent);
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
  // Of 132 SMs: as many heads as run at a time, and one.
  CHECK(ahead("sq1024 sk1024") == 18);
  CHECK(ahead("sq4096 sk4096") == 6);
  CHECK(ahead("sq4096 sk128") == 133);
  CHECK(ahead("hk2 sq1024 sk4096") == 6);
  CHECK(ahead("hk1 sq1024 sk1024") == 0);  // there are not so many
  CHECK(ahead("sq1024 sk1024 kv_padded softcap=20") == 18);
  // In a fixed order no fewer than are started side by side.
  CHECK(ahead("sq1024 sk1024 deterministic") == 21);
  // Kernels without a warp that has nothing else to do; packed rows, whose heads are not of one
  // size; no sums.
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
    CHECK(std::string(plan->path) == "sm90");
    return plan->find(Stem::bwd_dkv_dq);
  };
  Plan plan;
  CHECK(find("bwd bf16 b8 hq2 sq100 sk104 d64 bias:bf16:1x2x100 grads=qkvb d_bias:f32", &plan)
            ->splits == 1);
  for (const char* line :
       {"bwd bf16 b9 hq2 sq100 sk104 d64 bias:bf16:1x2x100 grads=qkvb d_bias:f32",
        "bwd bf16 b384 hq4 hk4 sq384 sk384 d32 bias:bf16:1x4x384 grads=qkvb d_bias:bf16",
        "bwd f16 b4096 hq3 sq48 sk160 d32 bias:f16:1x3x48 grads=b d_bias:f16 deterministic"}) {
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

TEST_CASE("CUDA: small operations are no launches of their own where another can do them") {
  const struct {
    const char* line;
    const char* stems;  // in brackets: done by an earlier launch
  } rows[] = {
      {"bwd bf16 hq2 sq512 d64", "bwd_dot bwd_dkv_dq"},
      // All workgroups of a head round, if there are SMs for those of all heads and
      // they have 128 KiB each or, with a mask, 64.
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
      {"bwd bf16 hq2 sq4096 d128 entmax=1.5", "bwd_row_sums bwd_dkv_dq bwd_dq_cast"},
      {"bwd bf16 hq2 sq4096 d128 entmax=1.5 deterministic", "bwd_row_sums bwd_dkv_dq"},
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
      {"bwd bf16 hq20 sq512 d64 alibi sink elastic grads=qkvats",  // more than SMs
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
        said += std::string(said.empty() ? "" : " ") + (l.joins() ? "(" : "") + stem_name(l.stem) +
                (l.joins() ? ")" : "");
    CHECK(said == row.stems);
    const bool counts = said.find("(bwd_sum_splits)") != std::string::npos;
    CHECK((plan.scratch[Scratch::sum_counts].offset > 0) == counts);
    CHECK((explain(problem_of(row.line), caps_of("h100_cuda")).find("in an earlier launch") !=
           std::string::npos) == (said.find('(') != std::string::npos));
  }
}

TEST_CASE("sm90: what runs where inputs lie at other addresses") {
  for (const char* line :
       {"fwd f16 b2 hq4 sq500 d128", "bwd bf16 b2 hq4 hk2 sq500 d128",
        "fwd f16 b4 hq16 sq17 sk100000 d64", "fwd f16 b2 hq4 sq500 d128 tile=128x128"})
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

TEST_CASE("sm90: the form of the dQ postprocess is said") {
  const auto says = [](const std::string& line, const char* words) {
    return explain(plan_of(line).problem, caps_of("h100_cuda")).find(words) != std::string::npos;
  };
  const char *early = "in the tail of the launch before", *together = "cooperative dQ postprocess";
  CHECK(says("bwd bf16 hq2 sq4096 d128", together));
  CHECK(!says("bwd bf16 hq2 sq4096 d128", early));
  CHECK(says("bwd bf16 hq16 sq4096 d128", early));
  CHECK(!says("bwd bf16 hq16 sq4096 d128", together));
  CHECK(!says("bwd bf16 hq16 sq1024 d128", early));
  CHECK(!says("bwd bf16 hq32 sq1024 d128", together));
}

TEST_CASE("sm90: where q is multiplied by the scale, so that products begin with the bias") {
  const auto scales_q = [](const std::string& line) {
    const Plan plan = plan_of("fwd b1 hq2 sq512 " + line);
    const bool says =
        explain(plan.problem, caps_of("h100_cuda")).find("q times the scale") != std::string::npos;
    CHECK(plan.find(Stem::fwd)->has(trait::scales_q) == says);
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

TEST_CASE("sm90: drivers without programmatic dependent launch in graphs") {
  Caps caps = caps_of("h100_cuda");
  for (bool can : {true, false}) {
    caps.early_launches = can;
    const auto says = [&](const std::string& line, const char* words) {
      return explain(plan_of(line).problem, caps).find(words) != std::string::npos;
    };
    const char *forward = "programmatic dependent launch", *pairs = "two-CTA clusters";
    CHECK(says("fwd bf16 hq4 sq500 d128", forward) == can);
    CHECK(says("fwd bf16 hq4 sq500 sk504 d128 bias:bf16:1x4x500", forward) == can);
    CHECK(!says("fwd bf16 hq4 sq500 d128 softcap=20", forward));
    CHECK(says("bwd bf16 hq16 sq4096 d128", "in the tail of the launch before") == can);
    const std::string sums = "bwd bf16 b4 hq64 sq512 d64 bias:bf16:1x64x512 d_bias:bf16 grads=qkvb";
    CHECK(says(sums, pairs) == can);
    CHECK(!says(sums + " deterministic", pairs));
    Plan plan;
    REQUIRE(make_plan(plan_of(sums).problem, caps, &plan).ok());
    CHECK((plan.scratch[Scratch::pass_sums].offset > 0) == can);
  }
}
