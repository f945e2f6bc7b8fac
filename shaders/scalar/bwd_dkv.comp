// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv: d_k and d_v of ROWS keys of one kv head. Keys are the rows of the tile, query rows its
// columns. The sum is over the group's query heads and the query tiles that see the keys, in order.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_dkv.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_dkv.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_dkv.inc"
} push;

#include "parts/tensor.glsl"
#include "parts/tile.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"

// Which of an invocation's elements dropout keeps, bit 4 r + c. Four consecutive keys come from one
// draw, and an invocation owns one of them. So it draws for as many query rows as it owns keys, and
// the invocations exchange the results in the P tile, as numbers below 16. Readers of the P tile
// are past the barriers of the previous product.
uint share_drop_bits(int j0, int i0) {
  [[dont_unroll]] for (int r = 0; r < RM; r++) {
    const int i = TROW + TR * r;
    ptile[TCOL * P_PITCH + i / 4][i % 4] = float(drop_quad(i0 + i, j0 / 4 + TCOL));
  }
  barrier();
  uint bits = 0;
  [[unroll]] for (int r = 0; r < RM; r++) {
    const int j = TROW + TR * r;
    const uvec4 quads = uvec4(ptile[j / 4 * P_PITCH + TCOL]) >> (j % 4) & 1u;
    bits |= (quads.x | quads.y << 1 | quads.z << 2 | quads.w << 3) << (4 * r);
  }
  if (GRAD_K == 0) barrier(); // p is stored next; with GRAD_K a product with barriers is between
  return bits;
}

// The numbers of this invocation's four columns.
void load_columns(int head, int col0, out vec4 lse, out vec4 delta, out vec4 share) {
  lse = vec4(NO_LSE);
  delta = vec4(0);
  [[unroll]] for (int c = 0; c < 4; c++) {
    const int i = col0 + 4 * TCOL + c;
    share[c] = share_of(i);
    if (i < entry.seq_q) {
      lse[c] = lse_origin(Load1(stat_address(push.lse, head, block.seq_q, i)).w);
      if (GRAD_K != 0)
        delta[c] = uintBitsToFloat(Load1(stat_address(push.delta, head, block.seq_q, i)).w);
    }
  }
}

// Whether what is not needed for the scores is loaded behind them. Lean tiles have no registers
// for that and for the addresses of the scores' inputs.
bool loads_late() { return LEAN != 0 && BIAS + DIST != 0; }
bool fetches_late() {
  if (SKIP_ENTMAX) return true;
  return loads_late();
}

void main() {
  Place place;
  if (!find_place(block.heads_q / block.group, place)) return;
  const int features = take_part(place);
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = (tiles_of_head() - 1 - place.tile) * ROWS;
  const int b = place.batch, hk = place.head;
  open_lean();
  set_entry(b);
  View k =
      park(1, kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0));
  View v = park(
      2, kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0));

  vec4 acc_k[D_BLOCKS][RM], acc_v[DV_BLOCKS][RM];
  [[unroll]] for (int i = 0; i < RM; i++) {
    [[unroll]] for (int n = 0; n < D_BLOCKS; n++) acc_k[n][i] = vec4(0);
    [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) acc_v[n][i] = vec4(0);
  }

  TandemTiles tiles = tandem_query_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  const int heads = tiles.begin < tiles.end ? block.group : 0;
  open_votes();
  for (int g = 0; g < heads; g++) {
    const int h = hk * block.group + g;
    set_head(b, h);
    lean_barrier();
    View q =
        park(0, q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0));
    View d_o = park(
        3, q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0));
    q = own_features(q, features, D_BLOCKS);
    d_o = own_features(d_o, features, DV_BLOCKS);
    lean_barrier();
    int t = next_tile(tiles.begin, tiles.end, row0, true);
    if (KNOWS_NEXT && t < tiles.end) fetch_nt(k, row0, q, t * COLS, 0);
    for (int next; t < tiles.end; t = next) {
      next = next_tile(t + 1, tiles.end, row0, true);
      const int col0 = t * COLS;
      uint shown;
      if (!open_tile(k, row0, q, col0, true, shown)) continue;
      vec4 lse, delta, share;
      if (!loads_late()) load_columns(b * block.heads_q + h, col0, lse, delta, share);

      vec4 p[RQ], ds[RQ];
      product_nt(p, k, row0, q, col0);
      if (GRAD_K != 0 && !fetches_late()) fetch_nt(v, row0, d_o, col0, 0);
      if (GRAD_V != 0 && !fetches_late()) fetch_nn(d_o, col0, 0, 0);
      score_tile(p, col0, row0, true);
      if (t < tiles.full_begin || t >= tiles.full_end) mask_tile_transposed(p, row0, col0);
      if (HAS_BITS) show_tile(p, shown);
      if (loads_late()) load_columns(b * block.heads_q + h, col0, lse, delta, share);
      bvec4 far;
      [[unroll]] for (int c = 0; c < 4; c++) far[c] = is_far_origin(lse[c]);
      if (any(far)) {
        [[unroll]] for (int c = 0; c < 4; c++) {
          if (!far[c]) continue;
          const vec2 origin =
              load_far(push.delta, b * block.heads_q + h, block.seq_q, col0 + 4 * TCOL + c);
          lse[c] = origin.y;
          [[unroll]] for (int i = 0; i < RM; i++) p[i][c] = from_origin(p[i][c], origin.x);
        }
      }
      [[unroll]] for (int i = 0; i < RM; i++) p[i] = bases(p[i], lse);
      if (SKIP_ENTMAX && !vote(has_support(p))) continue;
      if (fetches_late()) {
        if (GRAD_K != 0) fetch_nt(v, row0, d_o, col0, 0);
        if (GRAD_V != 0) fetch_nn(d_o, col0, 0, 0);
      }
      uint let_through = ~0u;
      if (DROPOUT != 0) let_through = share_drop_bits(row0, col0);

      if (GRAD_K != 0) {
        if (LEAN != 0) {
          if (DROPOUT != 0) barrier(); // the readers of other invocations' bits are done
          put_ptile(p);                // not in registers during the product
        }
        product_nt(ds, v, row0, d_o, col0);
        if (LEAN != 0) get_ptile(p);
        [[unroll]] for (int i = 0; i < RM; i++) {
          if (DROPOUT != 0) ds[i] *= drop_factor(let_through >> (4 * i));
          ds[i] = through_cap(ds_of(p[i], share, ds[i], delta), i);
        }
      }
      if (GRAD_V != 0) {
        [[unroll]] for (int i = 0; i < RM; i++) {
          p[i] = weights_of(p[i], share);
          if (DROPOUT != 0) p[i] *= drop_factor(let_through >> (4 * i));
        }
        put_ptile(p);
        [[unroll]] for (int n = 0; n < DV_BLOCKS; n++)
            product_nn(acc_v[n], d_o, col0, n, DV_BLOCKS);
      }
      if (GRAD_K != 0) {
        fetch_nn(q, col0, 0, 0);
        barrier(); // the readers of p are done
        put_ptile(ds);
      }
      if (KNOWS_NEXT && next < tiles.end) fetch_nt(k, row0, q, next * COLS, 0);
      if (GRAD_K != 0) {
        [[unroll]] for (int n = 0; n < D_BLOCKS; n++) product_nn(acc_k[n], q, col0, n, D_BLOCKS);
      }
    }
  }

  if (GRAD_K != 0) {
    View d_k =
        kv_view(push.d_k, block.d_k, b, hk, stored_kv(), block.head_dim, (push.wide & 16u) != 0);
    d_k = own_features(d_k, features, D_BLOCKS);
    [[unroll]] for (int n = 0; n < D_BLOCKS; n++) {
      [[unroll]] for (int i = 0; i < RM; i++) {
        acc_k[n][i] *= block.scale;
        if (LENGTHS_KV != 0 && row0 + TROW + TR * i >= entry.seq_kv) acc_k[n][i] = vec4(0);
      }
      store_block(d_k, row0, n, acc_k[n]);
    }
  }
  if (GRAD_V != 0) {
    View d_v =
        kv_view(push.d_v, block.d_v, b, hk, stored_kv(), block.head_dim_v, (push.wide & 32u) != 0);
    d_v = own_features(d_v, features, DV_BLOCKS);
    [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) {
      [[unroll]] for (int i = 0; i < RM;
                      i++) if (LENGTHS_KV != 0 && row0 + TROW + TR * i >= entry.seq_kv)
          acc_v[n][i] = vec4(0);
      store_block(d_v, row0, n, acc_v[n]);
    }
  }
}
