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
  Vec<int64_t> start, length;  // [B]

  Sequences(Lengths mode, const tandem_buffer& lengths, const tandem_buffer& offsets, int64_t batch,
            int64_t size, int64_t total)
      : packed(is_packed(mode)), start(size_t(batch), 0), length(size_t(batch), size) {
    if (mode == Lengths::full) return;
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
