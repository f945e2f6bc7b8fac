// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dkv by pairs: the left operands, and what is summed.
OPERAND_A left[RM][MOST_BLOCKS];
LOAD_PAIR(left, k, v, row0)
ZERO_TAILS
ACC acc[RM][MOST_OUT];
EACH(r, RM)
  EACH(d, MOST_OUT) acc[r][d] = ACC(0.0);
// Rows of the first and of the second products in a stage: of q or d_o, and of the other one.
const int first_at = second ? SECOND : 0, then_at = second ? 0 : SECOND;
