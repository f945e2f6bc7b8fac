// SPDX-License-Identifier: MIT OR Apache-2.0
// The parts of CUDA that the kernels use. The same kernel sources also compile as plain C++ on top
// of tests/cuda/emulated/simt_emulator.h, which runs a block's threads as fibers, so that indexing
// and barriers are tested on machines without a GPU.
#ifndef TANDEM_CUDA_PARTS_SIMT_CUH
#define TANDEM_CUDA_PARTS_SIMT_CUH
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "simt_emulator.h"
#endif

#define TANDEM_DEVICE __device__ __forceinline__

// An array in shared memory beside the dynamic one, at a multiple of 16 bytes.
#if defined(__CUDACC__)
#define TANDEM_SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]
#else
#define TANDEM_SHARED_ARRAY(type, name, count)                                          \
  type* const name = static_cast<type*>(simt::shared_array((count) * sizeof(type), [] { \
    static char key;                                                                    \
    return &key;                                                                        \
  }()))
#endif

namespace tandem {
namespace cuda {

#if defined(__CUDACC__)
// The block's dynamic shared memory, tile_shared_bytes() of it.
TANDEM_DEVICE float4* shared_memory() {
  extern __shared__ float4 memory[];
  return memory;
}
#else
inline float4* shared_memory() { return static_cast<float4*>(simt::shared()); }
#endif

constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace cuda
}  // namespace tandem
#endif
