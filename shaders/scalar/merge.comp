// SPDX-License-Identifier: MIT OR Apache-2.0
// merge: o and lse of parts of the keys, which become those of all their keys. Parts are added in
// order. A row of which one part alone saw keys has that part's numbers, untouched.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/merge.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/merge.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/merge.inc"
} push;

#include "parts/tensor.glsl"
#include "problem/rounded_weights.h"
#include "parts/merge.glsl"

// lse of part n as bits; -1: what o and lse hold.
uint lse_of(int n, int head, int row) {
  if (INTO != 0 && n < 0) return Store1(stat_address(push.lse, head, block.seq_q, row)).w;
  return Load1(part_lse_address(push.part_lse, n, head, row)).w;
}

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int head = int(index / block.tiles); // over all batch entries
  const int b = head / block.heads_q, h = head % block.heads_q;
  const int tid = int(gl_LocalInvocationIndex), lane = tid % LANES;
  const int row = int(index % block.tiles) * (WG / LANES) + tid / LANES;
  const bool exists = row < block.seq_q;
  const int begin = -INTO, end = exists ? block.parts : begin;
  Sums sums = Sums(0, 0, 0);
  for (int n = begin; n < end; n++) add_origin(sums, lse_of(n, head, row));
  for (int n = begin; n < end; n++) sums.sum += raw_weight(sums, lse_of(n, head, row));

  const View o =
      make_view(push.o, block.o, b, h, block.seq_q, block.head_dim_v, (push.wide & 1u) != 0);
  const View parts = other_view(push.part_o, block.part_o, b, h, (push.wide & 2u) != 0);
  for (int col = 4 * lane; exists && col < block.head_dim_v; col += 4 * LANES) {
    vec4 sum = vec4(0), last = vec4(0);
    for (int n = begin; n < end; n++) {
      const uint lse = lse_of(n, head, row);
      if (lse == LSE_NONE) continue; // whatever its o holds
      if (INTO != 0 && n < 0)
        last = to_floats(load_words(o, row_address(o, row), col));
      else
        last = load_other(nth(parts, block.part_step, n, OTHER_DTYPE == F32 ? 2 : 1), row, col);
      sum = fma(vec4(raw_weight(sums, lse) / sums.sum), last, sum);
    }
    if (DTYPE == F16)
      for (int c = 0; c < 4; c++) sum[c] = tandem_f16_average(sum[c]);
    store_words(o, row_address(o, row), col, sums.seen == 1 ? last : sum);
  }
  barrier(); // the readers of lse are done
  if (exists && lane == 0 && push.lse != uvec2(0))
    Store1(stat_address(push.lse, head, block.seq_q, row)).w =
        sums.seen == 0   ? LSE_NONE
        : sums.seen == 1 ? floatBitsToUint(sums.origin)
                         : floatBitsToUint(sums.origin + log(sums.sum));
}
