// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_sum_splits: adds partial sums in order. An invocation an element. May then do the work of
// bwd_head_sums.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_sum_splits.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_sum_splits.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_sum_splits.inc"
} push;

#include "parts/tensor.glsl"
#include "parts/head.glsl"

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) {
    if (index - block.total < block.head_total) sum_head(int(index - block.total));
    return;
  }
  const uint n = index * WG + gl_LocalInvocationIndex;
  if (n >= block.part) return;
  uvec2 at = add64(push.parts, to_bytes(uvec2(n, 0), 2));
  const uvec2 step = to_bytes(uvec2(block.part, 0), 2);
  float sum = 0;
  for (int split = 0; split < block.splits; split++) {
    sum += load_float(F32, at);
    at = add64(at, step);
  }
  const uint row = n / block.cols, head = row / block.rows;
  View to = make_view(push.to, block.to, int(head / block.heads), int(head % block.heads),
                      block.rows, block.cols, false);
  store_float(DTYPE,
              add64(row_address(to, int(row % block.rows)), mul64(to.col, int(n % block.cols))),
              sum);
}
