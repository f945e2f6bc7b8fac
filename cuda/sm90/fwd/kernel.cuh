// SPDX-License-Identifier: MIT OR Apache-2.0
// The forward kernel on Hopper: o and lse from q, k, v, by a persistent kernel whose warpgroups
// have roles. The producer warpgroup loads by TMA, and the consumer warpgroups compute 64 rows
// each. The math is that of cuda/simt/fwd.cu, in powers of two. P is rounded to the type of the
// tensors for P V.
#ifndef TANDEM_CUDA_SM90_FWD_KERNEL_CUH
#define TANDEM_CUDA_SM90_FWD_KERNEL_CUH
#include "main_loop.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

// The roles of a row:
//   kDependentLaunch       the kernel lets its dependents begin at once, and waits for the kernel
//                          before it
//   init(shared)           initialises what the row has in shared memory, by one thread
//   produce(params, ...)   the producer warpgroup
//   consume<T>(params, ..) a consumer warpgroup
template <typename T, int TILE, typename Row, typename Roles, typename Params>
__global__ void __launch_bounds__(FwdShape<TILE, Row>::tile.threads(), 1)
    fwd(const __grid_constant__ Params params) {
  using S = FwdShape<TILE, Row>;
  const FwdSharedStorage<S> shared = begin_kernel<S>(
      params, [](const FwdSharedStorage<S>& storage) { Roles::template init<S>(storage); });
  if constexpr (Roles::kDependentLaunch) {
    launch_dependent_grids();
    grid_dependency_wait();
  }
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<S::PRODUCER>();
    Roles::template produce<S>(params, shared);
  } else {
    warpgroup_reg_alloc<S::CONSUMER>();
    Roles::template consume<T, S>(params, shared);
  }
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
