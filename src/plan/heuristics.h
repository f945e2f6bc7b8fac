// SPDX-License-Identifier: MIT OR Apache-2.0
// What all paths of a GPU decide by measured times. Notebook: bench/lab/2026-11.md.
#ifndef TANDEM_SRC_PLAN_HEURISTICS_H
#define TANDEM_SRC_PLAN_HEURISTICS_H
#include <algorithm>
#include <cstdint>

namespace tandem {

// Invocations that give each SM work: what fits an NVIDIA SM with 168 registers for each.
constexpr int64_t kCoreInvocations = 384;
// Each split has at least so many keys of the longest row, as the combine takes a launch of its
// own.
constexpr int64_t kSplitKeys = 256;

// How many workgroups share the keys of a row of fwd. Few query tiles leave most of the device
// idle, so there are as many workgroups as the device has room for: `wanted`. groups: workgroups
// without splits; keys: of the longest row, in whole tiles. H100, one query of 32 heads, D 128,
// f16, Sk 32768: 0.198 ms by coopmat2 instead of 1.30, 0.894 by simt instead of 5.38.
inline uint32_t splits_of_keys(int64_t groups, int64_t wanted, int64_t keys) {
  return uint32_t(std::max<int64_t>(std::min(wanted / groups, keys / kSplitKeys), 1));
}

// Several workgroups share a sum with few outputs and many members, as many as fill the device, and
// bwd_sum_splits adds their partial sums. The number of workgroups bounds the partial sums by a few
// tiles for each SM, whatever the problem. Not measured.
inline uint32_t splits_of_sum(int64_t groups, int64_t members, int64_t cores) {
  const int64_t wanted = 4 * cores / std::max<int64_t>(groups, 1);
  return uint32_t(std::max<int64_t>(1, std::min(wanted, members)));
}

}  // namespace tandem
#endif
