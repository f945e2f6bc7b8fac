// SPDX-License-Identifier: MIT OR Apache-2.0
// dS that bwd_dkv leaves for bwd_dq in the workspace, for the launch's heads, one after the other.
// Blocks of DS_BLOCK keys and as many query rows, by keys and then by query rows, each contiguous,
// 16-bit elements by chunks of 8.
#ifndef FIRST_KV_HEAD
#define FIRST_KV_HEAD block.first
#endif
const int DS_BLOCK = 128;          // kDsBlock, src/plan/coopmat/tile.h
const int DS_PITCH = DS_BLOCK / 8; // chunks of a key
const int DS_SUM_KEYS = 64;        // kDsSumKeys: of a workgroup of bwd_dbias
layout(buffer_reference, std430, buffer_reference_align = 16) buffer DsStore { uvec4 w[]; };

// Address of the blocks of the launch's n-th head, from key on. from: offset from delta, in 256
// bytes.
uvec2 ds_address(uint from, int n, int key) {
  const int rows = (block.seq_kv + DS_BLOCK - 1) / DS_BLOCK,
            cols = (block.seq_q + DS_BLOCK - 1) / DS_BLOCK;
  const uvec2 head = mul64(mul64(uvec2(2 * DS_BLOCK * DS_BLOCK * cols, 0), rows), n);
  return add64(add64(push.delta, mul64(uvec2(from, 0), 256)),
               add64(head, mul64(uvec2(2 * DS_BLOCK * DS_BLOCK * cols, 0), key / DS_BLOCK)));
}
// Chunk of query row i and, within a block, of a key.
int ds_chunk(int i, int key) {
  return i / DS_BLOCK * (DS_BLOCK * DS_PITCH) + key * DS_PITCH + i % DS_BLOCK / 8;
}

// The n-th query head of a launch, or with a group of 1 the n-th kv head. Heads of a launch are kv
// heads from FIRST_KV_HEAD on, counted through the batch entries of the first one, then those of
// the next one.
Place ds_place(int n, int group) {
  const int kv = FIRST_KV_HEAD + n / group;
  Place place;
  place.batch = kv % block.batches;
  place.head = kv / block.batches * group + n % group;
  return place;
}
