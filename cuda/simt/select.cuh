// SPDX-License-Identifier: MIT OR Apache-2.0
// Which instantiations of a tiled kernel exist, and the one that serves a launch.
#ifndef TANDEM_CUDA_SIMT_SELECT_CUH
#define TANDEM_CUDA_SIMT_SELECT_CUH
#include <cstring>

#include "../kernels.h"
#include "../parts/tile.cuh"

namespace tandem {
namespace cuda {

// Accumulators come in three widths; a head size takes the next one up and skips the blocks that it
// does not use. An instantiation per block count would double the build time for no measured gain.
// Kernels that load element by element exist in a tile's greatest width only.
constexpr int kWidths[] = {64, 128, 256};
constexpr int widest_blocks(const Tile& tile) {
  int blocks = 0;
  for (int width : kWidths)
    if (width <= tile.max_d && width >= tile.block_cols()) blocks = width / tile.block_cols();
  return blocks;
}

template <typename Family, typename T, int ROW, int WIDTH>
typename Family::Pointer select_width(bool wide, int blocks) {
  constexpr Tile tile = kSimtTiles[ROW];
  if constexpr (WIDTH < 3) {
    if constexpr (kWidths[WIDTH] <= tile.max_d && kWidths[WIDTH] >= tile.block_cols()) {
      constexpr int built = kWidths[WIDTH] / tile.block_cols();
      if (blocks <= built)
        return wide ? Family::template get<T, ROW, built, true>()
                    : Family::template get<T, ROW, widest_blocks(tile), false>();
    }
    return select_width<Family, T, ROW, WIDTH + 1>(wide, blocks);
  } else {
    return nullptr;
  }
}

template <typename Family, typename T, int ROW>
typename Family::Pointer select_row(const char* name, bool wide, int blocks) {
  if constexpr (ROW < kSimtTileCount) {
    if (std::strcmp(name, kSimtTiles[ROW].name) == 0)
      return select_width<Family, T, ROW, 0>(wide, blocks);
    return select_row<Family, T, ROW + 1>(name, wide, blocks);
  } else {
    return nullptr;
  }
}

// Family::get<T, ROW, BLOCKS, WIDE>() names a kernel, Family::Pointer is its type.
template <typename Family>
typename Family::Pointer select_kernel(tandem_dtype dtype, bool wide, const char* tile,
                                       int blocks) {
  if (!tile) return nullptr;
  switch (dtype) {
    case TANDEM_F32:
      return select_row<Family, F32, 0>(tile, wide, blocks);
    case TANDEM_F16:
      return select_row<Family, F16, 0>(tile, wide, blocks);
    case TANDEM_BF16:
      return select_row<Family, BF16, 0>(tile, wide, blocks);
    default:
      return nullptr;
  }
}

// The same for full kernels, which have no element type.
template <typename Family>
typename Family::Pointer select_full(bool wide, const char* tile, int blocks) {
  return tile ? select_row<Family, Any, 0>(tile, wide, blocks) : nullptr;
}

// The same for kernels of a fixed set of features (trait::fixed): with an element type if
// all inputs are WIDE, else with Any.
template <typename Family>
typename Family::Pointer select_fixed(tandem_dtype dtype, bool wide, const char* tile, int blocks) {
  return wide ? select_kernel<Family>(dtype, wide, tile, blocks)
              : select_full<Family>(wide, tile, blocks);
}

// Such a family, for a kernel template <T, ROW, BLOCKS, WIDE> with these parameters.
#define TANDEM_FIXED_FAMILY(Name, Params, kernel)                                             \
  struct Name {                                                                               \
    using Pointer = Kernel<Params>;                                                           \
    template <typename T, int ROW, int BLOCKS, bool WIDE>                                     \
    static Pointer get() {                                                                    \
      if constexpr (WIDE != std::is_same<T, Any>::value) return kernel<T, ROW, BLOCKS, WIDE>; \
      return nullptr;                                                                         \
    }                                                                                         \
  };

}  // namespace cuda
}  // namespace tandem
#endif
