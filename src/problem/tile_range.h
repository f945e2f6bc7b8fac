// SPDX-License-Identifier: MIT OR Apache-2.0
// The one geometry: which key tiles a tile of query rows visits, which of them need no mask, and
// the reverse for bwd_dkv. It is written in the common subset of C++, CUDA and GLSL and included by
// all three, so that no backend has a rule of its own. tests/unit/test_tile_range.cpp compares it
// with brute force.
//
// A mask is a band: key j is visible to row i iff 0 <= j < seq_kv, 0 <= i < seq_q and
//     i + off - left <= j <= i + off + right.
// Causal is right = 0; no mask is left = right = TANDEM_BAND_OPEN. With lengths, seq_q, seq_kv and
// off are those of a batch entry. Sequence lengths and |off| stay below 2^29, so that no sum here
// leaves 32 bits.
#ifndef TANDEM_SRC_PROBLEM_TILE_RANGE_H
#define TANDEM_SRC_PROBLEM_TILE_RANGE_H

#if defined(__CUDACC__)
#define TANDEM_FN __host__ __device__ inline
#elif defined(__cplusplus)
#define TANDEM_FN inline
#else
#define TANDEM_FN
#endif

#define TANDEM_BAND_OPEN 0x40000000
#define TANDEM_SEQ_LIMIT 0x20000000

struct TandemBand {
  int left;
  int right;
  int off;
};

// Tiles [begin, end) are visited; those in [full_begin, full_end) need no mask. Empty: begin ==
// end.
struct TandemTiles {
  int begin;
  int end;
  int full_begin;
  int full_end;
};

TANDEM_FN int tandem_min(int a, int b) { return a < b ? a : b; }
TANDEM_FN int tandem_max(int a, int b) { return a > b ? a : b; }

TANDEM_FN bool tandem_visible(TandemBand band, int i, int j) {
  return j >= i + band.off - band.left && j <= i + band.off + band.right;
}

// Keys that row i sees by its position: n_i of elastic softmax. 0 past the end of the queries.
TANDEM_FN int tandem_key_count(TandemBand band, int i, int seq_q, int seq_kv) {
  int lo = tandem_max(0, i + band.off - band.left);
  int hi = tandem_min(seq_kv - 1, i + band.off + band.right);
  return i < seq_q ? tandem_max(0, hi - lo + 1) : 0;
}

// Cuts the interval [lo, hi] of one axis into tiles. Its inclusive bounds may lie outside [0,
// size). [full_lo, full_hi] is the inclusive interval that all rows of the other axis see.
TANDEM_FN TandemTiles tandem_tiles(int lo, int hi, int full_lo, int full_hi, int size, int tile) {
  TandemTiles t;
  t.begin = 0;
  t.end = 0;
  t.full_begin = 0;
  t.full_end = 0;
  lo = tandem_max(lo, 0);
  hi = tandem_min(hi, size - 1);
  if (lo > hi) return t;
  t.begin = lo / tile;
  t.end = hi / tile + 1;
  full_lo = tandem_max(full_lo, 0);
  full_hi = tandem_min(full_hi, size - 1);
  t.full_begin = tandem_min((full_lo + tile - 1) / tile, t.end);
  t.full_end = full_hi < 0 ? t.full_begin : (full_hi + 1) / tile;
  t.full_begin = tandem_max(t.full_begin, t.begin);
  t.full_end = tandem_max(t.full_end, t.full_begin);
  return t;
}

// Key tiles of cols keys that the query rows [row0, row0 + rows) below seq_q visit.
TANDEM_FN TandemTiles tandem_key_tiles(TandemBand band, int row0, int rows, int cols, int seq_q,
                                       int seq_kv) {
  // Rows past a batch entry's length see nothing.
  if (row0 >= seq_q) return tandem_tiles(0, -1, 0, -1, 0, cols);
  int last = tandem_min(row0 + rows, seq_q) - 1;
  return tandem_tiles(row0 + band.off - band.left, last + band.off + band.right,
                      last + band.off - band.left, row0 + band.off + band.right, seq_kv, cols);
}

// The part of t that split n of several visits: consecutive tiles, one more for the first splits if
// they do not come out even. The parts cover each tile of t once. There may be fewer tiles than
// splits.
TANDEM_FN TandemTiles tandem_split_tiles(TandemTiles t, int n, int splits) {
  int each = (t.end - t.begin) / splits;
  int longer = (t.end - t.begin) % splits;
  t.begin += n * each + tandem_min(n, longer);
  t.end = t.begin + each + (n < longer ? 1 : 0);
  t.full_begin = tandem_min(tandem_max(t.full_begin, t.begin), t.end);
  t.full_end = tandem_max(tandem_min(t.full_end, t.end), t.full_begin);
  return t;
}

// Query tiles of rows rows that see the keys [col0, col0 + cols) below seq_kv. A tile that reaches
// past seq_q is never full here, as its missing rows need the mask.
TANDEM_FN TandemTiles tandem_query_tiles(TandemBand band, int col0, int cols, int rows, int seq_q,
                                         int seq_kv) {
  if (col0 >= seq_kv) return tandem_tiles(0, -1, 0, -1, 0, rows);
  int last = tandem_min(col0 + cols, seq_kv) - 1;
  return tandem_tiles(col0 - band.off - band.right, last - band.off + band.left,
                      last - band.off - band.right, col0 - band.off + band.left, seq_q, rows);
}

#endif
