// SPDX-License-Identifier: MIT OR Apache-2.0
// Workgroups of a launch for some kv heads (ds.glsl).

// Tile by tile over all heads, so that the tiles with most work come first. n: the head.
bool place_in_chunk(int group, out int n, out Place place) {
  const uint index = own_index();
  n = int(index % uint(block.heads));
  place = ds_place(n, group);
  place.tile = int(block.tiles - 1u - index / uint(block.heads));
  return index < block.total;
}
