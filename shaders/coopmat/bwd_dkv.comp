// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv: d_k and d_v of ROWS keys of one kv head: shaders/scalar/bwd_dkv.comp with matrices
// (docs/kernels/coopmat.md). Keys are the rows of the tile, query rows its columns. The sum is over
// the group's query heads and the query tiles that see the keys, in order. With GRAD_K or GRAD_V
// alone, only what that gradient needs is loaded, multiplied and kept.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/bwd_dkv_options.glsl"
#include "coopmat/bwd_dkv_common.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q / block.group, place)) return;
#include "coopmat/main/bwd_dkv_begin.glsl"
  TandemTiles tiles = tandem_query_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  const int heads = tiles.begin < tiles.end ? block.group : 0;
#include "coopmat/main/bwd_dkv_operands.glsl"

  for (int g = 0; g < heads; g++) {
#include "coopmat/main/bwd_dkv_views.glsl"
#include "coopmat/main/bwd_dkv_tiles.glsl"
  }

#include "coopmat/main/bwd_dkv_store.glsl"
}
