// SPDX-License-Identifier: MIT OR Apache-2.0
// The look-up of the kernels of a header, SOURCE_kernel(), for rows of src/kernels/kernels.inc. In
// the source that cuda/rows.cmake writes, the header, which has
//   template <typename T, int ROW> __global__ void SOURCE(PARAMS)
// stands before this, and the first of its rows behind it.
#ifndef TANDEM_CUDA_SM80_INSTANTIATE_CUH
#define TANDEM_CUDA_SM80_INSTANTIATE_CUH
#include "shape.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Family::get<T, ROW>() is the kernel of a row with Family::kStem and Family::kTable;
// Family::Pointer is its type.
template <typename Family, typename T, int ROW = 0>
typename Family::Pointer select_row(int row) {
  if constexpr (ROW < kAmpereTileCount) {
    if constexpr (kAmpereTiles[ROW].stem == Family::kStem &&
                  kAmpereTiles[ROW].table == Family::kTable &&
                  kAmpereTiles[ROW].bytes == int(sizeof(typename T::Element)))
      if (row == ROW) return Family::template get<T, ROW>();
    return select_row<Family, T, ROW + 1>(row);
  } else {
    return nullptr;
  }
}
template <typename Family>
typename Family::Pointer select_kernel(tandem_dtype dtype, const KernelChoice& of) {
  if constexpr (Family::kTable == TileTable::none)
    return dtype == TANDEM_F16    ? Family::template get<F16, 0>()
           : dtype == TANDEM_BF16 ? Family::template get<BF16, 0>()
                                  : Family::template get<F32, 0>();
  switch (dtype) {
    case TANDEM_F16:
      return select_row<Family, F16>(of.row);
    case TANDEM_BF16:
      return select_row<Family, BF16>(of.row);
    default:
      if constexpr (Family::kTable == TileTable::ampere_inputs)
        return select_row<Family, F32>(of.row);
      else if constexpr (Family::kTable != TileTable::ampere_plain)
        return nullptr;
      else
        return of.tf32 ? select_row<Family, TF32>(of.row) : select_row<Family, F32>(of.row);
  }
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem

#define TANDEM_SM80_KERNEL(SOURCE, STEM, VARIANT, DTYPES, TILES, NEEDS, INPUTS, TRAITS, PARAMS) \
  namespace tandem {                                                                            \
  namespace cuda {                                                                              \
  namespace sm80 {                                                                              \
  struct SOURCE##_instances {                                                                   \
    static constexpr Stem kStem = Stem::STEM;                                                   \
    static constexpr TileTable kTable = TileTable::TILES;                                       \
    using Pointer = Kernel<PARAMS>;                                                             \
    template <typename T, int ROW>                                                              \
    static Pointer get() {                                                                      \
      return SOURCE<T, ROW>;                                                                    \
    }                                                                                           \
  };                                                                                            \
  Kernel<PARAMS> SOURCE##_kernel(tandem_dtype dtype, const KernelChoice& of, bool) {            \
    return select_kernel<SOURCE##_instances>(dtype, of);                                        \
  }                                                                                             \
  }                                                                                             \
  }                                                                                             \
  }
#endif
