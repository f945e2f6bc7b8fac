// SPDX-License-Identifier: MIT OR Apache-2.0
// Tile schedulers: which work tiles a workgroup takes, and in which order. Each has
//   Tile         what is known of a work tile (fwd/work_tile.cuh, bwd/work_tile.cuh)
//   next(&tile)  the next work tile of the workgroup; false: there is none
// Forward warps that need work tiles have a scheduler each, or the producer has the only one and
// leaves a descriptor of each tile in shared memory.
//
// The persistent workgroups of the backward get their tiles from a counter in global memory. The
// producer warp asks for the number of an item, and leaves it in a descriptor; each warp finds the
// tile of the item for itself. So next() comes in two halves there, as functions without state: as
// members of an object the item would be in other registers, and the code of the producer worse.
//   first(params, memory)            the first item of the workgroup, or kNoWorkTile
//   next(params, memory, before)     the next one
//   find(params, item, pass, &tile)  the tile of an item; false: there is none
//   kPasses, passes(params, item)    whether a workgroup takes an item several times, and how often
//   kSlices, kOnce                   `before` counts items, not tiles; there is one item
//
//   fwd_static.cuh   the order follows from the index of the workgroup; stream-K; elastic softmax
//   fwd_varlen.cuh   the same for batch entries of different lengths
//   bwd_static.cuh   one work tile for each workgroup
//   bwd_dynamic.cuh  persistent workgroups
//   bwd_cluster.cuh  persistent clusters, with a dense bias
#ifndef TANDEM_CUDA_SM90_TILE_SCHEDULER_BASE_CUH
#define TANDEM_CUDA_SM90_TILE_SCHEDULER_BASE_CUH
#include <type_traits>

#include "../ptx/base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Workgroups of a cluster that take each work tile together. They get the same tiles.
template <typename S, typename = void>
struct TileCluster : std::integral_constant<uint, 1> {};
template <typename S>
struct TileCluster<S, std::void_t<decltype(S::CLUSTER)>>
    : std::integral_constant<uint, S::CLUSTER> {};

// In a work-tile descriptor, in place of the head or the item: there is no further work tile.
constexpr uint kNoWorkTile = ~0u;

// The next work tile that sees a key; false if there is none. unseen(tile) is called for each tile
// before it.
template <typename Scheduler, typename Unseen>
TANDEM_DEVICE bool next_visible_tile(Scheduler& scheduler, typename Scheduler::Tile* tile,
                                     const Unseen& unseen) {
  while (scheduler.next(tile)) {
    if (tile->span.begin < tile->span.end) return true;
    unseen(*tile);
  }
  return false;
}
template <typename Scheduler>
TANDEM_DEVICE bool next_visible_tile(Scheduler& scheduler, typename Scheduler::Tile* tile) {
  return next_visible_tile(scheduler, tile, [](const typename Scheduler::Tile&) {});
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
