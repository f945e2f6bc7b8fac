// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles without a kept key are skipped before any of their rows is loaded. The next tile that has
// one is known before it is fetched, so its rows are prefetched in registers as usual.

#ifndef SKIPPED // what a skipped tile leaves
#define SKIPPED(t, first)
#endif
#ifndef VISITS_ALL
#define VISITS_ALL false
#endif
const bool SKIPS = VISITS_ALL ? false : SKIP != 0;
const bool SKIP_KEEP = KEEP != 0 && SKIPS;
const bool SKIP_ENTMAX = NORM == ENTMAX && SKIPS;
#include "parts/vote.glsl"

// With entmax a subgroup may skip a block after S. Not on lavapipe (Mesa 26), which makes barriers
// of the subgroup, of which there are more, barriers of the workgroup; no other device has
// subgroups of 8.
const bool LEAVES_BLOCKS = SKIP_ENTMAX && SUBGROUP != 8;

// Whether a tile with query rows from i0 and keys from j0 has a kept key, or may have one: with
// feature stride 1 whole words are tested, and with them up to three keys on either side.
bool keeps_any(int i0, int rows, int j0, int cols) {
  const bool words = extra.keep.sd.zw == uvec2(1, 0);
  const int in_row = words ? cols / 4 + 1 : cols;
  const int row_end = min(i0 + rows, entry.seq_q), key_end = min(j0 + cols, entry.seq_kv);
  bool any = false;
  [[dont_unroll]] for (int n = TID; n < rows * in_row; n += WG) {
    const int i = i0 + n / in_row, j = words ? min(j0 + n % in_row * 4, key_end - 1) : j0 + n % in_row;
    if (i >= row_end || j >= key_end) continue;
    if (words) {
      uvec2 at = add64(inputs.keep, add64(mul64(extra.keep.sd.xy, i), j));
      any = any || Load1(uvec2(at.x & ~3u, at.y)).w != 0;
    } else {
      any = any || is_kept(i, j);
    }
  }
  return vote(any);
}
// The first tile from t on, before end, that is not skipped. first: first row of the workgroup;
// flip: its rows are keys.
int next_tile(int t, int end, int first, bool flip) {
  if (!SKIP_KEEP) return t;
  [[dont_unroll]] for (; t < end; t++) {
    if (flip ? keeps_any(t * COLS, COLS, first, ROWS) : keeps_any(first, ROWS, t * COLS, COLS)) break;
    SKIPPED(t, first)
  }
  return t;
}
