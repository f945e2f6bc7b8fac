// SPDX-License-Identifier: MIT OR Apache-2.0
// ds on its way from bwd_dkv to bwd_dq: in the workspace, of the launch's heads, one after the other, keys by query rows,
// either padded to whole DS_BLOCKs, 16-bit elements by chunks of 8.
const int DS_BLOCK = 128; // kDsBlock, src/plan.h
#define DS_PITCH ((block.seq_q + DS_BLOCK - 1) / DS_BLOCK * (DS_BLOCK / 8)) // chunks of a key
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer DsStore { uvec4 w[]; };

// n: the launch's n-th head. Behind delta, in 256 bytes.
uvec2 ds_address(uint from, int n, int key, int chunk) {
  const int rows = (block.seq_kv + DS_BLOCK - 1) / DS_BLOCK * DS_BLOCK;
  const uvec2 head = add64(add64(push.delta, mul64(uvec2(from, 0), 256)), mul64(mul64(uvec2(16 * DS_PITCH, 0), rows), n));
  return add64(add64(head, mul64(uvec2(16 * DS_PITCH, 0), key)), 16 * chunk);
}

// Of a launch of some heads, tile by tile, so that those with most work come first.
bool place_in_chunk(uint index, int heads, int first, int own, out Place place) {
  const int head = first + int(index % uint(own));
  place.tile = int(block.tiles - 1u - index / uint(own));
  place.head = head % heads;
  place.batch = head / heads;
  return index < block.total;
}
