// SPDX-License-Identifier: MIT OR Apache-2.0
// reduce_table: sums the gradients of pairs by the entry of the table that they read. Twin of
// cuda/simt/reduce_table.cu. Invocations own entries and look at every pair of a chunk: all sums
// have a fixed order, however many pairs read one entry, and there is no atomic operation. Of a
// small table several invocations own an entry, each with its share of the pairs.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/reduce_table.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/reduce_table.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/reduce_table.inc"
} push;

#include "parts/table.glsl"

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int first_entry = int(index % block.tiles) * ENTRIES;
  const int of = int(index / block.tiles), head = of % block.heads, split = of / block.heads;
  const int entries = min(block.size - first_entry, ENTRIES);
  // Shares of the chunks, without products beyond 32 bits.
  const int each = block.members / block.splits, more = block.members % block.splits;
  const int begin = each * split + min(split, more);
  const int end = begin + each + (split < more ? 1 : 0);
  // Invocations with a sum in a register: owner + owners x share.
  int owners = WG;
  while (owners / 2 >= entries) owners /= 2;
  const int owner = TID % owners, share = TID / owners, shares = WG / owners;
  const bool few = entries <= WG;
  const uvec2 heads = shift64(all_pairs(), 2); // from one head to the next
  float sum = 0;
  for (int n = TID; n < ENTRIES; n += WG) sums[n] = 0;
  for (int chunk = begin; chunk < end; chunk++) {
    const int entry = chunk / block.chunks, own = chunk % block.chunks, count = pairs_of(own);
    const uvec2 indices = indices_of(push.bias_index, entry, own);
    const uvec2 from = add64(
        push.d_table_bias, add64(add64(mul64(mul64(heads, block.heads), entry), mul64(heads, head)),
                                 mul64(uvec2(4 * PAIRS, 0), own)));
    barrier();
    for (int n = TID; n < PAIRS; n += WG) {
      uint at = ~0u;
      float value = 0;
      if (n < count) {
        at = load_index(indices, n) - uint(first_entry);
        value = uintBitsToFloat(Load1(add64(from, 4 * n)).w);
      }
      staged_index[n] = at;
      staged[n] = value;
    }
    barrier();
    if (few) {
      for (int n = share; n < PAIRS; n += shares)
        if (staged_index[n] == uint(owner)) sum += staged[n];
    } else {
      for (int n = 0; n < PAIRS; n++) {
        const uint at = staged_index[n];
        if (at % uint(WG) == uint(TID) && at < uint(entries)) sums[at] += staged[n];
      }
    }
  }
  barrier();
  if (few) sums[TID] = sum;
  barrier();
  const uvec2 to =
      add64(push.table_sums, shift64(add64(mul64(mul64(uvec2(block.heads, 0), block.size), split),
                                           add64(mul64(uvec2(block.size, 0), head), first_entry)),
                                     2));
  for (int n = TID; n < entries; n += WG) {
    float all = sums[n];
    for (int m = 1; few && m < shares; m++) all += sums[m * owners + n];
    Store1(add64(to, 4 * n)).w = floatBitsToUint(all);
  }
}
