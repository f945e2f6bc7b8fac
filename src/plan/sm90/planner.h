// SPDX-License-Identifier: MIT OR Apache-2.0
// The variants of the kernels of cuda.sm90, by optional inputs, as the planner and the host side
// see them.
#ifndef TANDEM_SRC_PLAN_SM90_PLANNER_H
#define TANDEM_SRC_PLAN_SM90_PLANNER_H
#include "problem/problem.h"

namespace tandem {

// Variant of the kernels of cuda.sm90 that a problem takes, by its optional inputs.
enum class HopperVariant { plain, bias, elastic, entmax, varlen, softcap_alibi, masked };
HopperVariant hopper_variant(const Problem& p);

// Whether the problem has a dense bias of f32 beside tensors of 16 bits, for which cuda.sm90 has
// kernels and tiles of their own.
bool has_f32_bias(const Problem& p);

// Whether bwd_dkv_dq reduces d_bias over the batch, in clusters of as many workgroups.
bool reduces_dbias_in_clusters(const Problem& p);
// Whether it does so in slices of the batch, as a cluster has no workgroup for each entry.
bool sums_dbias_in_slices(const Problem& p);

}  // namespace tandem
#endif
