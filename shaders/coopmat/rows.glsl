// SPDX-License-Identifier: MIT OR Apache-2.0
// Whole tiles of rows by VK_NV_cooperative_matrix2's tensor addressing, for heads so wide that a
// workgroup's rows would not fit the streamed tiles' array (stage.glsl). Left operands are loaded
// from the tensor, results are stored in it; past its end loads are zeros and stores have no
// effect. Not WIDE: a block at a time through the subgroup's scratch, which is slow, but always
// right.

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Blocks4 { uvec4 w[]; };
#define CLAMPED tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV>
// Rows of a tensor from r0 on. shift: log2 of the bytes of an element.
CLAMPED rows_from(View t, int r0, int shift) {
  CLAMPED x = createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
  x = setTensorLayoutDimensionNV(x, max(t.rows - r0, 0), t.width);
  return setTensorLayoutStrideNV(x, t.row.x >> shift, 1);
}
#define BLOCK_OF(x, r, d, rows, cols) sliceTensorLayoutNV(x, (r) * (rows), rows, (d) * (cols), cols)

OPERAND_A operand_by_element(View t, int r0, int d) {
  OPERAND_A x;
  for (int n = LANE; n < MM * MK / 8; n += SUBGROUP) {
    const int row = n / (MK / 8), chunk = n % (MK / 8);
    scratch[MY_SCRATCH + row * OPERAND_PITCH + chunk] =
        uintBitsToFloat(load_chunk(t, r0 + row, d * (MK / 8) + chunk));
  }
  subgroupBarrier();
  coopMatLoad(x, scratch, MY_SCRATCH, OPERAND_PITCH, ROW_MAJOR);
  subgroupBarrier();
  return x;
}
void block_by_element(View t, int r0, int col, OPERAND_A x) {
  coopMatStore(x, scratch, MY_SCRATCH, OPERAND_PITCH, ROW_MAJOR);
  subgroupBarrier();
  [[dont_unroll]] for (int n = LANE; n < MM * MN / 4; n += SUBGROUP) {
    const int row = n / (MN / 4), from = n % (MN / 4) * 4;
    if (r0 + row >= t.rows || col + from >= t.width) continue;
    const uvec4 words = floatBitsToUint(scratch[MY_SCRATCH + row * OPERAND_PITCH + from / 8]);
    store_words(t, row_address(t, r0 + row), col + from,
                to_floats(from % 8 == 0 ? words.xyzw : words.zwxy));
  }
  subgroupBarrier();
}

// The subgroup's rows of a tensor as left operands, x[RM][blocks]. r0: its first row.
#define LOAD_ROWS(x, t, r0, blocks)                                                          \
  if (WIDE != 0) {                                                                           \
    Blocks4 from = Blocks4(row_address(t, r0));                                              \
    const CLAMPED rows = rows_from(t, r0, 1);                                                \
    EACH(r, RM)                                                                              \
      EACH(d, blocks) coopMatLoadTensorNV(x[r][d], from.w, 0, BLOCK_OF(rows, r, d, MM, MK)); \
  } else {                                                                                   \
    EACH(r, RM)                                                                              \
      EACH(d, blocks) x[r][d] = operand_by_element(t, (r0) + (r)*MM, d);                     \
  }                                                                                          \
  barrier();
// Stores x, rounded; rows from limit on are zeros.
#define STORE_ROWS(x, t, r0, blocks, limit)                                                       \
  {                                                                                               \
    Blocks4 to = Blocks4(row_address(t, r0));                                                     \
    const CLAMPED rows = rows_from(t, r0, 1);                                                     \
    ACC numbers = row_numbers();                                                                  \
    EACH(r, RM)                                                                                   \
      EACH(d, blocks) {                                                                           \
        ELEMENTS(k, x[r][d])                                                                      \
          x[r][d][k] = numbers[k] < float((limit) - (r0) - (r)*MM) ? nearest16(x[r][d][k]) : 0.0; \
        if (WIDE != 0)                                                                            \
          coopMatStoreTensorNV(OPERAND_A(x[r][d]), to.w, 0, BLOCK_OF(rows, r, d, MM, MN));        \
        else                                                                                      \
          block_by_element(t, (r0) + (r)*MM, d * MN, OPERAND_A(x[r][d]));                         \
      }                                                                                           \
  }
// The same for a split's partial output, in f32 without rounding.
#define STORE_ROWS_OF_PART(x, t, r0, blocks)                                                \
  {                                                                                         \
    Blocks4 to = Blocks4(row_address(t, r0));                                               \
    const CLAMPED rows = rows_from(t, r0, 2);                                               \
    EACH(r, RM)                                                                             \
      EACH(d, blocks) coopMatStoreTensorNV(x[r][d], to.w, 0, BLOCK_OF(rows, r, d, MM, MN)); \
  }
