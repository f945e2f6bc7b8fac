// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq_cast: the dQ postprocess: d_q from the dQ accumulator of bwd_dkv_dq. A workgroup takes a
// block of 64 rows and 64 features.
#ifndef TANDEM_CUDA_SM80_BWD_DQ_CAST_CUH
#define TANDEM_CUDA_SM80_BWD_DQ_CAST_CUH
#include "params.h"
#include "tile.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

constexpr int kCastThreads = 128;  // 16 rows a warp

template <typename T, int>
__global__ void __launch_bounds__(kCastThreads)
    bwd_dq_cast(const __grid_constant__ BwdDqCastParams params) {
  const BwdDqCastBlock& u = params.block;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index >= u.total) return;
  const int panel = int(index % uint(u.panels)),
            block = int(index / uint(u.panels) % uint(u.row_blocks));
  const int batch_head = int(index / uint(u.panels) / uint(u.row_blocks));
  const float4* from =
      reinterpret_cast<const float4*>(params.push.d_q_accum) + int64_t(index) * 1024 + threadIdx.x;
  float x[1][8][4];
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float4 sums = __ldg(from + kCastThreads * n);
    x[0][n][0] = sums.x, x[0][n][1] = sums.y, x[0][n][2] = sums.z, x[0][n][3] = sums.w;
  }
  const Strides& s = u.d_q;
  View<T> to = make_view<T>(params.push.d_q, s, batch_head / u.heads_q, batch_head % u.heads_q,
                            u.seq_q, u.head_dim - 64 * panel, params.wide != 0);
  to.base += 64 * panel * s.d;
  store_rows<64>(to, 64 * block, shared_start(), 16 * Lane().warp, x,
                 [&](float sum, int, int) { return sum * u.scale; });
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
