// SPDX-License-Identifier: MIT OR Apache-2.0
#include "rows.h"

#include <algorithm>

#include "heuristics.h"
#include "kernel_tiles.h"
#include "plan/planner.h"

namespace tandem {
namespace {

// Traits by which problems choose. The others are chosen by tiles and launches.
constexpr uint32_t kOfProblems = trait::to_128 | trait::one_row | trait::bias_tiles |
                                 trait::f32_bias | trait::any_alpha | trait::two_sided;

bool is_wide(const Problem& p) { return std::max(p.head_dim, p.head_dim_v) > kMaxFusedHeadDim; }

// Whether the bias is one row for all queries, for the kernels that read it so.
bool reads_one_row(const Problem& p) {
  return p.bias.strides.s == 0 && !p.wants(TANDEM_GRAD_BIAS) && !(is_wide(p) && p.backward) &&
         !prefers_bias_tiles(p, is_wide(p));
}

bool takes(const KernelRow& row, const Problem& p) {
  if (!row.takes(p.inputs()) || (row.traits & ~kOfProblems) != 0) return false;
  if (row.has(trait::two_sided) != has_two_sides(p)) return false;
  if (row.has(trait::to_128) && is_wide(p)) return false;
  if (row.has(trait::one_row)) return reads_one_row(p);
  if (row.has(trait::bias_tiles))
    return row.has(trait::f32_bias) == (p.bias.dtype == TANDEM_F32 && p.dtype != TANDEM_F32);
  return (row.needs & kHasEntmax) == 0 || row.has(trait::any_alpha) == (p.alpha != 1.5f);
}

}  // namespace

bool has_two_sides(const Problem& p) {
  return p.backward && std::max(p.head_dim, p.head_dim_v) > kMaxWholeHeadDim;
}

bool gathers_rows(const Problem& p) {
  return p.backward && p.normalizer == Normalizer::entmax && !p.deterministic;
}

int sm90_kernel(const Problem& p) {
  const Stem stem = !p.backward                           ? Stem::fwd
                    : p.normalizer == Normalizer::elastic ? Stem::bwd_dkv_dist
                    : is_wide(p) && !has_two_sides(p)     ? Stem::bwd_dkv
                                                          : Stem::bwd_dkv_dq;
  for (int n = 0; n < kKernelCount; ++n)
    if (kKernels[n].path_id == PathId::cuda_sm90 && kKernels[n].stem == stem &&
        takes(kKernels[n], p))
      return n;
  return -1;
}

bool sm90_has(const Problem& p, uint32_t traits) {
  const int kernel = sm90_kernel(p);
  return kernel >= 0 && kKernels[kernel].has(traits);
}

int sm90_with(const Problem& p, int kernel, uint32_t traits) {
  if (kernel < 0) return -1;
  const KernelRow& from = kKernels[kernel];
  const int n = find_kernel(from.path_id, from.stem, from.traits | traits, p.dtype, p.inputs());
  return n >= 0 && kKernels[n].takes(p.inputs()) && has_dtype(kKernels[n].dtypes, p.dtype) ? n : -1;
}

int sm90_fwd_kernel(const Problem& p, const Caps& caps, const FwdTile& t) {
  const int kernel = sm90_kernel(p);
  if (kernel < 0) return -1;
  const KernelRow& row = kKernels[kernel];
  if (const uint32_t traits = fwd_tile_traits(row, t)) return sm90_with(p, kernel, traits);
  if (t.decoupled) return kernel;
  const int scaled = sm90_with(p, kernel, trait::scales_q);
  if (scaled >= 0 && fwd_scales_q(t) && has_exact_scale(p.scale) &&
      !is_disabled(caps, kernel_name(kKernels[scaled])))
    return scaled;
  return kernel;
}

bool has_bias_tiles(const Problem& p) { return p.bias && !sm90_has(p, trait::one_row); }

bool reduces_dbias_in_clusters(const Problem& p) {
  return p.bias && p.bias.batch == 1 && p.batch > 1 && p.wants(TANDEM_GRAD_BIAS);
}

bool sums_dbias_in_slices(const Problem& p) {
  return reduces_dbias_in_clusters(p) && p.batch > kMaxCluster;
}

}  // namespace tandem
