// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles of cuda.simt (tiles.inc) as C++ values, for its kernels. The planner has them among those
// of plan/tiles.h.
#ifndef TANDEM_SRC_PLAN_SIMT_TILES_H
#define TANDEM_SRC_PLAN_SIMT_TILES_H
#include "plan/tile.h"

namespace tandem {

constexpr Tile kSimtTiles[] = {
#define TANDEM_CUDA_TILE(name, Br, Bc, TR, TC, DK, KC, max_d, registers, on, pairs, use) \
  {#name, Br, Bc, TR, TC, DK, KC, max_d, TileOn::on, registers, pairs != 0, TileUse::use},
#define TANDEM_SHARED_TILE TANDEM_CUDA_TILE
#include "plan/simt/tiles.inc"
};
constexpr int kSimtTileCount = int(sizeof(kSimtTiles) / sizeof(kSimtTiles[0]));

}  // namespace tandem
#endif
