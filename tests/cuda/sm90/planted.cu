// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels with what check_ptxas is to find: registers that do not suffice, and accumulators that
// are touched while a product is on its way. Compiled, never run.
#include "../../../cuda/sm90/ptx/shared_memory.cuh"
#include "../../../cuda/sm90/ptx/wgmma.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

__global__ void __launch_bounds__(1024, 1) planted_spill(float* at) {
  float x[192];
#pragma unroll
  for (int i = 0; i < 192; ++i) x[i] = at[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 192; ++i) at[i * 1024 + threadIdx.x] = x[i] * x[191 - i];
}

__global__ void __launch_bounds__(128, 1) planted_advisory(float* at, int n) {
  float d[16] = {};
  const uint tile = shared_address(shared_memory());
  wgmma_fence();
  for (int i = 0; i < n; ++i) {
    Wgmma<Half, 32>::ss<0, 0>(d, k_major(tile), k_major(tile + 8192), 1);
    wgmma_commit_group();
    d[i % 2] += 1.f;
  }
  wgmma_wait_group<0>();
#pragma unroll
  for (int i = 0; i < 16; ++i) at[i * 128 + threadIdx.x] = d[i];
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
