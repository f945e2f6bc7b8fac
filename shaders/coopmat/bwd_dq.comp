// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq: d_q of ROWS query rows of one head: shaders/scalar/bwd_dq.comp with matrices
// (docs/kernels/coopmat.md). SUMS: d_q of all batch entries, ENTRIES at a time, whose dS are summed
// block by block in the workspace for d_bias.
#version 460
#extension GL_GOOGLE_include_directive : require
#define TEAMS 1
#include "coopmat/bwd_dq_common.glsl"

// With several entries at once, a subgroup's origins and, behind them, deltas are in shared memory,
// as there are no registers for them.
#define OWN_NUMBERS (IOTA / 4 + int(gl_SubgroupID) * MM / 2)

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

  // With SUMS a workgroup takes one tile after another, so that there are sums for no more tiles
  // than workgroups, and for each tile one batch entry, or ENTRIES, after another.
  TandemTiles tiles;
  int b0 = SUMS != 0 ? 0 : place.batch;
  [[dont_unroll]] for (;;) {
    const int h = place.head, hk = h / block.group, row0 = place.tile * ROWS,
              my_row0 = row0 + BLOCK_ROW;
    const int b = ENTRIES > 1 ? b0 + TEAM : b0;
    set_entry(b);
    View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
    View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
    View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
    View d_o =
        q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
    tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
    if (tiles.begin < tiles.end) set_head(b, h);
    if (ENTRIES > 1 && BIAS != 0) // the same for all entries, which the compiler has to know
      inputs.bias = add64(push.extra[AT_BIAS],
                          to_bytes(mul64(extra.bias.bh.zw, h / extra.bias_group), BIAS_SHIFT));

    if (D_BIAS != 0 && (SUMS == 0 || b0 == 0)) { // what no tile covers is 0
      begin_ds(add64(mul64(block.d_bias.bh.xy, b0), mul64(block.d_bias.bh.zw, h)), block.seq_q);
      const bool none = tiles.begin >= tiles.end;
      store_no_ds(row0, 0, none ? block.seq_kv : min(tiles.begin * COLS, block.seq_kv));
      if (!none) store_no_ds(row0, tiles.end * COLS, block.seq_kv);
    }
#include "coopmat/main/bwd_dq_rows.glsl"

    int next = next_tile(tiles.begin, tiles.end, row0, false);
    if (next < tiles.end) {
      fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
      fetch_tile(stage_2, v, next * COLS, DV_CHUNKS);
    }
    // KN is 1 with sums (src/plan/launches.cpp).
    ACC ahead[STEP_BLOCKS][2]; // sums of the next blocks
    // The team's block of a tile: its sum and its dS.
    ACC before[STEP_BLOCKS], own[STEP_BLOCKS];
    if (SUMS != 0 && ENTRIES == 1) {
      EACH(r, RM)
        EACH(i, 2) LOAD_SUM(ahead[r][i], r, tiles.begin * NB + i)
    }
    while (next < tiles.end) {
      const int t = next, col0 = t * COLS;
      if (ENTRIES == 1) barrier(); // the readers of the tile before are done
      BIAS_ARRAY(bias, [STEP_BLOCKS])
      // All keys of the tile are fetched here; at any other place it costs more on an H100
      // (580.159.04).
      if (SPAN > 1) {
        EACH(r, RM) fetch_bias(BIAS_OF(bias, [r]), row0, BLOCK_ROW + r * MM, col0, 0);
      }
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

      if (ENTRIES > 1) {
        EACH(r, RM) {
          if (SUMS == 1) LOAD_SUM(before[r], r, t * NB + TEAM)
        }
      }

      // Rolled: see bwd_dkv.comp.
      [[dont_unroll]] for (int turn = 0; turn < COL_STEPS; turn++) {
#include "coopmat/main/bwd_dq_step.glsl"
        if (COL_STEPS == 1) break; // no loop, so that addresses are constants
      }
      if (ENTRIES > 1) {
#include "coopmat/main/bwd_dq_team.glsl"
      }
    }

    View d_q =
        q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
    EACH(r, RM)
      EACH(d, D_OUT)
        ELEMENTS(k, acc[r][d]) acc[r][d][k] *= block.scale;
    PUT_BLOCKS(acc, D_OUT)
    store_rows(d_q, row0, D_CHUNKS, entry.seq_q);
    if (SUMS == 0) break; // no loop
    b0 += ENTRIES;
    if (b0 >= block.batches) {
      b0 = 0;
      index += gl_NumWorkGroups.x * gl_NumWorkGroups.y;
      if (!place_at(index, block.heads_q, place)) break;
    }
    // Only the subgroup that stored a block loads it, but by invocations that the driver chooses.
    memoryBarrierBuffer();
    barrier();
  }
}
