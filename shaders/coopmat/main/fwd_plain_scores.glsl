// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the plain loop of fwd: scores of tile t, whose K is in shared memory, in S; then its
// V is put there. A block's products start from its mask, unless score inputs come between them.
if (BIAS_FIRST) {
  EACH(r, RM)
    EACH(n, NB) {
      if (SPAN > 1 && n == SPAN_FIRST(n)) begin_bias(bias[r][n]);
      S[r][n] = first_block(BIAS_OF(bias, [r][SPAN_FIRST(n)]), n, false);
    }
} else {
  EACH(n, NB)
    EACH(r, RM) S[r][n] = ACC(0.0);
}
if (MASKS_FIRST && NEEDS_MASK(t < tiles.full_begin || t >= tiles.full_end)) {
  MASK_TILE(S, my_row0, t * COLS)
}
EACH(d, D_BLOCKS)
  EACH(n, NB) {
    OPERAND_B y;
    coopMatLoad(y, streamed, n * MN * PITCH + d * (MK / 8), PITCH, COL_MAJOR);
    EACH(r, RM) {
      LEFT_OPERAND(x, mq, 1, r, d)
      S[r][n] = coopMatMulAdd(x, y, S[r][n]);
    }
  }
if (HAS_SCORES) {
  ACC slope[RM][NB];
  FINISH_SCORES(S, slope, bias, my_row0, t * COLS, t < tiles.full_begin || t >= tiles.full_end,
                false)
}
if (BOTH_AHEAD)
  put_tile(SECOND, stage_2, v, 0, DV_CHUNKS);
else
  put_tile(SECOND, stage_1, v, 0, DV_CHUNKS);
barrier();
