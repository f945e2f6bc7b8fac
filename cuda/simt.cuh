// SPDX-License-Identifier: MIT OR Apache-2.0
// The words of CUDA that the kernels use. The same kernel sources also compile as plain C++ on top of
// tests/cuda_emulated/simt_emulator.h, which runs a block's threads as fibers: indexing and barriers are
// tested on machines without a GPU.
#ifndef TANDEM_CUDA_SIMT_CUH
#define TANDEM_CUDA_SIMT_CUH
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "simt_emulator.h"
#endif

#define TANDEM_DEVICE __device__ __forceinline__

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
