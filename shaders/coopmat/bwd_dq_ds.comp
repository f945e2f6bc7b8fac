// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq from the dS that bwd_dkv left in the workspace. Results pass through the room of K and dS
// by strips of features, as those of one owner do (split_d.glsl).
#version 460
#extension GL_GOOGLE_include_directive : require
#define SPLIT_D 1
#define ROLES 1
#define KEEP_BY_ELEMENT 1
#include "coopmat/take_ds_options.glsl"
#include "coopmat/bwd_dq_common.glsl"
#include "coopmat/take_ds.glsl"
#include "coopmat/split_d.glsl"
#define OWN_OUT D_OUT
#define OUT_AT(at) at

void main() {
#include "coopmat/main/take_ds_begin.glsl"
  ACC acc[RM][OWN_OUT];
  EACH(r, RM)
    EACH(d, OWN_OUT) acc[r][d] = ACC(0.0);
#include "coopmat/main/take_ds_tiles.glsl"
  View d_q = q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
  EACH(r, RM)
    EACH(d, OWN_OUT)
      ELEMENTS(k, acc[r][d]) acc[r][d][k] *= block.scale;
  STORE_SLICES(acc[0], OWN_OUT, d_q, row0, entry.seq_q)
}
