// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_head_sums: d_tau, d_slope and d_sink of one head from the rows' parts, in a fixed order. Twin
// of shaders/scalar/bwd_head_sums.comp.
#include "../parts/bwd_head_sums.cuh"

namespace tandem {
namespace cuda {

__global__ void __launch_bounds__(kLineGroup)
    bwd_head_sums(const __grid_constant__ BwdHeadSumsFull params) {
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index < params.block.total)
    sum_head(params, int(index), reinterpret_cast<float*>(shared_memory()));
}

Kernel<BwdHeadSumsFull> bwd_head_sums_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return bwd_head_sums;
}

}  // namespace cuda
}  // namespace tandem
