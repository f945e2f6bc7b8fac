// SPDX-License-Identifier: MIT OR Apache-2.0
// hopper_tiles.inc as C++ values, with what planner, kernels and tensor maps have to agree on: bytes of shared memory and
// of the workspace.
#ifndef TANDEM_SRC_HOPPER_TILES_H
#define TANDEM_SRC_HOPPER_TILES_H
#include <cmath>
#include <cstdint>

namespace tandem {

constexpr int kMaxShared = 232448;  // of a workgroup of compute capability 9.0
// Forward kernels multiply scores by a scale beyond this after they are compared, and after a distance bias; by others before. With a
// dense bias they take no others, as it is divided by the scale.
constexpr float kPlainScale = 1e-12f;

// ---- fwd ----
// A workgroup: `groups` warpgroups of 64 query rows each, and one more, of which a warp copies. Boxes of the maps:
// q rows() rows, k and v bc rows.
struct FwdTile {
  const char* name;
  int d, dv, groups, bc, stages;
  bool turns, apart, bias;
  int from, to;
  constexpr int rows() const { return 64 * groups; }
  constexpr int threads() const { return 128 * (groups + 1); }
};

constexpr int fwd_panels(int features) { return (features + 63) / 64; }
// Of q's places: one of each warpgroup in tiles for a bias alone.
constexpr int fwd_q_barriers(const FwdTile& t) { return t.bias ? 2 * t.groups : 4; }
// Dynamic shared memory: stages of q, of k and of v, barriers; up to 1,023 bytes to begin at a multiple of 1,024.
constexpr int fwd_shared_bytes(const FwdTile& t, int q_stages) {
  return 1024 +
         128 * (q_stages * t.rows() * fwd_panels(t.d) +
                t.stages * t.bc * (fwd_panels(t.d) + fwd_panels(t.dv))) +
         8 * (fwd_q_barriers(t) + 4 * t.stages);
}
// Where there is room, q of the next tile comes while this one is computed.
constexpr int fwd_q_stages(const FwdTile& t) {
  return fwd_shared_bytes(t, 2) <= kMaxShared ? 2 : 1;
}
constexpr int fwd_shared_bytes(const FwdTile& t) { return fwd_shared_bytes(t, fwd_q_stages(t)); }

// Softmax alone, where there is room for q of one tile alone: fwd_wide.cuh, q in boxes of a warpgroup's rows.
constexpr bool fwd_is_wide(const FwdTile& t) { return !t.apart && !t.bias && fwd_q_stages(t) == 1; }
constexpr int fwd_plain_q_rows(const FwdTile& t) { return fwd_is_wide(t) ? 64 : t.rows(); }
constexpr int fwd_bias_q_rows(const FwdTile& t) { return t.bias ? 64 : t.rows(); }
// There, and where warpgroups go apart, what is told of four tiles.
constexpr int kApartNotices = 4;
constexpr int fwd_apart_notice_bytes(const FwdTile& t) { return 32 + 16 * t.groups; }
constexpr int fwd_plain_shared_bytes(const FwdTile& t) {
  return fwd_shared_bytes(t) +
         (t.apart || fwd_is_wide(t) ? kApartNotices * fwd_apart_notice_bytes(t) : 0);
}

// With a dense bias: places for it, each warpgroup's rows in boxes of 64 x 64. 0: no kernel for the tile.
constexpr int kFwdBiasRows = 64;
constexpr int fwd_bias_bytes(const FwdTile& t) { return t.rows() * t.bc * 2; }
// Heads up to 64: q times the scale, where that is exact, lest each element of the bias be divided by it.
constexpr bool fwd_scales_q(const FwdTile& t) {
  return !t.apart && !t.bias && t.d <= 64 && t.dv <= 64;
}
// A power of two by which numbers of bf16 stay what they are, but for those under 2^-110.
inline bool has_exact_scale(float scale) {
  int exponent;
  return std::frexp(scale, &exponent) == 0.5f && exponent >= -15 && exponent <= 1;
}
// What is told of four tiles, behind the barriers.
constexpr int kBiasNotices = 4, kBiasNoticeBytes = 32;
constexpr int fwd_bias_barriers(const FwdTile& t, int bias_stages) {
  return 8 * (fwd_q_barriers(t) + 4 * t.stages + 2 * t.groups * bias_stages);
}
constexpr int fwd_bias_shared_bytes(const FwdTile& t, int q_stages, int bias_stages) {
  return fwd_shared_bytes(t, q_stages) + bias_stages * (fwd_bias_bytes(t) + 2 * 8 * t.groups) +
         kBiasNotices * kBiasNoticeBytes;
}
// A second place for q, and what is left for the bias.
constexpr int fwd_bias_q_stages(const FwdTile& t) {
  return fwd_bias_shared_bytes(t, 2, 1) <= kMaxShared ? 2 : 1;
}
constexpr int fwd_bias_stages(const FwdTile& t) {
  return fwd_bias_shared_bytes(t, fwd_bias_q_stages(t), 2) <= kMaxShared ? 2 : 1;
}
constexpr int fwd_bias_shared_bytes(const FwdTile& t) {
  const int bytes = fwd_bias_shared_bytes(t, fwd_bias_q_stages(t), fwd_bias_stages(t));
  return !t.apart && t.bc % 64 == 0 && bytes <= kMaxShared ? bytes : 0;
}

// Elastic softmax: K and V share places. Each warpgroup has the head's distance bias behind them, with zeros for all
// distances of a tile that has any with an entry. Where warpgroups go apart, as many places as there is room for, and what is
// told of four tiles.
constexpr int kFwdDistWindow = 2048, kElasticNoticeBytes = 16;
constexpr int fwd_elastic_q_stages(const FwdTile& t) { return t.d <= 128 ? 2 : 1; }
constexpr int fwd_elastic_place(const FwdTile& t) {
  return t.bc * 128 * fwd_panels(t.d > t.dv ? t.d : t.dv);
}
constexpr int fwd_dist_pad(const FwdTile& t) { return 64 + t.bc; }
constexpr int fwd_dist_entries(const FwdTile& t) { return kFwdDistWindow + 2 * fwd_dist_pad(t); }
constexpr int fwd_elastic_shared_bytes(const FwdTile& t, int places) {
  const int q_stages = fwd_elastic_q_stages(t);
  return 1024 + 128 * q_stages * t.rows() * fwd_panels(t.d) + places * fwd_elastic_place(t) +
         t.groups * fwd_dist_entries(t) * 4 + 16 * (q_stages + places) +
         (t.apart ? kApartNotices * kElasticNoticeBytes : 0);
}
constexpr int fwd_elastic_places(const FwdTile& t) {
  return t.apart ? (kMaxShared - fwd_elastic_shared_bytes(t, 0)) / (fwd_elastic_place(t) + 16)
                 : (t.d <= 64 ? 8 : 4);
}
constexpr int fwd_elastic_shared_bytes(const FwdTile& t) {
  return fwd_elastic_shared_bytes(t, fwd_elastic_places(t));
}

// entmax: behind the barriers words of the search, a bit for each of the first kSupportTiles tiles of keys of a warpgroup (two
// sets), and each thread's candidates of its two rows. 0 candidates: no kernel for the tile.
constexpr int kSupportTiles = 1024, kSupportWords = kSupportTiles / 32;
constexpr int kEntmaxQStages = 1;  // room for q of the next tile is better used for candidates
constexpr int fwd_entmax_lists_at(const FwdTile& t) {  // behind the barriers
  return 32 + t.groups * 2 * kSupportWords * 4;
}
constexpr int fwd_entmax_candidates(const FwdTile& t) {
  const int left = kMaxShared - fwd_shared_bytes(t, kEntmaxQStages) - fwd_entmax_lists_at(t);
  const int most = left / (t.groups * 128 * 2 * 4) / 4 * 4;
  return t.apart || t.bias || t.d > 128 || most < 16 ? 0 : most > 44 ? 44 : most;
}
constexpr int fwd_entmax_shared_bytes(const FwdTile& t) {
  return fwd_entmax_candidates(t) == 0
             ? 0
             : fwd_shared_bytes(t, kEntmaxQStages) + fwd_entmax_lists_at(t) +
                   fwd_entmax_candidates(t) * t.groups * 128 * 2 * 4;
}

// With lengths: a barrier, and what is told of four tiles of query rows. 0: no kernel for the tile.
constexpr int kFwdNotices = 4, kFwdNoticeBytes = 64;
constexpr int fwd_lengths_shared_bytes(const FwdTile& t) {
  const int bytes = fwd_shared_bytes(t) + 2 * 8 + kFwdNotices * kFwdNoticeBytes;
  return !t.apart && !t.bias && bytes <= kMaxShared ? bytes : 0;
}
// Wider heads have one kernel for lengths and for what else there is.
constexpr bool fwd_has_lengths_alone(const FwdTile& t) {
  return !t.apart && !t.bias && t.d <= 128 && t.dv <= 128;
}

// Bits of masks and of dropout (cuda/sm90/bits.cuh): a place has those of a tile of kBitsKeys keys, a word for 32 of them and
// a row, and a few words about the tile; two barriers each.
constexpr int kBitsPlaces = 4, kBitsKeys = 128;
constexpr int bits_pitch(int rows) {
  return rows + 8;
}  // lanes with the words of 8 rows meet no bank twice
constexpr int bits_place_bytes(int rows) { return 2 * kBitsKeys / 32 * bits_pitch(rows) * 4 + 16; }
constexpr int bits_bytes(int rows) { return kBitsPlaces * (bits_place_bytes(rows) + 16); }

// With everything that softmax may have beside it, but a bias.
constexpr FwdTile fwd_all_tile(const FwdTile& t) {
  return {t.name, t.d, t.dv, 2, t.bc, t.stages, t.turns, t.apart, t.bias, t.from, t.to};
}
constexpr int fwd_all_shared_bytes(const FwdTile& row) {
  const FwdTile t = fwd_all_tile(row);
  const int bytes = fwd_lengths_shared_bytes(t);
  return bytes == 0 || fwd_q_stages(t) != 2 || t.bc != kBitsKeys ||
                 bytes + bits_bytes(t.rows()) > kMaxShared
             ? 0
             : bytes + bits_bytes(t.rows());
}

constexpr FwdTile kFwdTiles[] = {
#define TANDEM_HOPPER_FWD(name, d, dv, groups, bc, stages, turns, apart, bias, from, to) \
  {#name, d, dv, groups, bc, stages, turns != 0, apart != 0, bias != 0, from, to},
#define TANDEM_HOPPER_BWD(name, d, br, bc, q_stages, do_stages, ds_stages, wide)
#include "hopper_tiles.inc"
};
constexpr int kFwdTileCount = int(sizeof(kFwdTiles) / sizeof(kFwdTiles[0]));

// ---- bwd_dkv_dq, bwd_dq_cast ----
constexpr int kBwdThreads = 384;  // a warpgroup of helpers and two that multiply
constexpr int kBwdParts = 8;      // of a sum over a tile: one of each warp that multiplies

// q and d_o come in boxes of br rows, k and v of bc.
struct BwdShape {
  const char* name;
  int d, br, bc, q_stages, do_stages, ds_stages;
  bool wide;
};
constexpr BwdShape kBwdShapes[] = {
#define TANDEM_HOPPER_FWD(name, d, dv, groups, bc, stages, turns, apart, bias, from, to)
#define TANDEM_HOPPER_BWD(name, d, br, bc, q_stages, do_stages, ds_stages, wide) \
  {#name, d, br, bc, q_stages, do_stages, ds_stages, wide != 0},
#include "hopper_tiles.inc"
};
constexpr int kBwdShapeCount = int(sizeof(kBwdShapes) / sizeof(kBwdShapes[0]));

// Heads over this have bwd_dkv and bwd_dq in place of bwd_dkv_dq.
constexpr int kNarrowHeads = 128;
constexpr int bwd_panels(const BwdShape& s) { return (s.d + 63) / 64; }
// Where things lie in shared memory, in bytes from its beginning, a multiple of 1,024.
constexpr int bwd_k_bytes(const BwdShape& s) { return bwd_panels(s) * s.bc * 128; }
constexpr int bwd_q_bytes(const BwdShape& s) { return bwd_panels(s) * s.br * 128; }
constexpr int bwd_ds_bytes(const BwdShape& s) { return s.br * s.bc * 2; }
constexpr int bwd_at_v(const BwdShape& s) { return bwd_k_bytes(s); }
constexpr int bwd_at_q(const BwdShape& s) { return 2 * bwd_k_bytes(s); }
constexpr int bwd_at_do(const BwdShape& s) { return bwd_at_q(s) + s.q_stages * bwd_q_bytes(s); }
constexpr int bwd_at_ds(const BwdShape& s) { return bwd_at_do(s) + s.do_stages * bwd_q_bytes(s); }
constexpr int bwd_at_dq(const BwdShape& s) {
  return bwd_at_ds(s) + (s.ds_stages + (s.wide ? 1 : 0)) * bwd_ds_bytes(s);
}
constexpr int bwd_at_stats(const BwdShape& s) { return bwd_at_dq(s) + (s.wide ? 0 : 2 * 16384); }
// Of a tile of queries, for each place of q: how many rows there are if any of them is far
// (src/far_row.h), else 0; and where lse of the first one is.
constexpr int kBwdFarBytes = 16;
constexpr int bwd_at_far(const BwdShape& s) {
  return bwd_at_stats(s) + (s.q_stages + s.do_stages) * s.br * 4;
}
constexpr int bwd_at_barriers(const BwdShape& s) {
  return bwd_at_far(s) + s.q_stages * kBwdFarBytes;
}
constexpr int bwd_shared_bytes(const BwdShape& s) {
  return bwd_at_barriers(s) + (1 + 2 * (s.q_stages + s.do_stages)) * 8;
}

// Of heads up to 128, where nothing else takes the room: a second place for a tile of d_q, which another warp adds.
constexpr int bwd_second_dq_bytes(const BwdShape& s) { return s.wide ? 0 : 2 * 16384; }
// What a workgroup works on, of those that go on to further tiles of keys (cuda/sm90/bwd_goes_on.cuh): a barrier, and three words.
constexpr int kBwdNowBytes = 24;
constexpr int bwd_plain_shared_bytes(const BwdShape& s) {
  return bwd_shared_bytes(s) + bwd_second_dq_bytes(s) + (s.wide ? 0 : kBwdNowBytes);
}
// Zeros under the sums of d_q (cuda/sm90/bwd_zeros.cuh) come by so many bytes: a store of a warp, or a copy.
constexpr int kZeroBytes = 512;
// With a dense bias: tiles of it, whose places dS takes over, and further ones beside those for dS; three barriers each. What a workgroup
// works on, and two barriers and a word about what comes next. And zeros, at a multiple of 16 bytes, to be copied.
constexpr int bwd_bias_stages(const BwdShape& s) { return s.br * s.bc > 64 * 128 ? 1 : 2; }
constexpr int bwd_bias_places(const BwdShape& s) { return s.ds_stages + bwd_bias_stages(s); }
constexpr int bwd_bias_zeros_at(const BwdShape& s) {
  return (bwd_shared_bytes(s) + bwd_bias_stages(s) * bwd_ds_bytes(s) + 3 * bwd_bias_places(s) * 8 +
          kBwdNowBytes + 20 + 15) /
         16 * 16;
}
constexpr int bwd_bias_shared_bytes(const BwdShape& s) { return bwd_bias_zeros_at(s) + kZeroBytes; }
// With elastic softmax: per place for q, what tau adds to the weights of a row, and the distance bias of the tile's diagonals;
// barriers of dS.
constexpr int bwd_elastic_bytes(const BwdShape& s) { return s.q_stages * (s.br + s.br + s.bc) * 4; }
constexpr int bwd_elastic_shared_bytes(const BwdShape& s) {
  return bwd_shared_bytes(s) + bwd_elastic_bytes(s) + 2 * s.ds_stages * 8;
}
// With lengths: a barrier.
// And softcap and ALiBi, which keep numbers of each element.
constexpr bool has_full_kernel(const BwdShape& s) { return !s.wide && s.br <= 64; }
constexpr int bwd_lengths_shared_bytes(const BwdShape& s) {
  return bwd_shared_bytes(s) + bwd_second_dq_bytes(s) + 8;
}
// And masks, dropout and a distance bias: bits of tiles, what softcap leaves of gradients, and words about the walk.
constexpr int kBwdWalkBytes = 48;
constexpr int bwd_all_left_bytes(const BwdShape& s) { return s.br * s.bc * 2; }
constexpr int bwd_all_bytes(const BwdShape& s) {
  return bwd_all_left_bytes(s) + bits_bytes(s.br) + kBwdWalkBytes;
}
constexpr bool has_all_kernel(const BwdShape& s) {
  return has_full_kernel(s) && s.bc == kBitsKeys &&
         bwd_shared_bytes(s) + 8 + bwd_all_bytes(s) <= kMaxShared;
}
// Where there are registers for what changes scores, too.
constexpr bool has_all_scores(const BwdShape& s) { return has_all_kernel(s) && s.d <= 96; }
constexpr int bwd_all_shared_bytes(const BwdShape& s) {
  return has_all_kernel(s) ? bwd_shared_bytes(s) + 8 + bwd_all_bytes(s) : 0;
}
constexpr int kMaxCluster = 8;  // workgroups, on every device

// The sums of d_q: per head of the batch, blocks of 64 rows x 64 features, panels innermost; in a block the elements
// lie as the accumulators of a product do (cuda/sm90/wgmma.cuh): 128 threads' first float4, their second, and so on.
constexpr int kSumsBlock = 64 * 64;
constexpr int64_t bwd_query_tiles(const BwdShape& s, int64_t seq_q) {
  return (seq_q + s.br - 1) / s.br;
}
constexpr int64_t bwd_row_blocks(const BwdShape& s, int64_t seq_q) {
  return bwd_query_tiles(s, seq_q) * (s.br / 64);
}
constexpr int64_t bwd_sums_bytes(const BwdShape& s, int64_t batch_heads, int64_t seq_q) {
  return batch_heads * bwd_row_blocks(s, seq_q) * bwd_panels(s) * kSumsBlock * 4;
}
// Of packed queries: tiles that a head has sums of, those of an entry from tile first row / br + entry on.
constexpr int64_t bwd_packed_tiles(const BwdShape& s, int64_t total_q, int64_t batch) {
  return total_q / s.br + batch;
}
// A number per block of 64 rows: how many tiles of keys have added theirs.
constexpr int64_t bwd_turns_bytes(const BwdShape& s, int64_t batch_heads, int64_t seq_q) {
  return batch_heads * bwd_row_blocks(s, seq_q) * 4;
}
// A number per head of keys: how many of its tiles have added all of theirs.
constexpr int64_t bwd_counts_bytes(int64_t batch, int64_t heads_kv) { return batch * heads_kv * 4; }
// Two numbers per head of keys: of the shares of its sums, how many somebody has begun to zero, and how many are zero.
constexpr int64_t bwd_ahead_bytes(int64_t batch, int64_t heads_kv) { return batch * heads_kv * 8; }
// Sums of a head of keys that its last workgroup rounds; more of them are rounded faster by all multiprocessors. With a dense bias,
// masks or dropout (and of f32 on sm80) a launch of its own is faster, by 4 us of 256 KiB a head, but a small problem has fewer launches
// to record: so few of a head, and of all.
constexpr int64_t kRoundedBytes = 1 << 20, kFewRoundedBytes = 1 << 18, kAllRoundedBytes = 4 << 20;
// A number per head of keys: how many of its tiles, of all entries, are done; who comes last sums d_slope and d_sink.
constexpr int64_t bwd_head_counts_bytes(int64_t heads_kv) { return heads_kv * 4; }

// Parts of d_dist_bias that bwd_dkv_ddist's workgroups leave: of each head of keys who comes last adds them up, in order. Two warps
// do, each for the entries that the same warps of the others left, so there are two counts of who has come. With more than this to
// add for a thread, bwd_sum is faster.
constexpr int64_t sum_counts_bytes(int64_t heads_kv) { return 2 * heads_kv * 4; }
constexpr bool sums_at_once(int64_t entries, int64_t parts) { return entries * parts <= 64; }

// ---- bwd_row_dq of elastic softmax: 128 queries a workgroup, kBwdThreads threads; boxes of k and v have bc rows ----
struct RowShape {
  int d, br, bc, stages;
};
constexpr RowShape kRowShapes[] = {{64, 128, 128, 2}, {128, 128, 64, 2}};
constexpr int kRowShapeCount = int(sizeof(kRowShapes) / sizeof(kRowShapes[0]));
// Q and dO, places for K and V, the distance bias of a tile's diagonals for each, barriers.
constexpr int row_at_k(const RowShape& s) { return 2 * s.br * s.d * 2; }
constexpr int row_at_dist(const RowShape& s) { return row_at_k(s) + 2 * s.stages * s.bc * s.d * 2; }
constexpr int row_at_barriers(const RowShape& s) {
  return row_at_dist(s) + s.stages * (s.br + s.bc) * 4;
}
constexpr int row_shared_bytes(const RowShape& s) {
  return row_at_barriers(s) + (1 + 4 * s.stages) * 8;
}

// ---- bwd_dq, heads over 128: 128 queries a workgroup, kBwdThreads threads; boxes of k and v have bc rows ----
struct DqShape {
  int d, br, bc, k_stages, v_stages;
};
constexpr DqShape kDqShapes[] = {{192, 128, 64, 2, 2}, {256, 128, 64, 2, 1}};
constexpr int kDqShapeCount = int(sizeof(kDqShapes) / sizeof(kDqShapes[0]));
// Q and dO, places for K and for V, barriers.
constexpr int dq_at_k(const DqShape& s) { return 2 * s.br * s.d * 2; }
constexpr int dq_at_barriers(const DqShape& s) {
  return dq_at_k(s) + (s.k_stages + s.v_stages) * s.bc * s.d * 2;
}
constexpr int dq_shared_bytes(const DqShape& s) {
  return dq_at_barriers(s) + (2 + 2 * (s.k_stages + s.v_stages)) * 8;
}

// ---- bwd_row of entmax: 64 queries for each of `groups` warpgroups; boxes of q and d_o have br() rows, of k and v bc ----
struct SupportShape {
  int d, groups, bc, stages;
  constexpr int br() const { return 64 * groups; }
  constexpr int threads() const { return 128 * (groups + 1); }
};
constexpr SupportShape kSupportShapes[] = {{64, 3, 128, 3}, {128, 2, 128, 2}};
constexpr int kSupportShapeCount = int(sizeof(kSupportShapes) / sizeof(kSupportShapes[0]));
// Up to 1,023 bytes to begin at a multiple of 1,024, Q and dO, places for K and V, a bit a tile of keys, barriers.
constexpr int support_at_k(const SupportShape& s) { return 2 * s.br() * s.d * 2; }
constexpr int support_at_words(const SupportShape& s) {
  return support_at_k(s) + 2 * s.stages * s.bc * s.d * 2;
}
constexpr int support_at_barriers(const SupportShape& s) {
  return support_at_words(s) + s.groups * kSupportWords * 4;
}
constexpr int support_shared_bytes(const SupportShape& s) {
  return 1024 + support_at_barriers(s) + (1 + 4 * s.stages) * 8;
}
// What bwd_row leaves for bwd_dkv_dq: of each block of 64 rows a bit for each of the first kSupportTiles tiles of
// kSupportKeys keys, whether they have support there. Further tiles are always visited.
constexpr int kSupportKeys = 128;
constexpr int64_t support_words(int64_t seq_kv) {
  const int64_t words = (seq_kv + 32 * kSupportKeys - 1) / (32 * kSupportKeys);
  return words < kSupportWords ? words : kSupportWords;
}
constexpr int64_t support_blocks(int64_t seq_q) { return (seq_q + 63) / 64; }

constexpr int kCastGroup = 128;  // threads of bwd_dq_cast, which takes a block

// ---- what every row must hold to ----
constexpr bool hopper_tiles_fit() {
  for (const FwdTile& t : kFwdTiles)
    if (fwd_shared_bytes(t) > kMaxShared || t.bc % 16 != 0 || t.rows() > 256 || t.d > 256 ||
        t.dv > 256)
      return false;
  for (const BwdShape& s : kBwdShapes)
    if (bwd_shared_bytes(s) > kMaxShared || (!s.wide && bwd_bias_shared_bytes(s) > kMaxShared) ||
        (!s.wide && bwd_lengths_shared_bytes(s) > kMaxShared) || s.br % 64 != 0 || s.bc % 16 != 0 ||
        s.br > 256 || s.bc > 256)
      return false;
  for (const RowShape& r : kRowShapes)
    if (row_shared_bytes(r) > kMaxShared || r.br > 256 || r.bc > 256) return false;
  for (const BwdShape& s : kBwdShapes)
    if (s.wide != (s.d > kNarrowHeads)) return false;
  for (const DqShape& r : kDqShapes)
    if (dq_shared_bytes(r) > kMaxShared || r.br > 256 || r.bc > 256) return false;
  for (const SupportShape& r : kSupportShapes)
    if (support_shared_bytes(r) > kMaxShared || r.br() > 256 || r.bc != kSupportKeys) return false;
  for (const BwdShape& s : kBwdShapes)
    if (!s.wide && s.bc != kSupportKeys) return false;
  return true;
}
static_assert(hopper_tiles_fit(),
              "a row needs more shared memory than there is, or boxes of more "
              "than 256 rows, or is none of whole matrices");

}  // namespace tandem
#endif
