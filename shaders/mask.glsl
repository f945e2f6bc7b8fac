// SPDX-License-Identifier: MIT OR Apache-2.0
// Visibility. A hidden score is HIDDEN, a finite number: infinities, whose differences are NaN, are not
// needed and some drivers compile as if there were none.
#include "tile_range.h"

const float HIDDEN = -3.402823466e+38; // -FLT_MAX

TandemBand mask_band() {
  TandemBand band;
  band.left = block.band_left;
  band.right = block.band_right;
  band.off = entry.off;
  return band;
}

// Query row i, key j.
bool is_visible(int i, int j) {
  return i < entry.seq_q && (!ANYWHERE || j >= 0) && j < entry.seq_kv &&
         (BAND == 0 || tandem_visible(mask_band(), i, j));
}

// Rows are query rows from i0, columns are keys from j0.
void mask_tile(inout vec4 s[RM], int i0, int j0) {
  [[unroll]] for (int r = 0; r < RM; r++) {
    [[unroll]] for (int c = 0; c < 4; c++)
      if (!is_visible(i0 + TROW + TR * r, j0 + 4 * TCOL + c)) s[r][c] = HIDDEN;
  }
}

// Rows are keys from j0, columns are query rows from i0.
void mask_tile_transposed(inout vec4 s[RM], int j0, int i0) {
  [[unroll]] for (int r = 0; r < RM; r++) {
    [[unroll]] for (int c = 0; c < 4; c++)
      if (!is_visible(i0 + 4 * TCOL + c, j0 + TROW + TR * r)) s[r][c] = HIDDEN;
  }
}

// keep of an invocation's elements, bit 4 r + c; what lies outside of the problem may be either. Bytes are read out
// of their words: nothing here needs 8-bit storage.
uint keep_bits(int i0, int j0, bool flip) {
  uint bits = 0;
  [[unroll]] for (int r = 0; r < RM; r++) {
    [[unroll]] for (int c = 0; c < 4; c++) {
      uvec2 at = add64(inputs.keep, add64(mul64(extra.keep.sd.xy, near_query(query_of(i0, r, c, flip))),
                                          mul64(extra.keep.sd.zw, near_key(key_of(j0, r, c, flip)))));
      uint byte = Load1(uvec2(at.x & ~3u, at.y)).w >> 8u * (at.x & 3u) & 0xffu;
      bits |= byte != 0 ? 1u << (4 * r + c) : 0u;
    }
  }
  return bits;
}
void keep_tile(inout vec4 s[RM], uint bits) {
  [[unroll]] for (int r = 0; r < RM; r++) {
    [[unroll]] for (int c = 0; c < 4; c++)
      if ((bits >> (4 * r + c) & 1u) == 0) s[r][c] = HIDDEN;
  }
}

// The whole workgroup's or of a bit, by one barrier: three words in turn, of which one is written and read, and the
// next one, whose readers are past the barrier before, is cleared. begin_votes comes before the first.
const bool SKIP_KEEP = KEEP != 0 && SKIP != 0;
const bool SKIP_ENTMAX = NORM == ENTMAX && SKIP != 0;
const int VOTES = SKIP_KEEP || NORM == ENTMAX ? 3 : 1; // src/plan.cpp counts them
shared uint votes[VOTES];
int vote_turn = 0;

void begin_votes() {
  if (VOTES < 3) return;
  if (TID == 0) votes[0] = 0;
  barrier();
}
bool vote(bool yes) {
  const int turn = vote_turn;
  vote_turn = turn == 2 ? 0 : turn + 1;
  if (yes) atomicOr(votes[turn], 1u);
  if (TID == 0) votes[vote_turn] = 0;
  barrier();
  return votes[turn] != 0;
}

// Before a tile's product of a and b, from a0 and b0, which are the query rows from i0 and the keys from j0 in either
// order: keep's bits, and false if it keeps nothing. Where tiles may be left out, their first loads start here.
bool open_tile(View a, int a0, View b, int b0, bool flip, out uint kept) {
  const int i0 = flip ? b0 : a0, j0 = flip ? a0 : b0;
  kept = ~0u;
  if (KEEP != 0) kept = keep_bits(i0, j0, flip);
  if (SKIP_KEEP && !vote(kept != 0)) return false;
  if (SKIP != 0) fetch_nt(a, a0, b, b0, 0);
  return true;
}
