// SPDX-License-Identifier: MIT OR Apache-2.0
// What the schedules of bwd_dbias have in common.
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
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

// Member n * members / splits, where split n begins. The product may leave 32 bits.
int split_begin(int n) {
  const int whole = block.members / block.splits, rest = block.members % block.splits;
  return n * whole + n * rest / block.splits;
}
