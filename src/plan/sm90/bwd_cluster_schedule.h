// SPDX-License-Identifier: MIT OR Apache-2.0
// Schedule of the backward with a dense bias on Hopper, where d_bias is summed over the batch:
// clusters with a workgroup for each batch entry, and, on SMs that these leave over, two-CTA
// clusters that take the batch in several passes. The host, the kernels and the tests include this.
#ifndef TANDEM_SRC_PLAN_SM90_BWD_CLUSTER_SCHEDULE_H
#define TANDEM_SRC_PLAN_SM90_BWD_CLUSTER_SCHEDULE_H
#include <cstdint>

#include "bwd_parts.h"

#ifdef __CUDACC__
#define TANDEM_CLUSTER_SCHEDULE __host__ __device__ constexpr
#else
#define TANDEM_CLUSTER_SCHEDULE constexpr
#endif

namespace tandem {

// Split of the queries in the last wave of clusters. If that wave is not full, several clusters
// share each of its tiles of keys. Each has a part of the queries, and they add up d_k and d_v
// through the workspace.
struct BwdQuerySplit {
  int64_t whole;  // tiles of keys with all queries in one cluster
  int parts;
};
// Number of workgroups with room for partial sums. groups: workgroups without a split.
constexpr int64_t bwd_partial_slots(int64_t groups) { return groups < 60 ? 4 * groups : 240; }
constexpr int64_t kBwdOverheadTiles = 2;  // prologue and epilogue, in query tiles
// kv_tiles: tiles of keys of all heads; slots: clusters that run at a time; size: workgroups of a
// cluster; tiles: query tiles.
constexpr BwdQuerySplit bwd_query_split(int64_t kv_tiles, int64_t slots, int64_t size,
                                        int64_t tiles) {
  BwdQuerySplit best{kv_tiles, 1};
  if (slots <= 0 || kv_tiles % slots == 0) return best;
  const int64_t rest = kv_tiles % slots;
  int64_t least = tiles + kBwdOverheadTiles;  // in tiles
  for (int parts = 2; parts <= 16 && parts <= tiles; ++parts) {
    const int64_t rounds = (rest * parts + slots - 1) / slots;
    const int64_t takes = rounds * ((tiles + parts - 1) / parts + kBwdOverheadTiles);
    if (rest * parts * size <= bwd_partial_slots(kv_tiles * size) && takes < least)
      least = takes, best = {kv_tiles - rest, parts};
  }
  return best;
}
// Two-CTA clusters run on SMs that clusters of the whole batch leave over. Their sums of d_bias go
// through the workspace between passes, so a tile of keys takes them longer. There are at most
// kMaxTwoCtaClusters; each needs bwd_pass_floats() of workspace.
constexpr int kMaxTwoCtaClusters = 8;
constexpr int64_t bwd_pass_floats(const BwdShape& s, int64_t group, int64_t seq_q) {
  return group * ((seq_q + s.br - 1) / s.br) * s.br * s.bc;
}

// Numbering of the tiles of keys, from 0 on. Parts of split tiles come last (BwdQuerySplit).
// Clusters of the whole batch have the first `slots`. The whole tiles behind these come in blocks
// of `span`. The first `two_cta_clusters` of each block are reserved for two-CTA clusters, which
// then work on the same heads as the others. The last block, to which the parts belong, has what is
// left of `reserved`. A cluster that finds no other tile takes a reserved one, so all tiles are
// done whichever clusters are started.
struct BwdClusterSchedule {
  int slots, items;  // items: tiles that are not reserved, with the parts
  int two_cta_clusters, reserved, blocks, span;
};
// The number of the nth reserved tile, and of the nth of the others, from `slots` on.
TANDEM_CLUSTER_SCHEDULE int bwd_reserved_item(const BwdClusterSchedule& x, int n) {
  return x.slots + n / x.two_cta_clusters * x.span + n % x.two_cta_clusters;
}
TANDEM_CLUSTER_SCHEDULE int bwd_other_item(const BwdClusterSchedule& x, int n) {
  const int between = x.span - x.two_cta_clusters, block = (n - x.slots) / between;
  return n + (block < x.blocks - 1 ? (block + 1) * x.two_cta_clusters : x.reserved);
}

// Time of a two-CTA cluster for a tile, in tenths of that of a cluster of the whole batch: one
// pass, and more for each further one, which reads what earlier ones have summed. H100, S 2048, two
// passes: 27 measured at D 128, 40 at D 64. There 35 and 40 give the same plan at S 2048; at S 4096
// 40 takes 3.793 ms, 35 takes 3.755 and 3.791. Other numbers of passes are not measured.
constexpr int64_t bwd_two_cta_tenths(const BwdShape& s, int64_t passes) {
  return s.d <= 64 ? 13 + 22 * (passes - 1) : 11 + 16 * (passes - 1);
}

struct BwdClusterPlan {
  BwdClusterSchedule schedule;
  BwdQuerySplit split;  // whole: reserved tiles included
};
// The schedule that ends soonest, and of those the one with the fewest reserved tiles, as two-CTA
// clusters that end early leave SMs to bwd_dq_cast. kv_tiles: tiles of keys of all heads; slots:
// clusters of the whole batch that run at a time (0: unknown); size: workgroups of a cluster;
// tiles: query tiles; two_cta_clusters: their number; tenths: what each of them takes for a tile.
constexpr BwdClusterPlan plan_bwd_clusters(int64_t kv_tiles, int64_t slots, int64_t size,
                                           int64_t tiles, int64_t two_cta_clusters,
                                           int64_t tenths) {
  const auto rounds = [&](int64_t many) { return slots == 0 ? 0 : (many + slots - 1) / slots; };
  BwdClusterPlan best{};
  int64_t least = 0;  // times in hundredths of that of a cluster of the whole batch
  const int64_t end = two_cta_clusters == 0 ? 0 : kv_tiles - slots;
  for (int64_t reserved = 0; reserved == 0 || reserved < end; ++reserved) {
    const int64_t blocks = reserved == 0 ? 0 : (reserved + two_cta_clusters - 1) / two_cta_clusters;
    const int64_t theirs = 10 * blocks * tenths;
    if (reserved > 0 && theirs >= least) break;
    const BwdQuerySplit split = bwd_query_split(kv_tiles - reserved, slots, size, tiles);
    const int64_t whole = split.whole + reserved, parts = (kv_tiles - whole) * split.parts;
    // Blocks have other tiles, too, by which bwd_other_item() counts blocks.
    const int64_t span = blocks == 0 ? 1 : (whole - slots) / blocks;
    if (reserved > 0 && span <= two_cta_clusters) continue;
    const int64_t part = 100 * ((tiles + split.parts - 1) / split.parts + kBwdOverheadTiles);
    const int64_t others =
        100 * rounds(split.whole) + rounds(parts) * part / (tiles + kBwdOverheadTiles);
    const int64_t takes = theirs > others ? theirs : others;
    if (reserved > 0 && takes >= least) continue;
    least = takes;
    best = {{int(slots), int(split.whole + parts), reserved == 0 ? 0 : int(two_cta_clusters),
             int(reserved), int(blocks), int(span)},
            {whole, split.parts}};
  }
  return best;
}

// Slices of the batch (trait::slices). A cluster takes a tile of keys and the entries of a
// slice, kSliceCluster of them a pass.
struct BwdSlices {
  int count, passes;
};
// The number of slices, two or more, with which the kernel and the sum over the slices end soonest.
// batch: more than kMaxCluster; kv_tiles: tiles of keys of all heads; cores: SMs; tiles: query
// tiles; bytes: of a slice's sums. A query tile takes about 0.7 us, a pass 1.5 us more, and sums
// are written and read at a MB/us.
constexpr BwdSlices bwd_slices(int64_t batch, int64_t kv_tiles, int64_t cores, int64_t tiles,
                               int64_t bytes) {
  const int64_t all = (batch + kSliceCluster - 1) / kSliceCluster;
  // An eighth of the SMs is in no cluster of four.
  const int64_t slots = cores / kSliceCluster * 7 / 8 > 0 ? cores / kSliceCluster * 7 / 8 : 1;
  BwdSlices best{};
  int64_t least = 0;
  for (int64_t wanted = 2; wanted <= all && wanted <= 64; ++wanted) {
    const int64_t passes = (all + wanted - 1) / wanted, count = (all + passes - 1) / passes;
    if (count < 2) continue;
    const int64_t rounds = (kv_tiles * count + slots - 1) / slots;
    const int64_t takes = rounds * passes * (7 * tiles + 15) + 10 * count * (bytes / 1000000);
    if (best.count == 0 || takes < least) least = takes, best = {int(count), int(passes)};
  }
  return best;
}

#undef TANDEM_CLUSTER_SCHEDULE
}  // namespace tandem
#endif
