// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums: delta of the rows of elastic softmax and entmax, and the rows' parts of d_tau and
// d_slope, of ROWS query rows of one head, over the key tiles that they see.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_row_sums.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_row_sums.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_row_sums.inc"
} push;

#include "parts/tensor.glsl"
#include "parts/tile.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"
#define ROW_DELTA false
#include "parts/pair.glsl"

void main() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
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
  lean_barrier();

  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  if (tiles.begin < tiles.end) set_head(b, h);
  load_rows(b, h, row0);
  // Own parts of sum g M dp, sum g (entmax), sum M dp, sum |t| g M dp, sum |t| g.
  float dot[RM], mass[RM], lift[RM], far_dot[RM], far[RM];
  [[unroll]] for (int i = 0; i < RM; i++) {
    dot[i] = 0;
    mass[i] = 0;
    lift[i] = 0;
    far_dot[i] = 0;
    far[i] = 0;
  }
  open_votes();

  int t = next_tile(tiles.begin, tiles.end, row0, false);
  if (KNOWS_NEXT && t < tiles.end) fetch_nt(q, row0, k, t * COLS, 0);
  for (int next; t < tiles.end; t = next) {
    next = next_tile(t + 1, tiles.end, row0, false);
    const int col0 = t * COLS;
    vec4 base[RQ], dp[RQ];
    if (!pair_tile(base, dp, q, d_o, row0, k, v, col0, t < tiles.full_begin || t >= tiles.full_end))
      continue;
    if (KNOWS_NEXT && next < tiles.end) fetch_nt(q, row0, k, next * COLS, 0);
    [[unroll]] for (int i = 0; i < RM; i++) {
      [[unroll]] for (int c = 0; c < 4; c++) {
        const float g = slope_of(base[i][c]), seen = live_dp(base[i][c], row_share[i], dp[i][c]);
        dot[i] = fma(g, seen, dot[i]);
        if (NORM == ENTMAX) mass[i] += g;
        if (ROW_TAU != 0) lift[i] += seen;
        if (ROW_SLOPE != 0) {
          const float a = float(abs(row0 + TROW + TR * i + entry.off - (col0 + 4 * TCOL + c)));
          far_dot[i] = fma(a, g * seen, far_dot[i]);
          far[i] = fma(a, g, far[i]);
        }
      }
    }
  }

  row_sum(dot);
  if (NORM == ENTMAX) row_sum(mass);
  if (ROW_TAU != 0) row_sum(lift);
  if (ROW_SLOPE != 0) {
    row_sum(far_dot);
    row_sum(far);
  }
  if (TCOL != 0) return;
  [[unroll]] for (int i = 0; i < RM; i++) {
    const int row = row0 + TROW + TR * i, head = b * block.heads_q + h;
    if (row >= block.seq_q) continue;
    const bool exists = LENGTHS_Q == 0 || row < entry.seq_q;
    float delta = exists ? dot[i] : 0.0;
    if (NORM == ENTMAX) delta = exists && mass[i] != 0 ? dot[i] / mass[i] : 0.0;
    if (D_LSE != 0 && exists && Load1(stat_address(push.lse, head, block.seq_q, row)).w != LSE_NONE)
      delta -= uintBitsToFloat(Load1(stat_address(push.extra[AT_D_LSE], head, block.seq_q, row)).w);
    Store1(stat_address(push.delta, head, block.seq_q, row)).w = floatBitsToUint(delta);
    if (ROW_TAU != 0) {
      const int n = tandem_key_count(mask_band(), row, entry.seq_q, entry.seq_kv);
      Store1(stat_address(push.tau_rows, head, block.seq_q, row)).w =
          floatBitsToUint(n > 0 ? lift[i] / float(n) : 0.0);
    }
    if (ROW_SLOPE != 0)
      Store1(stat_address(push.slope_rows, head, block.seq_q, row)).w =
          floatBitsToUint(exists ? far_dot[i] - delta * far[i] : 0.0);
  }
}
