// SPDX-License-Identifier: MIT OR Apache-2.0
// The forward kernel on Hopper: o and lse from q, k, v, by a persistent kernel whose warpgroups
// have roles. The producer warpgroup loads by TMA, and the consumer warpgroups compute 64 rows
// each. The math is that of cuda/simt/fwd.cu, in powers of two. P is rounded to the type of the
// tensors for P V.
#ifndef TANDEM_CUDA_SM90_FWD_KERNEL_CUH
#define TANDEM_CUDA_SM90_FWD_KERNEL_CUH
#include <cstring>

#include "main_loop.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

// The roles of a variant:
//   kDependentLaunch       the kernel lets its dependents begin at once, and waits for the kernel
//                          before it
//   has_tile(tile)         whether the variant has a kernel with the tile
//   init(shared)           initialises what the variant has in shared memory, by one thread
//   produce(params, ...)   the producer warpgroup
//   consume<T>(params, ..) a consumer warpgroup
template <FwdVariant VARIANT>
struct FwdRoles;

template <typename T, int ROW, FwdVariant VARIANT, typename Params>
__global__ void __launch_bounds__(FwdShape<ROW, VARIANT>::tile.threads(), 1)
    fwd(const __grid_constant__ Params params) {
  using S = FwdShape<ROW, VARIANT>;
  using Roles = FwdRoles<VARIANT>;
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

// The kernel of a variant by the name of its tile and the dtype. Tiles for a dense bias of f32 come
// last, and no other variant has them.
template <typename T, FwdVariant VARIANT, typename Params, int ROW = 0>
Kernel<Params> select_kernel(const char* name) {
  if constexpr (ROW < (has_f32_tiles(VARIANT) ? kAllFwdTileCount : kFwdTileCount)) {
    if constexpr (FwdRoles<VARIANT>::has_tile(kFwdTiles[ROW]))
      if (std::strcmp(name, kFwdTiles[ROW].name) == 0) return fwd<T, ROW, VARIANT, Params>;
    return select_kernel<T, VARIANT, Params, ROW + 1>(name);
  } else {
    return nullptr;
  }
}
template <FwdVariant VARIANT, typename Params>
Kernel<Params> select_kernel(tandem_dtype dtype, const char* tile) {
  if (!tile) return nullptr;
  if (dtype == TANDEM_F16) return select_kernel<Half, VARIANT, Params>(tile);
  if (dtype == TANDEM_BF16) return select_kernel<Bfloat, VARIANT, Params>(tile);
  return nullptr;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
