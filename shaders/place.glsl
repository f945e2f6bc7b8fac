// SPDX-License-Identifier: MIT OR Apache-2.0
// The workgroup's tile, head and batch; false if it has none.
struct Place {
  int tile, head, batch;
};
bool find_place(int heads, out Place place) {
  uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  uint head = index / block.tiles; // over all batches
  place.tile = int(block.tiles - 1u - index % block.tiles);
  place.head = int(head % uint(heads));
  place.batch = int(head / uint(heads));
  return index < block.total;
}
