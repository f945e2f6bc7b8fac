// SPDX-License-Identifier: MIT OR Apache-2.0
// place_entries: where the batch entries of gapped tensors lie. Twin of
// cuda/simt/place_entries.cu.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/place_entries.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/place_entries.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/place_entries.inc"
} push;

#include "parts/address.glsl"
#include "problem/sequence.h"

int number(uvec2 address, int n) { return int(Load1(add64(address, mul64(uvec2(4, 0), n))).w); }

void place(int b, uvec2 offsets, uvec2 lengths, int total, int longest, uvec2 places) {
  const TandemSequence s =
      tandem_gapped_rows(number(offsets, b), number(lengths, b), total, longest);
  const uvec2 to = add64(places, mul64(uvec2(4 * TANDEM_PLACE_NUMBERS, 0), b));
  Store1(to).w = uint(s.first);
  Store1(add64(to, 4)).w = uint(s.first + s.rows);
  Store1(add64(to, 8)).w = 0; // kernels of Vulkan need no rank
}

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  const int b = int(index) * WG + int(gl_LocalInvocationIndex);
  if (index >= block.total || b >= block.batch) return;
  if (push.places_q != uvec2(0))
    place(b, push.offsets_q, push.lengths_q, block.total_q, block.seq_q, push.places_q);
  if (push.places_kv != uvec2(0))
    place(b, push.offsets_kv, push.lengths_kv, block.total_kv, block.seq_kv, push.places_kv);
}
