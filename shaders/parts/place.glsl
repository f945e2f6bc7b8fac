// SPDX-License-Identifier: MIT OR Apache-2.0
// The tile, head and batch entry of an index; false if it has none. A workgroup's index is
// own_index().
struct Place {
  int tile, head, batch;
};
uint own_index() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }
bool place_at(uint index, int heads, out Place place) {
  uint head = index / block.tiles; // over all batch entries
  place.tile = int(block.tiles - 1u - index % block.tiles);
  place.head = int(head % uint(heads));
  place.batch = int(head / uint(heads));
  return index < block.total;
}
bool find_place(int heads, out Place place) { return place_at(own_index(), heads, place); }
