// SPDX-License-Identifier: MIT OR Apache-2.0
// The workgroup's tile, head and batch; false if it has none.
struct Place {
  int tile, head, batch;
};
// batch_first: workgroups of one tile and head and all batches follow each other, as they read the same part of a bias
// that batches share: memory delivers it once.
bool find_place(int heads, bool batch_first, out Place place) {
  uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (batch_first) {
    uint batches = block.total / (block.tiles * uint(heads)), rest = index / batches;
    place.batch = int(index % batches);
    place.tile = int(block.tiles - 1u - rest % block.tiles);
    place.head = int(rest / block.tiles);
    return index < block.total;
  }
  uint head = index / block.tiles; // over all batches
  place.tile = int(block.tiles - 1u - index % block.tiles);
  place.head = int(head % uint(heads));
  place.batch = int(head / uint(heads));
  return index < block.total;
}
bool find_place(int heads, out Place place) { return find_place(heads, false, place); }
