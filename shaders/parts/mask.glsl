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

// Whether the spans of key j show it to query row i; outside of the problem either value is right.
bool is_spanned(int i, int j) {
  const uvec2 at = add64(inputs.spans, mul64(uvec2(8 * SPANS, 0), near_key(j)));
  bool seen = false;
  [[unroll]] for (int n = 0; n < SPANS; n++) {
    const int begin = int(Load1(add64(at, 8 * n)).w), end = int(Load1(add64(at, 8 * n + 4)).w);
    seen = seen || (begin <= i && i < end);
  }
  return seen;
}

#ifndef BY_ELEMENT
#include "map.glsl"

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

// keep, and spans, of an invocation's elements, bit 4 r + c; outside of the problem either value is
// right.
uint keep_bits(int i0, int j0, bool flip) {
  uint bits = 0;
  [[unroll]] for (int r = 0; r < RQ; r++) {
    [[unroll]] for (int c = 0; c < 4; c++) {
      bits |= is_kept(query_of(i0, r, c, flip), key_of(j0, r, c, flip)) ? 1u << (4 * r + c) : 0u;
    }
  }
  return bits;
}
uint span_bits(int i0, int j0, bool flip) {
  uint bits = 0;
  [[unroll]] for (int r = 0; r < RQ; r++) {
    [[unroll]] for (int c = 0; c < 4; c++) {
      bits |= is_spanned(query_of(i0, r, c, flip), key_of(j0, r, c, flip)) ? 1u << (4 * r + c) : 0u;
    }
  }
  return bits;
}
const bool HAS_BITS = KEEP != 0 || SPANS != 0;
// Hides what keep and spans hide of a tile.
void show_tile(inout vec4 s[RQ], uint bits) {
  [[unroll]] for (int r = 0; r < RQ; r++) {
    [[unroll]] for (int c = 0; c < 4; c++) if ((bits >> (4 * r + c) & 1u) == 0) s[r][c] = HIDDEN;
  }
}

const bool SKIP_KEEP = KEEP != 0 && SKIP != 0;
const bool SKIP_ENTMAX = NORM == ENTMAX && SKIP != 0;
// Whether the next tile is known before this one's products: the mask map tells it, and votes come
// too late. Then its first loads start during the products.
const bool KNOWS_NEXT = !SKIP_KEEP && !SKIP_ENTMAX;
// The first tile from t on, before end, that the mask map does not skip. first: first row of the
// workgroup; flip: its rows are keys.
int next_tile(int t, int end, int first, bool flip) {
  return HAS_MAP ? next_shown(t, end, first, ROWS, flip) : t;
}
// For kernels without a loop over adjacent tiles: query rows from i0, keys from j0.
bool map_shows(int i0, int j0) {
  if (!HAS_MAP) return true;
  return map_of(i0, ROWS, j0, COLS).x != 0;
}
void open_votes() {
  begin_votes();
  if (VOTES > 1) barrier();
}

// Called before a tile's product of a and b, from a0 and b0, which are the query rows from i0 and
// the keys from j0 in either order. Sets the bits of keep and spans; false if a vote finds that
// they show no element. Unless the tile was known before, its first loads start here.
bool open_tile(View a, int a0, View b, int b0, bool flip, out uint shown) {
  const int i0 = flip ? b0 : a0, j0 = flip ? a0 : b0;
  shown = ~0u;
  if (SPANS != 0) {
    bool hides = true; // whether spans may hide something of the tile
    if (HAS_MAP && j0 < entry.seq_kv && i0 < entry.seq_q)
      hides = map_of(i0, flip ? COLS : ROWS, j0, flip ? ROWS : COLS).y == 0;
    if (hides) shown = span_bits(i0, j0, flip);
  }
  if (KEEP != 0) shown &= keep_bits(i0, j0, flip);
  if (SKIP_KEEP && !vote(shown != 0)) return false;
  if (!KNOWS_NEXT) fetch_nt(a, a0, b, b0, 0);
  return true;
}
#endif
