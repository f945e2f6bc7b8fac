// SPDX-License-Identifier: MIT OR Apache-2.0
// Visibility. A hidden score is minus infinity, as a bias of minus infinity makes it: every finite
// number is a score. It is tested by its bits, as some drivers compile as if there were no
// infinities.
#include "problem/tile_range.h"

#define HIDDEN uintBitsToFloat(LSE_NONE)
bool is_hidden(float s) { return floatBitsToUint(s) == LSE_NONE; }

TandemBand mask_band() {
  TandemBand band;
  band.left = block.band_left;
  band.right = block.band_right;
  band.off = entry.off;
  return band;
}

// Query row i, key j.
bool is_visible(int i, int j) {
  return i < entry.seq_q && (!ANYWHERE || j >= 0) && j < entry.seq_kv &&
         (BAND == 0 || tandem_visible(mask_band(), i, j));
}

// keep of query row i and key j; outside of the problem either value is right. Bytes are extracted
// from words, so that no 8-bit storage is needed.
bool is_kept(int i, int j) {
  uvec2 at = add64(inputs.keep, add64(mul64(extra.keep.sd.xy, near_query(i)),
                                      mul64(extra.keep.sd.zw, near_key(j))));
  return (Load1(uvec2(at.x & ~3u, at.y)).w >> 8u * (at.x & 3u) & 0xffu) != 0;
}

#ifndef BY_ELEMENT
// Rows are query rows from i0, columns are keys from j0.
void mask_tile(inout vec4 s[RQ], int i0, int j0) {
  [[unroll]] for (int r = 0; r < RQ; r++) {
    [[unroll]] for (int c = 0; c < 4; c++) if (!is_visible(i0 + ROW_OF(r), j0 + COL_OF(r) + c))
        s[r][c] = HIDDEN;
  }
}

// Rows are keys from j0, columns are query rows from i0.
void mask_tile_transposed(inout vec4 s[RQ], int j0, int i0) {
  [[unroll]] for (int r = 0; r < RQ; r++) {
    [[unroll]] for (int c = 0; c < 4; c++) if (!is_visible(i0 + COL_OF(r) + c, j0 + ROW_OF(r)))
        s[r][c] = HIDDEN;
  }
}

// keep of an invocation's elements, bit 4 r + c; outside of the problem either value is right.
uint keep_bits(int i0, int j0, bool flip) {
  uint bits = 0;
  [[unroll]] for (int r = 0; r < RQ; r++) {
    [[unroll]] for (int c = 0; c < 4; c++) {
      bits |= is_kept(query_of(i0, r, c, flip), key_of(j0, r, c, flip)) ? 1u << (4 * r + c) : 0u;
    }
  }
  return bits;
}
void keep_tile(inout vec4 s[RQ], uint bits) {
  [[unroll]] for (int r = 0; r < RQ; r++) {
    [[unroll]] for (int c = 0; c < 4; c++) if ((bits >> (4 * r + c) & 1u) == 0) s[r][c] = HIDDEN;
  }
}

const bool SKIP_KEEP = KEEP != 0 && SKIP != 0;
const bool SKIP_ENTMAX = NORM == ENTMAX && SKIP != 0;
void open_votes() {
  begin_votes();
  if (VOTES > 1) barrier();
}

// Called before a tile's product of a and b, from a0 and b0, which are the query rows from i0 and
// the keys from j0 in either order. Sets keep's bits; false if it keeps no element. If tiles may be
// skipped, their first loads start here.
bool open_tile(View a, int a0, View b, int b0, bool flip, out uint kept) {
  const int i0 = flip ? b0 : a0, j0 = flip ? a0 : b0;
  kept = ~0u;
  if (KEEP != 0) kept = keep_bits(i0, j0, flip);
  if (SKIP_KEEP && !vote(kept != 0)) return false;
  if (SKIP != 0) fetch_nt(a, a0, b, b0, 0);
  return true;
}
#endif
