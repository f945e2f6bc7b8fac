// SPDX-License-Identifier: MIT OR Apache-2.0
// What the schedules of bwd_dq have in common.
#define HAS_ENTRIES 1
#define BIAS_SPAN (ENTRIES > 1 ? 2 : 1)
#define WANTS_SLOPE true
#define VISITS_ALL (D_BIAS != 0) // zeros are stored for every tile
#ifndef ROUNDS_FAST
#define ROUNDS_FAST true // 1 % faster; bwd_dkv would be slower
#endif
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
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
#include "parts/place.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"
#include "coopmat/matrix.glsl"
#include "coopmat/stage.glsl"
#include "coopmat/bias.glsl"
#include "coopmat/store_ds.glsl"
#include "coopmat/element.glsl"
#include "coopmat/skip.glsl"
#include "coopmat/far.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) workgroupcoherent buffer Sums4 {
  vec4 w[];
};
const int BLOCK_QUADS = MM * MN / 4; // vec4s of a block
// The subgroup's r-th block of rows and n-th of keys. It is loaded two blocks ahead; for the first
// entry, whose load is not used, always the same block.
#define SUM_AT(r, n) ((OWN_BLOCK(r) * key_blocks + (n)) * BLOCK_QUADS)
#define LOAD_SUM(x, r, n) \
  coopMatLoad(x, sums.w, SUM_AT(r, b0 > 0 ? min(n, key_blocks - 1) : 0), MN / 4, ROW_MAJOR);

// delta of a row of q; head: over all batch entries and heads.
float delta_of(int head, int row) {
  return row < entry.seq_q
             ? uintBitsToFloat(Load1(stat_address(push.delta, head, block.seq_q, row)).w)
             : 0.0;
}
