// SPDX-License-Identifier: MIT OR Apache-2.0
// Stream-K of the forward with a dense bias on Hopper: the tiles that do not fill whole waves are
// split by steps of the KV loop. The planner, the kernels and the tests include this.
#ifndef TANDEM_SRC_PLAN_SM90_FWD_STREAM_K_H
#define TANDEM_SRC_PLAN_SM90_FWD_STREAM_K_H
#include <cstdint>

#include "tiles.h"

namespace tandem {

// If all tiles take equally long, each workgroup takes the same number of whole tiles. The other
// tiles, between one and two for each workgroup, are split by steps. Each worker has a contiguous
// range of the steps, and ranges are equal to within one step, so a tile belongs to one worker or
// to two. A unit consists of tiles of different batch entries with the same rows of the bias. As
// many workgroups take a unit together, so that they still read the same tile of the bias at a
// time.
struct FwdStreamK {
  int units, unit;      // 0: no tile is shared
  int short_tiles = 0;  // fwd_short_tiles()
};
// Stream-K pays only if a tile has at least so many steps, and if workgroups would otherwise idle
// for a quarter of a step or more, on average. Writing and combining partial results takes time.
constexpr int64_t kStreamKMinSteps = 4;
constexpr int64_t common_divisor(int64_t a, int64_t b) {
  return b == 0 ? a : common_divisor(b, a % b);
}
// total: tiles of `steps` steps each; groups: workgroups.
constexpr FwdStreamK fwd_stream_k(int64_t total, int64_t groups, int64_t batch, int64_t steps) {
  if (groups < 2 || total < groups || total % groups == 0) return {0, 0};
  const int64_t unit = common_divisor(groups, batch), workers = groups / unit;
  const int64_t units = (total - (total / groups - 1) * groups) / unit;
  const int64_t idle = (2 * groups - units * unit) * steps;
  if (workers < 2 || units * steps >= int64_t(1) << 30 || steps < kStreamKMinSteps ||
      4 * idle < groups)
    return {0, 0};
  return {int(units), int(unit)};
}

// Number of short tiles that the workgroups take last; 0: short tiles come like others. The
// last tile of a head may have rows for some of the warpgroups only, and then takes less time.
// Short tiles that come last fill whole waves of their own, which have to cost less. A tile in
// which n warpgroups have rows takes (1 + n) / (1 + warpgroups) of the time.
constexpr int64_t fwd_short_tiles(const FwdTile& t, int64_t heads, int64_t rows, int64_t groups,
                                  int64_t steps) {
  const int64_t tiles = (rows + t.rows() - 1) / t.rows();
  const int64_t at_work = (rows - (tiles - 1) * t.rows() + 63) / 64;
  const int64_t rounds = (heads + groups - 1) / groups;
  const bool worth = rounds * groups * (1 + at_work) < heads * (1 + t.warpgroups);
  return worth && steps >= kStreamKMinSteps && heads * (tiles - 1) >= groups ? heads : 0;
}

// Shares of the workers. A worker is a workgroup, or as many as a unit has tiles. The first piece
// of its range may begin within a tile, and then has the later keys. The last piece may end within
// a tile, and then has the earlier keys. Any other piece is a whole tile. steps: of a tile; each:
// of a share; the first `longer` shares have one step more.
struct FwdStreamKShares {
  int steps, each, longer;
};
constexpr FwdStreamKShares fwd_stream_k_shares(const FwdStreamK& stream_k, int steps, int groups) {
  if (stream_k.units == 0) return {steps, 0, 0};
  const int workers = groups / stream_k.unit;
  return {steps, stream_k.units * steps / workers, stream_k.units * steps % workers};
}
struct FwdStreamKRange {
  int from, to;     // steps, counted over all units
  int first, many;  // unit of the first piece; number of pieces
};
constexpr int kStreamKMaxPieces = 3;  // a share is shorter than two tiles
struct FwdStepRange {
  int begin, end;
};
#ifdef __CUDACC__
#define TANDEM_STREAM_K __host__ __device__ constexpr
#else
#define TANDEM_STREAM_K constexpr
#endif
TANDEM_STREAM_K FwdStreamKRange fwd_stream_k_range(const FwdStreamKShares& s, int worker) {
  const int from = worker * s.each + (worker < s.longer ? worker : s.longer);
  const int to = from + s.each + (worker < s.longer ? 1 : 0), first = from / s.steps;
  const int whole = to - (first + 1) * s.steps;  // steps behind the first tile
  return {from, to, first, 1 + (whole > 0) + (whole > s.steps)};
}
TANDEM_STREAM_K FwdStepRange fwd_stream_k_steps(const FwdStreamKRange& p, int n, int steps) {
  const int tile = (p.first + n) * steps;
  return {p.from > tile ? p.from - tile : 0, p.to < tile + steps ? p.to - tile : steps};
}
#undef TANDEM_STREAM_K

// Partial result of the first of two workers that ends a tile: accumulators and two numbers a row,
// f32, of whole warps, and a 64-bit flag for each warp. There is room for one between any two
// consecutive workers, and for one that is never used.
constexpr int64_t fwd_partial_floats(const FwdTile& t) { return t.rows() * (t.dv + 2); }
constexpr int64_t fwd_partial_flags(const FwdTile& t) { return t.rows() / 16; }

}  // namespace tandem
#endif
