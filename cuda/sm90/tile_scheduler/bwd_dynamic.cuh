// SPDX-License-Identifier: MIT OR Apache-2.0
// The dynamic tile scheduler of persistent bwd_dkv_dq without a bias.
#ifndef TANDEM_CUDA_SM90_TILE_SCHEDULER_BWD_DYNAMIC_CUH
#define TANDEM_CUDA_SM90_TILE_SCHEDULER_BWD_DYNAMIC_CUH
#include "../bwd/shared_storage.cuh"
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Tiles of keys in the order of a counter in the workspace. A workgroup that waits for a dQ
// semaphore then waits only for workgroups that have started.
template <int TILE, typename Variant>
struct DynamicTileScheduler {
  static constexpr bool kOnce = false, kPasses = false, kSlices = false;
  using Tile = BwdWorkTile;
  using Params = typename Variant::Params;
  static TANDEM_DEVICE uint passes(const Params&, uint) { return 1; }
  static TANDEM_DEVICE bool find(const Params& params, uint item, uint, Tile* work) {
    constexpr BwdShape S = kBwdShapes[TILE];
    if (!find_work_tile(params.block, S, 1, Variant::interleaved_heads(params), item, work))
      return false;
    if (params.block.deterministic == 0) work->reversed = reverses_q_loop(params.block);
    return true;
  }
  static TANDEM_DEVICE uint fetch(const Params& params) {
    uint item = 0;
    if (read_tid_x() == 0) item = atomicAdd(reinterpret_cast<uint*>(params.tile_counter), 1u);
    return __reduce_or_sync(kAllLanes, item);
  }
  static TANDEM_DEVICE uint first(const Params& params, const BwdSharedStorage<TILE, Variant>&) {
    return fetch(params);
  }
  static TANDEM_DEVICE uint next(const Params& params, const BwdSharedStorage<TILE, Variant>&,
                                 uint) {
    return fetch(params);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
