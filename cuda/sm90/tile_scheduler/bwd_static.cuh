// SPDX-License-Identifier: MIT OR Apache-2.0
// The tile scheduler of bwd_dkv_dq where workgroups are not persistent.
#ifndef TANDEM_CUDA_SM90_TILE_SCHEDULER_BWD_STATIC_CUH
#define TANDEM_CUDA_SM90_TILE_SCHEDULER_BWD_STATIC_CUH
#include "../bwd/work_tile.cuh"
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The work tile of a workgroup follows from its index. There is one, so next() is called once.
template <int TILE, typename Variant>
struct BwdStaticTileScheduler {
  using Tile = BwdWorkTile;
  using Params = typename Variant::Params;
  const Params& params;
  TANDEM_DEVICE explicit BwdStaticTileScheduler(const Params& p) : params(p) {}
  TANDEM_DEVICE bool next(Tile* work) const {
    constexpr BwdShape S = kBwdShapes[TILE];
    if constexpr (Variant::kHasParts) {
      if (!Variant::find(params, S, workgroup_index(), work)) return false;
    } else if (!find_work_tile(params.block, S, Variant::order(params),
                               Variant::interleaved_heads(params), Variant::work_index(params),
                               work)) {
      return false;
    }
    if constexpr (Variant::kIsVarlen) Variant::template refine<TILE>(params, work);
    return true;
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
