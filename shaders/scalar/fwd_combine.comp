// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd_combine: combine: o and lse of rows whose keys were split, from the partial outputs of fwd
// (docs/kernels/overview.md). The parts of a slice are added in order, and so are the slices.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/fwd_combine.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/fwd_combine.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/fwd_combine.inc"
} push;

#include "parts/tensor.glsl"
#include "problem/rounded_weights.h"
#include "parts/sink.glsl"

#define NOTHING uintBitsToFloat(LSE_NONE) // below every lse

int head_of_part(int b, int split, int h) { return (b * block.splits + split) * block.heads_q + h; }

// lse of a part of a row's keys, and its rounding error. Near 0 the error is too small to matter.
vec2 load_part_lse(int head, int row) {
  const float lse = uintBitsToFloat(Load1(stat_address(push.lse_parts, head, block.seq_q, row)).w);
  if (floatBitsToUint(lse) == LSE_NONE || abs(lse) <= 64.0) return vec2(lse, 0);
  return vec2(lse, load_float(F32, part_rest_address(push.lse_parts, head, block.seq_q, row)));
}

// precise: if x is the origin the weight is exactly 1.
float weight(vec2 x, vec2 origin) {
  precise float far = x.x - origin.x;
  precise float rest = x.y - origin.y;
  return exp(far) * exp(rest);
}

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int head = int(index / block.tiles); // over all batch entries
  const int b = head / block.heads_q, h = head % block.heads_q;
  const int tid = int(gl_LocalInvocationIndex), slice = tid / LANES % SLICES,
            first = tid - slice * LANES;
  const int shares = (block.head_dim_v + 4 * LANES - 1) / (4 * LANES), // of a row
      tile = int(index % block.tiles), share = tile % shares;
  const int row = tile / shares * (WG / (LANES * SLICES)) + tid / (LANES * SLICES);
  const int col = 4 * (share * LANES + tid % LANES);
  ivec2 rows = ivec2(0, block.seq_q); // first row of the batch entry, and number of rows
  if (LENGTHS_Q != 0) rows = sequence(push.lengths_q, LENGTHS_Q, b, block.seq_q, block.total_q);
  const int end = row < rows.y ? block.splits : 0; // rows behind a length have no parts

  // lse of the largest part and its rounding error. Weights are relative to them: a part that is
  // alone, or like the largest, has a weight of exactly 1.
  vec2 origin = vec2(NOTHING, 0);
  for (int split = slice; split < end; split += SLICES) {
    const vec2 part = load_part_lse(head_of_part(b, split, h), row);
    if (floatBitsToUint(part.x) != LSE_NONE && part.x > origin.x) origin = part;
  }
  sums[tid].xy = origin;
  barrier();
  origin = vec2(NOTHING, 0);
  for (int n = 0; n < SLICES; n++) {
    const vec2 other = sums[first + n * LANES].xy;
    if (other.x > origin.x) origin = other;
  }
  const bool sees = floatBitsToUint(origin.x) != LSE_NONE;
  float sink = NOTHING;
  if (SINK != 0) sink = sink_of(b, h, row);
  if (sees && sink > origin.x) origin = vec2(sink, 0);
  barrier(); // the readers of sums are done

  float l = 0;
  vec4 sum = vec4(0);
  for (int split = slice; split < end; split += SLICES) {
    const int part = b * block.splits + split;
    const vec2 lse = load_part_lse(head_of_part(b, split, h), row);
    if (floatBitsToUint(lse.x) == LSE_NONE) continue;
    const float y = weight(lse, origin);
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
  if (SINK != 0 && sees) l += weight(vec2(sink, 0), origin); // one more score without a value
  if (col < block.head_dim_v && (LENGTHS_Q < PACKED || row < rows.y)) {
    View o = make_view(push.o, block.o, b, h, block.seq_q, block.head_dim_v, (push.wide & 1u) != 0);
    if (LENGTHS_Q >= PACKED) o.base = row_address(o, rows.x);
    if (sees) sum /= l;
    if (DTYPE == F16)
      for (int c = 0; c < 4; c++) sum[c] = tandem_f16_average(sum[c]);
    store_words(o, row_address(o, row), col, sees ? sum : vec4(0));
  }
  if (push.lse != uvec2(0) && col == 0)
    Store1(stat_address(push.lse, head, block.seq_q, row)).w =
        sees ? floatBitsToUint(origin.x + (origin.y + log(l))) : LSE_NONE;
}
