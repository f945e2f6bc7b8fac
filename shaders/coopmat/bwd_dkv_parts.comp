// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv where several workgroups share the query rows of a tile of keys (partial_sums.glsl).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/bwd_dkv_options.glsl"
#include "coopmat/bwd_dkv_common.glsl"
#include "coopmat/partial_sums.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q / block.group * SPLITS, place)) return;
  const int split = place.head % SPLITS;
  place.head /= SPLITS;
#include "coopmat/main/bwd_dkv_begin.glsl"
  const TandemTiles all_tiles =
      tandem_query_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  const int heads = all_tiles.begin < all_tiles.end ? block.group : 0;
#include "coopmat/main/bwd_dkv_operands.glsl"

  for (int g = 0; g < heads; g++) {
    const TandemTiles tiles = own_tiles(all_tiles, heads, g, split);
    if (tiles.begin >= tiles.end) continue;
#include "coopmat/main/bwd_dkv_views.glsl"
#include "coopmat/main/bwd_dkv_tiles.glsl"
  }

  const int part = (split * block.batches + b) * (block.heads_q / block.group) + hk;
  if (GRAD_K != 0) {
    Parts4 to = part_rows(block.work, part, row0, block.head_dim);
    EACH(r, RM)
      EACH(d, D_OUT)
        ELEMENTS(k, acc_k[r][d]) acc_k[r][d][k] *= block.scale;
    STORE_PART(acc_k, to, D_OUT, block.head_dim)
  }
  if (GRAD_V != 0) {
    Parts4 to = part_rows(uint(D_V_PARTS), part, row0, block.head_dim_v);
    STORE_PART(acc_v, to, DV_OUT, block.head_dim_v)
  }
}
