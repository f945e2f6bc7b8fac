// SPDX-License-Identifier: MIT OR Apache-2.0
// What the path cuda.sm80 decides by measured times. Notebook: bench/lab/2026-11.md.
#ifndef TANDEM_SRC_PLAN_SM80_HEURISTICS_H
#define TANDEM_SRC_PLAN_SM80_HEURISTICS_H
#include <algorithm>

#include "plan/tiles.h"
#include "problem/problem.h"

namespace tandem {

// Whether bwd_dkv_dq stores d_q itself, by the last workgroup of a head, so that there is no
// bwd_dq_cast. f32 only: the other kernels have no registers for it. A launch of its own is faster,
// by 4 us for 256 KiB a head (H100), but a small problem has fewer launches to record. Hence a
// small limit for a head, and one for all heads.
inline bool sm80_postprocesses_dq(const Problem& p) {
  const int64_t bytes = p.heads_q * p.seq_q * p.head_dim * 4;
  return p.dtype == TANDEM_F32 && bytes <= (int64_t(1) << 18) * p.heads_kv &&
         p.batch * bytes <= int64_t(4) << 20;
}

// Whether a later tile of a kernel is better than the best one so far, for the same head sizes: it
// is smaller, and holds all rows, or the other has so few workgroups that some SMs get none. H100,
// fwd, D 256, S 512, 8 heads: 0.024 ms instead of 0.028. A tile for wider heads multiplies zeros,
// and has a wider dQ accumulator.
inline bool sm80_is_better(const Problem& p, int64_t cores, const AmpereTile& t,
                           const AmpereTile& best) {
  const int64_t length = t.owns_keys() ? p.seq_kv : p.seq_q;
  const int64_t tiles = (length + best.owned() - 1) / best.owned() * p.heads_q * p.batch;
  const bool few = t.stem == Stem::fwd && tiles * (p.banded() ? 1 : 2) <= cores;
  return t.width == best.width && t.owned() < best.owned() &&
         (length <= t.owned() || (few && t.owned() * 2 >= best.owned()));
}

// Workgroups of fwd that shared memory has room for at a time. There are no more splits of keys
// than that, as a last partial wave takes as long as a whole one. H100, decoding: 4 to 10 % where
// there were more. CUDA reserves 1 KiB for each workgroup.
inline int64_t sm80_workgroups_at_once(uint32_t device_bytes, uint32_t bytes, int64_t cores) {
  return std::max<int64_t>(device_bytes / (bytes + 1024), 1) * cores;
}

// Whether the workgroups of bwd_dq follow those of bwd_dkv in one launch, which spares the host
// three microseconds. bwd_dq then has more threads than it uses, which is harmless while there are
// SMs for all workgroups of both.
inline bool sm80_joins_dq(uint32_t dkv_total, uint32_t dq_total, int64_t cores) {
  return dkv_total + uint64_t(dq_total) <= uint64_t(cores);
}

}  // namespace tandem
#endif
