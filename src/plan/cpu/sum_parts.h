// SPDX-License-Identifier: MIT OR Apache-2.0
// In how many parts cpu.simd sums the gradients of the distance bias and of the table of a head, so
// that all threads have work. The number does not depend on the number of threads, as bits would.
#ifndef TANDEM_SRC_PLAN_CPU_SUM_PARTS_H
#define TANDEM_SRC_PLAN_CPU_SUM_PARTS_H
#include <algorithm>

#include "plan/thrift.h"
#include "problem/problem.h"

namespace tandem {

constexpr int64_t kSumUnits = 64;  // parts of all heads together
constexpr int64_t kSumRows = 64;   // rows of the shortest part

inline int64_t sum_parts(const Problem& p) {
  if (saves(p, Saving::partial_sums) || p.heads_q == 0) return 1;
  const int64_t tiles = p.batch * ((p.seq_q + kSumRows - 1) / kSumRows),
                each = (kSumUnits + p.heads_q - 1) / p.heads_q;
  return std::max<int64_t>(1, std::min(tiles, each));
}

}  // namespace tandem
#endif
