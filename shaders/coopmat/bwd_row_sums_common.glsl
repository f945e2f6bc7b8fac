// SPDX-License-Identifier: MIT OR Apache-2.0
// What the schedules of bwd_row_sums have in common.
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
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
#include "parts/place.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"
#include "coopmat/matrix.glsl"
#include "coopmat/stage.glsl"
#include "coopmat/bias.glsl"
#include "coopmat/element.glsl"
#include "coopmat/skip.glsl"
#include "coopmat/far.glsl"

// Stores a block's numbers a row; rows behind the length are 0.
void store_stats(uvec2 address, ACC x, int head, int row0) {
  if (KEEP != 0) subgroupBarrier(); // the last tile's bits may lie there
  coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  for (int row = LANE; row < MM; row += SUBGROUP) {
    if (row0 + row >= block.seq_q) continue;
    const float y = SCRATCH_FLOAT(row * 4 * SCRATCH_PITCH);
    Store1(stat_address(address, head, block.seq_q, row0 + row)).w =
        row0 + row < entry.seq_q ? floatBitsToUint(y) : 0;
  }
  subgroupBarrier();
}

// The gradient with respect to lse of a row, 0 where it sees no key.
float d_lse_of(int head, int i) {
  if (i >= entry.seq_q || Load1(stat_address(push.lse, head, block.seq_q, i)).w == LSE_NONE)
    return 0;
  return uintBitsToFloat(Load1(stat_address(push.extra[AT_D_LSE], head, block.seq_q, i)).w);
}

// Sums the elements' parts over each row of a block, and stores the rows' numbers. head counts over
// all batch entries; from: the block's first row.
#define FINISH_SUMS(dot, mass, lift, far_dot, spread)                                           \
  row_sum(dot);                                                                                 \
  if (NORM == ENTMAX) {                                                                         \
    row_sum(mass);                                                                              \
    ELEMENTS(k, dot) dot[k] = mass[k] != 0 ? dot[k] / mass[k] : 0.0;                            \
  }                                                                                             \
  if (D_LSE != 0) {                                                                             \
    ACC given;                                                                                  \
    ROWS_TO_MATRIX(given, row, d_lse_of(head, from + row))                                      \
    ELEMENTS(k, dot) dot[k] -= given[k];                                                        \
  }                                                                                             \
  store_stats(push.delta, dot, head, from);                                                     \
  if (ROW_TAU != 0) {                                                                           \
    ACC n; /* number of keys that a row sees */                                                 \
    ROWS_TO_MATRIX(n, row,                                                                      \
                   float(tandem_key_count(mask_band(), from + row, entry.seq_q, entry.seq_kv))) \
    row_sum(lift);                                                                              \
    ELEMENTS(k, n) lift[k] = n[k] > 0 ? lift[k] / n[k] : 0.0;                                   \
    store_stats(push.tau_rows, lift, head, from);                                               \
  }                                                                                             \
  if (ROW_SLOPE != 0) {                                                                         \
    row_sum(far_dot);                                                                           \
    row_sum(spread);                                                                            \
    ELEMENTS(k, dot) spread[k] = far_dot[k] - dot[k] * spread[k];                               \
    store_stats(push.slope_rows, spread, head, from);                                           \
  }
