// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of src/kernels/kernels.inc as types, and the look-ups of their kernels. In the source that
// cuda/rows.cmake writes for a header with kernels, the header stands before this, and
// its rows behind it. The header has
//   template <typename Row, typename Params, typename T, int TILE>
//   Kernel<Params> instance();
// the kernel of a row for elements of type T and tile TILE of the row's table; it is called where
// the row has a kernel for the tile (src/plan/sm90/kernel_tiles.h).
#ifndef TANDEM_CUDA_SM90_INSTANTIATE_CUH
#define TANDEM_CUDA_SM90_INSTANTIATE_CUH
#include "params.h"
#include "plan/sm90/kernel_tiles.h"
#include "ptx/wgmma.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

// The tables of tiles. A kernel without tiles is one of a table of one.
template <TileTable TABLE>
struct TilesOf {
  static constexpr int kCount = 1;
  template <typename Row>
  static constexpr bool has(int) {
    return true;
  }
};
#define TANDEM_TILES(table, count, tiles)            \
  template <>                                        \
  struct TilesOf<TileTable::table> {                 \
    static constexpr int kCount = count;             \
    template <typename Row>                          \
    static constexpr bool has(int tile) {            \
      return tandem::has_kernel(Row(), tiles[tile]); \
    }                                                \
  };
TANDEM_TILES(hopper_fwd, kAllFwdTileCount, kFwdTiles)
TANDEM_TILES(hopper_bwd, kAllBwdShapeCount, kBwdShapes)
TANDEM_TILES(hopper_support, kSupportShapeCount, kSupportShapes)
#undef TANDEM_TILES
template <>
struct TilesOf<TileTable::hopper_row> : TilesOf<TileTable::none> {
  static constexpr int kCount = kRowShapeCount;
};
template <>
struct TilesOf<TileTable::hopper_dq> : TilesOf<TileTable::none> {
  static constexpr int kCount = kDqShapeCount;
};

template <typename Row, typename Params, typename T, int TILE = 0>
Kernel<Params> look_up(int tile) {
  using Tiles = TilesOf<Row::tiles>;
  if constexpr (TILE < Tiles::kCount) {
    if (tile != TILE) return look_up<Row, Params, T, TILE + 1>(tile);
    if constexpr (Tiles::template has<Row>(TILE)) return instance<Row, Params, T, TILE>();
  }
  return nullptr;
}
template <typename Row, typename Params>
Kernel<Params> look_up(tandem_dtype dtype, int tile) {
  if constexpr (has_dtype(Row::dtypes, TANDEM_F16))
    if (dtype == TANDEM_F16) return look_up<Row, Params, Half>(tile);
  if constexpr (has_dtype(Row::dtypes, TANDEM_BF16))
    if (dtype == TANDEM_BF16) return look_up<Row, Params, Bfloat>(tile);
  return nullptr;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem

#define TANDEM_SM90_KERNEL(STEM, VARIANT, DTYPES, TILES, NEEDS, INPUTS, TRAITS, PARAMS) \
  namespace tandem {                                                                    \
  namespace kernel_rows {                                                               \
  struct STEM##_##VARIANT {                                                             \
    static constexpr Stem stem = Stem::STEM;                                            \
    static constexpr DtypeSet dtypes = DtypeSet::DTYPES;                                \
    static constexpr TileTable tiles = TileTable::TILES;                                \
    static constexpr uint32_t needs = (NEEDS), inputs = (INPUTS), traits = (TRAITS);    \
    static constexpr bool has(uint32_t of) { return (traits & of) != 0; }               \
  };                                                                                    \
  }                                                                                     \
  namespace cuda {                                                                      \
  namespace sm90 {                                                                      \
  Kernel<PARAMS> STEM##_##VARIANT##_kernel(tandem_dtype dtype, int tile) {              \
    return look_up<kernel_rows::STEM##_##VARIANT, PARAMS>(dtype, tile);                 \
  }                                                                                     \
  }                                                                                     \
  }                                                                                     \
  }
#endif
