// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq: d_q of ROWS query rows of one head: shaders/bwd_dq.comp with matrices (docs/kernels-matrix.md).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
#include "interface/bwd_dq.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "interface/bwd_dq.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "interface/bwd_dq.inc"
} push;

#include "tensor.glsl"
#include "place.glsl"
#include "extra.glsl"
#include "score.glsl"
#include "mask.glsl"
#include "softmax.glsl"
#include "weight.glsl"
#include "coopmat/matrix.glsl"
#include "coopmat/stage.glsl"
#include "coopmat/element.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
  const int b = place.batch, h = place.head, hk = h / block.group, row0 = place.tile * ROWS;
  const int my_row0 = row0 + BLOCK_ROW;
  set_entry(b);
  begin_scores();
  begin_iota();
  View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
  View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
  View d_o = q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  if (tiles.begin < tiles.end) set_head(b, h);

  OPERAND_A mq[RM][D_BLOCKS], md_o[RM][DV_BLOCKS];
  LOAD_OPERANDS(mq, q, row0, D_BLOCKS, D_CHUNKS)
  LOAD_OPERANDS(md_o, d_o, row0, DV_BLOCKS, DV_CHUNKS)

  // origin: - lse in powers of two, of each row. Rows that do not exist, or saw nothing, get one that no score reaches.
  ACC acc[RM][D_BLOCKS], origin[RM], delta[RM];
  EACH(r, RM) {
    const int head = b * block.heads_q + h, from = my_row0 + r * MATRIX;
    ROWS_TO_MATRIX(origin[r], row,
                   from + row < entry.seq_q
                       ? -LOG2E * lse_origin(Load1(stat_address(push.lse, head, block.seq_q, from + row)).w)
                       : ORIGIN)
    ROWS_TO_MATRIX(delta[r], row,
                   from + row < entry.seq_q
                       ? uintBitsToFloat(Load1(stat_address(push.delta, head, block.seq_q, from + row)).w)
                       : 0.0)
    EACH(d, D_BLOCKS) acc[r][d] = ACC(0.0);
  }

  if (tiles.begin < tiles.end) {
    fetch_tile(stage_1, k, tiles.begin * COLS, D_CHUNKS);
    fetch_tile(stage_2, v, tiles.begin * COLS, DV_CHUNKS);
  }
  for (int t = tiles.begin; t < tiles.end; t++) {
    const int col0 = t * COLS;
    barrier(); // the readers of the tile before are done
    put_tile(0, stage_1, k, col0, D_CHUNKS);
    put_tile(SECOND, stage_2, v, col0, DV_CHUNKS);
    barrier();
    if (t + 1 < tiles.end) {
      fetch_tile(stage_1, k, col0 + COLS, D_CHUNKS);
      fetch_tile(stage_2, v, col0 + COLS, DV_CHUNKS);
    }

    // Rolled: see bwd_dkv.comp.
    [[dont_unroll]] for (int n = 0; n < NB; n++) {
      const int at = n * MATRIX * PITCH, j0 = col0 + n * MATRIX;
      ACC s[RM], dp[RM], slope[RM];
      EACH(r, RM) {
        s[r] = ACC(0.0);
        dp[r] = ACC(0.0);
      }
      // S and dP side by side: products that do not wait for each other.
      EACH(d, MOST_BLOCKS) {
        if (d < D_BLOCKS) {
          OPERAND_B y;
          coopMatLoad(y, streamed, at + d * (MATRIX / 8), PITCH, COL_MAJOR);
          EACH(r, RM) s[r] = coopMatMulAdd(mq[r][d], y, s[r]);
        }
        if (d < DV_BLOCKS) {
          OPERAND_B y;
          coopMatLoad(y, streamed, SECOND + at + d * (MATRIX / 8), PITCH, COL_MAJOR);
          EACH(r, RM) dp[r] = coopMatMulAdd(md_o[r][d], y, dp[r]);
        }
      }
      FINISH_COLUMN(s, slope, my_row0, j0, false, t < tiles.full_begin || t >= tiles.full_end)
      OPERAND_A ds[RM];
      EACH(r, RM) {
        if (DROPOUT != 0) {
          ACC factor = drop_block(my_row0 + r * MATRIX, j0, false);
          ELEMENTS(k, factor) dp[r][k] *= factor[k];
        }
        ELEMENTS(k, s[r]) s[r][k] = exp2(fma(s[r][k], log2_scale, origin[r][k])) * (dp[r][k] - delta[r][k]);
        if (SOFTCAP != 0) {
          ELEMENTS(k, s[r]) s[r][k] *= slope[r][k];
        }
        ds[r] = to_operand(s[r]);
      }
      EACH(d, D_BLOCKS) {
        OPERAND_B y;
        coopMatLoad(y, streamed, at + d * (MATRIX / 8), PITCH, ROW_MAJOR);
        EACH(r, RM) acc[r][d] = coopMatMulAdd(ds[r], y, acc[r][d]);
      }
    }
  }

  View d_q = q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
  EACH(r, RM) EACH(d, D_BLOCKS) ELEMENTS(k, acc[r][d]) acc[r][d][k] *= block.scale;
  PUT_BLOCKS(acc, D_BLOCKS)
  store_rows(d_q, row0, D_CHUNKS, entry.seq_q);
}
