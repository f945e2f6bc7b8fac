// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: o and lse of ROWS query rows of one head, over the key tiles that they see (docs/kernels.md).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
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

  float m[RM], l[RM]; // running maximum, the same in all invocations of a row; own part of the sum
  vec4 acc[DV_BLOCKS][RM];
  [[unroll]] for (int i = 0; i < RM; i++) {
    m[i] = HIDDEN;
    l[i] = 0;
    [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) acc[n][i] = vec4(0);
  }

  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, block.seq_q, block.seq_kv);
  if (tiles.begin < tiles.end) fetch_nt(q, row0, k, tiles.begin * COLS, 0);
  for (int t = tiles.begin; t < tiles.end; t++) {
    const int col0 = t * COLS;
    vec4 s[RM];
    product_nt(s, q, row0, k, col0);
    fetch_nn(v, col0, 0, 0); // lands under the softmax
    score_tile(s);
    if (t < tiles.full_begin || t >= tiles.full_end) mask_tile(s, row0, col0);

    float top[RM];
    [[unroll]] for (int i = 0; i < RM; i++)
      top[i] = max(max(max(s[i].x, s[i].y), max(s[i].z, s[i].w)), m[i]);
    row_max(top);
    [[unroll]] for (int i = 0; i < RM; i++) {
      float keep = weight(m[i], top[i]);
      s[i] = weights(s[i], vec4(top[i]));
      l[i] = l[i] * keep + (s[i].x + s[i].y + (s[i].z + s[i].w));
      m[i] = top[i];
      [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) acc[n][i] *= keep;
    }
    put_ptile(s);
    if (t + 1 < tiles.end) fetch_nt(q, row0, k, col0 + COLS, 0); // lands under the product
    [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) product_nn(acc[n], v, col0, n, DV_BLOCKS);
  }

  row_sum(l);
  View o = make_view(push.o, block.o, b, h, block.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
  [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) {
    [[unroll]] for (int i = 0; i < RM; i++) acc[n][i] = l[i] != 0 ? acc[n][i] / l[i] : vec4(0);
    store_block(o, row0, n, acc[n]);
  }
  if (push.lse != uvec2(0) && TCOL == 0) {
    [[unroll]] for (int i = 0; i < RM; i++) {
      const int row = row0 + TROW + TR * i;
      if (row < block.seq_q)
        Store1(stat_address(push.lse, b * block.heads_q + h, block.seq_q, row)).w =
            l[i] != 0 ? floatBitsToUint(m[i] + log(l[i])) : LSE_NONE;
    }
  }
}
