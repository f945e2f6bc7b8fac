// SPDX-License-Identifier: MIT OR Apache-2.0
// expand_blocks: block lists as the bytes of a keep mask. Twin of cuda/simt/expand_blocks.cu.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/expand_blocks.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/expand_blocks.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/expand_blocks.inc"
} push;

#include "parts/address.glsl"
#include "problem/mask_map.h"

const int BLOCKS = TANDEM_LISTS_GROUP, FINDERS = WG / BLOCKS, KEYS = BLOCKS * TANDEM_MAP_BLOCK;
const int WORDS = KEYS / 32; // of a row; an invocation has those of one column
#define TID int(gl_LocalInvocationIndex)

// Four bits as bytes of 0 or 1.
uint bytes_of(uint bits) { return (bits & 15u) * 0x00204081u & 0x01010101u; }

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int across = (block.seq_kv + KEYS - 1) / KEYS;
  const int head = int(index / block.tiles), tile = int(index % block.tiles);
  const int row0 = tile / across * TANDEM_MAP_BLOCK, key0 = tile % across * KEYS;
  const int rows = (block.seq_q + block.block_q - 1) / block.block_q; // of blocks
  const uvec2 row_of_blocks = add64(mul64(uvec2(rows, 0), head), row0 / block.block_q);

  // The last entry of the list that has a block of 64 keys, plus one; 0: none has.
  const uvec2 list = add64(push.blocks, mul64(mul64(row_of_blocks, 2 + block.width), 4));
  const int partial = clamp(int(Load1(list).w), 0, block.bits > 0 ? block.bits : block.width);
  const int full = clamp(int(Load1(add64(list, 4)).w), 0, block.width - partial);
  const int key = key0 + TID / FINDERS * TANDEM_MAP_BLOCK, column = key / block.block_kv;
  uint entry = 0;
  if (key < block.seq_kv)
    for (int n = TID % FINDERS; n < partial + full; n += FINDERS)
      if (int(Load1(add64(list, mul64(uvec2(2 + n, 0), 4))).w) == column) entry = uint(n) + 1;
  entries[TID] = entry;
  barrier();
  entry = 0;
  if (TID < BLOCKS)
    for (int n = 0; n < FINDERS; n++) entry = max(entry, entries[TID * FINDERS + n]);
  barrier();
  if (TID < BLOCKS) entries[TID] = entry;
  barrier();

  const int j = key0 + TID % WORDS * 32;
  if (j >= block.pitch) return;
  const uint of = entries[(j - key0) / TANDEM_MAP_BLOCK];
  const bool listed = of > 0 && of <= uint(partial) && block.bits > 0;
  const uvec2 bits_of_block =
      mul64(add64(mul64(row_of_blocks, block.bits), int(max(of, 1u)) - 1), block.block_q);
  const uvec2 to = add64(push.block_keep, mul64(mul64(uvec2(block.pitch, 0), block.seq_q), head));
  for (int r = TID / WORDS; r < TANDEM_MAP_BLOCK; r += WG / WORDS) {
    const int i = row0 + r;
    if (i >= block.seq_q) continue;
    uint bits = of > 0 ? ~0u : 0u;
    if (listed) {
      const uvec2 at = add64(mul64(add64(bits_of_block, i % block.block_q), block.block_kv / 32),
                             j % block.block_kv / 32);
      bits = Load1(add64(push.block_bits, mul64(at, 4))).w;
    }
    const uvec2 row = add64(add64(to, mul64(uvec2(block.pitch, 0), i)), j);
    Store4(row).w =
        uvec4(bytes_of(bits), bytes_of(bits >> 4), bytes_of(bits >> 8), bytes_of(bits >> 12));
    if (j + 16 < block.pitch)
      Store4(add64(row, 16)).w = uvec4(bytes_of(bits >> 16), bytes_of(bits >> 20),
                                       bytes_of(bits >> 24), bytes_of(bits >> 28));
  }
}
