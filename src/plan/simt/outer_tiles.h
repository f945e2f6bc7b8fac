// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles of the kernels of cuda.simt for plain f32 with 8 x 8 elements a thread (trait::outer): 128
// rows of one side stay in shared memory, and the other side is streamed past them, 64 rows at a
// time in fwd and 32 in the backward.
#ifndef TANDEM_SRC_PLAN_SIMT_OUTER_TILES_H
#define TANDEM_SRC_PLAN_SIMT_OUTER_TILES_H
#include "plan/tile.h"

namespace tandem {

constexpr int kOuterRows = 128, kOuterThreads = 128;
constexpr int kOuterWidth = 64;  // features at most
constexpr int kOuterFwdKeys = 64, kOuterBwdRows = 32;

// Floats of shared memory: what stays, transposed in rows of kOuterRows + 4; what is streamed; and
// the P tile. fwd: Q; K, transposed; V. Backward: two tensors; three stages of streamed rows.
constexpr int kOuterFwdFloats = kOuterWidth * (kOuterRows + 4) + kOuterWidth * (kOuterFwdKeys + 4) +
                                kOuterFwdKeys * (kOuterWidth + 4) + kOuterRows * kOuterFwdKeys;
constexpr int kOuterBwdFloats = 2 * kOuterWidth * (kOuterRows + 4) +
                                3 * kOuterBwdRows * (kOuterWidth + 4) + kOuterRows * kOuterBwdRows;

// As fwd, bwd_dkv and bwd_dq have them.
constexpr Tile outer_tile(int br, int bc) {
  return {"t128o",     br,          bc,           16,  8,    kOuterWidth,
          kOuterWidth, kOuterWidth, TileOn::cuda, 255, true, TileUse::plain};
}
constexpr Tile kOuterFwd = outer_tile(kOuterRows, kOuterFwdKeys);
constexpr Tile kOuterDkv = outer_tile(kOuterBwdRows, kOuterRows);
constexpr Tile kOuterDq = outer_tile(kOuterRows, kOuterBwdRows);

}  // namespace tandem
#endif
