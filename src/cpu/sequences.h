// SPDX-License-Identifier: MIT OR Apache-2.0
// Where the rows of batch entries lie, by their lengths.
#ifndef TANDEM_SRC_CPU_SEQUENCES_H
#define TANDEM_SRC_CPU_SEQUENCES_H
#include <algorithm>

#include "problem/sequence.h"
#include "program.h"

namespace tandem {

// Rows of each batch entry.
struct Sequences {
  bool packed = false;
  bool shared = false;         // entries may have rows in common
  int64_t size;                // of all entries, where they are full
  Vec<int64_t> start, length;  // [B]; empty: full
  int64_t first(int64_t b) const { return start.empty() ? 0 : start[size_t(b)]; }
  int64_t rows(int64_t b) const { return length.empty() ? size : length[size_t(b)]; }

  Sequences(Lengths mode, const tandem_buffer& lengths, const tandem_buffer& offsets, int64_t batch,
            int64_t most, int64_t total)
      : packed(is_packed(mode)), size(most) {
    if (mode == Lengths::full) return;
    start.resize(size_t(batch), 0), length.resize(size_t(batch), size);
    const auto* given = address<const int32_t>(lengths);
    const auto* from = address<const int32_t>(offsets);
    for (size_t b = 0; b < length.size(); ++b) {
      if (!packed) {
        length[b] = tandem_padded_rows(given[b], int(size));
        continue;
      }
      const TandemSequence s =
          mode == Lengths::gapped
              ? tandem_gapped_rows(from[b], given[b], int(total), int(size))
              : tandem_packed_rows(given[b], given[b + 1], int(total), int(size));
      start[b] = s.first;
      length[b] = s.rows;
    }
    if (packed) find_shared();
  }

  void find_shared() {
    Vec<size_t> order;  // as they lie
    for (size_t b = 0; b < length.size(); ++b)
      if (length[b] > 0) order.push_back(b);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return start[a] < start[b]; });
    for (size_t n = 1; n < order.size(); ++n)
      shared = shared || start[order[n]] < start[order[n - 1]] + length[order[n - 1]];
  }
};

}  // namespace tandem
#endif
