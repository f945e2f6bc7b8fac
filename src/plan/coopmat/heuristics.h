// SPDX-License-Identifier: MIT OR Apache-2.0
// What the matrix paths of Vulkan decide by measured times. The order of tiles.inc has its
// figures there. Notebook: bench/lab/2026-11.md.
#ifndef TANDEM_SRC_PLAN_COOPMAT_HEURISTICS_H
#define TANDEM_SRC_PLAN_COOPMAT_HEURISTICS_H
#include <algorithm>

#include "plan/heuristics.h"
#include "plan/planner.h"
#include "rules.h"

namespace tandem {

constexpr int kSumRows = 128, kSumKeys = 64;  // of most tiles that sum

// Whether bwd_dq sums dS over the batch in the workspace, where the batch shares one bias. The
// tiles of the heads, of kSumRows rows, have to fill the device. The sums, a tile for each
// workgroup that runs, may have at most four times as many elements as d_q. Neither limit was
// measured.
inline bool sums_pay(const Problem& p, int64_t cores) {
  return double(cores) * kSumRows * double(ceil_div(p.seq_kv, kSumKeys) * kSumKeys) <=
             4.0 * double(p.batch * p.heads_q * p.seq_q) * double(p.head_dim) &&
         p.heads_q * ceil_div(p.seq_q, kSumRows) >= cores;
}

// Largest size of dS in the workspace, in bytes, and the head size up to whose tiles dS is shared
// only where bwd_dbias would form it a third time.
constexpr int64_t kDsBytes = int64_t(256) << 20;
constexpr int kDsWidth = 64;
// How many times a chunk has to fill the device; and with heads of 65 to 112 under a band. Chunks
// wait for each other, where without them bwd_dkv and bwd_dq run side by side
// (coopmat_rule::chunks_of_ds).
constexpr double kDsFills = 1.9, kDsFillsNarrowBand = 3.8;

// How many of `heads` kv heads have their dS in the workspace at a time (a chunk), in whole steps;
// 0: dS is not shared. bwd_dq multiplies this dS with k, so S and dP are not formed twice. That
// pays where a product costs more than reading and writing dS (H100: heads over 64), or where
// bwd_dbias would form both as well. bytes: of the dS of a kv head; tiles: tiles of keys of a head;
// least: workgroups that a chunk has to have, unless it holds all heads.
inline int64_t ds_heads(int64_t heads, int64_t step, int64_t bytes, int64_t tiles, double least) {
  const int64_t most = kDsBytes / std::max<int64_t>(bytes * step, 1) * step;
  if (most >= heads) return heads;
  if (most == 0 || double(most * tiles) < least) return 0;
  const int64_t steps = heads / step, chunks = ceil_div(heads, most);
  return ceil_div(steps, chunks) * step;
}

// Heads of a launch that belong to so many kv heads: those with dS, or with a d_bias of their own.
inline int64_t chunk_heads(const Problem& p, Stem stem, int64_t kv_heads) {
  if (stem == Stem::bwd_dkv) return kv_heads;
  const bool sums = stem == Stem::bwd_dbias && p.bias.batch == 1;
  return kv_heads * p.group() / (sums ? p.batch : 1);
}

// How many workgroups share the query rows of a tile of keys in bwd_dkv, each with at least
// kPartTiles tiles of query rows: where the tiles of keys of all kv heads leave half of the compute
// units idle. groups: tiles of keys; members: tiles of query rows of a group's heads.
constexpr int64_t kPartTiles = 8;
inline uint32_t dkv_parts(int64_t groups, int64_t members, int64_t cores) {
  return 2 * groups > cores ? 1 : splits_of_sum(groups, members / kPartTiles, cores);
}

// How many of bias, distance bias, ALiBi, keep, spans, softcap and dropout a problem may have for
// lean tiles, where few_registers chooses them. More spill over 32 registers (Battlemage, Mesa
// 26.1.6).
constexpr uint32_t kLeanInputs =
    kHasBias | kHasDistBias | kHasAlibi | kHasKeep | kHasSpans | kHasSoftcap | kHasDropout;
constexpr int lean_inputs(int64_t width) { return width > 64 ? 1 : 3; }

// Elements of S that a head has with a tile, those included that do not exist.
inline double padded_work(int64_t own, int64_t streamed, int rows, int cols) {
  return double(ceil_div(own, rows) * rows) * double(ceil_div(streamed, cols) * cols);
}
// Whether the next tile of fewer rows is faster, as its work is less by this factor
// (coopmat_rule::narrow_tiles). Heads with many tiles stay with the wide one. Narrow workgroups are
// half as large, so there have to be two for each core.
inline bool narrow_pays(Stem stem, int64_t width, bool bias, double tiles, double factor,
                        double groups, int64_t cores) {
  if (groups < 2.0 * double(cores)) return false;
  if (stem == Stem::bwd_dq) return width <= 64 && factor > 1.05;
  if (stem != Stem::fwd && stem != Stem::bwd_dkv) return false;
  if (tiles > 2.25) return false;
  return factor > (width > 64 ? 1.4 : bias && stem == Stem::fwd ? 1.05 : 1.25);
}

// The loop of fwd that is made for products and exponentials (shaders/coopmat/fwd_plain.glsl),
// where it takes a problem and is the faster one.
MatrixLaunch::PlainLoop plain_loop(const Problem& p, const Caps& caps, const Launch& l);
// Whether that loop is faster than the other one (coopmat_rule::plain_loop). With two blocks of
// rows a subgroup it is for masked tiles and ends alone. Heads over 192, which have no room for a
// second set of staging registers, have it for masked tiles alone. ends: the last tile may have
// fewer keys.
inline bool plain_loop_pays(const Problem& p, int row_blocks, bool ends) {
  return p.banded() || (row_blocks > 1 ? ends : std::max(p.head_dim, p.head_dim_v) <= 192);
}

// Whether a tile is not half empty. Of tiles that all are, the one with the fewest rows is best.
// Not measured.
constexpr bool fills_tile(int64_t length, int rows) { return length * 2 > rows; }

}  // namespace tandem
#endif
