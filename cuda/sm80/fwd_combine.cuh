// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd_combine, the combine (cuda/parts/combine.cuh), with programmatic dependent launch.
#ifndef TANDEM_CUDA_SM80_FWD_COMBINE_CUH
#define TANDEM_CUDA_SM80_FWD_COMBINE_CUH
#include "../parts/combine.cuh"
#include "mma.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW>
__global__ void __launch_bounds__(kCombineGroup)
    fwd_combine(const __grid_constant__ FwdCombineFull params) {
  grid_dependency_wait();
  launch_dependent_grids();
  const FwdCombineBlock& u = params.block;
  Place at;
  if (place_of(params.first_group + block_number(), u.tiles, u.total, u.heads_q, &at))
    combine_parts(params, at);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
