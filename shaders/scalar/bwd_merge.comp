// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_merge: the gradients of o and lse of the parts that merge joins (kernels/abi/bwd_merge.inc).
// Of four parts at a time the products with d_o are summed; they wait in d_part_lse until the row's
// average is known.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_merge.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_merge.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_merge.inc"
} push;

#include "parts/tensor.glsl"
#include "parts/merge.glsl"

const int QUADS = 5; // that an invocation has of a row, kMergeQuads

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int head = int(index / block.tiles); // over all batch entries
  const int b = head / block.heads_q, h = head % block.heads_q;
  const int tid = int(gl_LocalInvocationIndex), lane = tid % LANES;
  const int row = int(index % block.tiles) * (WG / LANES) + tid / LANES;
  const bool exists = row < block.seq_q;
  const int end = exists ? block.parts : 0;
  Sums sums = Sums(0, 0, 0);
  for (int n = 0; n < end; n++)
    add_origin(sums, Load1(part_lse_address(push.part_lse, n, head, row)).w);
  for (int n = 0; n < end; n++)
    sums.sum += raw_weight(sums, Load1(part_lse_address(push.part_lse, n, head, row)).w);

  const int shift = DTYPE == F32 ? 2 : 1;
  const View d_o = other_view(push.d_o, block.d_o, b, h, (push.wide & 1u) != 0);
  const View parts = make_view(push.part_o, block.part_o, b, h, block.seq_q, block.head_dim_v,
                               (push.wide & 2u) != 0);
  const View d_parts = make_view(push.d_part_o, block.d_part_o, b, h, block.seq_q, block.head_dim_v,
                                 (push.wide & 4u) != 0);
  vec4 given[QUADS]; // d_o
  for (int c = 0; c < QUADS; c++) {
    const int col = 4 * (lane + c * LANES);
    given[c] = sums.seen > 0 && col < block.head_dim_v ? load_other(d_o, row, col) : vec4(0);
  }

  float average = 0;
  for (int first = 0; first < block.parts; first += 4) {
    vec4 products = vec4(0), weights = vec4(0);
    for (int k = 0; k < 4; k++) {
      const int n = first + k;
      if (n >= end) break;
      const uint lse = Load1(part_lse_address(push.part_lse, n, head, row)).w;
      const bool sees = lse != LSE_NONE;
      weights[k] = sums.seen == 1 ? (sees ? 1.0 : 0.0) : raw_weight(sums, lse) / sums.sum;
      const View part = nth(parts, block.part_step, n, shift),
                 d_part = nth(d_parts, block.d_part_step, n, shift);
      for (int c = 0; c < QUADS; c++) {
        const int col = 4 * (lane + c * LANES);
        if (col >= block.head_dim_v) break;
        if (sees) {
          const vec4 x = to_floats(load_words(part, row_address(part, row), col));
          for (int i = 0; i < 4; i++) products[k] = fma(x[i], given[c][i], products[k]);
        }
        const vec4 scaled = sums.seen == 1 ? given[c] : weights[k] * given[c];
        store_words(d_part, row_address(d_part, row), col, sees ? scaled : vec4(0));
      }
    }
    partial[tid] = products;
    barrier();
    for (int step = LANES / 2; step > 0; step /= 2) {
      if (lane < step) partial[tid] += partial[tid + step];
      barrier();
    }
    products = partial[tid - lane];
    barrier(); // the readers of partial are done
    for (int k = 0; k < 4; k++) {
      const int n = first + k;
      if (n >= end) break;
      if (weights[k] > 0.0) average = fma(weights[k], products[k], average);
      if (n % LANES == lane)
        Store1(part_lse_address(push.d_part_lse, n, head, row)).w = floatBitsToUint(products[k]);
    }
  }

  float d_lse = 0;
  if (D_LSE != 0 && sums.seen > 0)
    d_lse = uintBitsToFloat(Load1(stat_address(push.d_lse, head, block.seq_q, row)).w);
  for (int n = lane; n < end; n += LANES) { // those that this invocation has stored
    const uint lse = Load1(part_lse_address(push.part_lse, n, head, row)).w;
    const uvec2 at = part_lse_address(push.d_part_lse, n, head, row);
    const float own = uintBitsToFloat(Store1(at).w) - average;
    float x = raw_weight(sums, lse) / sums.sum * (d_lse + own);
    if (sums.seen == 1) x = d_lse; // exactly
    Store1(at).w = lse == LSE_NONE ? 0u : floatBitsToUint(x);
  }
}
