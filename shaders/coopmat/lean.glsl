// SPDX-License-Identifier: MIT OR Apache-2.0
// What the kernels of lean tiles have in common: those of devices with few registers
// (docs/kernels/coopmat.md, "Intel"). A subgroup owns one block of rows, all left operands lie in
// shared memory, and nothing is prefetched in registers.
//
// Compilers move what does not change out of loops, and keep it in registers. Uniform numbers are
// no exception: on Intel's GPUs each of them takes a register as a vector does. So tensors, lengths
// and the place of the workgroup wait in shared memory, and come anew behind each barrier.

shared uint lean_words[32]; // kLeanWords, src/plan/coopmat/tile.h
// A subgroup's own: numbers of its rows and, in fwd, of its elements.
shared vec4 own_numbers[SUBGROUPS * OWN_COUNT / 4];
#define MY_NUMBERS (int(gl_SubgroupID) * (OWN_COUNT / 4))
#define OWN_NUMBER(n) own_numbers[MY_NUMBERS + (n) / 4][(n) % 4]
// A number of each row, as a matrix of equal columns.
ACC own_rows(int from) {
  ACC x;
  coopMatLoad(x, own_numbers, MY_NUMBERS + from / 4, 0, COL_MAJOR);
  return x;
}

// Ends a basic block: Mesa copies what a loop changes at the end of the block that changes it, so a
// block with many products would hold all accumulators twice. No sequence has a negative length.
#define END_BLOCK(x)     \
  if (block.seq_q < 0) { \
    iota[0] = vec4(0);   \
    x = ACC(0.0);        \
  }

const int AT_PLACE = 24, AT_ENTRY = 27;
// Leaves a view in shared memory: q, k, v, d_o have the slots 0 to 3.
void park(int slot, View t) {
  if (TID != 0) return;
  lean_words[6 * slot] = t.base.x;
  lean_words[6 * slot + 1] = t.base.y;
  lean_words[6 * slot + 2] = t.row.x;
  lean_words[6 * slot + 3] = t.row.y;
  lean_words[6 * slot + 4] = t.col.x;
  lean_words[6 * slot + 5] = t.col.y;
}
View parked(int slot) {
  View t;
  t.base = uvec2(lean_words[6 * slot], lean_words[6 * slot + 1]);
  t.row = uvec2(lean_words[6 * slot + 2], lean_words[6 * slot + 3]);
  t.col = uvec2(lean_words[6 * slot + 4], lean_words[6 * slot + 5]);
  t.rows = slot == 1 || slot == 2 ? entry.seq_kv : entry.seq_q;
  t.width = slot < 2 ? block.head_dim : block.head_dim_v;
  t.wide = (push.wide & 1u << slot) != 0;
  t.slot = 0;
  return t;
}
// The same for the place and, where there are lengths, the batch entry's.
void park_place(Place place) {
  if (TID != 0) return;
  lean_words[AT_PLACE] = uint(place.tile);
  lean_words[AT_PLACE + 1] = uint(place.head);
  lean_words[AT_PLACE + 2] = uint(place.batch);
  lean_words[AT_ENTRY] = uint(entry.seq_q);
  lean_words[AT_ENTRY + 1] = uint(entry.seq_kv);
  lean_words[AT_ENTRY + 2] = uint(entry.start_q);
  lean_words[AT_ENTRY + 3] = uint(entry.start_kv);
  lean_words[AT_ENTRY + 4] = uint(entry.off);
}
Place parked_place() {
  if (LENGTHS_Q != 0 || LENGTHS_KV != 0)
    entry = Entry(int(lean_words[AT_ENTRY]), int(lean_words[AT_ENTRY + 1]),
                  int(lean_words[AT_ENTRY + 2]), int(lean_words[AT_ENTRY + 3]),
                  int(lean_words[AT_ENTRY + 4]));
  return Place(int(lean_words[AT_PLACE]), int(lean_words[AT_PLACE + 1]),
               int(lean_words[AT_PLACE + 2]));
}

// Declares where the workgroup is.
#define PARKED_PLACE                  \
  const Place place = parked_place(); \
  const int row0 = place.tile * ROWS, my_row0 = row0 + BLOCK_ROW;
