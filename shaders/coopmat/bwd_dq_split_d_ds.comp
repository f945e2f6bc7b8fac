// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq for heads over 256 from the dS that bwd_dkv left in the workspace: each owner of the same
// rows has a slice of the features of d_q.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/take_ds_options.glsl"
#include "coopmat/split_d_options.glsl"
#define ROLES 1
#include "coopmat/bwd_dq_common.glsl"
#include "coopmat/take_ds.glsl"
#include "coopmat/split_d.glsl"
const int OUT_OWN = D_BLOCKS / OWNERS;
#define OWN_OUT OUT_OWN
#define OUT_AT(at) at + out_at

void main() {
#include "coopmat/main/take_ds_begin.glsl"
  ACC acc[RM][OUT_OWN];
  EACH(d, OUT_OWN) acc[0][d] = ACC(0.0);
  const int out_at = OWNER * OUT_OWN * (MN / 8);
#include "coopmat/main/take_ds_tiles.glsl"
  View d_q = q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
  EACH(d, OUT_OWN)
    ELEMENTS(k, acc[0][d]) acc[0][d][k] *= block.scale;
  STORE_SLICES(acc[0], OUT_OWN, d_q, row0, entry.seq_q)
}
