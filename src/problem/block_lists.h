// SPDX-License-Identifier: MIT OR Apache-2.0
// What block lists show (tandem_args.blocks, block_bits), as the mask that it stands for.
#ifndef TANDEM_SRC_PROBLEM_BLOCK_LISTS_H
#define TANDEM_SRC_PROBLEM_BLOCK_LISTS_H
#include <algorithm>
#include <cstdint>

#include "problem.h"

namespace tandem {

// Entries of a row's list: partial ones, then full ones.
struct BlockCounts {
  int64_t partial, full;
};
inline BlockCounts block_counts(const BlockLists& x, const int32_t* row) {
  const int64_t partial = std::clamp<int64_t>(row[0], 0, x.bits > 0 ? x.bits : x.width);
  return {partial, std::clamp<int64_t>(row[1], 0, x.width - partial)};
}

// Writes row i of the keep mask of a head of the lists, [Sk]: 1 where a pair is visible, else 0.
// lists, bits: of the head; bits may be null if the lists have none.
inline void expand_block_row(const Problem& p, const int32_t* lists, const uint32_t* bits,
                             int64_t i, uint8_t* keep) {
  const BlockLists& x = p.blocks;
  const int64_t r = i / x.q;
  const int32_t* row = lists + r * (2 + x.width);
  const BlockCounts n = block_counts(x, row);
  std::fill_n(keep, p.seq_kv, uint8_t(0));
  for (int64_t slot = 0; slot < n.partial + n.full; ++slot) {
    const int64_t column = row[2 + slot];
    if (column < 0 || column * x.kv >= p.seq_kv) continue;
    const int64_t first = column * x.kv, end = std::min(first + x.kv, p.seq_kv);
    if (slot >= n.partial || x.bits == 0) {
      std::fill(keep + first, keep + end, uint8_t(1));
      continue;
    }
    const uint32_t* words = bits + ((r * x.bits + slot) * x.q + i % x.q) * (x.kv / 32);
    for (int64_t j = 0; j < end - first; ++j) keep[first + j] = words[j / 32] >> (j % 32) & 1;
  }
}
// All rows of a head: [Sq, Sk].
inline void expand_blocks(const Problem& p, const int32_t* lists, const uint32_t* bits,
                          uint8_t* keep) {
  for (int64_t i = 0; i < p.seq_q; ++i) expand_block_row(p, lists, bits, i, keep + i * p.seq_kv);
}

}  // namespace tandem
#endif
