// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv for heads over 256, whose features are split over subgroups: the first half of the owners
// of the same keys forms S and d_v, the second half dP and d_k.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/split_d_options.glsl"
#define ROLES 2
#include "coopmat/bwd_dkv_common.glsl"
#include "coopmat/split_d.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q / block.group, place)) return;
#include "coopmat/main/bwd_dkv_pair_begin.glsl"
  TandemTiles tiles = tandem_query_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  const int heads = tiles.begin < tiles.end ? block.group : 0;
#include "coopmat/main/bwd_dkv_split_d.glsl"
}
