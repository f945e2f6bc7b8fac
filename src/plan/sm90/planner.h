// SPDX-License-Identifier: MIT OR Apache-2.0
// The variants of the kernels of cuda.sm90, by optional inputs, as the planner and the host side
// see them.
#ifndef TANDEM_SRC_PLAN_SM90_PLANNER_H
#define TANDEM_SRC_PLAN_SM90_PLANNER_H
#include "problem/problem.h"

namespace tandem {

// Variant of the kernels of cuda.sm90 that a problem takes, by its optional inputs. row_bias: a
// bias with one row for all queries, without gradient; bias: any other dense bias.
enum class HopperVariant { plain, bias, row_bias, elastic, entmax, varlen, softcap_alibi, masked };
HopperVariant hopper_variant(const Problem& p);

// Whether the problem is one of HopperVariant::bias, whose kernels read tiles of the bias by TMA.
inline bool has_bias_tiles(const Problem& p) {
  return p.bias && hopper_variant(p) == HopperVariant::bias;
}
// Whether its bias is of f32 then, beside tensors of 16 bits, for which cuda.sm90 has kernels and
// tiles of their own.
bool has_f32_bias(const Problem& p);
// Whether the problem has a dense bias, and beside it a keep mask or lengths, for which there are
// kernels of their own.
bool masks_bias(const Problem& p);

// Whether bwd_dkv_dq reduces d_bias over the batch, in clusters of as many workgroups.
bool reduces_dbias_in_clusters(const Problem& p);
// Whether it does so in slices of the batch, as a cluster has no workgroup for each entry.
bool sums_dbias_in_slices(const Problem& p);

}  // namespace tandem
#endif
