// SPDX-License-Identifier: MIT OR Apache-2.0
// expand_table: the bias of each pair and head, from a table and the pairs' index. Twin of
// cuda/simt/expand_table.cu.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/expand_table.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/expand_table.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/expand_table.inc"
} push;

#include "parts/table.glsl"

const int EACH = TANDEM_TABLE_PAIRS / WG;

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int entry = int(index / block.tiles), chunk = int(index % block.tiles);
  const int count = pairs_of(chunk);
  const uvec2 indices = indices_of(push.bias_index, entry, chunk);
  const uvec2 head = shift64(all_pairs(), 2);
  uvec2 table = push.bias_table;
  uvec2 to = add64(push.table_bias, add64(mul64(mul64(head, block.heads), entry),
                                          mul64(uvec2(4 * TANDEM_TABLE_PAIRS, 0), chunk)));
  uint at[EACH];
  [[unroll]] for (int n = 0; n < EACH; n++) {
    at[n] = n * WG + TID < count ? load_index(indices, n * WG + TID) : 0;
  }
  for (int h = 0; h < block.heads; h++) {
    [[unroll]] for (int n = 0; n < EACH; n++) {
      const int pair = n * WG + TID;
      if (pair >= count) continue;
      uint bias = 0;
      if (at[n] < uint(block.size)) bias = Load1(add64(table, shift64(uvec2(at[n], 0), 2))).w;
      Store1(add64(to, 4 * pair)).w = bias;
    }
    table = add64(table, shift64(uvec2(block.size, 0), 2));
    to = add64(to, head);
  }
}
