// SPDX-License-Identifier: MIT OR Apache-2.0
// What the path cuda.sm90 decides by measured times, on an H100 (132 SMs), beside what it leaves to
// others (rules.h). The order of tiles.inc, and its columns from and to, are measured as well.
// Notebook: bench/lab/2026-11.md. Whether stream-K and short tiles pay: fwd_stream_k.h; schedule of
// clusters: bwd_cluster_schedule.h.
#ifndef TANDEM_SRC_PLAN_SM90_HEURISTICS_H
#define TANDEM_SRC_PLAN_SM90_HEURISTICS_H
#include <algorithm>

#include "plan/launch.h"
#include "rows.h"
#include "tiles.h"

namespace tandem {

// Whether a bias of one row for all queries is read as tiles nevertheless: a forward with a mask is
// 6 to 10 % faster by them (H100, causal, D 64 and 128). wide: heads over 128.
inline bool prefers_bias_tiles(const Problem& p, bool wide) {
  return !p.backward && p.banded() && !wide && p.inputs() == kHasBias && p.bias.dtype == p.dtype &&
         p.scale > kPlainScale;
}

// Whether the workgroups of bwd_dkv_dq are persistent, one a SM, with a dynamic tile scheduler:
// from so many tiles of keys for each SM on. They leave the dQ postprocess to bwd_dq_cast. S 1024,
// D 64 0.843 ms instead of 0.889, D 128 0.784 instead of 0.809; S 4096 1.2 % less ("Backward:
// persistent workgroups").
constexpr int64_t kBwdKeys = 128;  // of a tile
constexpr int64_t kPersistentTilesPerSm = 4;
bool is_persistent(const Problem& p, int64_t cores);

// Parts of the tiles of keys (bwd_parts.h), for plain softmax without persistent workgroups. The
// number of parts is the one with which the last workgroup ends soonest, where SMs take workgroups
// in order. Times are in tenths of what a pair of the Q loop takes, 2 to 2.7 us: a workgroup has
// two pairs more for its prologue and epilogue, one that shares a tile one more to store its
// partial sums and half of one for each part to add them, at up to 128 KiB a part. Tiles have no
// parts, and their present order, unless the gain is a sixteenth or more. 71 query heads of one kv
// head, S 2048, D 64, causal, B 4: 64 workgroups of up to 1136 pairs become 500 of up to 82, which
// end after 0.30 of the time. 64 query heads of 8, S 4096, D 128, causal: 256 workgroups, the
// longest ones of all heads first, end after 0.63 of the time. 64 heads, Sq 4096, Sk 77, D 40: 128
// workgroups in place of 64, after 0.59 of the time. These are predictions, not measured times. In
// a deterministic order tiles of keys add to the same rows one after another, a fixed time for
// each; with a mask, parts of different tiles would wait for each other, so several tiles have
// none.
constexpr int64_t kMaxPartialBytes = 64 << 20;           // of partial sums in the workspace
constexpr int64_t kMaxTwoSidedPartialBytes = 256 << 20;  // beside a dQ accumulator of its heads
constexpr int64_t kMaxPartRows = 1 << 30;                // of a kv head, so that pairs are an int
BwdParts bwd_parts(const Problem& p, int64_t cores, const BwdShape& shape);

// Cooperative dQ postprocess, by all workgroups of a head, if all workgroups run at once: up to
// kCooperativeBytes of the accumulator for each, or what the last workgroup of a head would convert
// alone. 2 heads, D 128, S 512 0.0272 ms instead of 0.0315, S 2048 0.0757 instead of 0.0993. With a
// mask few workgroups are left when the last one ends, so the limit is lower ("dQ postprocess of
// few workgroups").
constexpr int64_t kCooperativeBytes = 1 << 17, kMaskedCooperativeBytes = 1 << 16;
bool uses_cooperative_postprocess(const Problem& p, int64_t cores, const BwdParts& parts = {});

// Whether bwd_dkv_dq converts the dQ accumulator itself, without bwd_dq_cast: the last workgroup of
// a head does, or those of a head together. The largest accumulator of a kv head is
// kPostprocessBytes, as a larger one is converted faster by all SMs. With a dense bias, masks or
// dropout the last workgroup is short of registers, and a launch of its own is faster, by 4 us for
// 256 KiB a head. A small problem has fewer launches to record, though: a small limit for a head,
// and one for all heads.
constexpr int64_t kPostprocessBytes = 1 << 20, kFewPostprocessBytes = 1 << 18,
                  kAllPostprocessBytes = 4 << 20;
bool fuses_dq_postprocess(const Problem& p, int64_t cores, const BwdParts& parts = {});

// Lazy zero-initialisation (Sm90Launch::eager_zero_heads), without a bias and with one of the whole
// batch. One head more than run at a time, so that a slice is zero long before a workgroup adds to
// it ("Backward: lazy zeros with a bias, and shares of the clusters"). tiles: of keys of a head;
// interleaved_heads: Sm90Launch::interleaved_heads.
int64_t eager_zero_heads(const Problem& p, int64_t cores, int64_t tiles, int64_t interleaved_heads);
int64_t eager_zero_heads_per_entry(const Problem& p, int64_t cores, int64_t tiles);

// Deterministic dQ semaphores: how many heads have their tiles of keys interleaved. Workgroups that
// add to the same rows then start one after another, each later by the time that one add takes,
// about 1.2 times that of a tile's products. With a mask to the right (not open) each tile of keys
// starts at queries of its own, where it is the first to add. q_tiles: query tiles of a Q loop. D
// 64, S 1024: a fixed order costs 2 % instead of 27, D 128 6 instead of 30 ("Backward: the cost of
// a fixed order").
inline int64_t interleaved_heads(bool open, int64_t cores, int64_t tiles, int64_t q_tiles) {
  const int64_t least = tiles < q_tiles ? tiles : q_tiles;
  return open && least > 0 && 5 * cores >= 8 * least ? 5 * cores / (4 * least) : 1;
}

// Where tiles of all heads run side by side (bwd_parts()): whether each workgroup visits all query
// heads of a query tile before the next tile. Otherwise L2 would have to hold the rows of all query
// heads of a kv head. H200: 64 heads of 8, S 4096, D 128, causal, 34 MB, 1.43 ms for 1.59; 71 of 1,
// S 2048, D 64, 74 MB, 1.12 for 1.23; but 32 of 8, S 2048, D 128, 8 MB, 0.251 for 0.239.
constexpr int64_t kRowsOfManyHeads = 16 << 20;
inline bool visits_heads_inside(const Problem& p) {
  const int64_t row = 2 * (p.head_dim + p.head_dim_v) + 4 * p.head_dim;  // q, d_o, d_q's sums
  return p.group() > 1 && p.group() * p.seq_q * row >= kRowsOfManyHeads;
}

// Whether two-CTA clusters take part, in passes, where d_bias is summed over the batch. kv_tiles:
// tiles of keys of all heads. B 4, D 64: S 2048 1.110 ms instead of 1.152, S 4096 3.93 instead of
// 4.21 ("A dense bias, forward and backward").
bool uses_two_cta_clusters(const Problem& p, int64_t kv_tiles);

// How many workgroups or clusters share the keys of a work tile of heads over 256: as many as end
// soonest. Times are in steps of the KV loop, some 3 us. A work tile takes one step more, for its
// prologue and epilogue. The combine takes one, and one for each kStepBytes that the parts of o are
// written and read. A part has kSplitSteps steps or more. These are predictions, not measured
// times: 128 rows of 576 features and 32,768 keys, 64 parts of 4 steps. at_once: work tiles that
// the device has room for; steps: of the tile with most; outputs: elements of o.
constexpr int64_t kSplitSteps = 4, kSplitWaves = 4, kStepBytes = 12 << 20;
inline int64_t halved_splits(int64_t tiles, int64_t at_once, int64_t steps, int64_t outputs) {
  at_once = at_once > 0 ? at_once : 1;
  const auto waves = [&](int64_t n) { return (tiles * n + at_once - 1) / at_once; };
  int64_t best = 1;
  auto least = double(waves(1) * (steps + 1));
  for (int64_t n = 2; n * kSplitSteps <= steps && waves(n) <= kSplitWaves && tiles > 0; ++n) {
    const double bytes = 2.0 * sizeof(float) * double(n) * double(outputs);
    const double time = double(waves(n) * ((steps + n - 1) / n + 1) + 1) + bytes / kStepBytes;
    if (time < least) least = time, best = n;
  }
  return best;
}

// Whether the last workgroup of a kv head does the work of bwd_head_sums. Counting finished
// workgroups takes each of them a microsecond or two: with more workgroups than SMs B 16 H 16 S
// 1024 D 64 takes 0.553 ms instead of 0.522 ("dQ postprocess of few workgroups").
inline bool counts_heads(uint32_t workgroups, int64_t cores) {
  return workgroups <= uint64_t(cores);
}

}  // namespace tandem
#endif
