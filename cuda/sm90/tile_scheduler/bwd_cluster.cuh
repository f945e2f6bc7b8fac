// SPDX-License-Identifier: MIT OR Apache-2.0
// The dynamic tile scheduler of bwd_dkv_dq with a dense bias, whose clusters are persistent.
#ifndef TANDEM_CUDA_SM90_TILE_SCHEDULER_BWD_CLUSTER_CUH
#define TANDEM_CUDA_SM90_TILE_SCHEDULER_BWD_CLUSTER_CUH
#include "../bwd/shared_storage.cuh"
#include "../ptx/cluster.cuh"
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The next item of a cluster; kNoWorkTile if there is none. Clusters of the whole batch take
// reserved tiles (BwdClusterSchedule) when there are no others. In slices all items come from the
// counter, in order: with a fixed order of dQ a cluster waits only for clusters that have started.
template <typename Bias>
TANDEM_DEVICE uint fetch_item(const BwdDkvDqBiasParams& params) {
  uint* const counter = reinterpret_cast<uint*>(params.bias.counter);
  const BwdClusterSchedule& schedule = params.bias.schedule;
  if (Bias::SLICES) {
    const uint next = atomicAdd(counter, 1u);
    return next < uint(schedule.items) ? next : kNoWorkTile;
  }
  if (!Bias::TWO_CTA) {
    const int next = schedule.slots + int(atomicAdd(counter, 1u));
    if (next < schedule.items) return uint(bwd_other_item(schedule, next));
  }
  const int next = int(atomicAdd(counter + 1, 1u));
  return next < schedule.reserved ? uint(bwd_reserved_item(schedule, next)) : kNoWorkTile;
}

template <int TILE, typename Bias>
struct ClusterTileScheduler {
  using Tile = BwdWorkTile;
  static constexpr bool kOnce = Bias::POSTPROCESS, kSlices = Bias::SLICES,
                        kPasses = Bias::TWO_CTA || kSlices;
  static TANDEM_DEVICE uint passes(const BwdDkvDqBiasParams& params, uint item) {
    const uint passes = uint(params.bias.passes);
    if (!kSlices) return passes;
    const uint size = cluster_size(), first = item % uint(params.bias.slices) * passes * size;
    return min(passes, (uint(params.bias.shared) - first + size - 1) / size);
  }
  static TANDEM_DEVICE bool find(const BwdDkvDqBiasParams& params, uint item, uint pass,
                                 Tile* work) {
    constexpr BwdShape S = kBwdShapes[TILE];
    const uint size = cluster_size();
    if constexpr (kSlices) {
      const uint slices = uint(params.bias.slices), entries = uint(params.bias.shared),
                 slice = item % slices, first = (slice * uint(params.bias.passes) + pass) * size,
                 entry = first + cluster_rank();
      if (!Bias::find(params, S, item / slices, min(entry, entries - 1), work)) return false;
      work->slice = int(slice);
      work->present = int(min(size, entries - first));
      work->ghost = entry >= entries;
      if (work->ghost) work->keys = 0;
      return true;
    }
    const uint entry = kPasses    ? pass * size + cluster_rank()
                       : size > 1 ? cluster_rank()
                                  : workgroup_index() % uint(params.bias.shared);
    return Bias::find(params, S, item, entry, work);
  }
  static TANDEM_DEVICE uint first(const BwdDkvDqBiasParams& params,
                                  const BwdSharedStorage<TILE, Bias>& memory) {
    if (kPasses) return ask(params, memory, 0);
    return workgroup_index() / (cluster_size() > 1 ? cluster_size() : uint(params.bias.shared));
  }
  // before: number of work tiles before, each pass counted; in slices, of items.
  static TANDEM_DEVICE uint next(const BwdDkvDqBiasParams& params,
                                 const BwdSharedStorage<TILE, Bias>& memory, uint before) {
    if (!params.bias.counter) return kNoWorkTile;
    if (kSlices) return ask(params, memory, before + 1);
    return ask(params, memory, kPasses ? (before + 1) / uint(params.bias.passes) : before);
  }
  // The next item of the cluster, which its first workgroup fetches. request: number of requests
  // before.
  static TANDEM_DEVICE uint ask(const BwdDkvDqBiasParams& params,
                                const BwdSharedStorage<TILE, Bias>& memory, uint request) {
    const typename Bias::Next next(memory);
    const PipelineState<1, kCounted> at{request};
    if (read_tid_x() == 0) {
      mbarrier_arrive_expect_tx(next.described(), 4);
      if (cluster_rank() == 0) {
        mbarrier_wait(next.asked(), at.phase() ^ 1);
        const uint item = fetch_item<Bias>(params);
        for (uint rank = 0; rank < cluster_size(); ++rank)
          st_async_cluster(cluster_address(next.word(), rank), item,
                           cluster_address(next.described(), rank));
      }
    }
    __syncwarp();
    mbarrier_wait(next.described(), at.phase());
    const uint item = ld_shared_uniform(next.word());
    if (read_tid_x() == 0) mbarrier_arrive_remote(cluster_address(next.asked(), 0));
    return item;
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
