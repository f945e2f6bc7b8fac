// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd_join: combine: o and lse of rows whose keys were split, from the partial outputs of fwd
// (docs/kernels/overview.md). The parts of a slice are added in order, and so are the slices.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "interface/fwd_join.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "interface/fwd_join.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "interface/fwd_join.inc"
} push;

#include "tensor.glsl"

#define NOTHING uintBitsToFloat(LSE_NONE) // below every lse

// precise: if x is the origin the weight is exactly 1.
float weight(float x, float origin) {
  precise float far = x - origin;
  return exp(far);
}

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int head = int(index / block.tiles); // over all batch entries
  const int b = head / block.heads_q, h = head % block.heads_q;
  const int tid = int(gl_LocalInvocationIndex), slice = tid / LANES % SLICES, first = tid - slice * LANES;
  const int row = int(index % block.tiles) * (WG / (LANES * SLICES)) + tid / (LANES * SLICES);
  const int col = 4 * (tid % LANES);
  ivec2 rows = ivec2(0, block.seq_q); // first row of the batch entry, and number of rows
  if (LENGTHS_Q != 0) rows = sequence(push.lengths_q, LENGTHS_Q, b, block.seq_q, block.total_q);
  const int end = row < rows.y ? block.splits : 0; // rows behind a length have no parts

  float top = NOTHING;
  for (int split = slice; split < end; split += SLICES) {
    const uint lse =
        Load1(stat_address(push.lse_parts, (b * block.splits + split) * block.heads_q + h, block.seq_q, row)).w;
    if (lse != LSE_NONE) top = max(top, uintBitsToFloat(lse));
  }
  stats[tid] = top;
  barrier();
  for (int n = 0; n < SLICES; n++) top = max(top, stats[first + n * LANES]);
  const bool sees = floatBitsToUint(top) != LSE_NONE;
  float sink = NOTHING;
  if (SINK != 0) sink = load_float(F32, word_address(push.sink, h));
  if (sees) top = max(top, sink);
  barrier(); // the readers of stats are done

  float l = 0;
  vec4 sum = vec4(0);
  for (int split = slice; split < end; split += SLICES) {
    const int part = b * block.splits + split;
    const uint lse = Load1(stat_address(push.lse_parts, part * block.heads_q + h, block.seq_q, row)).w;
    if (lse == LSE_NONE) continue;
    float y = weight(uintBitsToFloat(lse), top);
    // Far from 0, lse is too coarse to reflect the number of keys. Near 0 it is not corrected, so
    // that parts that are alike stay alike.
    if (abs(uintBitsToFloat(lse)) > 64.0)
      y *= exp(load_float(F32, part_rest_address(push.lse_parts, part * block.heads_q + h, block.seq_q, row)));
    l += y;
    if (col >= block.head_dim_v) continue;
    const View parts = part_view(push.o_parts, block.o_parts, part, h, rows.y);
    sum = fma(vec4(y), uintBitsToFloat(Load4(part_address(parts, row, col)).w), sum);
  }
  stats[tid] = l;
  sums[tid] = sum;
  barrier();
  if (slice != 0 || row >= block.seq_q) return;
  for (int n = 1; n < SLICES; n++) {
    l += stats[tid + n * LANES];
    sum += sums[tid + n * LANES];
  }
  if (SINK != 0 && sees) l += weight(sink, top); // one more score without a value
  if (col < block.head_dim_v && (LENGTHS_Q != PACKED || row < rows.y)) {
    View o = make_view(push.o, block.o, b, h, block.seq_q, block.head_dim_v, (push.wide & 1u) != 0);
    if (LENGTHS_Q == PACKED) o.base = row_address(o, rows.x);
    store_words(o, row_address(o, row), col, sees ? sum / l : vec4(0));
  }
  if (push.lse != uvec2(0) && col == 0)
    Store1(stat_address(push.lse, head, block.seq_q, row)).w = sees ? floatBitsToUint(top + log(l)) : LSE_NONE;
}
