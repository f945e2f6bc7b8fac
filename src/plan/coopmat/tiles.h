// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles of the matrix paths of Vulkan (tiles.inc) as C++ values.
#ifndef TANDEM_SRC_PLAN_COOPMAT_TILES_H
#define TANDEM_SRC_PLAN_COOPMAT_TILES_H
#include "plan/coopmat/tile.h"
#include "plan/tile.h"

namespace tandem {

constexpr MatrixTile kMatrixTiles[] = {
#define TANDEM_MATRIX_TILE(name, stem, max_d, subgroups, row_blocks, cols) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols},
#define TANDEM_DOUBLED_TILE(name, stem, max_d, subgroups, row_blocks, cols, left, prefetch, size, \
                            waves)                                                                \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols, left, prefetch, size, waves, true},
#define TANDEM_TENSOR_TILE(name, stem, max_d, subgroups, row_blocks, cols) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols, 0, 1, 0, 0, false, true},
#define TANDEM_STRIPS_TILE(name, stem, max_d, subgroups, row_blocks, cols) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols,  0, 1,   0,      \
   0,     false,      false, false,     0,          false, 1, true},
#define TANDEM_DS_TILE(name, stem, max_d, subgroups, row_blocks, cols) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols, 0, 1, 0, 0, false, false, true},
#define TANDEM_PAIR_TILE(name, stem, max_d, subgroups, row_blocks, cols) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols, 0, 1, 0, 0, false, false, false, 0, true},
#define TANDEM_LEAN_TILE(name, stem, max_d, subgroups, row_blocks, cols, left, registers) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols,  left,                          \
   0,     0,          0,     false,     false,      false, registers},
#define TANDEM_SPLIT_D_DS_TILE(name, stem, max_d, subgroups, owners, cols) \
  {#name, Stem::stem, max_d, subgroups, 1, cols, 0, 1, 0, 0, false, false, true, 0, false, owners},
#define TANDEM_SPLIT_D_TILE(name, stem, max_d, subgroups, owners, cols, prefetch, size, waves) \
  {#name, Stem::stem, max_d,     subgroups, 1,     cols, 0,     prefetch,                      \
   size,  waves,      waves > 0, false,     false, 0,    false, owners},
#include "plan/coopmat/tiles.inc"
};

constexpr bool matrix_tiles_fit() {
  for (const MatrixTile& t : kMatrixTiles) {
    if (t.cols % 16 != 0) return false;         // steps are whole matrices
    if (t.subgroups * 64 > 1024) return false;  // workgroups of subgroups of 64
    // fwd has Q only
    if (t.left > (t.stem == Stem::fwd ? 1 : 2)) return false;
    if (t.doubled != (t.waves > 0)) return false;
    if (t.splits_d() && (t.subgroups % t.owners != 0 || t.slices() < 1)) return false;
    if (t.tensors && (t.stem != Stem::fwd || t.left > 0)) return false;
    if (t.strips && (t.stem != Stem::fwd || t.left > 0 || t.row_blocks > 1)) return false;
    if (t.pair && (t.subgroups % 2 != 0 || t.left > 0 || t.row_blocks > 1)) return false;
    // limits of AMD, and of NVIDIA; lean tiles with 16 rows a matrix are last resorts
    const int most = (t.doubled || t.is_lean() ? 64 : 48) * 1024;
    for (const MatrixDims& shape : kMatrixDims) {
      if (matrix_shared_bytes(t, t.max_d, t.max_d, shape) > most) return false;
      if (t.splits_d() && t.max_d > kWholeFeatures && shape.k == shape.n &&
          (t.ds || t.step(shape) == shape.n) && !passes_rows(t, kWholeFeatures + 1, 1, shape))
        return false;
      if (t.ds && shape.k == shape.n && !passes_rows(t, t.max_d, 1, shape)) return false;
      if (t.strips && !passes_rows(t, t.max_d, 1, shape)) return false;
      if (t.step(shape) % shape.k != 0) return false;
      // a subgroup's keys of a query row are a word of keep
      if (t.stem == Stem::bwd_dkv && t.row_blocks * shape.m > 32) return false;
    }
  }
  for (const MatrixDims& s : kMatrixDims)
    if (s.m % 8 != 0 || s.n % 8 != 0 || (s.k != s.n && s.k != 2 * s.n)) return false;
  return true;
}
static_assert(matrix_tiles_fit(), "a row of plan/coopmat/tiles.inc breaks one of the rules above");

}  // namespace tandem
#endif
