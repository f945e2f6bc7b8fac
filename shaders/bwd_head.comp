// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_head: d_tau, d_slope and d_sink of one head: the rows' parts, batch and rows ascending within an invocation, then
// over invocations in order.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "interface/bwd_head.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "interface/bwd_head.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "interface/bwd_head.inc"
} push;

const int DTYPE = F32; // for tensor.glsl
#include "tensor.glsl"

void store_sum(uvec2 to, int head, float own) {
  const int tid = int(gl_LocalInvocationIndex);
  barrier(); // the readers of the sum before are done
  partial[tid] = own;
  barrier();
  if (tid != 0) return;
  for (int n = 1; n < WG; n++) own += partial[n];
  store_float(F32, word_address(to, head), own);
}

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int head = int(index);
  float tau = 0, slope = 0, sink = 0, by = 0;
  if (GRAD_SINK != 0 && block.seq_q > 0 && block.batch > 0) by = load_float(F32, word_address(push.sink, head));
  for (int b = 0; b < block.batch; b++) {
    const int row = b * block.heads_q + head;
    for (int i = int(gl_LocalInvocationIndex); i < block.seq_q; i += WG) {
      if (GRAD_TAU != 0) tau += load_float(F32, stat_address(push.tau_rows, row, block.seq_q, i));
      if (GRAD_SLOPE != 0) slope -= load_float(F32, stat_address(push.slope_rows, row, block.seq_q, i));
      if (GRAD_SINK != 0) {
        const uint lse = Load1(stat_address(push.lse, row, block.seq_q, i)).w;
        const float delta = load_float(F32, stat_address(push.delta, row, block.seq_q, i));
        if (lse != LSE_NONE) sink -= exp(by - uintBitsToFloat(lse)) * delta;
      }
    }
  }
  if (GRAD_TAU != 0) store_sum(push.d_tau, head, tau);
  if (GRAD_SLOPE != 0) store_sum(push.d_slope, head, slope);
  if (GRAD_SINK != 0) store_sum(push.d_sink, head, sink);
}
