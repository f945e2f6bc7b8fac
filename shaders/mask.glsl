// SPDX-License-Identifier: MIT OR Apache-2.0
// Visibility. A hidden score is HIDDEN, a finite number: infinities, whose differences are NaN, are not
// needed and some drivers compile as if there were none.
#include "tile_range.h"

const float HIDDEN = -3.402823466e+38; // -FLT_MAX

TandemBand mask_band() {
  TandemBand band;
  band.left = block.band_left;
  band.right = block.band_right;
  band.off = block.band_off;
  return band;
}

// Query row i, key j.
bool is_visible(int i, int j) {
  return i < block.seq_q && j < block.seq_kv && (BAND == 0 || tandem_visible(mask_band(), i, j));
}

// Rows are query rows from i0, columns are keys from j0.
void mask_tile(inout vec4 s[RM], int i0, int j0) {
  [[unroll]] for (int r = 0; r < RM; r++) {
    [[unroll]] for (int c = 0; c < 4; c++)
      if (!is_visible(i0 + TROW + TR * r, j0 + 4 * TCOL + c)) s[r][c] = HIDDEN;
  }
}

// Rows are keys from j0, columns are query rows from i0.
void mask_tile_transposed(inout vec4 s[RM], int j0, int i0) {
  [[unroll]] for (int r = 0; r < RM; r++) {
    [[unroll]] for (int c = 0; c < 4; c++)
      if (!is_visible(i0 + 4 * TCOL + c, j0 + TROW + TR * r)) s[r][c] = HIDDEN;
  }
}
