// SPDX-License-Identifier: MIT OR Apache-2.0
// The mask map of spans (src/problem/mask_map.h) as kernels read it, which have a map where tiles
// may be skipped.
#include "problem/mask_map.h"

const bool HAS_MAP = SPANS != 0 && SKIP != 0;
// Blocks of the mask map that have one of `rows` rows from a multiple of `rows` on, or, unaligned,
// from any row on.
int map_blocks(int rows, bool unaligned) {
  if (!unaligned && TANDEM_MAP_BLOCK % rows == 0) return 1;
  if (!unaligned && rows % TANDEM_MAP_BLOCK == 0) return rows / TANDEM_MAP_BLOCK;
  return (rows + 2 * TANDEM_MAP_BLOCK - 2) / TANDEM_MAP_BLOCK;
}
// What the mask map says of rows x cols pairs from (i0, j0) on: x is 0 only if the mask hides all
// of them, y is 1 only if it hides none. Indices stay in the map, as lavapipe (Mesa 26) also reads
// for tiles behind the last one (extra.glsl).
uvec2 map_of(int i0, int rows, int j0, int cols) {
  const int words = map_words(extra.map_kv_blocks);
  uvec2 bits = uvec2(0, 1);
  if (head_map == uvec2(0)) return bits; // lavapipe also comes here without any tile (extra.glsl)
  [[unroll]] for (int q = 0; q < map_blocks(rows, false); q++) {
    const uvec2 row =
        add64(head_map,
              mul64(uvec2(8 * words, 0), min(i0 / TANDEM_MAP_BLOCK + q, extra.map_q_blocks - 1)));
    [[unroll]] for (int n = 0; n < map_blocks(cols, ANYWHERE); n++) {
      const int at = min(max(j0, 0) / TANDEM_MAP_BLOCK + n, extra.map_kv_blocks - 1);
      const uvec2 word = Load2(add64(row, at / 32 * 8)).w >> at % 32;
      bits = uvec2(bits.x | word.x & 1u, bits.y & word.y);
    }
  }
  return bits;
}

// The first tile of COLS streamed rows from t on, before end, of which the mask map shows a pair
// with one of `own` rows from first on, or a tile from end on. It looks at whole words of the map's
// rows or, if flip, of its columns.
int next_shown(int t, int end, int first, int own, bool flip) {
  if (t >= end) return t; // there may be no head, and so no map
  const int own_blocks = flip ? extra.map_kv_blocks : extra.map_q_blocks,
            words = map_words(flip ? extra.map_q_blocks : extra.map_kv_blocks);
  uvec2 map = head_map;
  if (flip)
    map = add64(map, mul64(uvec2(8 * map_words(extra.map_kv_blocks), 0), extra.map_q_blocks));
  int block = t * COLS / TANDEM_MAP_BLOCK;
  [[dont_unroll]] while (t < end) {
    uint shown = 0;
    [[unroll]] for (int n = 0; n < map_blocks(own, false); n++) {
      const int line = min(first / TANDEM_MAP_BLOCK + n, own_blocks - 1);
      const int word = min(block / 32, words - 1);
      shown |= Load1(add64(map, add64(mul64(uvec2(8 * words, 0), line), 8 * word))).w;
    }
    shown >>= block % 32;
    block = shown != 0 ? block + findLSB(shown) : block / 32 * 32 + 32;
    t = max(t, block * TANDEM_MAP_BLOCK / COLS);
    if (shown != 0) break;
  }
  return t;
}
