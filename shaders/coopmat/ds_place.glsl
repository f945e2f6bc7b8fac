// SPDX-License-Identifier: MIT OR Apache-2.0
// Workgroups of a launch for KV_HEADS kv heads (ds.glsl).
#ifndef KV_HEADS
#define KV_HEADS block.heads
#endif

// Tile by tile over all heads, so that the tiles with most work come first. n: the head.
bool place_in_chunk(int group, out int n, out Place place) {
  const uint index = own_index();
  n = int(index % uint(KV_HEADS));
  place = ds_place(n, group);
  place.tile = int(block.tiles - 1u - index / uint(KV_HEADS));
  return index < block.total;
}
