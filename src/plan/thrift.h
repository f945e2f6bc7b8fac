// SPDX-License-Identifier: MIT OR Apache-2.0
// What a plan does without where the problem limits the workspace, and in which order. A planner
// asks saves() where it decides about a use of the workspace that another way of computing can
// replace. try_path() (plan.cpp) takes one more saving after the other, until the plan is within
// the limit; a path that stays above it even so leaves the problem to the next one.
#ifndef TANDEM_SRC_PLAN_THRIFT_H
#define TANDEM_SRC_PLAN_THRIFT_H
#include <algorithm>
#include <cstdint>

#include "problem/problem.h"

namespace tandem {

// In the order in which try_path() takes them: first what costs least for the bytes that it frees.
enum class Saving : uint8_t {
  stored_ds,     // coopmat2: dS of bwd_dkv for bwd_dq, up to 256 MiB; it is computed again
  stream_k,      // sm90, fwd with a dense bias: tiles that two workgroups share
  half_splits,   // splits of the keys of fwd: half as many each time, down to one
  partial_sums,  // workgroups that share a sum: of d_bias, d_dist_bias, d_k and d_v, tables
  bias_sums,     // coopmat: bwd_dq's sums of d_bias over the batch; bwd_dbias forms them
  packed_keep,   // sm90: the bits of a keep mask; its bytes are read
  d_q_accum,     // sm80: the dQ accumulator; bwd_dq forms the scores again
  maps,          // mask maps, and the support of entmax: every tile is visited
  end
};

inline bool saves(const Problem& p, Saving saving) {
  return (p.savings & (1u << uint32_t(saving))) != 0;
}

// The number of splits of fwd that is left of `splits`.
inline uint32_t thrifty_splits(const Problem& p, uint32_t splits) {
  return p.most_splits > 0 ? std::min(splits, uint32_t(p.most_splits)) : splits;
}

// Takes the next saving that a plan of `splits` splits has not. Returns false if there is none.
inline bool save_more(uint32_t splits, Problem* p) {
  for (uint32_t n = 0; n < uint32_t(Saving::end); ++n) {
    if (Saving(n) == Saving::half_splits) {
      splits = thrifty_splits(*p, splits);
      if (splits <= 1 || p->splits > 0) continue;  // a number that the problem asks for stays
      p->most_splits = int(splits / 2);
      return true;
    }
    if ((p->savings & (1u << n)) != 0) continue;
    p->savings |= 1u << n;
    if (Saving(n) == Saving::maps) p->visit_all = true;
    return true;
  }
  return false;
}

}  // namespace tandem
#endif
