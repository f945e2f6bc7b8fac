// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: o and lse of ROWS query rows of one head, over the key tiles that they see: shaders/fwd.comp with matrices
// (docs/kernels-matrix.md).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
#include "interface/fwd.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "interface/fwd.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "interface/fwd.inc"
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

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Row1 { uint w[]; };

float sink_of(int h) { return load_float(F32, word_address(push.sink, h)); }

// The row maximum moves only when a score exceeds it by this much, in powers of two: weights up to 2^8 are as exact as
// those up to 1, and most tiles then touch neither o nor the reduction. H100, 580.159.04: D 64 gains most.
const float SLACK = 8.0;
// Without NVIDIA's reductions a maximum takes barriers of the subgroup. lavapipe (Mesa 26) makes them barriers of the
// workgroup, which must not stand where subgroups part; no other device has subgroups of 8.
const bool ALWAYS_GROWS = TANDEM_CM2 == 0 && SUBGROUP == 8;

// The rows' lse, which lies in the subgroup's scratch. head counts over batch, or parts, and heads.
void store_lse(int head, int row0) {
  if (push.lse == uvec2(0)) return;
  Row1 to = Row1(stat_address(push.lse, head, block.seq_q, row0));
  [[dont_unroll]] for (int n = LANE; n < RM * MATRIX; n += SUBGROUP) {
    const int at = BLOCK_ROW + n;
    if (row0 + at >= block.seq_q) continue;
    const float x = SCRATCH_FLOAT(n);
    to.w[at] = row0 + at < entry.seq_q && x != -HIDDEN_SCORE ? floatBitsToUint(x) : LSE_NONE;
  }
}

void main() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
  const int part = place.batch; // over batch and splits
  const int b = SPLIT != 0 ? part / block.splits : part, h = place.head, hk = h / block.group;
  const int row0 = place.tile * ROWS;
  const int my_row0 = row0 + BLOCK_ROW;
  set_entry(b);
  begin_scores();
  begin_iota();
  View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
  View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  if (SPLIT != 0) tiles = tandem_split_tiles(tiles, part % block.splits, block.splits);
  if (tiles.begin < tiles.end) set_head(b, h);

  OPERAND_A mq[RM][D_BLOCKS];
  LOAD_OPERANDS(mq, q, row0, D_BLOCKS, D_CHUNKS)

  // m: a maximum of the row's scores, the same in all columns; weights are powers of two from m * log2_scale, rounded,
  // on. l: each element's own part of the sum, until the end.
  ACC acc[RM][DV_BLOCKS], m[RM], l[RM];
  EACH(r, RM) {
    m[r] = ACC(ORIGIN);
    l[r] = ACC(0.0);
    EACH(d, DV_BLOCKS) acc[r][d] = ACC(0.0);
  }

  // K of a tile is in shared memory when its turn begins, V comes under the first product, K of the next tile under the
  // second: one set of staging registers.
  if (tiles.begin < tiles.end) {
    fetch_tile(stage_1, k, tiles.begin * COLS, D_CHUNKS);
    put_tile(0, stage_1, k, tiles.begin * COLS, D_CHUNKS);
    barrier();
  }
  for (int t = tiles.begin; t < tiles.end; t++) {
    const int col0 = t * COLS;
    fetch_tile(stage_1, v, col0, DV_CHUNKS);
    ACC s[RM][NB], slope[RM][NB];
    EACH(n, NB) EACH(r, RM) s[r][n] = ACC(0.0);
    EACH(d, D_BLOCKS) EACH(n, NB) {
      OPERAND_B y;
      coopMatLoad(y, streamed, n * MATRIX * PITCH + d * (MATRIX / 8), PITCH, COL_MAJOR);
      EACH(r, RM) s[r][n] = coopMatMulAdd(mq[r][d], y, s[r][n]);
    }
    put_tile(SECOND, stage_1, v, col0, DV_CHUNKS);
    barrier();
    if (t + 1 < tiles.end) fetch_tile(stage_1, k, col0 + COLS, D_CHUNKS);

    FINISH_SCORES(s, slope, my_row0, col0, false, t < tiles.full_begin || t >= tiles.full_end)
    OPERAND_A p[RM][NB];
    EACH(r, RM) {
      ACC top = s[r][0], origin;
      EACH(n, NB) ELEMENTS(k, top) top[k] = max(top[k], s[r][n][k]);
      bool grows = false;
      ELEMENTS(k, top) {
        origin[k] = log2_origin(m[r][k]);
        grows = grows || fma(top[k], log2_scale, -origin[k]) > SLACK;
      }
      if (ALWAYS_GROWS || subgroupAny(grows)) {
        row_max(top);
        ACC keep;
        ELEMENTS(k, top) {
          m[r][k] = max(m[r][k], top[k]);
          keep[k] = exp2(origin[k] - log2_origin(m[r][k]));
          origin[k] = log2_origin(m[r][k]);
          l[r][k] *= keep[k];
        }
        EACH(d, DV_BLOCKS) ELEMENTS(k, top) acc[r][d][k] *= keep[k];
      }
      EACH(n, NB) {
        ELEMENTS(k, top) {
          s[r][n][k] = exp2(fma(s[r][n][k], log2_scale, -origin[k]));
          l[r][k] += s[r][n][k];
        }
        if (DROPOUT != 0) {
          ACC factor = drop_block(my_row0 + r * MATRIX, col0 + n * MATRIX, false);
          ELEMENTS(k, top) s[r][n][k] *= factor[k];
        }
        p[r][n] = to_operand(s[r][n]);
      }
    }
    EACH(n, NB) EACH(d, DV_BLOCKS) {
      OPERAND_B y;
      coopMatLoad(y, streamed, SECOND + n * MATRIX * PITCH + d * (MATRIX / 8), PITCH, ROW_MAJOR);
      EACH(r, RM) acc[r][d] = coopMatMulAdd(p[r][n], y, acc[r][d]);
    }
    if (t + 1 < tiles.end) put_tile(0, stage_1, k, col0 + COLS, D_CHUNKS);
    barrier();
  }

  EACH(r, RM) row_sum(l[r]); // by way of scratch, where lse goes afterwards
  EACH(r, RM) {
    ACC factor; // of the row's sums
    ELEMENTS(k, factor) {
      // From the rounded origin to m itself, in natural units: a row with one visible key has l = 1, and so an lse
      // that is its score to the last bit.
      factor[k] = l[r][k] != 0 ? exp2(-fma(m[r][k], log2_scale, -log2_origin(m[r][k]))) : 0.0;
      l[r][k] *= factor[k];
      m[r][k] = natural_score(m[r][k]);
      if (SINK != 0 && l[r][k] != 0) { // one more score without a value, in rows that see a key
        const float sink = sink_of(h), top = max(m[r][k], sink), keep = weight(m[r][k], top);
        factor[k] *= keep;
        l[r][k] = l[r][k] * keep + weight(sink, top);
        m[r][k] = top;
      }
      factor[k] = l[r][k] != 0 ? factor[k] / l[r][k] : 0.0;
    }
    EACH(d, DV_BLOCKS) ELEMENTS(k, factor) acc[r][d][k] *= factor[k];
    // Columns are equal, and of the one block only the first stays: the next begins behind it.
    ACC lse;
    ELEMENTS(k, lse) lse[k] = l[r][k] != 0 ? m[r][k] + log(l[r][k]) : -HIDDEN_SCORE;
    coopMatStore(lse, scratch, MY_SCRATCH + r * MATRIX / 4, MATRIX / 4, COL_MAJOR);
    subgroupBarrier();
  }
  // Scratch is the way of some parts and of coopmat's bf16, too: lse leaves it before.
  const bool SCRATCH_IS_FREE = SPLIT != 0 ? PARTS_FIT : TANDEM_CM2 != 0 || TANDEM_BF16 == 0;
  if (!SCRATCH_IS_FREE) {
    store_lse(part * block.heads_q + h, row0);
    subgroupBarrier();
  }
  if (SPLIT != 0) {
    const View o = part_view(push.o, block.o, part, h, entry.seq_q);
    if (PARTS_FIT) {
      PUT_PARTS(acc)
      store_parts(o, row0);
    } else {
      EACH(r, RM) EACH(d, DV_BLOCKS) store_part(o, my_row0 + r * MATRIX, d * MATRIX, acc[r][d]);
    }
  } else {
    const View o = q_view(push.o, block.o, b, h, stored_q(), block.head_dim_v, (push.wide & 8u) != 0);
    PUT_BLOCKS(acc, DV_BLOCKS)
    store_rows(o, row0, DV_CHUNKS, entry.seq_q);
  }
  if (SCRATCH_IS_FREE) store_lse(part * block.heads_q + h, row0);
}
