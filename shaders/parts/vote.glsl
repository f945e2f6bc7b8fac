// SPDX-License-Identifier: MIT OR Apache-2.0
// One bit of the whole workgroup with one barrier. Three words rotate: one is written and read, and
// the next one, whose readers are past the previous barrier, is cleared. The last word of the array
// is OWN_WORD, whose meaning the kernel defines.
#ifndef LEAN_WORDS
#define LEAN_WORDS 0
#endif
const int VOTES =
    (KEEP != 0 && SKIP != 0) || NORM == ENTMAX ? 4 : 1; // src/plan/plan.cpp counts them
shared uint votes[VOTES + LEAN_WORDS];                  // words of tile.glsl lie behind
int vote_turn = 0;

#define OWN_WORD votes[VOTES - 1]
void begin_votes() { // a barrier comes before the first vote
  if (VOTES > 1 && TID == 0) votes[0] = 0;
}
bool vote(bool yes) {
  if (VOTES == 1) return true; // not called
  const int turn = vote_turn;
  vote_turn = turn == 2 ? 0 : turn + 1;
  if (yes) atomicOr(votes[turn], 1u);
  if (TID == 0) votes[vote_turn] = 0;
  barrier();
  return votes[turn] != 0;
}
