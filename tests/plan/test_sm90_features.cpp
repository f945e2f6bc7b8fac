// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans of the path cuda.sm90 with elastic softmax, entmax and a dense bias: launches, workspace,
// clusters.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/kernel_rows.h"
#include "plan/sm90/bwd_cluster_schedule.h"
#include "plan/sm90/fwd_stream_k.h"
#include "plan/sm90/tensor_maps.h"
#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {
// A launch over rows of queries, in tiles of br for heads up to d.
void check_rows(const Plan& plan, const Launch& l, int d, int64_t br, size_t shared_bytes) {
  const Problem& p = plan.problem;
  CHECK(std::max(p.head_dim, p.head_dim_v) <= d);
  CHECK(l.total == ceil_div(p.seq_q, br) * p.heads_q * p.batch);
  CHECK(l.shared_bytes == uint32_t(shared_bytes));
}
}  // namespace

TEST_CASE("sm90: elastic softmax") {
  for (const char* d : {"d64", "d96", "d128 dv40"}) {
    const Plan plan =
        plan_of(std::string("bwd bf16 b2 hq8 hk2 sq300 sk500 dist=200 elastic grads=qkvdt ") + d);
    CAPTURE(plan.name());
    const Problem& p = plan.problem;
    REQUIRE(std::string(plan.path) == "sm90");
    CHECK(stems(plan) == "bwd_row_sums_dq bwd_dkv_dist bwd_head_sums bwd_sum_splits");
    const Launch &rows = *plan.find(Stem::bwd_row_sums_dq), &keys = *plan.find(Stem::bwd_dkv_dist);
    const RowShape& r = kRowShapes[rows.of<Sm90Launch>().row];
    check_rows(plan, rows, r.d, r.br, row_shared_bytes(r));
    const BwdShape& s = kBwdShapes[keys.of<Sm90Launch>().row];
    CHECK(keys.total == ceil_div(p.seq_kv, s.bc) * p.heads_kv * p.batch);
    CHECK(keys.shared_bytes == uint32_t(bwd_elastic_shared_bytes(s)));
    CHECK(keys.splits == ceil_div(p.seq_kv, s.bc) * p.batch);
    CHECK(plan.unordered() == 0);
    CHECK(plan.zeroed_size == 0);
  }
  for (const char* words : {"sq300 elastic", "sq300 elastic dist=512", "sq3000 elastic dist=512"}) {
    const Plan plan = plan_of(std::string("fwd f16 b2 hq8 hk2 d128 causal_top_left ") + words);
    REQUIRE(std::string(plan.path) == "sm90");
    const Launch& l = plan.launches[0];
    CHECK(l.shared_bytes == uint32_t(fwd_elastic_shared_bytes(kFwdTiles[l.of<Sm90Launch>().row])));
  }
}

TEST_CASE("sm90: scales that q is multiplied by before products, with a bias") {
  for (float scale : {0x1p-16f, 0.125f, 1.f}) CHECK(has_exact_scale(scale));
  for (float scale : {0.3f, 0x1p-17f, 2.f, 0.f, -0.125f}) CHECK(!has_exact_scale(scale));
  CHECK(
      has_exact_scale(plan_of("fwd bf16 b2 hq2 hk2 sq80 sk96 d64 bias:bf16:1x2x80").problem.scale));
}

TEST_CASE("sm90: entmax, with kernels of their own for alpha 1.5") {
  for (const char* alpha : {"1.5", "1.25", "2"})
    for (const char* d : {"d64", "d96", "d128 dv40"}) {
      const std::string words =
          text(" bf16 b2 hq8 hk2 sq300 sk5000 %s entmax=%s causal_bottom_right", d, alpha).c_str();
      CAPTURE(words);
      const Plan fwd = plan_of("fwd" + words);
      REQUIRE(std::string(fwd.path) == "sm90");
      const Launch& l = fwd.launches[0];
      const FwdTile& t = kFwdTiles[l.of<Sm90Launch>().row];
      const bool fast = fwd.problem.alpha == 1.5f;
      CHECK(t.d == (fast && fwd.problem.head_dim <= 64 ? 64 : 128));
      CHECK(fwd_entmax_candidates(t) >= 16);
      CHECK(l.shared_bytes == uint32_t(fwd_entmax_shared_bytes(t)));
      CHECK(fwd.workspace_size == 0);

      const Plan plan = plan_of("bwd" + words);
      REQUIRE(std::string(plan.path) == "sm90");
      CHECK(stems(plan) == (fuses_dq_postprocess(plan) ? "bwd_row_sums bwd_dkv_dq"
                                                       : "bwd_row_sums bwd_dkv_dq bwd_dq_cast"));
      const Launch &rows = *plan.find(Stem::bwd_row_sums), &keys = *plan.find(Stem::bwd_dkv_dq);
      const SupportShape& r = kSupportShapes[rows.of<Sm90Launch>().row];
      check_rows(plan, rows, r.d, r.br(), support_shared_bytes(r));
      CHECK(rows.invocations() == r.threads());
      const BwdShape& s = kBwdShapes[keys.of<Sm90Launch>().row];
      CHECK((fast || s.d == 128));
      CHECK(keys.shared_bytes == uint32_t(bwd_plain_shared_bytes(s)));
      CHECK(keys.waits);
      CHECK(plan.unordered() == TANDEM_GRAD_Q);
      // Far rows, and delta; 40 tiles of keys with 2 words for each of 5 blocks of rows; the sums.
      const int64_t delta = int64_t(far_size(plan.problem)) + ceil_div(2 * 8 * 300 * 4, 256) * 256;
      CHECK(plan.scratch[Scratch::support].offset == uint64_t(delta));
      CHECK(plan.scratch[Scratch::d_q_accum].offset ==
            uint64_t(delta + ceil_div(2 * 8 * 5 * 40 * 2 * 4, 256) * 256));
      CHECK(keys.has(trait::gathers));
      // In a deterministic order a block of rows has a bit for each tile: 2 words for 40.
      const Plan ordered = plan_of("bwd" + words + " deterministic");
      CHECK(!ordered.find(Stem::bwd_dkv_dq)->has(trait::gathers));
      CHECK(ordered.scratch[Scratch::d_q_accum].offset ==
            uint64_t(delta + ceil_div(2 * 8 * 5 * 2 * 4, 256) * 256));
      // Gathered rows are the same with TANDEM_FLAG_VISIT_ALL, so that their sums are.
      CHECK(plan_of("bwd" + words + " visit_all").workspace_size == plan.workspace_size);
      const Plan every = plan_of("bwd" + words + " visit_all deterministic");
      CHECK(every.scratch[Scratch::support].offset == 0);
      CHECK(every.scratch[Scratch::d_q_accum].offset == uint64_t(delta));
      // The sums are formed whatever is asked for.
      const Plan keys_alone = plan_of("bwd" + words + " grads=kv");
      CHECK(stems(keys_alone) == "bwd_row_sums bwd_dkv_dq");
      CHECK(keys_alone.zeroed_size > 0);
      CHECK(keys_alone.unordered() == 0);
    }
  // However long: 1,024 bits a block of rows.
  CHECK(support_words(131072) == 32);
  CHECK(support_words(1 << 20) == 32);
  CHECK(support_rows_tiles(1 << 20) == 1024);
}

TEST_CASE("sm90: a dense bias in forward") {
  for (const char* d : {"d64", "d128"}) {
    const Plan plan = plan_of(std::string("fwd f16 b4 hq8 hk2 sq300 sk320 bias:f16:1x2x300 ") + d);
    REQUIRE(std::string(plan.path) == "sm90");
    const Launch& l = plan.launches[0];
    CHECK(l.shared_bytes == uint32_t(fwd_bias_shared_bytes(kFwdTiles[l.of<Sm90Launch>().row])));
    CHECK(l.shared_bytes > 0);
  }
}

TEST_CASE("sm90: larger tiles for many rows with a bias, and heads over 64") {
  const auto tile = [](const std::string& words) {
    const Plan plan = plan_of("fwd bf16 " + words);
    REQUIRE(std::string(plan.path) == "sm90");
    return std::string(plan.launches[0].tile.name);
  };
  const std::string many = "b4 hq16 sq2048 sk2048 bias:bf16:1x16x2048";
  CHECK(tile(many + " d128") == "h128b");
  CHECK(tile(many + " d104 dv72") == "h128b");
  CHECK(tile(many + " d96 dv72") == "h96");
  CHECK(tile(many + " d64") == "h64");
  CHECK(tile(many + " d128 causal_top_left") == "h128");
  // Of 132 SMs four tiles each.
  CHECK(tile("b4 hq12 sq2048 sk2048 bias:bf16:1x12x2048 d128") == "h128b");
  CHECK(tile("b4 hq11 sq2048 sk2048 bias:bf16:1x11x2048 d128") == "h128");
  // None without a bias.
  CHECK(tile("b4 hq16 sq2048 sk512 d128") == "h128");
  const Plan plain = plan_of("fwd bf16 b4 hq16 sq2048 sk512 d128");
  CHECK(explain(plain.problem, caps_of("h100_cuda")).find("its kernels have a dense bias") !=
        String::npos);
  CHECK(tile("b1 hq2 sq200 sk200 bias:bf16:1x2x200 d128 causal_top_left tile=192x128") == "h128b");
}

TEST_CASE("sm90: tiles of few rows that the forward with a dense bias takes last") {
  const FwdTile& h64 = kFwdTiles[1];
  REQUIRE(h64.warpgroups == 3);
  const auto shorts = [&](int64_t heads, int64_t rows) {
    return fwd_short_tiles(h64, heads, rows, 132, 16);
  };
  CHECK(shorts(128, 4096) == 128);       // 21 tiles of 192 rows and 64
  CHECK(shorts(128, 4096 + 64) == 128);  // 128 rows
  CHECK(shorts(128, 4096 + 65) == 0);    // rows for all three warpgroups
  CHECK(shorts(128, 4032) == 0);
  CHECK(shorts(128, 64) == 0);   // of one tile a head there are no others
  CHECK(shorts(128, 256) == 0);  // fewer whole tiles than workgroups
  CHECK(shorts(32, 4096) == 0);  // in a round of their own most workgroups would have none
  CHECK(shorts(66, 4096) == 0);
  CHECK(shorts(67, 4096) == 67);
  CHECK(shorts(264, 4096) == 264);
  CHECK(fwd_short_tiles(h64, 128, 4096, 132, kStreamKMinSteps - 1) == 0);
  const Plan plan = plan_of("fwd bf16 b4 hq32 sq2048 sk2048 d64 bias:bf16:1x32x2048");
  REQUIRE(std::string(plan.path) == "sm90");
  const Launch& l = plan.launches[0];
  CHECK(l.of<Sm90Launch>().short_tiles == 128);
  CHECK(l.total == 128 * 11);
  CHECK(l.of<Sm90Launch>().stream_k_units == fwd_stream_k(128 * 10, 132, 4, 16).units);
  const String says = explain(plan.problem, caps_of("h100_cuda"));
  CHECK(says.find(", 224 tiles by stream-K, 128 short tiles last") != String::npos);
  // With a mask tiles are not alike.
  CHECK(plan_of("fwd bf16 b4 hq32 sq2048 sk2048 d64 bias:bf16:1x32x2048 causal_top_left")
            .launches[0]
            .of<Sm90Launch>()
            .short_tiles == 0);
}

TEST_CASE("sm90: tiles that the forward with a dense bias shares out by steps") {
  const auto check = [](int64_t groups, int64_t batch, int64_t rows, int steps) {
    CAPTURE(groups);
    CAPTURE(batch);
    CAPTURE(rows);
    CAPTURE(steps);
    const int64_t total = batch * rows;
    const FwdStreamK tail = fwd_stream_k(total, groups, batch, steps);
    if (tail.units == 0) {
      // Nothing to share, or next to nothing to save.
      const bool one = common_divisor(groups, batch) == groups;
      CHECK((one || total < groups || total % groups == 0 || steps < kStreamKMinSteps ||
             4 * (ceil_div(total, groups) * groups - total) * steps < groups));
      return;
    }
    REQUIRE(groups % tail.unit == 0);
    REQUIRE(batch % tail.unit == 0);
    const int64_t shared = int64_t(tail.units) * tail.unit;
    CHECK((total - shared) % groups == 0);
    CHECK(shared >= groups);
    CHECK(shared < 2 * groups);
    const int workers = int(groups) / tail.unit;
    std::vector<int> taken(size_t(tail.units * steps)), parts(size_t(tail.units));
    int64_t least = INT64_MAX, most = 0;
    int before = steps;  // where the last piece of the worker before ended
    for (int worker = 0; worker < workers; ++worker) {
      const FwdStreamKRange pieces =
          fwd_stream_k_range(fwd_stream_k_shares(tail, steps, int(groups)), worker);
      CHECK(pieces.many >= 1);
      CHECK(pieces.many <= kStreamKMaxPieces);
      int64_t many = 0;
      for (int n = 0; n < pieces.many; ++n) {
        const FwdStepRange part = fwd_stream_k_steps(pieces, n, steps);
        const int unit = pieces.first + n;
        REQUIRE(unit < tail.units);
        REQUIRE(0 <= part.begin);
        REQUIRE(part.begin < part.end);
        REQUIRE(part.end <= steps);
        // Only the first one begins within a tile, where the worker before has stopped, and only
        // the last one ends there.
        CHECK((part.begin == 0 || (n == 0 && part.begin == before)));
        CHECK((part.end == steps || (n == pieces.many - 1 && worker + 1 < workers)));
        CHECK((part.begin == 0 || part.end == steps));
        for (int t = part.begin; t < part.end; ++t) ++taken[size_t(unit * steps + t)];
        ++parts[size_t(unit)];
        many += part.end - part.begin;
        before = part.end;
      }
      least = std::min(least, many), most = std::max(most, many);
    }
    CHECK(most - least <= 1);
    CHECK(most <= 2 * steps);
    CHECK(std::count(taken.begin(), taken.end(), 1) == int64_t(taken.size()));
    CHECK(std::count_if(parts.begin(), parts.end(), [](int n) { return n == 1 || n == 2; }) ==
          int64_t(parts.size()));
  };
  for (int64_t groups : {1, 2, 5, 66, 114, 132})
    for (int64_t batch : {1, 2, 3, 4, 6, 8})
      for (int64_t rows : {1, 7, 33, 64, 80, 131, 256, 513})
        for (int steps : {1, 2, 3, 8, 16, 33}) check(groups, batch, rows, steps);
  CHECK(fwd_stream_k(1024, 132, 4, 16).unit == 4);
  CHECK(fwd_stream_k(1024, 132, 4, 16).units == (1024 - 6 * 132) / 4);
  CHECK(fwd_stream_k(1024, 132, 4, 1 << 25).units == 0);  // steps are counted in 31 bits

  for (const char* d : {"d64", "d128 dv72"})
    for (bool f16 : {true, false}) {
      const std::string type = f16 ? "f16" : "bf16";
      const std::string line =
          "fwd " + type + " b4 hq16 sq2048 sk2048 bias:" + type + ":1x16x2048 " + d;
      CAPTURE(line);
      const Plan plan = plan_of(line);
      REQUIRE(std::string(plan.path) == "sm90");
      const Launch& l = plan.launches[0];
      const FwdTile& t = kFwdTiles[l.of<Sm90Launch>().row];
      const FwdStreamK tail = fwd_stream_k(l.total, 132, 4, ceil_div(2048, t.bc));
      CHECK(tail.units > 0);
      CHECK(l.of<Sm90Launch>().stream_k_units == tail.units);
      CHECK(l.of<Sm90Launch>().stream_k_unit == tail.unit);
      // A part, and a word for each 16 rows of it, for every two workgroups side by side.
      const int64_t parts = 132 - tail.unit, floats = parts * t.rows() * (t.dv + 2);
      CHECK(plan.scratch[Scratch::stream_k_partials].offset == 0);
      CHECK(plan.scratch[Scratch::stream_k_flags].offset ==
            uint64_t(ceil_div(4 * floats, 256) * 256));
      CHECK(plan.workspace_size ==
            plan.scratch[Scratch::stream_k_flags].offset + uint64_t(8 * parts * t.rows() / 16));
      CHECK(explain(plan.problem, caps_of("h100_cuda"))
                .find(text(", %d tiles by stream-K", tail.units * tail.unit)) != String::npos);
      // Of other tiles some are longer; and where all workgroups have as many there is nothing to
      // share.
      const std::string full =
          "fwd " + type + " b4 hq33 sq2048 sk2048 bias:" + type + ":1x33x2048 " + d;
      for (const std::string& words : {line + " causal_top_left", full}) {
        const Plan other = plan_of(words);
        CHECK(other.launches[0].of<Sm90Launch>().stream_k_units == 0);
        CHECK(other.workspace_size == 0);
      }
    }
}

TEST_CASE("sm90: the last round of clusters that sum d_bias") {
  // Nothing to share where rounds are full, or where the number of clusters is unknown.
  CHECK(bwd_query_split(256, 32, 4, 32).parts == 1);
  CHECK(bwd_query_split(256, 0, 4, 32).parts == 1);
  CHECK(bwd_query_split(256, 0, 4, 32).whole == 256);
  for (int64_t kv_tiles = 1; kv_tiles <= 600; kv_tiles += 7)
    for (int64_t slots : {1, 15, 30, 66})
      for (int64_t size : {2, 4, 8})
        for (int64_t tiles : {1, 2, 16, 64}) {
          CAPTURE(kv_tiles);
          CAPTURE(slots);
          CAPTURE(size);
          CAPTURE(tiles);
          const BwdQuerySplit tail = bwd_query_split(kv_tiles, slots, size, tiles);
          CHECK(tail.parts >= 1);
          CHECK(tail.parts <= tiles);
          CHECK(tail.whole == (tail.parts > 1 ? kv_tiles / slots * slots : kv_tiles));
          CHECK((kv_tiles - tail.whole) * tail.parts * size <= bwd_partial_slots(kv_tiles * size));
        }
  // Two clusters would take as long as a round of 30 does: eight parts each, of two tiles.
  CHECK(bwd_query_split(512, 30, 4, 16).whole == 510);
  CHECK(bwd_query_split(512, 30, 4, 16).parts == 8);
  // Room for the parts, and a count for each warpgroup and two of tiles fetched, zeroed with the
  // sums of d_q.
  const std::string shared = "bwd f16 b4 hq8 sq300 sk320 d64 bias:f16:1x8x300 d_bias:f16 ";
  const Plan with = plan_of(shared + "grads=qkvb"), without = plan_of(shared + "grads=qkv");
  const BwdShape& s = kBwdShapes[with.find(Stem::bwd_dkv_dq)->of<Sm90Launch>().row];
  const int64_t room = bwd_partial_slots(with.find(Stem::bwd_dkv_dq)->total);
  CHECK(room == 240);
  CHECK(with.scratch[Scratch::dkv_partial_counts].offset ==
        without.scratch[Scratch::d_q_accum].offset + (without.zeroed_size + 255) / 256 * 256);
  CHECK(with.zeroed_size == with.scratch[Scratch::dkv_partial_counts].offset -
                                with.scratch[Scratch::d_q_accum].offset +
                                uint64_t((2 * room + 2) * 4));
  CHECK(with.scratch[Scratch::dkv_partials].offset >=
        with.scratch[Scratch::dkv_partial_counts].offset + uint64_t((2 * room + 2) * 4));
  CHECK(with.workspace_size ==
        with.scratch[Scratch::dkv_partials].offset + uint64_t(4 * room * bwd_partial_floats(s)));
  CHECK(without.workspace_size < with.workspace_size);
}

TEST_CASE("sm90: clusters of two beside those of the batch, which sum d_bias in passes") {
  const BwdShape &h64 = kBwdShapes[0], &h128 = kBwdShapes[2];
  REQUIRE(h64.d == 64);
  REQUIRE(h128.d == 128);
  // 30 clusters of four and six of two beside them, which need 2.7 times as long for a tile.
  const auto planned = [&](int64_t kv_tiles, int64_t tiles) {
    return plan_bwd_clusters(kv_tiles, 30, 4, tiles, 6, bwd_two_cta_tenths(h128, 2));
  };
  CHECK(planned(256, 32).schedule.reserved == 16);
  CHECK(planned(256, 32).split.parts == 1);
  CHECK(planned(512, 64).schedule.reserved == 30);
  CHECK(planned(512, 64).split.parts == 13);
  CHECK(planned(64, 4).schedule.reserved == 0);
  int with_reserved = 0, several_blocks = 0, cut = 0;
  for (const BwdShape* s : {&h64, &h128})
    for (int64_t kv_tiles :
         {1, 6, 7, 8, 15, 30, 33, 45, 64, 67, 128, 200, 256, 391, 512, 1000, 2048})
      for (int64_t slots : {0, 1, 7, 14, 30, 32})
        for (int64_t pairs : {0, 1, 2, 4, 6, 8})
          for (int64_t size : {4, 6, 8})
            for (int64_t tiles : {1, 3, 16, 64}) {
              CAPTURE(s->d);
              CAPTURE(kv_tiles);
              CAPTURE(slots);
              CAPTURE(pairs);
              CAPTURE(size);
              CAPTURE(tiles);
              const BwdClusterPlan plan = plan_bwd_clusters(kv_tiles, slots, size, tiles, pairs,
                                                            bwd_two_cta_tenths(*s, size / 2));
              const BwdClusterSchedule& shares = plan.schedule;
              const int64_t whole = plan.split.whole, parts = (kv_tiles - whole) * plan.split.parts;
              // With nothing reserved there are no clusters of two.
              const bool some = shares.reserved > 0;
              CHECK(shares.two_cta_clusters == (some ? pairs : 0));
              CHECK(shares.slots == slots);
              CHECK(shares.items == whole + parts - shares.reserved);
              CHECK(parts * size <= bwd_partial_slots(kv_tiles * size));
              // Each is handed out once: by a cluster's number, and as they are fetched.
              std::vector<int> handed(size_t(whole + parts));
              bool inside = true;
              const auto hand = [&](int item, int64_t end) {
                inside &= item >= 0 && item < end;
                if (inside) ++handed[size_t(item)];
              };
              for (int n = 0; n < shares.items; ++n)
                hand(n < slots ? n : bwd_other_item(shares, n), whole + parts);
              // Reserved ones are whole tiles, behind those that clusters begin with.
              for (int n = 0; n < shares.reserved; ++n) {
                const int item = bwd_reserved_item(shares, n);
                inside &= item >= slots;
                hand(item, whole);
              }
              CHECK(inside);
              CHECK(std::count(handed.begin(), handed.end(), 1) == whole + parts);
              if (!some) continue;
              CHECK(slots > 0);
              CHECK(shares.span > shares.two_cta_clusters);
              with_reserved++, several_blocks += shares.blocks > 1, cut += parts > 0;
            }
  CHECK(with_reserved > 100);
  CHECK(several_blocks > 100);
  CHECK(cut > 100);
  // Their sums lie behind the parts of d_k and d_v; in a fixed order, and of few tiles, there are
  // none.
  const std::string words =
      "bwd f16 b4 hq64 hk32 sq300 sk320 d64 bias:f16:1x64x300 d_bias:f16 grads=qkvb";
  const Plan with = plan_of(words), fixed = plan_of(words + " deterministic");
  const Launch& fused = *with.find(Stem::bwd_dkv_dq);
  const BwdShape& s = kBwdShapes[fused.of<Sm90Launch>().row];
  CHECK(with.scratch[Scratch::pass_sums].offset >=
        with.scratch[Scratch::dkv_partials].offset +
            uint64_t(4 * bwd_partial_slots(fused.total) * bwd_partial_floats(s)));
  CHECK(with.workspace_size == with.scratch[Scratch::pass_sums].offset +
                                   uint64_t(4 * kMaxTwoCtaClusters * bwd_pass_floats(s, 2, 300)));
  CHECK(fixed.scratch[Scratch::pass_sums].offset == 0);
  CHECK(plan_of("bwd f16 b4 hq8 sq300 sk320 d64 bias:f16:1x8x300 d_bias:f16 grads=qkvb")
            .scratch[Scratch::pass_sums]
            .offset == 0);
}

TEST_CASE("sm90: a dense bias and its gradient in backward") {
  for (const char* words : {"bias:f16:4x8x300 grads=qkvb d_bias:f32",
                            "bias:f16:1x8x300 grads=kb d_bias:f16", "bias:f16:1x2x300 grads=qkv"})
    for (const char* more : {"", " deterministic"}) {
      const std::string line = std::string("bwd f16 b4 hq8 hk2 sq300 sk320 d64 ") + words + more;
      CAPTURE(line);
      const Plan plan = plan_of(line);
      const Problem& p = plan.problem;
      CHECK(stems(plan) ==
            (p.wants(TANDEM_GRAD_Q) ? "bwd_dot bwd_dkv_dq bwd_dq_cast" : "bwd_dot bwd_dkv_dq"));
      const Launch& fused = *plan.find(Stem::bwd_dkv_dq);
      CHECK(fused.stores_d_bias == p.wants(TANDEM_GRAD_BIAS));
      CHECK(plan.stores_d_bias() == p.wants(TANDEM_GRAD_BIAS));
      CHECK(fused.shared_bytes ==
            uint32_t(bwd_bias_shared_bytes(kBwdShapes[fused.of<Sm90Launch>().row])));
      // bwd_dq_cast waits for its heads, of which each has a number.
      CHECK(!fused.of<Sm90Launch>().programmatic);
      const Launch* cast = plan.find(Stem::bwd_dq_cast);
      CHECK((cast && cast->of<Sm90Launch>().programmatic) == p.wants(TANDEM_GRAD_Q));
      CHECK((plan.scratch[Scratch::d_q_counts].offset > 0) == p.wants(TANDEM_GRAD_Q));
      CHECK(plan.zeroed_size > 0);  // the sums are formed whatever is asked for
      CHECK((plan.scratch[Scratch::dq_semaphores].offset > 0) == p.deterministic);
    }
}

TEST_CASE("sm90: biases that pack_bias copies for TMA") {
  const struct {
    const char *line, *why;  // nullptr: the kernels read the bias itself
    int64_t rows, pitch;
    int step;
  } rows[] = {
      {"fwd bf16 b4 hq8 sq300 sk320 d64 bias:bf16:1x8x300", nullptr, 0, 0, 1},
      {"fwd bf16 b4 hq8 sq300 sk197 d64 bias:bf16:1x8x300", "197 elements apart", 300, 200, 1},
      {"fwd bf16 b4 hq8 sq300 sk197 d128 bias:bf16:4x1x1 keep:1x1x1", "one row", 64, 200, 0},
      {"fwd bf16 b4 hq8 sq300 sk320 d128 bias:bf16:1x1x1 keep:1x1x1", "one row", 64, 320, 0},
      {"fwd bf16 b4 hq8 sq300 sk49 d64 bias:bf16:1x8x300 bias=0,16800,56,1", nullptr, 0, 0, 1},
      {"fwd bf16 b4 hq8 sq300 sk320 d64 bias:bf16:1x8x300 bias=0,96000,1,300", "not side by side",
       300, 320, 1},
      {"bwd f16 b2 hq8 sq300 sk320 d64 bias:f16:2x1x1 keep:1x1x1", "one row", 128, 320, 0},
      {"bwd f16 b2 hq8 sq300 sk49 d128 bias:f16:2x1x1 keep:1x1x1", "one row", 64, 56, 0},
      {"bwd f16 b2 hq8 sq300 sk49 d128 bias:f16:2x8x300 d_bias:f16 grads=qkvb", "49 elements apart",
       300, 56, 1}};
  for (const auto& row : rows) {
    CAPTURE(std::string(row.line));
    const Plan plan = plan_of(row.line);
    const Problem& p = plan.problem;
    REQUIRE(std::string(plan.path) == "sm90");
    CHECK(packs_bias(p) == (row.why != nullptr));
    CHECK(bias_row_step(p) == row.step);
    const Launch* pack = plan.find(Stem::pack_bias);
    CHECK((pack != nullptr) == (row.why != nullptr));
    CHECK(plan.scratch[Scratch::packed_bias].present == (row.why != nullptr));
    if (!pack) continue;
    CHECK(pack == &plan.launches[0]);
    CHECK(pack->shared_bytes == 0);
    CHECK(pack->of<Sm90Launch>().programmatic);
    CHECK(explain(p, caps_of("h100_cuda")).find(row.why) != String::npos);
    const PackBiasBlock block = pack_bias_block(plan, *pack);
    CHECK(block.rows == row.rows);
    CHECK(block.chunks * 8 == row.pitch);
    CHECK(plan.scratch[Scratch::packed_bias].size ==
          uint64_t(p.bias.batch * p.bias.heads * row.rows * row.pitch * 2));
    // The bias may then lie anywhere, the other inputs may not.
    Addresses a;
    a.bias = 2;
    CHECK(sm90_takes(plan, a));
    a.q = 2;
    CHECK(!sm90_takes(plan, a));
  }
  Addresses a;
  a.bias = 2;
  CHECK(!sm90_takes(plan_of(rows[0].line), a));
  // Types are not converted.
  CHECK(std::string(plan_of("fwd bf16 sq300 sk197 d64 bias:f16:1x1x1").path) == "sm80");
}

TEST_CASE("sm90: a mask beside a dense bias") {
  const auto kernels = [](const Plan& plan) {
    std::string names;
    for (const Launch& l : plan.launches) {
      CHECK(l.second_kernel < 0);
      if (l.stem == Stem::fwd || l.stem == Stem::bwd_dkv_dq)
        names += std::string(kKernels[l.kernel].variant) + " ";
    }
    return names;
  };
  for (const char* keep : {" keep:1x1x1", " keep:1x4x512", " keep:1x1x512", " spans=1:1x1",
                           " keep:1x1x1 spans=2:1x4", " blocks=64x64:4+2:1x1"}) {
    for (const char* d : {"d32", "d64", "d128"}) {
      const Plan plan =
          plan_of(std::string("fwd bf16 b1 hq4 hk4 sq512 sk512 bias:bf16:1x4x512 ") + d + keep);
      CAPTURE(explain(plan.problem, caps_of("h100_cuda")));
      REQUIRE(std::string(plan.path) == "sm90");
      CHECK(kernels(plan) == "bias_keep ");
      const Launch& l = plan.launches.back();
      CHECK(l.shared_bytes ==
            uint32_t(fwd_bias_keep_shared_bytes(kFwdTiles[l.of<Sm90Launch>().row])));
      CHECK(!l.has(trait::scales_q));
    }
    for (const char* batch : {"b1", "b4", "b8", "b9", "b64"}) {
      const Plan plan = plan_of(std::string("bwd bf16 hq4 hk4 sq512 sk512 d64 grads=qkvb "
                                            "bias:bf16:1x4x512 d_bias:bf16 ") +
                                batch + keep);
      CAPTURE(explain(plan.problem, caps_of("h100_cuda")));
      REQUIRE(std::string(plan.path) == "sm90");
      const bool slices = plan.problem.batch > kMaxCluster;
      CHECK(kernels(plan) == (slices ? "bias_keep_slices " : "bias_keep "));
      CHECK(plan.find(Stem::bwd_dq_cast) != nullptr);
    }
  }
  // No other input beside them, and no tile of 192 rows.
  CHECK(std::string(plan_of("fwd bf16 b1 hq4 hk4 sq512 sk512 d64 bias:bf16:1x4x512 keep:1x1x1 sink")
                        .path) == "sm80");
  CHECK(kernels(plan_of("fwd bf16 b8 hq72 hk72 sq512 sk512 d128 bias:bf16:1x72x512 keep:8x1x1")) ==
        "bias_keep ");
}

TEST_CASE("sm90: a dense bias of f32") {
  const auto variants = [](const Plan& plan) {
    std::string names;
    for (const Launch& l : plan.launches) {
      CHECK(l.second_kernel < 0);
      if (l.stem == Stem::pack_bias || l.stem == Stem::fwd || l.stem == Stem::bwd_dkv_dq)
        names += std::string(kKernels[l.kernel].variant) + " ";
    }
    return names;
  };
  for (const char* type : {"f16 ", "bf16 "})
    for (const char* keep : {"", " keep:1x1x1", " keep:1x1x512"}) {
      for (int d : {16, 32, 64, 72, 128}) {
        const std::string rest =
            std::string(type) + "hq4 hk4 sq512 sk512 bias:f32:1x4x512 d" + std::to_string(d) + keep;
        const Plan fwd = plan_of("fwd b1 " + rest);
        CAPTURE(fwd.name());
        REQUIRE(std::string(fwd.path) == "sm90");
        CHECK(variants(fwd) == "bias_f32 ");
        const Launch& l = fwd.launches.back();
        CHECK(std::string(l.tile.name) == (d <= 64 ? "hf64" : "hf128"));
        CHECK(l.shared_bytes ==
              uint32_t(fwd_f32_bias_shared_bytes(kFwdTiles[l.of<Sm90Launch>().row])));
        CHECK(!l.has(trait::scales_q));
        for (const char* batch : {"b1 ", "b4 ", "b8 ", "b9 ", "b64 "}) {
          const Plan bwd = plan_of("bwd d_bias:f32 grads=qkvb " + (batch + rest));
          REQUIRE(std::string(bwd.path) == "sm90");
          CHECK(variants(bwd) ==
                (bwd.problem.batch > kMaxCluster ? "bias_f32_slices " : "bias_f32 "));
          const Launch& keys = *bwd.find(Stem::bwd_dkv_dq);
          const BwdShape& s = kBwdShapes[keys.of<Sm90Launch>().row];
          CHECK(s.f32_bias);
          CHECK(s.d >= d);
          CHECK(keys.shared_bytes == uint32_t(bwd_bias_shared_bytes(s)));
          CHECK(keys.second_kernel < 0);
          CHECK(bwd.find(Stem::bwd_dq_cast) != nullptr);
        }
      }
    }
  // Rows of four elements are whole chunks for TMA; others are copied.
  CHECK(variants(plan_of("fwd bf16 sq300 sk100 d64 bias:f32:1x1x300")) == "bias_f32 ");
  const Plan odd = plan_of("fwd bf16 b2 hq4 sq300 sk77 d64 bias:f32:1x4x300");
  CHECK(variants(odd) == "f32 bias_f32 ");
  CHECK(odd.scratch[Scratch::packed_bias].size == 4 * 300 * 80 * 4);
  // Other scales than those of a bias of 16 bits.
  CHECK(variants(plan_of("fwd bf16 sq300 sk64 d64 scale=-1 bias:f32:1x1x300")) == "bias_f32 ");
  CHECK(std::string(plan_of("fwd bf16 sq300 sk64 d64 scale=-1 bias:bf16:1x1x300").path) == "sm80");
  // Wider heads, and sums that clusters do not form.
  CHECK(std::string(plan_of("fwd bf16 sq300 sk64 d136 bias:f32:1x1x300").path) == "sm80");
  CHECK(std::string(
            plan_of("bwd bf16 hq4 sq300 sk64 d64 bias:f32:1x1x300 d_bias:f32 grads=qkvb").path) ==
        "sm80");
}

TEST_CASE("cuda: where bwd_dot has a kernel for rows of 16 bytes at a time") {
  const auto dot = [](const std::string& line) {
    const Plan plan = plan_of("bwd " + line);
    const Launch* l = plan.find(Stem::bwd_dot);
    REQUIRE(l);
    return *l;
  };
  for (const char* type : {"f16", "bf16"}) {
    const Launch l = dot(std::string(type) + " b2 hq3 sq70 sk64 d64");
    CHECK(l.of<SimtLaunch>().fast_tiles == 2);  // of 64 rows: 8 threads a row
    CHECK(l.of<SimtLaunch>().fast_total == 2 * 3 * 2);
    CHECK(dot(std::string(type) + " b2 hq3 sq70 sk64 d128").of<SimtLaunch>().fast_tiles == 3);
    CHECK(dot(std::string(type) + " b2 hq3 sq70 sk64 d256").of<SimtLaunch>().fast_tiles == 5);
  }
  for (const char* line :
       {"f32 sq70 sk64 d64", "f16 sq70 sk64 d64 dv60", "f16 sq70 sk64 d64 q_padded",
        "f16 b1 hq1 sq70 sk64 d64 o=4480,4480,1,70", "f16 b1 hq1 sq70 sk64 d64 d_o=4760,4760,68,1"})
    CHECK_MESSAGE(dot(line).of<SimtLaunch>().fast_total == 0, line);
}
