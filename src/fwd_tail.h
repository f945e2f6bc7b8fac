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
};
// What a workgroup has to save for that, in steps: to leave a part for another one and to join two takes time, too.
constexpr int64_t kTailSteps = 2;
constexpr int64_t common_divisor(int64_t a, int64_t b) {
  return b == 0 ? a : common_divisor(b, a % b);
}
// total: tiles, of so many steps each; groups: workgroups.
constexpr FwdTail fwd_tail(int64_t total, int64_t groups, int64_t batch, int64_t steps) {
  if (groups < 2 || total < groups || total % groups == 0) return {0, 0};
  const int64_t unit = common_divisor(groups, batch), workers = groups / unit;
  const int64_t units = (total - (total / groups - 1) * groups) / unit;
  const int64_t before = 2 * steps, after = (units * steps + workers - 1) / workers;
  if (workers < 2 || total % unit != 0 || units * steps >= int64_t(1) << 30 ||
      before - after < kTailSteps)
    return {0, 0};
  return {int(units), int(unit)};
}

// A worker is a workgroup, or as many as a unit has tiles. Of its pieces, a first one that begins within a tile has the tile's later
// keys, a last one that ends within a tile the earlier keys; any other is a tile.
struct FwdPieces {
  int from, to;     // in steps of all units
  int first, many;  // the first one's unit; how many
};
#ifdef __CUDACC__
#define TANDEM_TAIL __host__ __device__ constexpr
#else
#define TANDEM_TAIL constexpr
#endif
TANDEM_TAIL FwdPieces fwd_pieces(int units, int steps, int workers, int worker) {
  const int each = units * steps / workers, longer = units * steps % workers;
  const int from = worker * each + (worker < longer ? worker : longer);
  const int to = from + each + (worker < longer ? 1 : 0), first = from / steps;
  return {from, to, first, (to + steps - 1) / steps - first};
}
constexpr int kTailPieces = 3;  // at most: a share is shorter than two tiles
struct FwdSteps {
  int begin, end;
};
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
