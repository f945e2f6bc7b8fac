// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq: d_q of ROWS query rows of one head, over the key tiles that they see.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
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
#include "tile.glsl"
#include "score.glsl"
#include "mask.glsl"
#include "softmax.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
  const int b = place.batch, h = place.head, hk = h / block.group, row0 = place.tile * ROWS;
  View q = make_view(push.q, block.q, b, h, block.seq_q, block.head_dim, (push.wide & 1u) != 0);
  View k = make_view(push.k, block.k, b, hk, block.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  View v = make_view(push.v, block.v, b, hk, block.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
  View d_o = make_view(push.d_o, block.d_o, b, h, block.seq_q, block.head_dim_v, (push.wide & 8u) != 0);

  float lse[RM], delta[RM];
  vec4 acc[D_BLOCKS][RM];
  [[unroll]] for (int i = 0; i < RM; i++) {
    const int row = row0 + TROW + TR * i, head = b * block.heads_q + h;
    lse[i] = 0;
    delta[i] = 0;
    if (row < block.seq_q) {
      lse[i] = lse_origin(Load1(stat_address(push.lse, head, block.seq_q, row)).w);
      delta[i] = uintBitsToFloat(Load1(stat_address(push.delta, head, block.seq_q, row)).w);
    }
    [[unroll]] for (int n = 0; n < D_BLOCKS; n++) acc[n][i] = vec4(0);
  }

  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, block.seq_q, block.seq_kv);
  if (tiles.begin < tiles.end) fetch_nt(q, row0, k, tiles.begin * COLS, 0);
  for (int t = tiles.begin; t < tiles.end; t++) {
    const int col0 = t * COLS;
    vec4 p[RM], ds[RM];
    product_nt(p, q, row0, k, col0);
    fetch_nt(d_o, row0, v, col0, 0);
    score_tile(p);
    if (t < tiles.full_begin || t >= tiles.full_end) mask_tile(p, row0, col0);
    [[unroll]] for (int i = 0; i < RM; i++) p[i] = weights(p[i], vec4(lse[i]));

    product_nt(ds, d_o, row0, v, col0);
    fetch_nn(k, col0, 0, 0);
    [[unroll]] for (int i = 0; i < RM; i++) ds[i] = p[i] * (ds[i] - delta[i]);
    put_ptile(ds);
    if (t + 1 < tiles.end) fetch_nt(q, row0, k, col0 + COLS, 0);
    [[unroll]] for (int n = 0; n < D_BLOCKS; n++) product_nn(acc[n], k, col0, n, D_BLOCKS);
  }

  View d_q = make_view(push.d_q, block.d_q, b, h, block.seq_q, block.head_dim, (push.wide & 16u) != 0);
  [[unroll]] for (int n = 0; n < D_BLOCKS; n++) {
    [[unroll]] for (int i = 0; i < RM; i++) acc[n][i] *= block.scale;
    store_block(d_q, row0, n, acc[n]);
  }
}
