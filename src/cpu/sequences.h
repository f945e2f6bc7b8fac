// SPDX-License-Identifier: MIT OR Apache-2.0
// Where the rows of batch entries lie, by their lengths.
#ifndef TANDEM_SRC_CPU_SEQUENCES_H
#define TANDEM_SRC_CPU_SEQUENCES_H
#include <algorithm>

#include "problem/sequence.h"
#include "program.h"

namespace tandem {

// Rows of each batch entry. It allocates nothing: each answer is formed from what the caller gave.
class Sequences {
 public:
  bool packed = false;

  Sequences(Lengths mode, const tandem_buffer& lengths, const tandem_buffer& offsets, int64_t most,
            int64_t total)
      : packed(is_packed(mode)),
        mode_(mode),
        given_(mode == Lengths::full ? nullptr : address<const int32_t>(lengths)),
        from_(mode == Lengths::gapped ? address<const int32_t>(offsets) : nullptr),
        size_(most),
        total_(total) {}

  int64_t first(int64_t b) const { return packed ? place(b).first : 0; }
  int64_t rows(int64_t b) const {
    if (mode_ == Lengths::full) return size_;
    return packed ? place(b).rows : tandem_padded_rows(given_[b], int(size_));
  }

  // Whether entries have rows in common. places: room for the entries, of which there are `batch`.
  bool are_shared(int64_t batch, TandemSequence* places) const {
    int64_t count = 0;
    for (int64_t b = 0; packed && b < batch; ++b) {
      places[count] = place(b);
      count += places[count].rows > 0;
    }
    std::sort(places, places + count,
              [](const TandemSequence& a, const TandemSequence& b) { return a.first < b.first; });
    for (int64_t n = 1; n < count; ++n)
      if (places[n].first < places[n - 1].first + places[n - 1].rows) return true;
    return false;
  }

 private:
  TandemSequence place(int64_t b) const {
    return mode_ == Lengths::gapped
               ? tandem_gapped_rows(from_[b], given_[b], int(total_), int(size_))
               : tandem_packed_rows(given_[b], given_[b + 1], int(total_), int(size_));
  }

  Lengths mode_;
  const int32_t *given_, *from_;
  int64_t size_, total_;
};

}  // namespace tandem
#endif
