// SPDX-License-Identifier: MIT OR Apache-2.0
// The look-up of a kernel of instances.inc. In the source that instances.cmake writes for a row,
// the header of the kernel stands before this, and the row behind it.
#ifndef TANDEM_CUDA_SM80_INSTANTIATE_CUH
#define TANDEM_CUDA_SM80_INSTANTIATE_CUH
#include "shape.cuh"

#define TANDEM_AMPERE_KERNEL(name, kernel, stem, kind, Params)                     \
  namespace tandem {                                                               \
  namespace cuda {                                                                 \
  namespace sm80 {                                                                 \
  struct name##_instances {                                                        \
    static constexpr Stem kStem = Stem::stem;                                      \
    static constexpr TileTable kTable = TileTable::ampere_##kind;                  \
    using Pointer = Kernel<Params>;                                                \
    template <typename T, int ROW>                                                 \
    static Pointer get() {                                                         \
      return kernel<T, ROW>;                                                       \
    }                                                                              \
  };                                                                               \
  Kernel<Params> name##_kernel(tandem_dtype dtype, const KernelChoice& of, bool) { \
    return select_kernel<name##_instances>(dtype, of);                             \
  }                                                                                \
  }                                                                                \
  }                                                                                \
  }
#endif
