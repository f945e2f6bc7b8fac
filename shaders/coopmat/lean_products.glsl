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

#ifdef LEAN_BACKWARD
// The scores s[1], and softcap's slope[1], of the block whose streamed rows lie at `at`: with query
// rows from i0 + i and keys from j0 + j, of which i0 and j0 are the workgroup's.
#define FORM_STEP(s, slope, left, at, i0, i, j0, j, flip, partial)                        \
  ACC s[1], slope[1];                                                                     \
  s[0] = ACC(0.0);                                                                        \
  if (MASKS_FIRST && NEEDS_MASK(partial)) mask_block(s[0], (i0) + (i), (j0) + (j), flip); \
  MULTIPLY_ROWS(s[0], left, at, D_BLOCKS)                                                 \
  END_BLOCK(s[0])                                                                         \
  BIAS_ARRAY(bias, [1])                                                                   \
  fetch_bias(BIAS_OF(bias, [0]), i0, i, j0, j);                                           \
  FINISH_STEP(s, slope, bias, 0, (i0) + (i), (j0) + (j), flip, partial)
// Turns scores into the bases of weights, relative to the origins that `origins` declares. live:
// some weight is not 0; without one, nothing follows.
#define FORM_BASES(x, live, origins)           \
  bool live;                                   \
  {                                            \
    origins;                                   \
    bool any = false;                          \
    ELEMENTS(k, origin) {                      \
      any = any || x[k] > origin[k];           \
      x[k] = base_at(x[k], origin[k]);         \
    }                                          \
    live = !LEAVES_BLOCKS || subgroupAny(any); \
  }
// Forms dP while x waits in the scratch, and comes back as y.
#define PASS_BY_SCRATCH(y, x, dp, left, at)                       \
  coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR); \
  dp = ACC(0.0);                                                  \
  MULTIPLY_ROWS(dp, left, at, DV_BLOCKS)                          \
  subgroupBarrier();                                              \
  coopMatLoad(y, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);  \
  subgroupBarrier();
#endif
