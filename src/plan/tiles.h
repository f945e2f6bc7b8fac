// SPDX-License-Identifier: MIT OR Apache-2.0
// The tables of tiles, for planners and tests. Kernels of CUDA include those of their own path
// alone, so that a tile of Vulkan compiles none of them again.
#ifndef TANDEM_SRC_PLAN_TILES_H
#define TANDEM_SRC_PLAN_TILES_H
#include "plan/coopmat/tiles.h"
#include "plan/simt/outer_tiles.h"
#include "plan/simt/tiles.h"
#include "plan/sm80/tiles.h"
#include "plan/tile.h"

namespace tandem {

#define TANDEM_TILE(name, Br, Bc, TR, TC, DK, KC, max_d, registers, on, pairs, use)             \
  static_assert(Br == Bc || TileUse::use == TileUse::fwd, "roles swap in bwd_dkv");             \
  static_assert(Bc % (4 * TC) == 0 && Br % TR == 0, "whole quads of columns, and whole rows");  \
  static_assert(Bc == 4 * TC || (TileUse::use == TileUse::fwd && max_d <= 8 * TC),              \
                "several quads: fwd, with two accumulator blocks at most");                     \
  static_assert(Bc == 4 * TC || (TR % 8 == 0 && Br / TR % 4 == 0 && KC % 32 == 0),              \
                "several quads: rows come in quads, too, and their places are turned");         \
  static_assert(!pairs || (TR % 2 == 0 && registers == 255), "pairs of rows, not lean");        \
  static_assert(DK % 4 == 0 && KC % 4 == 0 && Bc % KC == 0, "steps are whole vec4s and tiles"); \
  static_assert((Br + Bc) * DK / 4 % (TR * TC) == 0, "every invocation stages equally much");   \
  static_assert(KC * TC % (TR * TC) == 0, "every invocation stages equally much");              \
  static_assert(TR * TC <= (registers < 255 ? 512 : 256), "256 exist nearly everywhere");
#include "tiles.inc"

constexpr Tile kTiles[] = {
#define TANDEM_TILE(name, Br, Bc, TR, TC, DK, KC, max_d, registers, on, pairs, use) \
  {#name, Br, Bc, TR, TC, DK, KC, max_d, TileOn::on, registers, pairs != 0, TileUse::use},
#include "tiles.inc"
};
constexpr int kTileCount = int(sizeof(kTiles) / sizeof(kTiles[0]));

}  // namespace tandem
#endif
