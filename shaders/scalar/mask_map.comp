// SPDX-License-Identifier: MIT OR Apache-2.0
// mask_map: the mask map of spans (src/problem/mask_map.h). Twin of cuda/simt/mask_map.cu. A
// workgroup takes 32 blocks of keys of a head. Four invocations find the bounds of a block, 16 keys
// each; then an invocation writes a word of a plane, and the next one.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/mask_map.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/mask_map.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/mask_map.inc"
} push;

#include "parts/address.glsl"
#include "problem/mask_map.h"

const int BLOCKS = TANDEM_MAP_GROUP, SLICES = WG / BLOCKS, KEYS = TANDEM_MAP_BLOCK / SLICES;
#define TID int(gl_LocalInvocationIndex)

TandemSpanBounds bounds_at(int n) {
  TandemSpanBounds x;
  x.first = bounds[n].x;
  x.end = bounds[n].y;
  x.all_first = bounds[n].z;
  x.all_end = bounds[n].w;
  return x;
}
void put_bounds(int n, TandemSpanBounds x) {
  bounds[n] = ivec4(x.first, x.end, x.all_first, x.all_end);
}

// Whether block n of the keys shows some, and all, of the rows of block q, as a bit of two words.
uvec2 bits_of(int n, int q, int bit) {
  const int row0 = q * TANDEM_MAP_BLOCK, end = tandem_min(row0 + TANDEM_MAP_BLOCK, block.seq_q);
  uvec2 bits = uvec2(0);
  for (int m = 0; m < block.spans; m++) {
    const TandemSpanBounds x = bounds_at(m * WG + n);
    if (tandem_some_spanned(x, row0, end)) bits.x |= 1u << bit;
    if (tandem_all_spanned(x, row0, end)) bits.y |= 1u << bit;
  }
  return bits;
}

void main() {
  const uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (index >= block.total) return;
  const int head = int(index / block.tiles), word = int(index % block.tiles);
  const int block0 = word * BLOCKS;
  const uvec2 spans =
      add64(push.spans, mul64(mul64(uvec2(8 * block.spans, 0), block.seq_kv), head));
  for (int n = 0; n < block.spans; n++) {
    TandemSpanBounds own = tandem_no_spans();
    for (int m = 0; m < KEYS; m++) {
      const int j = block0 * TANDEM_MAP_BLOCK + TID * KEYS + m;
      if (j >= block.seq_kv) break;
      const uvec2 at = add64(spans, add64(mul64(uvec2(8 * block.spans, 0), j), 8 * n));
      own = tandem_add_span(own, int(Load1(at).w), int(Load1(add64(at, 4)).w));
    }
    put_bounds(n * WG + TID, own);
  }
  barrier();
  TandemSpanBounds all[2];
  for (int n = 0; n < block.spans; n++) {
    all[n] = tandem_no_spans();
    if (TID < BLOCKS)
      for (int m = 0; m < SLICES; m++)
        all[n] = tandem_join_spans(all[n], bounds_at(n * WG + TID * SLICES + m));
  }
  barrier();
  if (TID < BLOCKS)
    for (int n = 0; n < block.spans; n++) put_bounds(n * WG + TID, all[n]);
  barrier();

  const int q_blocks = tandem_map_blocks(block.seq_q), kv_blocks = tandem_map_blocks(block.seq_kv),
            q_words = tandem_map_words(block.seq_q), kv_words = tandem_map_words(block.seq_kv),
            blocks = tandem_min(BLOCKS, kv_blocks - block0);
  const uvec2 plane = mul64(uvec2(8 * kv_words, 0), q_blocks),
              rows = add64(push.mask_map,
                           mul64(add64(plane, mul64(uvec2(8 * q_words, 0), kv_blocks)), head)),
              columns = add64(rows, plane);
  for (int q = TID; q < q_blocks; q += WG) {
    uvec2 bits = uvec2(0);
    for (int n = 0; n < blocks; n++) bits |= bits_of(n, q, n);
    Store2(add64(rows, add64(mul64(uvec2(8 * kv_words, 0), q), 8 * word))).w = bits;
  }
  for (int m = TID; m < blocks * q_words; m += WG) {
    const int n = m / q_words, first = m % q_words * 32;
    uvec2 bits = uvec2(0);
    for (int q = first; q < tandem_min(first + 32, q_blocks); q++) bits |= bits_of(n, q, q - first);
    Store2(add64(columns, add64(mul64(uvec2(8 * q_words, 0), block0 + n), 8 * (m % q_words)))).w =
        bits;
  }
}
