// SPDX-License-Identifier: MIT OR Apache-2.0
// Which kernel of cuda.sm90 a problem takes, as the planner and the host side see it.
#ifndef TANDEM_SRC_PLAN_SM90_ROWS_H
#define TANDEM_SRC_PLAN_SM90_ROWS_H
#include "plan/caps.h"

namespace tandem {

// The row of a problem's main kernel by its optional inputs alone; -1: none takes them. The main
// kernel is fwd, or bwd_dkv_dq, with elastic softmax bwd_dkv_dist, with heads over kMaxFusedHeadDim
// bwd_dkv. The tile and the launch may ask for the row that has a trait besides (sm90_with()).
int sm90_kernel(const Problem& p);
// Whether that row has traits.
bool sm90_has(const Problem& p, uint32_t traits);
// The row of the same stem with more traits, for the problem; -1: there is none.
int sm90_with(const Problem& p, int kernel, uint32_t traits);
// The row of fwd for a tile; -1: there is none.
int sm90_fwd_kernel(const Problem& p, const Caps& caps, const struct FwdTile& tile);

// Whether the backward of a problem has heads over kMaxWholeHeadDim, whose kernel has two sides.
bool has_two_sides(const Problem& p);

// Whether bwd_dkv_dq of entmax gathers the rows that have support in its keys. Their sums in the dQ
// accumulator come in any order.
bool gathers_rows(const Problem& p);

// Whether a problem has a bias whose tiles kernels read by TMA: any but one of one row.
bool has_bias_tiles(const Problem& p);

// Whether bwd_dkv_dq reduces d_bias over the batch, in clusters of as many workgroups.
bool reduces_dbias_in_clusters(const Problem& p);
// Whether it does so in slices of the batch, as a cluster has no workgroup for each entry.
bool sums_dbias_in_slices(const Problem& p);

}  // namespace tandem
#endif
