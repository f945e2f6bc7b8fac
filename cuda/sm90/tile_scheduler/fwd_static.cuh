// SPDX-License-Identifier: MIT OR Apache-2.0
// The static tile scheduler of the forward kernels.
#ifndef TANDEM_CUDA_SM90_TILE_SCHEDULER_FWD_STATIC_CUH
#define TANDEM_CUDA_SM90_TILE_SCHEDULER_FWD_STATIC_CUH
#include <climits>

#include "../fwd/work_tile.cuh"
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Static tile scheduler: the work tiles of this workgroup. Tiles of a head follow each other, so
// that workgroups that run at a time share its K and V.
//
// Without a mask tiles take equally long, and the scheduler deals them in order. Where later tiles
// take longer, a workgroup takes the last and the first, then the last but one and the second, and
// so on: any two pairs take equally long. The pairs end less than two waves before the end.
// The scheduler then deals single tiles, the longest of all heads first, and every other wave
// backwards.
//
// With a dense bias and equal tiles, the first tiles are stream-K.
//
// The band says at run time whether tiles are equal, so next() has all of this. As types of their
// own, pairs, single tiles and stream-K get other machine code
// (bench/lab/2026-11/sm90_merged_loops.txt).
template <typename S>
struct StaticTileScheduler {
  using Tile = FwdWorkTile;
  const FwdBlock& u;
  const uint& first_head;                      // of the launch, whose heads u.total counts
  const FwdStreamKParams* stream_k = nullptr;  // with a dense bias
  // Twice the wave, plus 1 for the second tile of a pair. With a bias and equal tiles: how many
  // tiles the workgroup has taken.
  uint position = 0;

  template <typename Params>
  TANDEM_DEVICE explicit StaticTileScheduler(const Params& params)
      : u(params.block), first_head(params.first_head) {
    if constexpr (std::is_same_v<Params, FwdBiasParams>) stream_k = &params.stream_k;
  }
  TANDEM_DEVICE TandemBand band() const {
    return TandemBand{u.band_left, u.band_right, u.band_off};
  }
  // Workgroups, or clusters whose workgroups have the same tiles, and which one this is.
  TANDEM_DEVICE static uint groups() { return gridDim.x / TileCluster<S>::value; }
  TANDEM_DEVICE static uint group() { return blockIdx.x / TileCluster<S>::value; }
  // Stream-K (src/plan/sm90/fwd_stream_k.h): the range of steps that this workgroup takes of shared
  // tiles. These come first, so that partial results are combined while other work is left. The
  // range is computed again at each use: kept across products, it would take registers.
  TANDEM_DEVICE FwdStreamKRange stream_k_range() const {
    return fwd_stream_k_range(stream_k->shares, int(blockIdx.x) / opaque(stream_k->unit));
  }
  TANDEM_DEVICE bool next(Tile* at) {
    const bool equal = (u.band_right == TANDEM_BAND_OPEN) == (u.band_left == TANDEM_BAND_OPEN);
    for (;;) {
      const uint tiles = u.tiles, heads = u.total / tiles, pairs = (tiles + 1) / 2;
      const uint waves = equal ? 0 : heads * pairs / groups();  // of pairs
      const uint paired = waves < 3 ? 0 : waves - 1;
      uint tile, head;
      FwdStepRange part{0, INT_MAX};
      if (S::BIAS && equal) {
        if constexpr (S::BIAS) {
          const int n = int(position++);
          uint index = uint(n) * gridDim.x + blockIdx.x;
          if (stream_k->units > 0) {
            const FwdStreamKRange range = stream_k_range();
            index += uint(stream_k->units * stream_k->unit) - uint(range.many) * gridDim.x;
            if (n < range.many) {
              part = fwd_stream_k_steps(range, n, stream_k->shares.steps);
              index = uint((range.first + n) * stream_k->unit) + blockIdx.x % uint(stream_k->unit);
            }
          }
          if (index >= u.total) return false;
          // The last tiles of all heads may come last (src/plan/sm90/fwd_stream_k.h).
          const uint whole = u.total - uint(stream_k->short_tiles);
          const bool is_short = index >= whole;
          const uint each = is_short ? 1 : stream_k->short_tiles > 0 ? tiles - 1 : tiles;
          if (is_short) index -= whole;
          // Batch entries often share a bias: those that read the same tile of it run at a time.
          const uint row = index / uint(stream_k->batches), of_batch = row / each;
          tile = is_short ? tiles - 1 : row - of_batch * each;
          head = (index - row * uint(stream_k->batches)) * uint(u.heads_q) + of_batch;
        }
      } else if (position / 2 < paired) {
        const uint index = position / 2 * groups() + group();
        head = index / pairs;
        const uint pair = index - head * pairs;
        tile = position % 2 ? pair : tiles - 1 - pair;
        position += pair == tile && position % 2 == 0 ? 2 : 1;
      } else {
        const uint wave = position / 2 - paired, first = wave * groups();
        // The head that the pairs have reached, and how many of its tiles they took from each end.
        const uint begin = paired * groups() / pairs, taken = paired * groups() - begin * pairs;
        if (first >= u.total - begin * tiles) return false;
        const bool back = !equal && wave % 2 == 1;
        const uint index = first + (back ? groups() - 1 - group() : group());
        position += 2;
        if (index >= u.total - begin * tiles) continue;
        const uint each = equal ? tiles : heads - begin, many = index / each,
                   rest = index - many * each;
        tile = equal ? rest : tiles - 1 - many;
        head = equal ? many : begin + rest;
        if (head == begin && (tile < taken || tile + taken >= tiles)) continue;
      }
      at->index = first_head + head;
      at->row0 = int(tile) * S::M;
      at->span = tandem_key_tiles(band(), at->row0, S::M, S::N, u.seq_q, u.seq_kv);
      if (S::BIAS) {
        at->span.begin = max(at->span.begin, part.begin);
        at->span.end = min(at->span.end, part.end);
        at->span.full_begin = max(at->span.full_begin, part.begin);
      }
      return true;
    }
  }
};

// The same for elastic softmax. Where later rows see more keys, the rows that pad a head to whole
// tiles lie before its first row, not after its last one. All tiles lie that much earlier, by whole
// blocks of 64 rows.
template <typename S>
struct ElasticTileScheduler {
  using Tile = FwdWorkTile;
  StaticTileScheduler<S> scheduler;
  TANDEM_DEVICE explicit ElasticTileScheduler(const FwdOptionalParams& params)
      : scheduler(params) {}
  TANDEM_DEVICE int earlier() const {
    const FwdBlock& u = scheduler.u;
    return u.band_right != TANDEM_BAND_OPEN && u.band_left == TANDEM_BAND_OPEN
               ? (int(u.tiles) * S::M - u.seq_q) / 64 * 64
               : 0;
  }
  TANDEM_DEVICE TandemBand band() const { return scheduler.band(); }
  template <typename Unseen>
  TANDEM_DEVICE bool next_visible(Tile* at, const Unseen& unseen) {
    const FwdBlock& u = scheduler.u;
    const int by = earlier();
    while (next_visible_tile(scheduler, at, [&](Tile none) {
      none.row0 -= by;
      unseen(none);
    })) {
      if (by == 0) return true;
      at->row0 -= by;
      at->span = tandem_key_tiles(band(), at->row0, S::M, S::N, u.seq_q, u.seq_kv);
      if (at->span.begin < at->span.end) return true;
      unseen(*at);
    }
    return false;
  }
};
template <typename S, typename Unseen>
TANDEM_DEVICE bool next_visible_tile(ElasticTileScheduler<S>& scheduler, FwdWorkTile* at,
                                     const Unseen& unseen) {
  return scheduler.next_visible(at, unseen);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
