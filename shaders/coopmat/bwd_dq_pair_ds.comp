// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq from the dS that bwd_dkv left in the workspace, by pairs of subgroups: each has half of
// the features of d_q.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/pair_options.glsl"
#include "coopmat/take_ds_options.glsl"
#include "coopmat/bwd_dq_common.glsl"
#include "coopmat/take_ds.glsl"
#include "coopmat/pair.glsl"
#define OWN_OUT HALF_OUT
#define OUT_AT(at) at + out_at

void main() {
#include "coopmat/main/take_ds_begin.glsl"
  ACC acc[RM][OWN_OUT];
  EACH(r, RM)
    EACH(d, OWN_OUT) acc[r][d] = ACC(0.0);
  const bool second = SECOND_OF_PAIR;
  const int out_at = FIRST_OUT * (MN / 8);
#include "coopmat/main/take_ds_tiles.glsl"
  View d_q = q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
  EACH(r, RM)
    EACH(d, OWN_OUT)
      ELEMENTS(k, acc[r][d]) acc[r][d][k] *= block.scale;
  PUT_HALVES(acc)
  store_rows(d_q, row0, D_CHUNKS, entry.seq_q);
}
