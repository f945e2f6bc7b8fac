// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv by pairs of subgroups that leaves dS in the workspace (ds.glsl). Both tensors of the next
// tile are put into shared memory behind the first products.
#version 460
#extension GL_GOOGLE_include_directive : require
#define SHARES_DS 1
#define DO_STAGE stage_2
#include "coopmat/bwd_dkv_pair.glsl"

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
#include "coopmat/main/bwd_dkv_pair_operands.glsl"

  for (int g = 0; g < heads; g++) {
#include "coopmat/main/bwd_dkv_views.glsl"
    ds_from = ds_address(block.work, chunk_head * block.group + g, row0);
    DsStore to = DsStore(ds_from);
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
    FETCH_DO(next)
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
      PUT_DO(stage ^ 1, next)
      const int after = next_tile(next + 1, tiles.end, row0, true);
#include "coopmat/main/bwd_dkv_pair_weights.glsl"
      FETCH_Q(after)
      FETCH_DO(after)
#include "coopmat/main/bwd_dkv_pair_sum.glsl"
      if (second) {
        EACH(r, RM)
          coopMatStore(own[r], to.w, ds_chunk(i0, row0 % DS_BLOCK + BLOCK_ROW + r * MM), DS_PITCH,
                       ROW_MAJOR);
      }
      t = next;
      next = after;
      stage ^= 1;
    }
  }

#include "coopmat/main/bwd_dkv_pair_store.glsl"
}
