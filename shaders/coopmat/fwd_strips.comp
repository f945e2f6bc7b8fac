// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd for heads so wide that a workgroup's rows would not fit the streamed tiles' array: they pass
// through it by strips of features, as those of one owner do (split_d.glsl).
#version 460
#extension GL_GOOGLE_include_directive : require
#define SPLIT_D 1
#define ROLES 1
#define STREAMED (2 * COLS * PITCH)
#define HELD 0
#include "coopmat/fwd_common.glsl"
#include "coopmat/fwd_plain.glsl"
#include "coopmat/split_d.glsl"

const int OUT_OWN = DV_OUT;
#include "coopmat/split_d_parts.glsl"

void main() {
#include "coopmat/main/fwd_begin.glsl"
  OPERAND_A mq[RM][D_BLOCKS];
  LOAD_SLICES(mq[0], q, q, row0)
#include "coopmat/main/fwd_rows.glsl"
  const View o = SPLIT != 0 ? part_view(push.o, block.o, part, h, entry.seq_q)
                            : q_view(push.o, block.o, b, h, stored_q(), block.head_dim_v,
                                     (push.wide & 8u) != 0);
  if (SPLIT == 0) {
    STORE_SLICES(acc[0], OUT_OWN, o, row0, entry.seq_q)
  } else {
    STORE_PARTS(acc[0], o)
  }
  // Columns are equal. Only the first remains.
  ACC lse;
  ELEMENTS(k, lse) lse[k] = NORM == ENTMAX && m[0][k] == NO_LSE ? -HIDDEN_SCORE : m[0][k];
  coopMatStore(lse, scratch, MY_SCRATCH, MM / 4, COL_MAJOR);
  subgroupBarrier();
  store_lse(part * block.heads_q + h, row0);
}
