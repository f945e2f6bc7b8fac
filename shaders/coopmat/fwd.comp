// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: o and lse of ROWS query rows of one head, over the key tiles that they see:
// shaders/scalar/fwd.comp with matrices (docs/kernels/coopmat.md).
#version 460
#extension GL_GOOGLE_include_directive : require
#define LEAVES_HALF (WIDE != RAGGED) // D 80: up to 9 % less time; D 72: 9 % more (H200, 580.159.04)
#include "coopmat/fwd_common.glsl"
#include "coopmat/fwd_plain.glsl"

void main() {
#include "coopmat/main/fwd_begin.glsl"
  OPERAND_A mq[RM][D_BLOCKS];
  LOAD_OPERANDS(mq, 1, q, row0, D_BLOCKS, D_CHUNKS)
#include "coopmat/main/fwd_rows.glsl"
  // All matrices are put into shared memory first (the reason is in stage.glsl), lse after all that
  // uses the scratch.
  const View o = SPLIT != 0 ? part_view(push.o, block.o, part, h, entry.seq_q)
                            : q_view(push.o, block.o, b, h, stored_q(), block.head_dim_v,
                                     (push.wide & 8u) != 0);
  if (SPLIT == 0) {
    PUT_BLOCKS(acc, DV_OUT)
  } else if (PARTS_FIT) {
    PUT_PARTS(acc)
  } else {
    EACH(r, RM)
      EACH(d, DV_OUT) store_part(o, my_row0 + r * MM, d * MN, acc[r][d]);
  }
  EACH(r, RM) {
    // Columns are equal. Only the first of a block remains, as the next block begins behind it.
    ACC lse;
    ELEMENTS(k, lse) lse[k] = NORM == ENTMAX && m[r][k] == NO_LSE ? -HIDDEN_SCORE : m[r][k];
    coopMatStore(lse, scratch, MY_SCRATCH + r * MM / 4, MM / 4, COL_MAJOR);
    subgroupBarrier();
  }
  if (SPLIT == 0)
    store_rows(o, row0, DV_CHUNKS, entry.seq_q);
  else if (PARTS_FIT)
    store_parts(o, row0);
  store_lse(part * block.heads_q + h, row0);
}
