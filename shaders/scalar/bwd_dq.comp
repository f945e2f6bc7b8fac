// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq: d_q of ROWS query rows of one head, over the key tiles that they see.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_dq.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_dq.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_dq.inc"
} push;

#include "parts/tensor.glsl"
#include "parts/tile.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"
#define ROW_DELTA true
#include "parts/pair.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
  const int features = take_part(place);
  const int b = place.batch, h = place.head, hk = h / block.group, row0 = place.tile * ROWS;
  open_lean();
  set_entry(b);
  View q =
      park(0, q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0));
  View k =
      park(1, kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0));
  View v = park(
      2, kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0));
  View d_o = park(
      3, q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0));
  k = own_features(k, features, D_BLOCKS);
  lean_barrier();

  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  if (tiles.begin < tiles.end) set_head(b, h);
  load_rows(b, h, row0);
  vec4 acc[D_BLOCKS][RM];
  [[unroll]] for (int i = 0; i < RM; i++) {
    [[unroll]] for (int n = 0; n < D_BLOCKS; n++) acc[n][i] = vec4(0);
  }
  open_votes();

  int t = next_tile(tiles.begin, tiles.end, row0, false);
  if (KNOWS_NEXT && t < tiles.end) fetch_nt(q, row0, k, t * COLS, 0);
  for (int next; t < tiles.end; t = next) {
    next = next_tile(t + 1, tiles.end, row0, false);
    const int col0 = t * COLS;
    vec4 p[RQ], ds[RQ];
    if (!pair_tile(p, ds, q, d_o, row0, k, v, col0, t < tiles.full_begin || t >= tiles.full_end))
      continue;
    fetch_nn(k, col0, 0, 0);
    [[unroll]] for (int i = 0; i < RM; i++) ds[i] = through_cap(pair_ds(p[i], ds[i], i), i);
    put_ptile(ds);
    if (KNOWS_NEXT && next < tiles.end) fetch_nt(q, row0, k, next * COLS, 0);
    [[unroll]] for (int n = 0; n < D_BLOCKS; n++) product_nn(acc[n], k, col0, n, D_BLOCKS);
  }

  View d_q = q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
  d_q = own_features(d_q, features, D_BLOCKS);
  [[unroll]] for (int n = 0; n < D_BLOCKS; n++) {
    [[unroll]] for (int i = 0; i < RM; i++) {
      acc[n][i] *= block.scale;
      if (LENGTHS_Q != 0 && row0 + TROW + TR * i >= entry.seq_q) acc[n][i] = vec4(0);
    }
    store_block(d_q, row0, n, acc[n]);
  }
}
