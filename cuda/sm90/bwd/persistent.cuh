// SPDX-License-Identifier: MIT OR Apache-2.0
// Persistent workgroups of bwd_dkv_dq: a workgroup continues with further tiles of keys without a
// barrier of all its warps; each warp continues when it is done. The producer warp publishes the
// next work tile, and loads K and V of it, once the consumer warps have released the ones before
// and all warps have read the descriptor before. Pipeline stages and phases continue
// (BwdWorkTile::begun). With a barrier between tiles, K, V, the first Q and the end of the stores
// would be waited for at each tile while no product runs (bench/lab/2026-11.md: 8 us of 96 at D
// 128).
//
// Scheduler: the tile scheduler (../tile_scheduler/base.cuh).
#ifndef TANDEM_CUDA_SM90_BWD_PERSISTENT_CUH
#define TANDEM_CUDA_SM90_BWD_PERSISTENT_CUH
#include "../tile_scheduler/base.cuh"
#include "dq_semaphore.cuh"
#include "epilogue.cuh"
#include "softmax.cuh"
#include "tma_producer.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Work-tile descriptor of a persistent workgroup, in shared memory: an mbarrier and three words,
// kBwdDescriptorBytes.
struct BwdTileDescriptor {
  uint at;
  // The empty mbarrier of K, V and the descriptor. Each consumer warp and three auxiliary warps
  // arrive.
  TANDEM_DEVICE uint empty() const { return at; }
  TANDEM_DEVICE void init() const { mbarrier_init(empty(), 8 + 3); }
  TANDEM_DEVICE uint item() const { return ld_shared_uniform(at + 8); }
  TANDEM_DEVICE uint pass() const { return ld_shared_uniform(at + 12); }
  TANDEM_DEVICE uint begun() const { return ld_shared_uniform(at + 16); }
  TANDEM_DEVICE void set(uint item, uint pass, uint begun) const {
    st_shared(at + 8, item);
    st_shared(at + 12, pass);
    st_shared(at + 16, begun);
  }
};

// The shared storage, computed again, so that the compiler keeps no addresses from one work tile to
// the next. There are no registers for them.
template <int TILE, typename Variant>
TANDEM_DEVICE BwdSharedStorage<TILE, Variant> reload_shared_storage() {
  return {opaque_copy(shared_address(aligned_shared_memory()))};
}
template <int TILE, typename Variant>
TANDEM_DEVICE BwdTileDescriptor tile_descriptor_of(const BwdSharedStorage<TILE, Variant>& memory) {
  return {Variant::tile_descriptor_at(memory)};
}

// The producer warp. Its branches are warp votes, as those of LazyZeroCopies (dq_lazy_zero.cuh).
template <int TILE, typename Variant, typename Scheduler>
TANDEM_DEVICE void load_work_tiles(const typename Variant::Params& params) {
  uint pass = 0, begun = 0, items = 0,
       item = Scheduler::first(params, reload_shared_storage<TILE, Variant>());
#pragma unroll 1
  for (uint round = 0;; ++round) {
    const auto memory = reload_shared_storage<TILE, Variant>();
    const BwdTileDescriptor descriptor = tile_descriptor_of(memory);
    BwdWorkTile work;
    if (__any_sync(kAllLanes, item != kNoWorkTile) &&
        !__any_sync(kAllLanes, Scheduler::find(params, item, pass, &work)))
      item = kNoWorkTile;
    work.begun = begun, work.pass = pass;
    mbarrier_wait(descriptor.empty(), int(round & 1) ^ 1);
    if (read_tid_x() == 0) descriptor.set(item, pass, begun);
    if (__any_sync(kAllLanes, item == kNoWorkTile)) {
      if (read_tid_x() == 0) mbarrier_arrive(Barriers<TILE>(memory.barriers()).kv);
      return;
    }
    const uint tiles = load_tiles(params, work, memory);
    if (Scheduler::kOnce) return;
    begun += tiles;
    if (Scheduler::kPasses && __any_sync(kAllLanes, pass + 1 < Scheduler::passes(params, item)))
      ++pass;
    else
      pass = 0, item = Scheduler::next(params, memory, Scheduler::kSlices ? items++ : round);
  }
}
// The other warps: calls run(memory, work) for each work tile. AUXILIARY: the warp does not read K
// and V. The warps that do release them in main_loop().
template <int TILE, typename Variant, typename Scheduler, bool AUXILIARY, typename Run>
TANDEM_DEVICE void for_each_work_tile(const typename Variant::Params& params, Run&& run) {
#pragma unroll 1
  for (int phase = 0;; phase ^= 1) {
    const auto memory = reload_shared_storage<TILE, Variant>();
    const BwdTileDescriptor descriptor = tile_descriptor_of(memory);
    mbarrier_wait(Barriers<TILE>(memory.barriers()).kv, phase);
    const uint item = descriptor.item(), pass = Scheduler::kPasses ? descriptor.pass() : 0,
               begun = descriptor.begun();
    if (AUXILIARY && read_tid_x() % 32 == 0) mbarrier_arrive(descriptor.empty());
    if (item == kNoWorkTile) return;
    BwdWorkTile work;
    Scheduler::find(params, item, pass, &work);
    work.begun = begun, work.pass = pass;
    run(memory, work);
    if (Scheduler::kOnce) return;
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
