// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv for heads over 256 that leaves dS in the workspace (ds.glsl).
#version 460
#extension GL_GOOGLE_include_directive : require
#define SHARES_DS 1
#include "coopmat/split_d_options.glsl"
#define ROLES 2
#include "coopmat/bwd_dkv_common.glsl"
#include "coopmat/split_d.glsl"

void main() {
  Place place;
  int chunk_head;
  if (!place_in_chunk(1, chunk_head, place)) return;
#include "coopmat/main/bwd_dkv_pair_begin.glsl"
  TandemTiles tiles = tandem_query_tiles(mask_band(), row0 / SEEN_ROWS * SEEN_ROWS, SEEN_ROWS, COLS,
                                         entry.seq_q, entry.seq_kv);
  const int heads = tiles.begin < tiles.end ? block.group : 0;
  // Whole DS_BLOCKs, as bwd_dq reads them.
  tiles.begin = tiles.begin / (DS_BLOCK / COLS) * (DS_BLOCK / COLS);
  tiles.end = min((tiles.end + DS_BLOCK / COLS - 1) / (DS_BLOCK / COLS) * (DS_BLOCK / COLS),
                  (block.seq_q + COLS - 1) / COLS);
#include "coopmat/main/bwd_dkv_split_d.glsl"
}
