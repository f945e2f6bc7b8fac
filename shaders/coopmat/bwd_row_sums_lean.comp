// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums for lean tiles: the KV loop of bwd_dq_lean.comp without its last product.
#version 460
#extension GL_GOOGLE_include_directive : require
#define OWN_COUNT (3 * MM) // of the subgroup's rows: origin, and share behind a gap
#include "coopmat/lean_options.glsl"
#include "coopmat/bwd_row_sums_common.glsl"
#include "coopmat/lean.glsl"
#include "coopmat/lean_far.glsl"
#include "coopmat/lean_products.glsl"
#include "coopmat/lean_backward.glsl"

void main() {
  TandemTiles tiles;
  {
    Place place;
    if (!find_place(block.heads_q, place)) return;
    const int b = place.batch, h = place.head, hk = h / block.group, row0 = place.tile * ROWS;
    set_entry(b);
    begin_scores();
    begin_iota();
    begin_votes();
    if (TID == 0) OWN_WORD = 0;
    park_place(place);
    park(0, q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, false));
    park(1, kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, false));
    park(2, kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, false));
    park(3, q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, false));
    tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
    if (tiles.begin < tiles.end) set_head(b, h);
    barrier();
    hold_rows(2, 0, row0, D_CHUNKS);
    hold_rows(1, 3, row0, DV_CHUNKS);
    for (int row = LANE; row < MM; row += SUBGROUP) {
      const int i = row0 + BLOCK_ROW + row;
      OWN_NUMBER(row) = row_origin(b * block.heads_q + h, i);
      if (NORM == ELASTIC) OWN_NUMBER(2 * MM + row) = share_of(i);
    }
    if (own_far) atomicOr(OWN_WORD, 1u);
  }
  // Sums of bwd_row_sums.comp: each element has its own parts.
  ACC dot = ACC(0.0), mass = ACC(0.0), lift = ACC(0.0), far_dot = ACC(0.0), spread = ACC(0.0);

  int next = next_tile(tiles.begin, tiles.end, parked_place().tile * ROWS, false);
  while (next < tiles.end) {
    const int t = next, col0 = t * COLS;
    PUT_TILE(col0)
    PARKED_PLACE
    next = next_tile(t + 1, tiles.end, row0, false);
    const bool hides = spans_hide(my_row0, col0, false);
    [[dont_unroll]] for (int n = 0; n < NB; n++) {
      const int at = n * MK * PITCH, j0 = col0 + n * MK;
      FORM_STEP(s, slope, 2, at, row0, BLOCK_ROW, col0, n * MK, false,
                t < tiles.full_begin || t >= tiles.full_end, hides)
      if (OWN_WORD != 0)
        far_block_in_scratch(s[0], parked(0), parked(1), place.batch * block.heads_q + place.head,
                             my_row0, j0, false);
      FORM_BASES(s[0], live, ACC origin = own_rows(0))
      if (live) {
        ACC dp, base;
        PASS_BY_SCRATCH(base, s[0], dp, 1, SECOND + at)
        if (DROPOUT != 0) {
          ACC factor = drop_block(my_row0, j0, false);
          ELEMENTS(k, factor) dp[k] *= factor[k];
        }
        if (NORM == ELASTIC) {
          ACC share = own_rows(2 * MM);
          ELEMENTS(k, share) dp[k] = live_dp(base[k], share[k], dp[k]);
        }
        if (ROW_TAU != 0) {
          ELEMENTS(k, dp) lift[k] += dp[k];
        }
        ELEMENTS(k, base) {
          base[k] = slope_of(base[k]);
          dot[k] = fma(base[k], dp[k], dot[k]);
          if (NORM == ENTMAX) mass[k] += base[k];
        }
        if (ROW_SLOPE != 0) {
          ACC rows = row_numbers(), cols = col_numbers();
          const int t0 = my_row0 + entry.off - j0;
          ELEMENTS(k, base) {
            const float a = float(abs(t0 + int(rows[k] - cols[k]))) * base[k];
            far_dot[k] = fma(a, dp[k], far_dot[k]);
            spread[k] += a;
          }
        }
      }
      if (NB == 1) break; // no loop, so that addresses are constants
    }
  }
  PARKED_PLACE
  const int head = place.batch * block.heads_q + place.head, from = my_row0;
  FINISH_SUMS(dot, mass, lift, far_dot, spread)
}
