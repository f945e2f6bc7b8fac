// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias: one tile of d_bias, or a split's partial sum: ds summed over the (batch entry, head)
// pairs that read it and, with ONE_ROW, over the query tiles.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_dbias.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_dbias.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_dbias.inc"
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

// Member n * members / splits, where split n begins. The product may leave 32 bits.
int split_begin(int n) {
  const int whole = block.members / block.splits, rest = block.members % block.splits;
  return n * whole + n * rest / block.splits;
}

// Columns col .. col + 3 of a row of d_bias.
void store_bias(uvec2 row_at, int col, vec4 x) {
  const int shift = D_BIAS == F32 ? 2 : 1, n = min(4, block.seq_kv - col);
  const uvec2 step = to_bytes(block.d_bias.sd.zw, shift);
  uvec2 at = add64(row_at, mul64(step, col));
  [[dont_unroll]] for (int c = 0; c < n; c++) {
    // Both halves are this invocation's.
    if (D_BIAS != F32 && step == uvec2(2, 0) && (at.x & 2u) == 0 && c + 1 < n) {
      Store1(at).w = to_bits16(D_BIAS, x[c]) | to_bits16(D_BIAS, x[c + 1]) << 16;
      at = add64(at, step);
      c++;
    } else {
      store_float(D_BIAS, at, x[c]);
    }
    at = add64(at, step);
  }
}

void main() {
  Place place;
  if (!find_place(block.bias_heads, place)) return;
  open_lean();
  const int bias_b = place.batch % block.bias_batch, split = place.batch / block.bias_batch;
  const int key_tiles = (block.seq_kv + COLS - 1) / COLS, key_tile = place.tile % key_tiles,
            col0 = key_tile * COLS;
  const int i0 = place.tile / key_tiles * ROWS; // row of bias; 0 with ONE_ROW

  vec4 acc[RM]; // with ONE_ROW, the sum of own rows is in acc[0]
  [[unroll]] for (int i = 0; i < RM; i++) acc[i] = vec4(0);
  open_votes();
  const int end = split_begin(split + 1);
  for (int n = split_begin(split); n < end; n++) {
    if (n >= block.members) continue; // for lavapipe (extra.glsl)
    const int reader = n / block.q_tiles, row0 = ONE_ROW != 0 ? n % block.q_tiles * ROWS : i0;
    const int h = place.head * extra.bias_group + reader % extra.bias_group;
    const int b = bias_b * extra.bias_entries + reader / extra.bias_group;
    const int hk = h / block.group;
    set_entry(b);
    TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
    if (key_tile < tiles.begin || key_tile >= tiles.end) continue;
    set_head(b, h);
    if (!map_shows(row0, col0)) continue;
    lean_barrier();
    View q =
        park(0, q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0));
    View k = park(
        1, kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0));
    View v = park(
        2, kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0));
    View d_o = park(
        3, q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0));
    lean_barrier();
    load_rows(b, h, row0);
    if (KNOWS_NEXT) fetch_nt(q, row0, k, col0, 0);
    vec4 base[RQ], dp[RQ];
    if (!pair_tile(base, dp, q, d_o, row0, k, v, col0,
                   key_tile < tiles.full_begin || key_tile >= tiles.full_end))
      continue;
    [[unroll]] for (int i = 0; i < RM; i++) {
      vec4 ds = pair_ds(base[i], dp[i], i);
      // Rows past the end are not always masked.
      if (row0 + TROW + TR * i >= entry.seq_q) ds = vec4(0);
      if (ONE_ROW != 0)
        acc[0] += ds;
      else
        acc[i] += ds;
    }
  }

  if (ONE_ROW != 0) {
    barrier(); // the pool's readers are done
    pool[TROW * TC + TCOL] = acc[0];
    barrier();
    if (TROW != 0) return;
    for (int r = 1; r < TR; r++) acc[0] += pool[r * TC + TCOL];
  }
  const int shift = D_BIAS == F32 ? 2 : 1, rows = ONE_ROW != 0 ? 1 : block.seq_q;
  uvec2 elements = add64(mul64(block.d_bias.bh.xy, bias_b), mul64(block.d_bias.bh.zw, place.head));
  elements = add64(elements, mul64(uvec2(block.part, 0), split));
  const uvec2 base_at = add64(push.d_bias, to_bytes(elements, shift));
  const uvec2 row_step = to_bytes(block.d_bias.sd.xy, shift);
  [[unroll]] for (int i = 0; i < (ONE_ROW != 0 ? 1 : RM); i++) {
    const int row = i0 + TROW + TR * i;
    if (row < rows) store_bias(add64(base_at, mul64(row_step, row)), col0 + 4 * TCOL, acc[i]);
  }
}
