// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dist_bias: ROWS entries of d_dist_bias of one head, or a split's partial sums: ds summed
// along diagonals over (batch entry, query tile). The diagonals of a query tile cross the keys of
// two tiles, which may begin at any key.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_dist_bias.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_dist_bias.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_dist_bias.inc"
} push;

#include "parts/tensor.glsl"
#define ANYWHERE true
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

// Adds ds of the diagonal t0 + d in one of two tiles of keys: rows ascending. half_: which of them.
// In row r the diagonal is at column ROWS - 1 + r - d of both together.
void add_diagonal(inout float sum, int d, int half_) {
  const int first = half_ == 0 ? 0 : d + 1, last = half_ == 0 ? d : ROWS - 1;
  for (int r = first; r <= last; r++) {
    const int c = ROWS - 1 + r - d - half_ * COLS;
    sum += ptile[r * P_PITCH + c / 4][c % 4];
  }
}

void main() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
  open_lean();
  const int h = place.head, hk = h / block.group, split = place.batch, t0 = place.tile * ROWS;
  float sum = 0; // of entry t0 + TID
  open_votes();
  const int end = split_begin(split + 1);
  for (int n = split_begin(split); n < end; n++) {
    if (n >= block.members) continue; // for lavapipe (extra.glsl)
    const int b = n / block.q_tiles, row0 = n % block.q_tiles * ROWS;
    set_entry(b);
    // The keys that the tile's rows see.
    const TandemBand band = mask_band();
    const int row_end = min(row0 + ROWS, entry.seq_q);
    const int low = max(0, row0 + band.off - band.left);
    const int high = min(entry.seq_kv - 1, row_end - 1 + band.off + band.right);
    const int j0 = row0 + entry.off - t0 - (ROWS - 1);
    if (row0 >= entry.seq_q || low > high || j0 > high || j0 + 2 * COLS <= low) continue;
    set_head(b, h);
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
    [[dont_unroll]] for (int half_ = 0; half_ < 2; half_++) {
      const int col0 = j0 + half_ * COLS;
      if (col0 > high || col0 + COLS <= low) continue;
      if (!map_shows(row0, col0)) continue;
      if (KNOWS_NEXT) fetch_nt(q, row0, k, col0, 0);
      vec4 base[RQ], ds[RQ];
      if (!pair_tile(base, ds, q, d_o, row0, k, v, col0, true)) continue;
      [[unroll]] for (int i = 0; i < RM; i++) ds[i] = pair_ds(base[i], ds[i], i);
      put_ptile(ds);
      barrier();
      if (TID < ROWS) add_diagonal(sum, TID, half_);
    }
  }
  // [splits][Hq][W]
  const int t = t0 + TID;
  if (TID >= ROWS || t >= extra.dist_window) return;
  uvec2 at = add64(mul64(uvec2(extra.dist_window, 0), block.heads_q), 0);
  at = add64(add64(mul64(at, split), mul64(uvec2(extra.dist_window, 0), h)), t);
  store_float(F32, add64(push.d_dist, to_bytes(at, 2)), sum);
}
