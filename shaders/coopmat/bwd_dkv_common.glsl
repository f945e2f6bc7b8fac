// SPDX-License-Identifier: MIT OR Apache-2.0
// What the schedules of bwd_dkv have in common. SHARES_DS: 1: the kernel leaves dS in the
// workspace.
#ifndef SHARES_DS
#define SHARES_DS 0
#endif
#ifndef STAT_STAGES // tiles whose numbers of query rows are in shared memory at once
#define STAT_STAGES 1
#endif
#define FLIPS true
#ifndef BIAS_BEGINS
#define BIAS_BEGINS (BIAS_PIPED && NB > 1 && (TANDEM_CM2 == 1 || TANDEM_BF16 == 1))
#endif
#define WANTS_SLOPE (GRAD_K != 0)
#if SHARES_DS
#define SKIPPED(t, end, row0) leave_no_ds(t, end, row0);
#endif
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
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
#if SHARES_DS
#define FIRST_KV_HEAD block.own_1
#define KV_HEADS block.own_2
#include "coopmat/ds.glsl"
#include "coopmat/ds_place.glsl"
void leave_no_ds(int t, int end, int row0);
#endif
#include "coopmat/skip.glsl"
#if SHARES_DS
#include "coopmat/bwd_dkv_ds.glsl"
#endif
#include "coopmat/far.glsl"

// Numbers of the streamed query rows: origin, delta, share.
shared vec4 stats[STAT_STAGES * 3 * COLS / 4];
const int STATS = NORM == ELASTIC ? 3 : 2;

float fetch_stat(int head, int n, int col0) {
  const int i = col0 + n % COLS;
  if (n < COLS) return row_origin(head, i);
  if (n >= 2 * COLS) return share_of(i);
  if (GRAD_K == 0 || i >= entry.seq_q) return 0.0;
  return uintBitsToFloat(Load1(stat_address(push.delta, head, block.seq_q, i)).w);
}
// Numbers of a step's columns, the same in every row: row major with stride 0.
#if TANDEM_KN == 1
#define OF_COL(x, q) x
#define STEP_STATS(x, which) \
  ACC x;                     \
  if (which < STATS) coopMatLoad(x, stats, (which * COLS + n * MK) / 4, 0, ROW_MAJOR);
#else
#define OF_COL(x, q) x[(q) % KN]
#define STEP_STATS(x, which)                                                                  \
  ACC x[KN];                                                                                  \
  if (which < STATS) {                                                                        \
    EACH(c, KN) coopMatLoad(x[c], stats, (which * COLS + n * MK + c * MN) / 4, 0, ROW_MAJOR); \
  }
#endif
// If products start from the bias, the bias of the next block is put into the scratch, and that of
// the block after it is fetched. This is done before the products, or behind those of S and dP:
// with f16 the compiler spills what is prefetched behind them (H100, 580.159.04: bwd_dkv 2.64 and
// 3.04 ms, bf16 2.55 and 2.47). But it is behind all else that uses the scratch: dropout, and
// operands without conversions.
const bool BIAS_EARLY = BIAS_FIRST && TANDEM_CM2 == 1 && DROPOUT == 0;
#define PIPE_BIAS                                                                                 \
  {                                                                                               \
    put_bias(bias[0]);                                                                            \
    fetch_bias(BIAS_OF(bias, [0]), n + 2 < NB ? i0 + 2 * MN : next * COLS + (n + 2 - NB) * MN, 0, \
               row0, BLOCK_ROW);                                                                  \
  }
const int STAT_TURNS = (STATS * COLS + WG - 1) / WG;
