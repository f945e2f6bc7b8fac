// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the loop of bwd_dkv by pairs over tiles: from the subgroup's products x to its
// operand of the second ones, own: P or dS.
coopMatLoad(s[0], scratch, PAIR_SCRATCH(0), SCRATCH_PITCH, ROW_MAJOR);
if (REUSES_SCRATCH) barrier();
FINISH_STEP(s, slope, bias, 0, i0, my_row0, true, partial, hides)
if (far) {
  FAR_STEP(s, q, k, head, i0, my_row0, true)
}
LOAD_STATS(origin, 0)
LOAD_STATS(delta, 1)
LOAD_STATS(share, 2)
OPERAND_A own[RM]; // P or dS
EACH(r, RM) {
  ELEMENTS(n, s[r]) s[r][n] = base_at(s[r][n], origin[n]);
  ACC y = s[r];
  if (NORM != SOFTMAX) {
    ELEMENTS(n, y) y[n] = weight_of(s[r][n], share[n]);
  }
  if (DROPOUT != 0) {
    ACC factor = drop_block(i0, my_row0 + r * MM, true);
    ELEMENTS(n, y) {
      y[n] *= factor[n];
      x[r][n] *= factor[n];
    }
  }
  ELEMENTS(n, y) {
    float ds = ds_at(s[r][n], share[n], x[r][n], delta[n]);
    if (SOFTCAP != 0) ds *= slope[r][n];
    y[n] = second ? ds : y[n];
  }
  own[r] = to_operand(y, false, CONVERT_AT, CONVERT_PITCH);
}
