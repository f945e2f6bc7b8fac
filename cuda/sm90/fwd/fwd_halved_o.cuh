// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper, heads over 256, without optional inputs or with lengths of keys: two warpgroups
// with the same 64 rows have a half of o's features each.
#ifndef TANDEM_CUDA_SM90_FWD_FWD_HALVED_O_CUH
#define TANDEM_CUDA_SM90_FWD_FWD_HALVED_O_CUH
#include "main_loop_halved_o.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

// Row: for the name, by which tests/cuda/sm90/check_ptxas knows a kernel.
template <typename T, int TILE, typename Row, typename Params>
__global__ void __launch_bounds__(HalvedShape<TILE, Params>::tile.threads(), 1)
    fwd_halved_o(const __grid_constant__ Params params) {
  using S = HalvedShape<TILE, Params>;
  const HalvedSharedStorage<S> shared{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&params.q);
    prefetch_tensor_map(&params.k);
    prefetch_tensor_map(&params.v);
    shared.init();
    fence_mbarrier_init();
  }
  halved_sync<S>();
  launch_dependent_grids();
  grid_dependency_wait();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<S::PRODUCER>();
    if (threadIdx.x >= 32) store_unseen_halves<S>(params);
    if (threadIdx.x == 0) produce_halved_o<S>(params, shared);
  } else {
    warpgroup_reg_alloc<S::CONSUMER>();
    main_loop_halved_o<T, S>(params, shared);
  }
  // Until here the other workgroup may load to this one's memory and arrive at its mbarriers.
  __syncwarp();
  if constexpr (S::CLUSTER > 1) cluster_sync();
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return fwd_halved_o<T, TILE, Row, Params>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
