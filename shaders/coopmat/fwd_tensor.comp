// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd for heads so wide that a workgroup's rows would not fit the streamed tiles' array: they come
// and go by tensor addressing.
#version 460
#extension GL_GOOGLE_include_directive : require
#define STREAMED (2 * COLS * PITCH)
#define HELD 0
#include "coopmat/fwd_common.glsl"
#include "coopmat/rows.glsl"
#include "coopmat/fwd_plain.glsl"

void main() {
#include "coopmat/main/fwd_begin.glsl"
  OPERAND_A mq[RM][D_BLOCKS];
  LOAD_ROWS(mq, q, my_row0, D_BLOCKS)
#include "coopmat/main/fwd_rows.glsl"
  const View o = SPLIT != 0 ? part_view(push.o, block.o, part, h, entry.seq_q)
                            : q_view(push.o, block.o, b, h, stored_q(), block.head_dim_v,
                                     (push.wide & 8u) != 0);
  if (SPLIT == 0) {
    STORE_ROWS(acc, o, my_row0, DV_OUT, entry.seq_q)
  } else {
    STORE_ROWS_OF_PART(acc, o, my_row0, DV_OUT)
  }
  EACH(r, RM) {
    // Columns are equal. Only the first of a block remains, as the next block begins behind it.
    ACC lse;
    ELEMENTS(k, lse) lse[k] = NORM == ENTMAX && m[r][k] == NO_LSE ? -HIDDEN_SCORE : m[r][k];
    coopMatStore(lse, scratch, MY_SCRATCH + r * MM / 4, MM / 4, COL_MAJOR);
    subgroupBarrier();
  }
  store_lse(part * block.heads_q + h, row0);
}
