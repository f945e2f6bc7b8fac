// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the loop of bwd_dq over tiles, where a workgroup has several entries at once. Adds
// the team's block of dS, of both entries, to the sum, or stores it through the other team's part
// of the scratch, which is not in use now.
const int theirs = int(gl_SubgroupID ^ uint(TEAM_SUBGROUPS)) * SCRATCH, n = t * NB + TEAM;
barrier();
ACC more;
coopMatLoad(more, scratch, theirs, SCRATCH_PITCH, ROW_MAJOR);
ELEMENTS(k, more)
  more[k] = SUMS == 1 && b0 > 0 ? before[0][k] + (own[0][k] + more[k]) : own[0][k] + more[k];
const bool last = SUMS == 2 || b0 + ENTRIES >= block.batches;
if (last) subgroupBarrier(); // only this subgroup reads there, but perhaps another invocation
if (last) {
  store_ds(more, my_row0, n * MN, theirs);
} else {
  coopMatStore(more, sums.w, SUM_AT(0, n), MN / 4, ROW_MAJOR);
}
