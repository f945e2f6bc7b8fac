// SPDX-License-Identifier: MIT OR Apache-2.0
#include "heuristics.h"

#include <algorithm>
#include <functional>

#include "bwd_parts.h"
#include "plan/thrift.h"

namespace tandem {
namespace {

constexpr bool all_have(int64_t keys) {
  for (const BwdShape& s : kBwdShapes)
    if (!s.wide && !s.two_sided() && s.bc != keys) return false;
  return true;
}
static_assert(all_have(kBwdKeys), "tiles of bwd_dkv_dq");

// When the last workgroup ends, if each goes to the SM that is free first. times: of the
// workgroups, in order.
int64_t makespan(const Vec<int64_t>& times, int64_t cores) {
  Vec<int64_t> ends;  // of each SM, the soonest first
  int64_t last = 0;
  for (int64_t time : times) {
    if (int64_t(ends.size()) == cores) {
      std::pop_heap(ends.begin(), ends.end(), std::greater<int64_t>());
      time += ends.back();
      ends.pop_back();
    }
    ends.push_back(time);
    std::push_heap(ends.begin(), ends.end(), std::greater<int64_t>());
    last = std::max(last, time);
  }
  return last;
}

}  // namespace

bool is_persistent(const Problem& p, int64_t cores) {
  const int64_t tiles = (p.seq_kv + kBwdKeys - 1) / kBwdKeys;
  if (p.slices) return false;  // slices are cut between workgroups that have a tile each
  return sm90_with(p, sm90_kernel(p), trait::persistent) >= 0 && p.head_dim <= kMaxFusedHeadDim &&
         p.head_dim_v <= kMaxFusedHeadDim && p.wants(TANDEM_GRAD_Q) &&
         p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V) && cores > 0 &&
         tiles * p.heads_kv * p.batch >= kPersistentTilesPerSm * cores;
}

BwdParts bwd_parts(const Problem& p, int64_t of_device, const BwdShape& shape) {
  // Two-CTA clusters, where a tile has two sides.
  const int64_t cores = shape.two_sided() ? of_device / kTwoSidedCluster : of_device;
  const int64_t tiles = (p.seq_kv + shape.bc - 1) / shape.bc, heads = p.heads_kv * p.batch;
  if ((sm90_with(p, sm90_kernel(p), trait::parts) < 0 && !shape.two_sided()) || shape.wide ||
      !p.wants(TANDEM_GRAD_Q) || !p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V) ||
      is_persistent(p, cores) || tiles * heads > kPersistentTilesPerSm * cores)
    return {};
  if (p.deterministic && p.banded() && tiles > 1) return {};
  if (saves(p, Saving::partial_sums)) return {};
  Vec<int> pairs;  // of each tile of keys of a head
  int longest = 0;
  if (cores <= 0 || p.group() * p.seq_q > kMaxPartRows) return {};
  for (int64_t n = 0; n < tiles; ++n) {
    const TandemTiles span = tandem_query_tiles(p.band, int(n * shape.bc), shape.bc, shape.br,
                                                int(p.seq_q), int(p.seq_kv));
    pairs.push_back(int(p.group()) * (span.end - span.begin));
    longest = std::max(longest, pairs.back());
  }
  const int64_t most_bytes = shape.two_sided() ? kMaxTwoSidedPartialBytes : kMaxPartialBytes;
  Vec<int64_t> times;
  // What the tiles of keys wait for each other.
  const int64_t waits = p.deterministic ? 12 * (tiles - 1) : 0;
  for (int64_t head = 0; head < heads; ++head)
    for (int of_tile : pairs) times.push_back(10 * of_tile + 20);
  const int64_t present = makespan(times, cores) + waits;
  BwdParts best;
  int64_t least = 0;
  for (int wanted = 1; wanted <= kMaxBwdParts && wanted <= std::max(longest, 1); ++wanted) {
    const int each = (longest + wanted - 1) / wanted, most = bwd_part_count(longest, each);
    if (most != wanted) continue;  // as with fewer
    if (wanted > 1 && tiles * heads * most * bwd_partial_floats(shape) * 4 > most_bytes) break;
    times.clear();
    for (int of_tile : pairs) {
      const int parts = bwd_part_count(of_tile, each);
      const int64_t shares = parts > 1 ? 10 + 5 * parts : 0;
      for (int64_t head = 0; head < heads; ++head)
        for (int n = 0; n < parts; ++n)
          times.push_back(
              10 * (bwd_part_begin(of_tile, parts, n + 1) - bwd_part_begin(of_tile, parts, n)) +
              20 + shares);
    }
    if (wanted > 1 && int64_t(times.size()) > 2 * kPersistentTilesPerSm * cores) break;
    const int64_t takes = makespan(times, cores) + waits;
    if (best.most > 0 && takes >= least) continue;
    least = takes, best = {most, each, int64_t(times.size())};
  }
  return 16 * least <= 15 * present ? best : BwdParts{};
}

bool fuses_dq_postprocess(const Problem& p, int64_t cores, const BwdParts& parts) {
  const int kernel = sm90_kernel(p);
  const bool tiles = kernel >= 0 && kKernels[kernel].has(trait::bias_tiles),
             keep = kernel >= 0 && (kKernels[kernel].inputs & kHasKeep) != 0;
  if (has_two_sides(p) || is_persistent(p, cores) || sums_dbias_in_slices(p) || (tiles && keep) ||
      gathers_rows(p))
    return false;
  const int64_t bytes = p.heads_q * p.seq_q * p.head_dim * 4;
  const bool few = tiles || keep;
  return p.wants(TANDEM_GRAD_Q) &&
         ((bytes <= (few ? kFewPostprocessBytes : kPostprocessBytes) * p.heads_kv &&
           (!few || p.batch * bytes <= kAllPostprocessBytes)) ||
          uses_cooperative_postprocess(p, cores, parts));
}

bool uses_cooperative_postprocess(const Problem& p, int64_t cores, const BwdParts& parts) {
  const int64_t tiles = (p.seq_kv + kBwdKeys - 1) / kBwdKeys, heads = p.heads_kv * p.batch;
  return p.wants(TANDEM_GRAD_Q) && !sm90_has(p, trait::bias_tiles) && !has_two_sides(p) &&
         !gathers_rows(p) && std::max(tiles * heads, parts.workgroups) <= cores &&
         p.group() * p.seq_q * p.head_dim * 4 <=
             std::max(tiles * (p.banded() ? kMaskedCooperativeBytes : kCooperativeBytes),
                      kPostprocessBytes);
}

int64_t eager_zero_heads(const Problem& p, int64_t cores, int64_t tiles,
                         int64_t interleaved_heads) {
  const int kernel = sm90_kernel(p);
  if (kernel < 0) return 0;
  const KernelRow& row = kKernels[kernel];
  if (row.has(trait::bias_tiles) || (row.inputs & (kHasKeep | kHasElastic | kHasEntmax)) != 0 ||
      (row.inputs == kHasSink && !p.wants(TANDEM_GRAD_Q)))
    return 0;
  if (is_packed(p.lengths_q) || tiles == 0 || has_two_sides(p)) return 0;
  // One head more than run at a time, so that a slice is zero long before a workgroup adds to it.
  const int64_t heads = std::max((cores + tiles - 1) / tiles, interleaved_heads) + 1;
  return heads < p.heads_kv * p.batch ? heads : 0;
}

int64_t eager_zero_heads_per_entry(const Problem& p, int64_t cores, int64_t tiles) {
  // One head more than run at a time.
  const int64_t heads = (cores + tiles * p.batch - 1) / (tiles * p.batch) + 1;
  return heads < p.heads_kv ? heads : 0;
}

bool uses_two_cta_clusters(const Problem& p, int64_t kv_tiles) {
  return reduces_dbias_in_clusters(p) && !sums_dbias_in_slices(p) &&
         !saves(p, Saving::partial_sums) && sm90_with(p, sm90_kernel(p), trait::two_cta) >= 0 &&
         !p.deterministic && p.batch >= 4 && p.batch % 2 == 0 && kv_tiles >= 64 &&
         !fuses_dq_postprocess(p, 0);
}

}  // namespace tandem
