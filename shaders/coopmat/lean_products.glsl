// SPDX-License-Identifier: MIT OR Apache-2.0
// Products of lean tiles whose left operands lie in shared memory: all kernels' but bwd_dbias.
// The d-th matrix of the left operand `left` (stage.glsl).
OPERAND_A left_operand(int left, int d) {
  OPERAND_A a;
  coopMatLoad(a, streamed, HELD_AT(left) + BLOCK_ROW * PITCH + d * (MK / 8), PITCH, ROW_MAJOR);
  return a;
}
void hold_rows(int left, int slot, int r0, int chunks) {
  put_rows(HELD_AT(left), ROWS, parked(slot), r0, chunks, false);
}
// Puts a tile of keys and values into shared memory, behind the readers of the one before.
#define PUT_TILE(col0)                                      \
  barrier();                                                \
  put_rows(0, COLS, parked(1), col0, D_CHUNKS, true);       \
  put_rows(SECOND, COLS, parked(2), col0, DV_CHUNKS, true); \
  barrier();
// x plus the products of a left operand and COLS rows of the streamed tile at `at`.
#define MULTIPLY_ROWS(x, left, at, blocks)                           \
  EACH(d, blocks) {                                                  \
    OPERAND_B y;                                                     \
    coopMatLoad(y, streamed, (at) + d * (MK / 8), PITCH, COL_MAJOR); \
    x = coopMatMulAdd(left_operand(left, d), y, x);                  \
  }
// acc[blocks] plus the products of an operand and MK rows of the streamed tile at `at`.
#define ACCUMULATE(acc, a, at, blocks)                               \
  EACH(d, blocks) {                                                  \
    OPERAND_B y;                                                     \
    coopMatLoad(y, streamed, (at) + d * (MN / 8), PITCH, ROW_MAJOR); \
    acc[d] = coopMatMulAdd(a, y, acc[d]);                            \
    END_BLOCK(acc[d])                                                \
  }
