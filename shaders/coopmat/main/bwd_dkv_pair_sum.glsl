// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the loop of bwd_dkv by pairs over tiles: the second products.
EACH(d, MOST_BLOCKS) {
  OPERAND_B y;
  coopMatLoad(y, streamed, at + then_at + (d) * (MN / 8), PITCH, ROW_MAJOR);
  EACH(r, RM) acc[r][d] = coopMatMulAdd(own[r], y, acc[r][d]);
}
