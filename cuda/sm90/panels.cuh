// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles in shared memory as panels of 64 features, with rows of kPanelBytes.
#ifndef TANDEM_CUDA_SM90_PANELS_CUH
#define TANDEM_CUDA_SM90_PANELS_CUH
#include "ptx/shared_memory.cuh"
#include "ptx/wgmma.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Zeroes rows [from, ROWS) of a tile, by one warp. The caller makes this visible to wgmma
// (fence_proxy_async_shared()).
template <int PANELS, int ROWS>
TANDEM_DEVICE void clear_rows(uint tile, int from) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll 1
  for (int p = 0; p < PANELS; ++p)
#pragma unroll 1
    for (int n = max(from, 0) * kPanelBytes + 16 * lane; n < ROWS * kPanelBytes; n += 512)
      st_shared(tile + uint(p * ROWS * kPanelBytes + n), 0, 0, 0, 0);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
