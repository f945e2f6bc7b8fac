// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums: delta of the rows of elastic softmax and entmax, and the rows' parts of d_tau and
// d_slope, of ROWS query rows of one head: shaders/scalar/bwd_row_sums.comp with matrices
// (docs/kernels/coopmat.md). The KV loop of bwd_dq.comp without its last product.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/bwd_row_sums_common.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
  const int b = place.batch, h = place.head, hk = h / block.group, row0 = place.tile * ROWS;
  const int my_row0 = row0 + BLOCK_ROW;
  set_entry(b);
  begin_scores();
  begin_iota();
  begin_votes();
  View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
  View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
  View d_o =
      q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  if (tiles.begin < tiles.end) set_head(b, h);

  OPERAND_A mq[RM][D_BLOCKS], md_o[RM][DV_BLOCKS];
  LOAD_OPERANDS(mq, 2, q, row0, D_BLOCKS, D_CHUNKS)
  LOAD_OPERANDS(md_o, 1, d_o, row0, DV_BLOCKS, DV_CHUNKS)

  // Until the end, each element has its own parts of sum g M dp, sum g (entmax), sum M dp, sum |t|
  // g M dp and sum |t| g.
  ACC origin[RM], share[RM], dot[RM], mass[RM], lift[RM], far_dot[RM], spread[RM];
  EACH(r, RM) {
    const int head = b * block.heads_q + h, from = my_row0 + r * MM;
    ROWS_TO_MATRIX(origin[r], row, row_origin(head, from + row))
    if (NORM == ELASTIC) ROWS_TO_MATRIX(share[r], row, share_of(from + row))
    dot[r] = ACC(0.0);
    mass[r] = ACC(0.0);
    lift[r] = ACC(0.0);
    far_dot[r] = ACC(0.0);
    spread[r] = ACC(0.0);
  }
  const bool far = subgroupAny(own_far);

  int next = next_tile(tiles.begin, tiles.end, row0, false);
  if (next < tiles.end) {
    fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
    fetch_tile(stage_2, v, next * COLS, DV_CHUNKS);
  }
  while (next < tiles.end) {
    const int t = next, col0 = t * COLS;
    barrier(); // the readers of the tile before are done
    put_keep();
    put_tile(0, stage_1, k, col0, D_CHUNKS);
    put_tile(SECOND, stage_2, v, col0, DV_CHUNKS);
    barrier();
    next = next_tile(t + 1, tiles.end, row0, false);
    const bool hides = spans_hide(my_row0, col0, false);
    if (next < tiles.end) {
      fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
      fetch_tile(stage_2, v, next * COLS, DV_CHUNKS);
    }

    // Rolled: see bwd_dkv.comp.
    [[dont_unroll]] for (int n = 0; n < COL_STEPS; n++) {
      const int at = n * MK * PITCH, j0 = col0 + n * MK;
      ACC s[STEP_BLOCKS], dp[STEP_BLOCKS], slope[STEP_BLOCKS];
      BIAS_ARRAY(bias, [STEP_BLOCKS])
      EACH(q, STEP_BLOCKS) {
        fetch_bias(BIAS_OF(bias, [q]), row0, BLOCK_ROW + STEP_ROW(q), j0, STEP_COL(q));
        s[q] = ACC(0.0);
        dp[q] = ACC(0.0);
      }
      // S and dP are interleaved, as their products do not depend on each other.
      EACH(d, MOST_BLOCKS) {
        if (d < D_BLOCKS) MULTIPLY_LEFT(s, mq, 2, at, d)
        if (NORM != ENTMAX && d < DV_BLOCKS) MULTIPLY_LEFT(dp, md_o, 1, SECOND + at, d)
      }
      FINISH_STEP(s, slope, bias, 0, my_row0, j0, false,
                  t < tiles.full_begin || t >= tiles.full_end, hides)
      if (far) {
        FAR_STEP(s, q, k, b * block.heads_q + h, my_row0, j0, false)
      }
      if (NORM == ENTMAX) { // without a weight in the block, nothing follows
        bool any = false;
        EACH(q, STEP_BLOCKS)
          ELEMENTS(k, s[q]) any = any || s[q][k] > OF_ROW(origin, q)[k];
        if (LEAVES_BLOCKS && !subgroupAny(any)) continue;
        EACH(d, DV_BLOCKS) MULTIPLY_LEFT(dp, md_o, 1, SECOND + at, d)
      }
      EACH(q, STEP_BLOCKS) {
        if (DROPOUT != 0) {
          ACC factor = drop_block(my_row0 + STEP_ROW(q), AT_COL(j0, q), false);
          ELEMENTS(k, factor) dp[q][k] *= factor[k];
        }
        ELEMENTS(k, s[q]) s[q][k] = base_at(s[q][k], OF_ROW(origin, q)[k]);
        if (NORM == ELASTIC) {
          ELEMENTS(k, s[q]) dp[q][k] = live_dp(s[q][k], OF_ROW(share, q)[k], dp[q][k]);
        }
        if (ROW_TAU != 0) {
          ELEMENTS(k, s[q]) OF_ROW(lift, q)[k] += dp[q][k];
        }
        ELEMENTS(k, s[q]) {
          s[q][k] = slope_of(s[q][k]);
          OF_ROW(dot, q)[k] = fma(s[q][k], dp[q][k], OF_ROW(dot, q)[k]);
          if (NORM == ENTMAX) OF_ROW(mass, q)[k] += s[q][k];
        }
        if (ROW_SLOPE != 0) {
          ACC rows = row_numbers(), cols = col_numbers();
          const int t0 = my_row0 + STEP_ROW(q) + entry.off - j0 - STEP_COL(q);
          ELEMENTS(k, s[q]) {
            const float a = float(abs(t0 + int(rows[k] - cols[k]))) * s[q][k];
            OF_ROW(far_dot, q)[k] = fma(a, dp[q][k], OF_ROW(far_dot, q)[k]);
            OF_ROW(spread, q)[k] += a;
          }
        }
      }
      if (COL_STEPS == 1) break; // no loop, so that addresses are constants
    }
  }

  EACH(r, RM) {
    const int head = b * block.heads_q + h, from = my_row0 + r * MM;
    FINISH_SUMS(dot[r], mass[r], lift[r], far_dot[r], spread[r])
  }
}
