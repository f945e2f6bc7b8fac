// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv by pairs of subgroups.
#version 460
#extension GL_GOOGLE_include_directive : require
#define DO_STAGE stage_1
#include "coopmat/bwd_dkv_pair.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q / block.group, place)) return;
#include "coopmat/main/bwd_dkv_pair_begin.glsl"
  TandemTiles tiles = tandem_query_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  const int heads = tiles.begin < tiles.end ? block.group : 0;
#include "coopmat/main/bwd_dkv_pair_operands.glsl"

  for (int g = 0; g < heads; g++) {
#include "coopmat/main/bwd_dkv_views.glsl"
    uint stat[STAT_TURNS];
    BIAS_ARRAY(bias, [RM])
    int t = next_tile(tiles.begin, tiles.end, row0, true), stage = 0;
    if (SKIP_MASKED && t >= tiles.end) continue;
    FETCH_Q(t)
    barrier(); // the readers of the tiles before are done
    PUT_Q(0, t)
    FETCH_DO(t)
    PUT_DO(0, t)
    int next = next_tile(t + 1, tiles.end, row0, true);
    FETCH_Q(next)
    while (t < tiles.end) {
      barrier();
      const bool far = OWN_WORD == turns, partial = t < tiles.full_begin || t >= tiles.full_end;
      const int at = STAGE(stage), i0 = t * COLS;
      const bool hides = spans_hide(my_row0, i0, true);
      EACH(r, RM) fetch_bias(BIAS_OF(bias, [r]), i0, 0, row0, BLOCK_ROW + r * MM);
      ACC x[RM], s[RM], slope[RM];
      PAIR_PRODUCTS(x, left, at + first_at)
      coopMatStore(x[0], scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR); // dP is not read there
      barrier();
      PUT_Q(stage ^ 1, next)
#include "coopmat/main/bwd_dkv_pair_weights.glsl"
      FETCH_DO(next)
#include "coopmat/main/bwd_dkv_pair_sum.glsl"
      PUT_DO(stage ^ 1, next)
      t = next;
      next = next_tile(next + 1, tiles.end, row0, true);
      FETCH_Q(next)
      stage ^= 1;
    }
  }

#include "coopmat/main/bwd_dkv_pair_store.glsl"
}
