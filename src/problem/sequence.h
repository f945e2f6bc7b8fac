// SPDX-License-Identifier: MIT OR Apache-2.0
// Which rows belong to a batch entry, by the lengths or offsets that a caller gives on the device.
// Common subset of C++, CUDA and GLSL, as src/problem/tile_range.h, so that all backends bound them
// alike: whatever the numbers are, no row lies outside [0, total) of a packed tensor or [0,
// longest) of a padded one.
#ifndef TANDEM_SRC_PROBLEM_SEQUENCE_H
#define TANDEM_SRC_PROBLEM_SEQUENCE_H
#include "tile_range.h"

struct TandemSequence {
  int first;  // row of a packed tensor
  int rows;
};

// Padded: rows of an entry with the given length.
TANDEM_FN int tandem_padded_rows(int given, int longest) {
  return tandem_min(tandem_max(given, 0), longest);
}

// Packed: rows of an entry between two offsets. Offsets are clamped to [0, total] before they are
// subtracted, as their difference may leave 32 bits.
TANDEM_FN TandemSequence tandem_packed_rows(int begin, int end, int total, int longest) {
  TandemSequence s;
  s.first = tandem_padded_rows(begin, total);
  s.rows = tandem_padded_rows(tandem_padded_rows(end, total) - s.first, longest);
  return s;
}

// Gapped: rows of an entry that begins at an offset and has a length.
TANDEM_FN TandemSequence tandem_gapped_rows(int begin, int given, int total, int longest) {
  TandemSequence s;
  s.first = tandem_padded_rows(begin, total);
  s.rows = tandem_padded_rows(given, tandem_min(longest, total - s.first));
  return s;
}

// Numbers of an entry that place_entries writes: its first row, the row behind its last one, and
// its rank: how many entries come before it in memory, those with a smaller offset, or the same one
// and a smaller index. Entries of cumulative offsets are their own ranks.
#define TANDEM_PLACE_NUMBERS 3

#endif
