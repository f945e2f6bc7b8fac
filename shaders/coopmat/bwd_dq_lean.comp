// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq for lean tiles. The numbers of rows wait in shared memory, and the weights of a block in
// the scratch, while dP is formed.
#version 460
#extension GL_GOOGLE_include_directive : require
#define TEAMS 1
#define OWN_COUNT (3 * MM) // of the subgroup's rows: origin, delta, share
#include "coopmat/lean_options.glsl"
#include "coopmat/bwd_dq_common.glsl"
#include "coopmat/lean.glsl"
#include "coopmat/lean_far.glsl"
#include "coopmat/lean_products.glsl"
#include "coopmat/lean_backward.glsl"

void main() {
  uint index = own_index();
  Place place;
  if (!place_at(index, block.heads_q, place)) return;
  begin_scores();
  begin_iota();
  begin_votes();
  const int key_blocks = (block.seq_kv + COLS - 1) / COLS * NB; // of sums
  Sums4 sums;
  if (SUMS != 0)
    sums = Sums4(add64(add64(push.delta, mul64(uvec2(block.work, 0), 256)),
                       mul64(mul64(uvec2(4 * ROWS * MN, 0), key_blocks), int(index))));

  // With SUMS: see bwd_dq.comp.
  int b = SUMS != 0 ? 0 : place.batch;
  [[dont_unroll]] for (;;) {
    TandemTiles tiles;
    {
      const int h = place.head, hk = h / block.group, row0 = place.tile * ROWS;
      set_entry(b);
      place.batch = b;
      if (TID == 0) OWN_WORD = 0;
      park_place(place);
      park(0, q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, false));
      park(1, kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, false));
      park(2, kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, false));
      park(3, q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, false));
      tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
      if (tiles.begin < tiles.end) set_head(b, h);
      if (D_BIAS != 0 && (SUMS == 0 || b == 0)) { // what no tile covers is 0
        begin_ds(add64(mul64(block.d_bias.bh.xy, b), mul64(block.d_bias.bh.zw, h)), block.seq_q);
        const bool none = tiles.begin >= tiles.end;
        store_no_ds(row0, 0, none ? block.seq_kv : min(tiles.begin * COLS, block.seq_kv));
        if (!none) store_no_ds(row0, tiles.end * COLS, block.seq_kv);
      }
      barrier();
      hold_rows(2, 0, row0, D_CHUNKS);
      hold_rows(1, 3, row0, DV_CHUNKS);
      own_far = false;
      for (int row = LANE; row < MM; row += SUBGROUP) {
        const int head = b * block.heads_q + h, i = row0 + BLOCK_ROW + row;
        OWN_NUMBER(row) = row_origin(head, i);
        OWN_NUMBER(MM + row) = delta_of(head, i);
        if (NORM == ELASTIC) OWN_NUMBER(2 * MM + row) = share_of(i);
      }
      if (own_far) atomicOr(OWN_WORD, 1u);
    }
    ACC acc[D_OUT];
    EACH(d, D_OUT) acc[d] = ACC(0.0);

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
          ACC dp, ds;
          PASS_BY_SCRATCH(ds, s[0], dp, 1, SECOND + at)
          if (DROPOUT != 0) {
            ACC factor = drop_block(my_row0, j0, false);
            ELEMENTS(k, factor) dp[k] *= factor[k];
          }
          {
            ACC delta = own_rows(MM), share;
            if (NORM == ELASTIC) share = own_rows(2 * MM);
            ELEMENTS(k, delta) ds[k] = ds_at(ds[k], share[k], dp[k], delta[k]);
          }
          if (SUMS != 0) {
            ACC sum;
            coopMatLoad(sum, sums.w, SUM_AT(0, t * NB + n), MN / 4, ROW_MAJOR);
            ELEMENTS(k, sum) sum[k] = place.batch > 0 ? sum[k] + ds[k] : ds[k];
            if (place.batch == block.batches - 1)
              store_ds(sum, my_row0, j0, MY_SCRATCH);
            else
              coopMatStore(sum, sums.w, SUM_AT(0, t * NB + n), MN / 4, ROW_MAJOR);
          } else if (D_BIAS != 0) {
            store_ds(ds, my_row0, j0, MY_SCRATCH);
          }
          if (SOFTCAP != 0) {
            ELEMENTS(k, ds) ds[k] *= slope[0][k];
          }
          const OPERAND_A left = to_operand(ds);
          ACCUMULATE(acc, left, at, D_OUT)
        }
        if (NB == 1) break; // no loop, so that addresses are constants
      }
    }

    {
      PARKED_PLACE
      const View d_q = q_view(push.d_q, block.d_q, place.batch, place.head, stored_q(),
                              block.head_dim, (push.wide & 16u) != 0);
      barrier();
      EACH(d, D_OUT) {
        ELEMENTS(k, acc[d]) acc[d][k] *= block.scale;
        put_block(BLOCK_ROW * PITCH + d * (MN / 8), acc[d]);
        END_BLOCK(acc[d])
      }
      barrier();
      store_rows(d_q, row0, D_CHUNKS, entry.seq_q);
    }
    if (SUMS == 0) break; // no loop
    b++;
    if (b >= block.batches) {
      b = 0;
      index += gl_NumWorkGroups.x * gl_NumWorkGroups.y;
      if (!place_at(index, block.heads_q, place)) break;
    }
    // Only the subgroup that stored a block loads it, but by invocations that the driver chooses.
    memoryBarrierBuffer();
    barrier();
  }
}
