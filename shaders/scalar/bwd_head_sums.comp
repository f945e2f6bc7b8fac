// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_head_sums: d_tau, d_slope and d_sink of one head, the sums of the rows' parts.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_head_sums.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_head_sums.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_head_sums.inc"
} push;

const int DTYPE = F32; // for tensor.glsl
#include "parts/tensor.glsl"

#include "parts/head.glsl"

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index < block.total) sum_head(int(index));
}
