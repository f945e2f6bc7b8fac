// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq: d_q of ROWS query rows of one head: shaders/scalar/bwd_dq.comp with matrices
// (docs/kernels/coopmat.md). SUMS: d_q of all batch entries, ENTRIES at a time, whose dS are summed
// block by block in the workspace for d_bias.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
#include "kernels/abi/bwd_dq.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_dq.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_dq.inc"
} push;

#include "parts/tensor.glsl"
#include "parts/place.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"
#if TANDEM_PAIR
#define ONE_ENTRY
#else
#define TAKES_ENTRIES
#endif
#define ROUNDS_FAST true // 1 % faster; bwd_dkv would be slower
#if TANDEM_DS            // take_ds.glsl: K, and dS, keys by query rows
#define NO_SCRATCH
#define TWO_TILES (COLS * (PITCH + ROWS / 8 + 1))
#define STREAMED (TWO_TILES > ROWS * PITCH ? TWO_TILES : ROWS * PITCH)
#define KEEP_BY_ELEMENT
#endif
#include "coopmat/matrix.glsl"
#include "coopmat/stage.glsl"
#define STORES_DS
#define BIAS_SPAN (ENTRIES > 1 ? 2 : 1)
#include "coopmat/bias.glsl"
#define WANTS_SLOPE true
#include "coopmat/element.glsl"
#define VISITS_ALL (D_BIAS != 0) // zeros are stored for every tile
#include "coopmat/skip.glsl"
#include "coopmat/far.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) workgroupcoherent buffer Sums4 {
  vec4 w[];
};
const int BLOCK_QUADS = MM * MN / 4; // vec4s of a block
// The subgroup's r-th block of rows and n-th of keys. It is loaded two blocks ahead; for the first
// entry, whose load is not used, always the same block.
#define SUM_AT(r, n) ((OWN_BLOCK(r) * key_blocks + (n)) * BLOCK_QUADS)
#define LOAD_SUM(x, r, n) \
  coopMatLoad(x, sums.w, SUM_AT(r, b0 > 0 ? min(n, key_blocks - 1) : 0), MN / 4, ROW_MAJOR);

#if TANDEM_DS
#include "coopmat/ds.glsl"
#include "coopmat/take_ds.glsl"
#else
// delta of a row of q; head: over all batch entries and heads.
float delta_of(int head, int row) {
  return row < entry.seq_q
             ? uintBitsToFloat(Load1(stat_address(push.delta, head, block.seq_q, row)).w)
             : 0.0;
}
#if TANDEM_LEAN
#include "coopmat/lean_bwd_dq.glsl"
#elif TANDEM_PAIR
#include "coopmat/pair_bwd_dq.glsl"
#else
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
    sums = Sums4(add64(add64(push.delta, mul64(uvec2(block.sums, 0), 256)),
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

    OPERAND_A mq[RM][D_BLOCKS], md_o[RM][DV_BLOCKS];
    LOAD_OPERANDS(mq, 2, q, row0, D_BLOCKS, D_CHUNKS)
    LOAD_OPERANDS(md_o, 1, d_o, row0, DV_BLOCKS, DV_CHUNKS)

    ACC acc[RM][D_OUT], origin[RM], delta[RM], share[RM]; // origin, delta and share of each row
    own_far = false;
    EACH(r, RM) {
      const int head = b * block.heads_q + h, from = my_row0 + r * MM;
      if (ENTRIES > 1) {
        for (int row = LANE; row < MM; row += SUBGROUP) {
          iota[OWN_NUMBERS + row / 4][row % 4] = row_origin(head, from + row);
          iota[OWN_NUMBERS + (MM + row) / 4][row % 4] = delta_of(head, from + row);
        }
        subgroupBarrier();
      } else {
        ROWS_TO_MATRIX(origin[r], row, row_origin(head, from + row))
        ROWS_TO_MATRIX(delta[r], row, delta_of(head, from + row))
      }
      if (NORM == ELASTIC) ROWS_TO_MATRIX(share[r], row, share_of(from + row))
      EACH(d, D_OUT) acc[r][d] = ACC(0.0);
    }
    const bool far = subgroupAny(own_far);

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
        // The last of the two blocks is the team's.
        const int n = ENTRIES > 1 ? turn ^ TEAM ^ 1 : turn;
        const int at = n * MK * PITCH, j0 = col0 + n * MK;
        ACC s[STEP_BLOCKS], dp[STEP_BLOCKS], slope[STEP_BLOCKS];
        ACC sum[STEP_BLOCKS];
        EACH(q, STEP_BLOCKS) {
          if (SPAN == 1)
            fetch_bias(BIAS_OF(bias, [q]), row0, BLOCK_ROW + STEP_ROW(q), col0,
                       n * MK + STEP_COL(q));
          if (SUMS != 0 && ENTRIES == 1) {
            sum[q] = ahead[q][0];
            ahead[q][0] = ahead[q][1];
            LOAD_SUM(ahead[q][1], q, t * NB + n + 2)
          }
          s[q] = ACC(0.0);
          dp[q] = ACC(0.0);
        }
        // S and dP are interleaved, as their products do not depend on each other.
        EACH(d, MOST_BLOCKS) {
          if (d < D_BLOCKS) MULTIPLY_LEFT(s, mq, 2, at, d)
          if (NORM != ENTMAX && d < DV_BLOCKS) MULTIPLY_LEFT(dp, md_o, 1, SECOND + at, d)
        }
        if (SPAN > 1 && turn == 0) begin_bias(bias[0]);
        FINISH_STEP(s, slope, bias, n, my_row0, j0, false,
                    t < tiles.full_begin || t >= tiles.full_end)
        if (far) {
          FAR_STEP(s, q, k, b * block.heads_q + h, my_row0, j0, false)
        }
        // The block that the other team adds goes through the scratch, which the tile's last bias
        // has left.
        if (ENTRIES > 1 && turn == NB - 1)
          coopMatStore(own[0], scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
        if (ENTRIES > 1) {
          coopMatLoad(origin[0], iota, OWN_NUMBERS, 0, COL_MAJOR);
          coopMatLoad(delta[0], iota, OWN_NUMBERS + MM / 4, 0, COL_MAJOR);
        }
        if (NORM == ENTMAX) { // without a weight in the block, nothing follows
          bool any = false;
          EACH(q, STEP_BLOCKS)
            ELEMENTS(k, s[q]) any = any || s[q][k] > OF_ROW(origin, q)[k];
          if (LEAVES_BLOCKS && !subgroupAny(any)) continue;
          EACH(d, DV_BLOCKS) MULTIPLY_LEFT(dp, md_o, 1, SECOND + at, d)
        }
        OPERAND_A ds[RM];
        BEFORE(ds)
        EACH(q, STEP_BLOCKS) {
          if (DROPOUT != 0) {
            ACC factor = drop_block(my_row0 + STEP_ROW(q), AT_COL(j0, q), false);
            ELEMENTS(k, factor) dp[q][k] *= factor[k];
          }
          ELEMENTS(k, s[q])
            s[q][k] = ds_at(base_at(s[q][k], OF_ROW(origin, q)[k]), OF_ROW(share, q)[k], dp[q][k],
                            OF_ROW(delta, q)[k]);
          if (ENTRIES > 1) {
            own[q] = s[q];
          } else if (SUMS != 0) {
            ELEMENTS(k, s[q]) sum[q][k] = b > 0 ? sum[q][k] + s[q][k] : s[q][k];
            if (b == block.batches - 1)
              store_ds(sum[q], my_row0 + STEP_ROW(q), j0, MY_SCRATCH);
            else
              coopMatStore(sum[q], sums.w, SUM_AT(q, t * NB + n), MN / 4, ROW_MAJOR);
#if TANDEM_CM2
          } else if (DS_HALVES && SOFTCAP == 0) {
            ds[q] = OPERAND_A(round_ds(s[q]));
            store_rounded(ds[q], my_row0 + STEP_ROW(q), AT_COL(j0, q), MY_SCRATCH);
            continue;
#endif
          } else if (D_BIAS != 0) {
            store_ds(s[q], my_row0 + STEP_ROW(q), AT_COL(j0, q), MY_SCRATCH);
          }
          if (SOFTCAP != 0) {
            ELEMENTS(k, s[q]) s[q][k] *= slope[q][k];
          }
          PUT_OPERAND(ds, q, s[q], (s[q]))
        }
        EACH(d, D_OUT) {
          OPERAND_B y;
          coopMatLoad(y, streamed, OWN_STREAMED(at) + d * (MN / 8), PITCH, ROW_MAJOR);
          EACH(r, RM) acc[r][d] = coopMatMulAdd(ds[r], y, acc[r][d]);
        }
        if (COL_STEPS == 1) break; // no loop, so that addresses are constants
      }
      if (ENTRIES > 1) {
        // Adds the team's block of dS, of both entries, to the sum, or stores it through the other
        // team's part of the scratch, which is not in use now.
        const int theirs = int(gl_SubgroupID ^ uint(TEAM_SUBGROUPS)) * SCRATCH, n = t * NB + TEAM;
        barrier();
        ACC more;
        coopMatLoad(more, scratch, theirs, SCRATCH_PITCH, ROW_MAJOR);
        ELEMENTS(k, more)
          more[k] =
              SUMS == 1 && b0 > 0 ? before[0][k] + (own[0][k] + more[k]) : own[0][k] + more[k];
        const bool last = SUMS == 2 || b0 + ENTRIES >= block.batches;
        if (last)
          subgroupBarrier(); // only this subgroup reads there, but perhaps another invocation
        if (last) {
          store_ds(more, my_row0, n * MN, theirs);
        } else {
          coopMatStore(more, sums.w, SUM_AT(0, n), MN / 4, ROW_MAJOR);
        }
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
#endif
#endif
