// SPDX-License-Identifier: MIT OR Apache-2.0
#include "heuristics.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr bool all_have(int64_t keys) {
  for (const BwdShape& s : kBwdShapes)
    if (!s.wide && s.bc != keys) return false;
  return true;
}
static_assert(all_have(kBwdKeys), "tiles of bwd_dkv_dq");

}  // namespace

bool is_persistent(const Problem& p, int64_t cores) {
  const int64_t tiles = (p.seq_kv + kBwdKeys - 1) / kBwdKeys;
  return hopper_variant(p) == HopperVariant::plain && p.head_dim <= kMaxFusedHeadDim &&
         p.head_dim_v <= kMaxFusedHeadDim && p.wants(TANDEM_GRAD_Q) &&
         p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V) && cores > 0 &&
         tiles * p.heads_kv * p.batch >= kPersistentTilesPerSm * cores;
}

bool fuses_dq_postprocess(const Problem& p, int64_t cores) {
  if (is_persistent(p, cores) || sums_dbias_in_slices(p) || (p.bias && p.keep)) return false;
  const int64_t bytes = p.heads_q * p.seq_q * p.head_dim * 4;
  const HopperVariant variant = hopper_variant(p);
  const bool few = variant == HopperVariant::bias || variant == HopperVariant::masked;
  return p.wants(TANDEM_GRAD_Q) &&
         ((bytes <= (few ? kFewPostprocessBytes : kPostprocessBytes) * p.heads_kv &&
           (!few || p.batch * bytes <= kAllPostprocessBytes)) ||
          uses_cooperative_postprocess(p, cores));
}

bool uses_cooperative_postprocess(const Problem& p, int64_t cores) {
  const int64_t tiles = (p.seq_kv + kBwdKeys - 1) / kBwdKeys, heads = p.heads_kv * p.batch;
  return p.wants(TANDEM_GRAD_Q) && hopper_variant(p) != HopperVariant::bias &&
         tiles * heads <= cores &&
         p.group() * p.seq_q * p.head_dim * 4 <=
             std::max(tiles * (p.banded() ? kMaskedCooperativeBytes : kCooperativeBytes),
                      kPostprocessBytes);
}

int64_t eager_zero_heads(const Problem& p, int64_t cores, int64_t tiles,
                         int64_t interleaved_heads) {
  const HopperVariant set = hopper_variant(p);
  const bool plain = set == HopperVariant::plain && p.wants(TANDEM_GRAD_Q);
  if (!plain && set != HopperVariant::varlen && set != HopperVariant::softcap_alibi) return 0;
  if (p.lengths_q == Lengths::packed || tiles == 0) return 0;
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
  return reduces_dbias_in_clusters(p) && !sums_dbias_in_slices(p) && !p.keep && !p.deterministic &&
         p.batch >= 4 && p.batch % 2 == 0 && kv_tiles >= 64 && !fuses_dq_postprocess(p, 0);
}

}  // namespace tandem
