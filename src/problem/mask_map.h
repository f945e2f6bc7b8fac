// SPDX-License-Identifier: MIT OR Apache-2.0
// The mask map: which blocks of 64 query rows and 64 keys a mask leaves something of, and which it
// leaves whole. mask_map writes it for each head of the mask, before the kernels that read it.
// Visible is what the map's mask, the band, and lengths all show; the map knows nothing of the
// latter two (tile_range.h).
//
// A head's map has two planes of words, each word two numbers of 32 bits. Bit n of the first number
// says that block 32 w + n has a pair that the mask shows (it may be wrong where it says so), bit n
// of the second that the mask shows all pairs of the block that exist. The first plane has a row
// for each block of query rows, whose bits are blocks of keys; the second plane has a row for each
// block of keys, whose bits are blocks of query rows.
//
// In the common subset of C++, CUDA and GLSL.
#ifndef TANDEM_SRC_PROBLEM_MASK_MAP_H
#define TANDEM_SRC_PROBLEM_MASK_MAP_H
#include "tile_range.h"

#define TANDEM_MAP_BLOCK 64
#define TANDEM_MAP_GROUP 32    // blocks of keys of a workgroup of mask_map
#define TANDEM_KEEP_GROUP 8    // blocks of keys of a workgroup of pack_keep
#define TANDEM_LISTS_GROUP 16  // blocks of keys of a workgroup of expand_blocks
#define TANDEM_KEEP_BITS 2
#define TANDEM_MAP_EMPTY 0x7fffffff

// Blocks of so many rows, and words of a row of the map that has a bit for each of these blocks.
TANDEM_FN int tandem_map_blocks(int rows) {
  return (rows + TANDEM_MAP_BLOCK - 1) / TANDEM_MAP_BLOCK;
}
TANDEM_FN int tandem_map_words(int rows) { return (tandem_map_blocks(rows) + 31) / 32; }

// Words of a row of keep as bits: whole loads of 16 bytes. kv_blocks: of the keys.
TANDEM_FN int tandem_packed_pitch(int kv_blocks) { return (kv_blocks + 1) / 2 * 4; }

// The spans of a number of keys together. None of their rows lies outside of [first, end). All of
// them have the rows [all_first, all_end).
struct TandemSpanBounds {
  int first;
  int end;
  int all_first;
  int all_end;
};

TANDEM_FN TandemSpanBounds tandem_no_spans() {
  TandemSpanBounds x;
  x.first = TANDEM_MAP_EMPTY;
  x.end = -TANDEM_MAP_EMPTY;
  x.all_first = -TANDEM_MAP_EMPTY;
  x.all_end = TANDEM_MAP_EMPTY;
  return x;
}
// With one more key, whose span is [begin, end).
TANDEM_FN TandemSpanBounds tandem_add_span(TandemSpanBounds x, int begin, int end) {
  bool some = begin < end;
  x.first = some ? tandem_min(x.first, begin) : x.first;
  x.end = some ? tandem_max(x.end, end) : x.end;
  x.all_first = some ? tandem_max(x.all_first, begin) : TANDEM_MAP_EMPTY;
  x.all_end = some ? tandem_min(x.all_end, end) : x.all_end;
  return x;
}
TANDEM_FN TandemSpanBounds tandem_join_spans(TandemSpanBounds x, TandemSpanBounds y) {
  x.first = tandem_min(x.first, y.first);
  x.end = tandem_max(x.end, y.end);
  x.all_first = tandem_max(x.all_first, y.all_first);
  x.all_end = tandem_min(x.all_end, y.all_end);
  return x;
}
// Of the query rows [row0, end): whether the keys may see one; whether all keys see all.
TANDEM_FN bool tandem_some_spanned(TandemSpanBounds x, int row0, int end) {
  return x.first < end && x.end > row0;
}
TANDEM_FN bool tandem_all_spanned(TandemSpanBounds x, int row0, int end) {
  return x.all_first <= row0 && x.all_end >= end;
}

#ifdef __cplusplus
#include <cstdint>
// By blocks of query rows and of keys. GLSL has no 64-bit integers: mask_map.comp and
// shaders/parts/extra.glsl form the first two from pairs of 32 bits.
// Words of a head's first plane, and of both planes; of two numbers each.
TANDEM_FN int64_t tandem_map_plane(int q, int kv) { return int64_t(q) * ((kv + 31) / 32); }
TANDEM_FN int64_t tandem_map_size(int q, int kv) {
  return tandem_map_plane(q, kv) + tandem_map_plane(kv, q);
}
// A head of keep as bits, in words: the bits of its pairs; a byte for each block; and behind them a
// bit for each block, which says what bit 0 of the byte says. packed_bits, packed_some: words in
// front of the bytes, and of the blocks' bits.
TANDEM_FN int64_t tandem_packed_bits(int q, int kv) {
  return int64_t(q) * TANDEM_MAP_BLOCK * tandem_packed_pitch(kv);
}
TANDEM_FN int64_t tandem_packed_some(int q, int kv) {
  return tandem_packed_bits(q, kv) + (int64_t(q) * kv + 15) / 16 * 4;
}
// Words of the blocks' bits of 64 rows.
TANDEM_FN int tandem_some_pitch(int kv) { return (kv + 31) / 32; }
TANDEM_FN int64_t tandem_packed_size(int q, int kv) {
  return tandem_packed_some(q, kv) + (int64_t(q) * tandem_some_pitch(kv) + 3) / 4 * 4;
}
#endif

#endif
