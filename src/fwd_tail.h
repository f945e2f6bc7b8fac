// SPDX-License-Identifier: MIT OR Apache-2.0
// How the forward with a dense bias on Hopper shares out what whole rounds of tiles leave over, and what of the workspace that
// takes. Planner, kernels and tests include it.
#ifndef TANDEM_SRC_FWD_TAIL_H
#define TANDEM_SRC_FWD_TAIL_H
#include <cstdint>

#include "hopper_tiles.h"

namespace tandem {

// Where tiles are alike, each workgroup takes as many whole ones. The others, between one and two for each, are shared out by
// their steps over the keys: the workgroups' shares are as long as each other, to a step, and follow each other, so that a tile
// belongs to one workgroup, or to two. A unit is that many tiles with the same rows of a bias, of as many batch entries; as many
// workgroups take them side by side, so that they still read the same of it at the same time.
struct FwdTail {
  int units, unit;  // 0: no tile is shared
  int shorts = 0;   // fwd_shorts()
};
// To leave a part for another workgroup and to join two takes time, too: tiles have at least so many steps, and workgroups would do nothing
// for a quarter of a step or more, on average.
constexpr int64_t kTailSteps = 4;
constexpr int64_t common_divisor(int64_t a, int64_t b) {
  return b == 0 ? a : common_divisor(b, a % b);
}
// total: tiles, of so many steps each; groups: workgroups.
constexpr FwdTail fwd_tail(int64_t total, int64_t groups, int64_t batch, int64_t steps) {
  if (groups < 2 || total < groups || total % groups == 0) return {0, 0};
  const int64_t unit = common_divisor(groups, batch), workers = groups / unit;
  const int64_t units = (total - (total / groups - 1) * groups) / unit;
  const int64_t idle = (2 * groups - units * unit) * steps;
  if (workers < 2 || units * steps >= int64_t(1) << 30 || steps < kTailSteps || 4 * idle < groups)
    return {0, 0};
  return {int(units), int(unit)};
}

// The last tile of a head may have rows for some of its warpgroups alone; the others then have nothing to do, and the tile is done sooner.
// Workgroups take these tiles last, where as many whole rounds of them cost less than if they were tiles like others: one with n of
// GROUPS warpgroups takes (1 + n) / (1 + GROUPS) of the time. Their number; 0: they are tiles like others.
constexpr int64_t fwd_shorts(const FwdTile& t, int64_t heads, int64_t rows, int64_t groups,
                             int64_t steps) {
  const int64_t tiles = (rows + t.rows() - 1) / t.rows();
  const int64_t at_work = (rows - (tiles - 1) * t.rows() + 63) / 64;
  const int64_t rounds = (heads + groups - 1) / groups;
  const bool worth = rounds * groups * (1 + at_work) < heads * (1 + t.groups);
  return worth && steps >= kTailSteps && heads * (tiles - 1) >= groups ? heads : 0;
}

// A worker is a workgroup, or as many as a unit has tiles. Of its pieces, a first one that begins within a tile has the tile's later
// keys, a last one that ends within a tile the earlier keys; any other is a tile.
// steps: of a tile; each: of a worker's share, of which the first `longer` ones have one more.
struct FwdShares {
  int steps, each, longer;
};
constexpr FwdShares fwd_shares(const FwdTail& tail, int steps, int groups) {
  if (tail.units == 0) return {steps, 0, 0};
  const int workers = groups / tail.unit;
  return {steps, tail.units * steps / workers, tail.units * steps % workers};
}
struct FwdPieces {
  int from, to;     // in steps of all units
  int first, many;  // the first one's unit; how many
};
constexpr int kTailPieces = 3;  // at most: a share is shorter than two tiles
struct FwdSteps {
  int begin, end;
};
#ifdef __CUDACC__
#define TANDEM_TAIL __host__ __device__ constexpr
#else
#define TANDEM_TAIL constexpr
#endif
TANDEM_TAIL FwdPieces fwd_pieces(const FwdShares& s, int worker) {
  const int from = worker * s.each + (worker < s.longer ? worker : s.longer);
  const int to = from + s.each + (worker < s.longer ? 1 : 0), first = from / s.steps;
  const int whole = to - (first + 1) * s.steps;  // behind the first one
  return {from, to, first, 1 + (whole > 0) + (whole > s.steps)};
}
TANDEM_TAIL FwdSteps fwd_piece(const FwdPieces& p, int n, int steps) {
  const int tile = (p.first + n) * steps;
  return {p.from > tile ? p.from - tile : 0, p.to < tile + steps ? p.to - tile : steps};
}
#undef TANDEM_TAIL

// Where one worker's share ends and the next one's begins, there is room for the part of whichever is done first: accumulators and
// two numbers a row, f32, in whole warps; and a word of 64 bits for each of these. One more than there are is never used.
constexpr int64_t fwd_part_floats(const FwdTile& t) { return t.rows() * (t.dv + 2); }
constexpr int64_t fwd_part_words(const FwdTile& t) { return t.rows() / 16; }

}  // namespace tandem
#endif
