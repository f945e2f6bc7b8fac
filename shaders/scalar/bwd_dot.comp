// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot: delta_i = <d_o_i, o_i> - d_lse_i, one pass over both. LANES invocations share a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_dot.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_dot.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_dot.inc"
} push;

#include "parts/tensor.glsl"

const uint LSE_OF_NO_KEY = 0xff800000u; // minus infinity

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int head = int(index / block.tiles); // over all batch entries
  const int b = head / block.heads_q, h = head % block.heads_q;
  const int tid = int(gl_LocalInvocationIndex), lane = tid % LANES;
  const int row = int(index % block.tiles) * ROWS + tid / LANES;
  ivec2 rows = ivec2(0, block.seq_q); // first row of the batch entry, and number of rows
  if (LENGTHS_Q != 0) rows = sequence(push.lengths_q, LENGTHS_Q, b, block.seq_q, block.total_q);
  View o = make_view(push.o, block.o, b, h, rows.y, block.head_dim_v, (push.wide & 1u) != 0);
  View d_o = make_view(push.d_o, block.d_o, b, h, rows.y, block.head_dim_v, (push.wide & 2u) != 0);
  if (LENGTHS_Q >= PACKED) {
    o.base = row_address(o, rows.x);
    d_o.base = row_address(d_o, rows.x);
  }

  float sum = 0;
  if (row < rows.y) {
    uvec2 o_row = row_address(o, row), d_o_row = row_address(d_o, row);
    for (int col = 4 * lane; col < block.head_dim_v; col += 4 * LANES) {
      vec4 x = to_floats(load_words(o, o_row, col)), y = to_floats(load_words(d_o, d_o_row, col));
      sum = fma(x.x, y.x, sum);
      sum = fma(x.y, y.y, sum);
      sum = fma(x.z, y.z, sum);
      sum = fma(x.w, y.w, sum);
    }
  }
  partial[tid] = sum;
  barrier();
  if (lane == 0 && row < block.seq_q) {
    for (int i = 1; i < LANES; i++) sum += partial[tid + i];
    if (D_LSE != 0 && row < rows.y &&
        Load1(stat_address(push.lse, head, block.seq_q, row)).w != LSE_OF_NO_KEY)
      sum -= uintBitsToFloat(Load1(stat_address(push.d_lse, head, block.seq_q, row)).w);
    Store1(stat_address(push.delta, head, block.seq_q, row)).w = floatBitsToUint(sum);
  }
}
