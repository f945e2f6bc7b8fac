// SPDX-License-Identifier: MIT OR Apache-2.0
// A row of src/plan/sm80/tiles.inc as its kernels see it.
#ifndef TANDEM_CUDA_SM80_SHAPE_CUH
#define TANDEM_CUDA_SM80_SHAPE_CUH
#include "../parts/tile.cuh"
#include "f32.cuh"
#include "params.h"
#include "plan/sm80/tiles.h"
#include "problem/tile_range.h"

namespace tandem {
namespace cuda {
namespace sm80 {

template <int ROW>
struct MmaShape {
  static constexpr AmpereTile tile = kAmpereTiles[ROW];
  // WIDTH: of a row, in half words; FEATURES: of a row.
  static constexpr int WIDTH = tile.width * tile.bytes / 2, FEATURES = tile.width;
  static constexpr int BR = tile.br, BC = tile.bc, WARPS = tile.warps;
  static constexpr int THREADS = tile.threads(), WG = THREADS, STAGES = tile.stages,
                       HALVES = tile.halves, KEY_WARPS = tile.key_warps;
  static constexpr int GROUPS = tile.groups, MT = tile.row_blocks();
  static constexpr bool HELD = tile.held != 0;
  static constexpr int Q_TILE = BR * 2 * WIDTH, KV_TILE = BC * 2 * WIDTH;  // bytes
  static constexpr AmpereShared shared = ampere_shared(tile);
};

// Addresses in shared memory of the arrays of a kernel (ampere_shared()).
template <typename S>
struct SharedArrays {
  uint q = shared_start() + S::shared.q, d_o = shared_start() + S::shared.d_o,
       k = shared_start() + S::shared.k, v = shared_start() + S::shared.v,
       numbers = shared_start() + S::shared.numbers, p = shared_start() + S::shared.p,
       ds = shared_start() + S::shared.ds, swap = shared_start() + S::shared.swap;
  // Address of number `which` (0: lse, 1: delta, 2: share) of a query row in a stage.
  TANDEM_DEVICE uint number(int stage, int which, int row) const {
    return numbers + uint(stage * 12 * S::BR + 4 * which * S::BR + 4 * row);
  }
};

// Tile scheduler: finds the work tile of a workgroup. With a mask, tiles take different times, so
// the longest tiles of several heads come first: of as many heads as stream 32 MiB, which stay in
// L2 meanwhile. The short tiles at the end balance the load.
constexpr int64_t kSection = 32 << 20;
template <typename Block>
TANDEM_DEVICE bool find_balanced_place(const Block& u, uint first, int heads,
                                       int64_t streamed_bytes, Place* place) {
  const uint index = first + block_number();
  if (index >= u.total) return false;
  if (u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN) {
    place->tile = int(u.tiles - 1 - index % u.tiles);
    place->head = int(index / u.tiles % uint(heads));
    place->batch = int(index / u.tiles / uint(heads));
    return true;
  }
  const uint all = u.total / u.tiles, most = uint(kSection / (streamed_bytes + 1)) + 1;
  const uint section = index / (most * u.tiles), rest = index % (most * u.tiles);
  const uint count = most < all - section * most ? most : all - section * most;
  const uint head = section * most + rest % count;
  place->tile = int(u.tiles - 1 - rest / count);
  place->head = int(head % uint(heads));
  place->batch = int(head / uint(heads));
  return true;
}

// For kernels that own query rows, and for those that own keys.
template <int ROW, typename Params>
TANDEM_DEVICE bool find_queries(const Params& params, Place* place) {
  const auto& u = params.block;
  return find_balanced_place(u, params.first_group, u.heads_q,
                             int64_t(u.seq_kv) * 4 * MmaShape<ROW>::WIDTH / u.group, place);
}
template <int ROW, typename Params>
TANDEM_DEVICE bool find_keys(const Params& params, Place* place) {
  const auto& u = params.block;
  return find_balanced_place(u, params.first_group, u.heads_q / u.group,
                             int64_t(u.seq_q) * u.group * 4 * MmaShape<ROW>::WIDTH, place);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
