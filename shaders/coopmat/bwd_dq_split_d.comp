// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq for heads over 256, whose features are split over subgroups: the first half of the owners
// of the same rows forms S, the second half dP, and each has a slice of d_q.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/split_d_options.glsl"
#define ROLES 2
#include "coopmat/bwd_dq_common.glsl"
#include "coopmat/split_d.glsl"

const int OUT_OWN = D_BLOCKS / OWNERS;

void main() {
  Place place;
  if (!place_at(own_index(), block.heads_q, place)) return;
  const int b = place.batch, h = place.head, hk = h / block.group, row0 = place.tile * ROWS,
            my_row0 = row0 + BLOCK_ROW, head = b * block.heads_q + h;
  const bool second = SECOND_OF_PAIR;
  begin_scores();
  begin_iota();
  begin_votes();
  set_entry(b);
  View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
  View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
  View d_o =
      q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
  const TandemTiles tiles =
      tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  if (tiles.begin < tiles.end) set_head(b, h);

  OPERAND_A left[LEFT_OWN];
  LOAD_SLICES(left, q, d_o, row0)
  ACC acc[OUT_OWN], origin, delta; // origin and delta of each row
  ROWS_TO_MATRIX(origin, row, row_origin(head, my_row0 + row))
  ROWS_TO_MATRIX(delta, row, delta_of(head, my_row0 + row))
  EACH(d, OUT_OWN) acc[d] = ACC(0.0);
  const bool far = subgroupAny(own_far);
  const int first_at = SLICE * LEFT_OWN * (MK / 8) + (second ? SECOND : 0),
            out_at = OWNER * OUT_OWN * (MN / 8);

  int next = next_tile(tiles.begin, tiles.end, row0, false);
  if (next < tiles.end) {
    fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
    fetch_tile(stage_2, v, next * COLS, DV_CHUNKS);
  }
  while (next < tiles.end) {
    const int t = next, j0 = t * COLS;
    barrier(); // the readers of the tile before are done
    put_tile(0, stage_1, k, j0, D_CHUNKS);
    put_tile(SECOND, stage_2, v, j0, DV_CHUNKS);
    barrier();
    next = next_tile(t + 1, tiles.end, row0, false);
    if (next < tiles.end) {
      fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
      fetch_tile(stage_2, v, next * COLS, DV_CHUNKS);
    }
    const bool hides = spans_hide(my_row0, j0, false);
    BIAS_ARRAY(bias, [RM])
    fetch_bias(BIAS_OF(bias, [0]), row0, BLOCK_ROW, j0, 0);
    ACC s[RM], slope[RM], dp;
    SLICE_PRODUCTS(dp, left, first_at)
    barrier();
    SUM_SLICES(s[0], 0)
    SUM_SLICES(dp, 1)
    if (REUSES_SCRATCH) barrier();
    FINISH_STEP(s, slope, bias, 0, my_row0, j0, false, t < tiles.full_begin || t >= tiles.full_end,
                hides)
    if (far) {
      FAR_STEP(s, q, k, head, my_row0, j0, false)
    }
    if (DROPOUT != 0) {
      ACC factor = drop_block(my_row0, j0, false);
      ELEMENTS(e, factor) dp[e] *= factor[e];
    }
    ELEMENTS(e, dp) s[0][e] = ds_at(base_at(s[0][e], origin[e]), 0.0, dp[e], delta[e]);
    if (SOFTCAP != 0) {
      ELEMENTS(e, dp) s[0][e] *= slope[0][e];
    }
    const OPERAND_A ds = to_operand(s[0]);
    SUM_PRODUCTS(acc, OUT_OWN, ds, out_at)
  }

  View d_q = q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
  EACH(d, OUT_OWN)
    ELEMENTS(e, acc[d]) acc[d][e] *= block.scale;
  STORE_SLICES(acc, OUT_OWN, d_q, row0, entry.seq_q)
}
