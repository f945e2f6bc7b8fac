// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_head: d_tau, d_slope and d_sink of one head from the rows' parts, in a fixed order. Twin of
// shaders/bwd_head.comp.
#include "bwd_head.cuh"

namespace tandem {
namespace cuda {

__global__ void __launch_bounds__(kLineGroup) bwd_head(const __grid_constant__ BwdHeadFull params) {
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index < params.block.total)
    sum_head(params, int(index), reinterpret_cast<float*>(shared_memory()));
}

Kernel<BwdHeadFull> bwd_head_full_kernel(const KernelChoice&, bool) { return bwd_head; }

}  // namespace cuda
}  // namespace tandem
