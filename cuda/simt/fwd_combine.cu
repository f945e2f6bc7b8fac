// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd_combine, the combine (cuda/parts/combine.cuh).
#include "../parts/combine.cuh"

namespace tandem {
namespace cuda {

__global__ void __launch_bounds__(kCombineGroup)
    fwd_combine(const __grid_constant__ FwdCombineFull params) {
  const FwdCombineBlock& u = params.block;
  Place at;
  if (find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) combine_parts(params, at);
}

Kernel<FwdCombineFull> fwd_combine_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return fwd_combine;
}

}  // namespace cuda
}  // namespace tandem
