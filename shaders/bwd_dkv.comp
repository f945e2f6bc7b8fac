// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv: d_k and d_v of ROWS keys of one kv head. Keys are the rows of the tile, query rows its
// columns; the sum runs over the group's query heads and the query tiles that see the keys, in order.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "interface/bwd_dkv.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "interface/bwd_dkv.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "interface/bwd_dkv.inc"
} push;

#include "tensor.glsl"
#include "tile.glsl"
#include "score.glsl"
#include "mask.glsl"
#include "softmax.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q / block.group, place)) return;
  // First to last: with a causal mask the first keys are seen by most rows and take longest.
  const int row0 = (int(block.tiles) - 1 - place.tile) * ROWS;
  const int b = place.batch, hk = place.head;
  View k = make_view(push.k, block.k, b, hk, block.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  View v = make_view(push.v, block.v, b, hk, block.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);

  vec4 acc_k[D_BLOCKS][RM], acc_v[DV_BLOCKS][RM];
  [[unroll]] for (int i = 0; i < RM; i++) {
    [[unroll]] for (int n = 0; n < D_BLOCKS; n++) acc_k[n][i] = vec4(0);
    [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) acc_v[n][i] = vec4(0);
  }

  TandemTiles tiles = tandem_query_tiles(mask_band(), row0, ROWS, COLS, block.seq_q, block.seq_kv);
  const int heads = tiles.begin < tiles.end ? block.group : 0;
  for (int g = 0; g < heads; g++) {
    const int h = hk * block.group + g;
    View q = make_view(push.q, block.q, b, h, block.seq_q, block.head_dim, (push.wide & 1u) != 0);
    View d_o = make_view(push.d_o, block.d_o, b, h, block.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
    fetch_nt(k, row0, q, tiles.begin * COLS, 0);
    for (int t = tiles.begin; t < tiles.end; t++) {
      const int col0 = t * COLS;
      vec4 lse = vec4(0), delta = vec4(0); // of this invocation's four columns
      [[unroll]] for (int c = 0; c < 4; c++) {
        const int i = col0 + 4 * TCOL + c;
        if (i < block.seq_q) {
          const int head = b * block.heads_q + h;
          lse[c] = lse_origin(Load1(stat_address(push.lse, head, block.seq_q, i)).w);
          if (GRAD_K != 0)
            delta[c] = uintBitsToFloat(Load1(stat_address(push.delta, head, block.seq_q, i)).w);
        }
      }

      vec4 p[RM], ds[RM];
      product_nt(p, k, row0, q, col0);
      if (GRAD_K != 0) fetch_nt(v, row0, d_o, col0, 0);
      if (GRAD_V != 0) fetch_nn(d_o, col0, 0, 0);
      score_tile(p);
      if (t < tiles.full_begin || t >= tiles.full_end) mask_tile_transposed(p, row0, col0);
      [[unroll]] for (int i = 0; i < RM; i++) p[i] = weights(p[i], lse);

      if (GRAD_K != 0) {
        product_nt(ds, v, row0, d_o, col0);
        [[unroll]] for (int i = 0; i < RM; i++) ds[i] = p[i] * (ds[i] - delta);
      }
      if (GRAD_V != 0) {
        put_ptile(p);
        [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) product_nn(acc_v[n], d_o, col0, n, DV_BLOCKS);
      }
      if (GRAD_K != 0) {
        fetch_nn(q, col0, 0, 0);
        barrier(); // the readers of p are done
        put_ptile(ds);
      }
      if (t + 1 < tiles.end) fetch_nt(k, row0, q, col0 + COLS, 0);
      if (GRAD_K != 0) {
        [[unroll]] for (int n = 0; n < D_BLOCKS; n++) product_nn(acc_k[n], q, col0, n, D_BLOCKS);
      }
    }
  }

  if (GRAD_K != 0) {
    View d_k = make_view(push.d_k, block.d_k, b, hk, block.seq_kv, block.head_dim, (push.wide & 16u) != 0);
    [[unroll]] for (int n = 0; n < D_BLOCKS; n++) {
      [[unroll]] for (int i = 0; i < RM; i++) acc_k[n][i] *= block.scale;
      store_block(d_k, row0, n, acc_k[n]);
    }
  }
  if (GRAD_V != 0) {
    View d_v = make_view(push.d_v, block.d_v, b, hk, block.seq_kv, block.head_dim_v, (push.wide & 32u) != 0);
    [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) store_block(d_v, row0, n, acc_v[n]);
  }
}
