// SPDX-License-Identifier: MIT OR Apache-2.0
// A row of src/ampere_tiles.inc as its kernels see it.
#ifndef TANDEM_CUDA_SM80_SHAPE_CUH
#define TANDEM_CUDA_SM80_SHAPE_CUH
#include "../tensor.cuh"
#include "kernels.h"
#include "tiles.h"

namespace tandem {
namespace cuda {
namespace sm80 {

template <int ROW>
struct MmaShape {
  static constexpr AmpereTile tile = kAmpereTiles[ROW];
  static constexpr int WIDTH = tile.width, BR = tile.br, BC = tile.bc, WARPS = tile.warps;
  static constexpr int THREADS = tile.threads(), WG = THREADS, STAGES = tile.stages, HALVES = tile.halves;
  static constexpr int GROUPS = tile.groups, MT = tile.row_blocks();
  static constexpr bool HELD = tile.held != 0;
};

// Family::get<T, ROW>() names a kernel for rows of Family::kStem and kFull, Family::Pointer is its type.
template <typename Family, typename T, int ROW = 0>
typename Family::Pointer select_row(int row) {
  if constexpr (ROW < kAmpereTileCount) {
    if constexpr (kAmpereTiles[ROW].stem == Family::kStem &&
                  kAmpereTiles[ROW].full == Family::kFull)
      if (row == ROW) return Family::template get<T, ROW>();
    return select_row<Family, T, ROW + 1>(row);
  } else {
    return nullptr;
  }
}
template <typename Family>
typename Family::Pointer select_kernel(tandem_dtype dtype, const Launch& launch) {
  switch (dtype) {
    case TANDEM_F16:
      return select_row<Family, F16>(launch.ampere);
    case TANDEM_BF16:
      return select_row<Family, BF16>(launch.ampere);
    default:
      return nullptr;
  }
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
