// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq by pairs of subgroups (pair.glsl): the first forms S, the second dP, and either half of
// the features of d_q. A step is one block of columns. Both products are exchanged, and both
// subgroups form dS.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/pair_options.glsl"
#include "coopmat/bwd_dq_common.glsl"
#include "coopmat/pair.glsl"

// See bwd_dkv_pair.glsl.
#define FETCH_STEP(tile)                              \
  {                                                   \
    const int from = min(tile, tiles.end - 1) * COLS; \
    fetch_rows(stage_1, k, from, D_CHUNKS);           \
    fetch_rows(stage_2, v, from, DV_CHUNKS);          \
  }
#define PUT_STEP(n, tile)                                            \
  {                                                                  \
    put_tile(STAGE(n), stage_1, k, (tile)*COLS, D_CHUNKS);           \
    put_tile(STAGE(n) + SECOND, stage_2, v, (tile)*COLS, DV_CHUNKS); \
  }

void main() {
  Place place;
  if (!place_at(own_index(), block.heads_q, place)) return;
  const int b = place.batch, h = place.head, hk = h / block.group, row0 = place.tile * ROWS,
            my_row0 = row0 + BLOCK_ROW;
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

  OPERAND_A left[RM][MOST_BLOCKS];
  LOAD_PAIR(left, q, d_o, row0)
  ZERO_TAILS
  ACC acc[RM][HALF_OUT], origin[RM], delta[RM], share[RM]; // origin, delta and share of each row
  EACH(r, RM) {
    const int head = b * block.heads_q + h, from = my_row0 + r * MM;
    ROWS_TO_MATRIX(origin[r], row, row_origin(head, from + row))
    ROWS_TO_MATRIX(delta[r], row, delta_of(head, from + row))
    if (NORM == ELASTIC) ROWS_TO_MATRIX(share[r], row, share_of(from + row))
    EACH(d, HALF_OUT) acc[r][d] = ACC(0.0);
  }
  const bool far = subgroupAny(own_far);
  const int first_at = second ? SECOND : 0, out_at = FIRST_OUT * (MN / 8);

  BIAS_ARRAY(bias, [RM])
  int t = next_tile(tiles.begin, tiles.end, row0, false), next = tiles.end, stage = 0;
  if (t < tiles.end) {
    FETCH_STEP(t)
    PUT_STEP(0, t)
    next = next_tile(t + 1, tiles.end, row0, false);
    FETCH_STEP(next)
  }
  while (t < tiles.end) {
    barrier();
    const int at = STAGE(stage), j0 = t * COLS;
    const bool hides = spans_hide(my_row0, j0, false);
    EACH(r, RM) fetch_bias(BIAS_OF(bias, [r]), row0, BLOCK_ROW + r * MM, j0, 0);
    ACC x[RM], s[RM], dp[RM], slope[RM];
    PAIR_PRODUCTS(x, left, at + first_at)
    coopMatStore(x[0], scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
    barrier();
    PUT_STEP(stage ^ 1, next)
    const int after = next_tile(next + 1, tiles.end, row0, false);
    FETCH_STEP(after)
    coopMatLoad(s[0], scratch, PAIR_SCRATCH(0), SCRATCH_PITCH, ROW_MAJOR);
    coopMatLoad(dp[0], scratch, PAIR_SCRATCH(1), SCRATCH_PITCH, ROW_MAJOR);
    if (REUSES_SCRATCH || MOVES) barrier();
    FINISH_STEP(s, slope, bias, 0, my_row0, j0, false, t < tiles.full_begin || t >= tiles.full_end,
                hides)
    if (far) {
      FAR_STEP(s, q, k, b * block.heads_q + h, my_row0, j0, false)
    }
    OPERAND_A ds[RM];
    EACH(r, RM) {
      if (DROPOUT != 0) {
        ACC factor = drop_block(my_row0 + r * MM, j0, false);
        ELEMENTS(n, factor) dp[r][n] *= factor[n];
      }
      ELEMENTS(n, s[r])
        s[r][n] = ds_at(base_at(s[r][n], origin[r][n]), share[r][n], dp[r][n], delta[r][n]);
      if (SOFTCAP != 0) {
        ELEMENTS(n, s[r]) s[r][n] *= slope[r][n];
      }
      ds[r] = to_operand(s[r]);
    }
    EACH(d, HALF_OUT) {
      OPERAND_B y;
      coopMatLoad(y, streamed, at + out_at + d * (MN / 8), PITCH, ROW_MAJOR);
      EACH(r, RM) acc[r][d] = coopMatMulAdd(ds[r], y, acc[r][d]);
    }
    t = next;
    next = after;
    stage ^= 1;
  }

  View d_q = q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
  EACH(r, RM)
    EACH(d, HALF_OUT)
      ELEMENTS(n, acc[r][d]) acc[r][d][n] *= block.scale;
  PUT_HALVES(acc)
  store_rows(d_q, row0, D_CHUNKS, entry.seq_q);
}
