// SPDX-License-Identifier: MIT OR Apache-2.0
// Which tiles the rows of cuda.sm90 have kernels for, and how much shared memory these need. The
// planner picks by this, and the look-ups of the kernels are made by it
// (cuda/sm90/instantiate.cuh). Row: KernelRow, or a row as a type.
#ifndef TANDEM_SRC_PLAN_SM90_KERNEL_TILES_H
#define TANDEM_SRC_PLAN_SM90_KERNEL_TILES_H
#include "kernels/columns.h"
#include "tiles.h"

namespace tandem {

// Whether a kernel has the bits of a mask, of keep or of ends, for each score.
template <typename Row>
constexpr bool masks_scores(const Row& row) {
  return (row.inputs & kHasKeep) != 0 && !row.has(trait::f32_bias);
}

// ---- fwd ----
// Traits that the kernels of a tile have, of the rows that take a row's inputs.
constexpr uint32_t kOfFwdTiles =
    trait::decoupled | trait::rows_192 | trait::wide_heads | trait::halved_o;
template <typename Row>
constexpr uint32_t fwd_tile_traits(const Row& row, const FwdTile& t) {
  if (t.decoupled) return row.has(trait::one_row) ? trait::none : trait::decoupled;
  if (t.bias) return trait::rows_192;
  if (t.halves_o()) return trait::halved_o;
  return row.inputs == 0 && fwd_has_wide_heads(t) ? trait::wide_heads : trait::none;
}
// Bytes of shared memory of a workgroup; 0: there is no kernel for the tile.
template <typename Row>
constexpr int sm90_shared_bytes(const Row& row, const FwdTile& t) {
  if ((row.needs & kHasElastic) != 0) return fwd_elastic_shared_bytes(t);
  if ((row.needs & kHasEntmax) != 0) return fwd_entmax_shared_bytes(t);
  if (row.has(trait::f32_bias)) return fwd_f32_bias_shared_bytes(t);
  if (row.has(trait::bias_tiles))
    return masks_scores(row) ? fwd_bias_keep_shared_bytes(t) : fwd_bias_shared_bytes(t);
  if (row.has(trait::one_row)) return fwd_row_bias_shared_bytes(t);
  if (row.inputs == 0 || row.has(trait::halved_o)) return fwd_plain_shared_bytes(t);
  return masks_scores(row) ? fwd_masked_shared_bytes(t) : fwd_varlen_shared_bytes(t);
}
template <typename Row>
constexpr bool has_kernel(const Row& row, const FwdTile& t) {
  const int bytes = sm90_shared_bytes(row, t);
  return 0 < bytes && bytes <= kMaxShared && t.f32_bias == row.has(trait::f32_bias) &&
         (row.traits & kOfFwdTiles) == fwd_tile_traits(row, t) &&
         !(row.has(trait::scales_q) && !fwd_scales_q(t)) &&
         !(row.has(trait::to_128) && (t.d > 128 || t.dv > 128)) &&
         !(row.has(trait::any_alpha) && t.d != 128);
}

// ---- bwd_dkv_dq, bwd_dkv, bwd_dkv_dist ----
template <typename Row>
constexpr int sm90_shared_bytes(const Row& row, const BwdShape& s) {
  if (row.has(trait::two_sided)) return s.two_sided() ? bwd_two_sided_shared_bytes(s) : 0;
  if (s.two_sided()) return 0;
  if (row.has(trait::bias_tiles)) return bwd_bias_shared_bytes(s);
  if (row.stem == Stem::bwd_dkv_dist) return bwd_elastic_shared_bytes(s);
  if (row.stem == Stem::bwd_dkv || row.has(trait::one_row) || (row.inputs & ~kHasSink) == 0 ||
      (row.needs & kHasEntmax) != 0)
    return bwd_plain_shared_bytes(s);
  if (masks_scores(row)) return bwd_masked_shared_bytes(s, (row.inputs & kHasDropout) != 0);
  return (row.inputs & kHasSoftcap) == 0 || has_softcap_alibi_kernel(s) ? bwd_varlen_shared_bytes(s)
                                                                        : 0;
}
template <typename Row>
constexpr bool has_kernel(const Row& row, const BwdShape& s) {
  return sm90_shared_bytes(row, s) > 0 && s.wide == (row.stem == Stem::bwd_dkv) &&
         s.f32_bias == row.has(trait::f32_bias) && !(row.has(trait::any_alpha) && s.d != 128);
}

// ---- bwd_row_sums of entmax ----
template <typename Row>
constexpr bool has_kernel(const Row& row, const SupportShape& s) {
  return !(row.has(trait::any_alpha) && s.d != 128);
}

}  // namespace tandem
#endif
