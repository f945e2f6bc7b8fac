// SPDX-License-Identifier: MIT OR Apache-2.0
// Features split over subgroups, for heads over 256: OWNERS subgroups own the same rows, and each
// has a slice of the features of the left operand and of the result, as many as fit its registers.
// Products over features are sums over the slices, which pass through the owners' scratch, behind a
// barrier of the workgroup. Then each owner forms the same weights, and multiplies them with its
// slice of the result's features. So no product is formed twice. What differs between the owners is
// an offset or a choice between two numbers, and no branch.
//
// ROLES: 1: all owners have slices of one left operand. 2: the first half of them has slices of the
// operand of S, the second half those of the operand of dP. D_BLOCKS and DV_BLOCKS are multiples of
// the number of slices (split_blocks(), src/plan/coopmat/tile.h). A step is one block of columns,
// and RM is 1 (split_refusal(), src/plan/coopmat/planner.cpp).
const int SLICES = OWNERS / ROLES;
#define OWNER (int(gl_SubgroupID) / (SUBGROUPS / OWNERS))
#define SLICE (OWNER % SLICES)
#define SECOND_OF_PAIR (OWNER >= SLICES)
// Scratch of one of the owners of the subgroup's rows.
#define OWNER_SCRATCH(n) ((TEAM_SUBGROUP + (n) * (SUBGROUPS / OWNERS)) * SCRATCH)
// Whether what stands between the products needs the scratch that they passed through.
const bool REUSES_SCRATCH = MOVES || BIAS_CHUNKS || DROPOUT != 0;

// Rows pass through the streamed tiles' array PASS_BLOCKS blocks of features of each slice at a
// time, side by side.
const int LEFT_OWN = D_BLOCKS / SLICES;
const int ROOM_BLOCKS = (STREAMED / ROWS - 1) / (OWNERS * MN / 8);
// A power of two, by which indices are divided.
#define POWER_BELOW(n) ((n) >= 16 ? 16 : (n) >= 8 ? 8 : (n) >= 4 ? 4 : (n) >= 2 ? 2 : 1)
const int PASS_BLOCKS = POWER_BELOW(ROOM_BLOCKS);
const int LOAD_BLOCKS = PASS_BLOCKS / KN; // left operands
const int PASS_CHUNKS = PASS_BLOCKS * (MN / 8);
const int PASS_PITCH = OWNERS * PASS_CHUNKS + 1;
#define PASSES(own) (((own) + PASS_BLOCKS - 1) / PASS_BLOCKS)
#define PASS_AT(d) (BLOCK_ROW * PASS_PITCH + OWNER * PASS_CHUNKS + (d) * (MN / 8))

// Rows of t, for the owners from `owner` on.
void put_pass(int owner, View t, int r0, int pass) {
  const int chunks = SLICES * PASS_CHUNKS;
  [[dont_unroll]] for (int n = TID; n < ROWS * chunks; n += WG) {
    const int row = n / chunks, at = n % chunks;
    const int chunk =
        at / PASS_CHUNKS * LEFT_OWN * (MK / 8) + pass * PASS_CHUNKS + at % PASS_CHUNKS;
    streamed[row * PASS_PITCH + owner * PASS_CHUNKS + at] = load_chunk(t, r0 + row, chunk);
  }
}
// The subgroup's slice of its rows of t, or of u in the second role, as left operands x[LEFT_OWN].
#define LOAD_SLICES(x, t, u, r0)                                                                 \
  EACH(pass, PASSES(LEFT_OWN * KN)) {                                                            \
    barrier();                                                                                   \
    put_pass(0, t, r0, pass);                                                                    \
    if (ROLES > 1) put_pass(SLICES, u, r0, pass);                                                \
    barrier();                                                                                   \
    EACH(d, LOAD_BLOCKS)                                                                         \
      if (pass * LOAD_BLOCKS + d < LEFT_OWN)                                                     \
        coopMatLoad(x[pass * LOAD_BLOCKS + d], streamed, PASS_AT(d* KN), PASS_PITCH, ROW_MAJOR); \
  }                                                                                              \
  barrier();

// The subgroup's part of S or dP. at: the rows that it multiplies, from its slice on. Two sums, as
// a product waits for the one before it in its sum. All kernels sum in this order, as some compare
// scores with lse.
#define SLICE_PRODUCTS(x, left, at)                                    \
  {                                                                    \
    ACC odd = ACC(0.0);                                                \
    x = ACC(0.0);                                                      \
    EACH(d, LEFT_OWN) {                                                \
      OPERAND_B y;                                                     \
      coopMatLoad(y, streamed, (at) + d * (MK / 8), PITCH, COL_MAJOR); \
      if (d % 2 == 0)                                                  \
        x = coopMatMulAdd(left[d], y, x);                              \
      else                                                             \
        odd = coopMatMulAdd(left[d], y, odd);                          \
    }                                                                  \
    x += odd;                                                          \
    coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);    \
  }
// The sum over the slices, of the first role or the second, behind a barrier.
#define SUM_SLICES(x, role)                                                             \
  coopMatLoad(x, scratch, OWNER_SCRATCH((role)*SLICES), SCRATCH_PITCH, ROW_MAJOR);      \
  EACH(slice, SLICES - 1) {                                                             \
    ACC more;                                                                           \
    coopMatLoad(more, scratch, OWNER_SCRATCH((role)*SLICES + slice + 1), SCRATCH_PITCH, \
                ROW_MAJOR);                                                             \
    x += more;                                                                          \
  }
// acc[own] plus the products of an operand and the rows at `at`, from the subgroup's slice on.
#define SUM_PRODUCTS(acc, own, a, at)                                \
  EACH(d, own) {                                                     \
    OPERAND_B y;                                                     \
    coopMatLoad(y, streamed, (at) + d * (MN / 8), PITCH, ROW_MAJOR); \
    acc[d] = coopMatMulAdd(a, y, acc[d]);                            \
  }

// Without lengths every workgroup has a row.
const bool MAY_BE_EMPTY = LENGTHS_Q != 0 || LENGTHS_KV != 0;
// Stores a pass of the results of `owners` owners from `owner` on, each of which has `own` blocks
// of features of t. Rows from limit on are stored as zeros. While other results wait in matrices
// there is no branch of some invocations: those beyond the last row or the last block of features
// store it once more, and those beyond the width store the pass's first chunk once more. With a
// branch there the backward of SigLIP (D 72) takes 3.15 ms in place of 2.04 (H200, 580.159.04).
void store_pass(View t, int owner, int owners, int own, int r0, int pass, int limit) {
  const int chunks = owners * PASS_CHUNKS, last = (own - pass * PASS_BLOCKS) * (MN / 8) - 1;
  if (MAY_BE_EMPTY) {
    if (r0 >= t.rows) return;
  }
  if (WIDE != 0) {
    const int rows = min(ROWS, t.rows - r0) - 1;
    EACH(i, (ROWS * chunks + WG - 1) / WG) {
      const int n = TID + i * WG, row = min(n / chunks, rows), at = n % chunks;
      int of = at / PASS_CHUNKS, from = min(at % PASS_CHUNKS, last);
      if (WIDE == RAGGED) {
        const bool beyond = 8 * (of * own * (MN / 8) + pass * PASS_CHUNKS + from) >= t.width;
        of = beyond ? 0 : of;
        from = beyond ? 0 : from;
      }
      const int chunk = of * own * (MN / 8) + pass * PASS_CHUNKS + from;
      const uvec4 words = streamed[row * PASS_PITCH + (owner + of) * PASS_CHUNKS + from];
      Store4(add64(row_address(t, r0 + row), 16 * chunk)).w = r0 + row < limit ? words : uvec4(0);
    }
    return;
  }
  [[dont_unroll]] for (int n = TID; n < ROWS * chunks; n += WG) {
    const int row = n / chunks, at = n % chunks, of = at / PASS_CHUNKS, from = at % PASS_CHUNKS;
    const int col = 8 * (of * own * (MN / 8) + pass * PASS_CHUNKS + from);
    if (r0 + row >= t.rows || from > last || col >= t.width) continue;
    const uvec4 words = r0 + row < limit
                            ? streamed[row * PASS_PITCH + (owner + of) * PASS_CHUNKS + from]
                            : uvec4(0);
    const uvec2 to = row_address(t, r0 + row);
    [[dont_unroll]] for (int e = 0; e < 8 && col + e < t.width; e += 4)
        store_words(t, to, col + e, to_floats(e == 0 ? words.xyzw : words.zwxy));
  }
}
// Puts a pass of the results x[own] into the array.
#define PUT_PASS(x, own, pass)                                      \
  barrier();                                                        \
  EACH(d, PASS_BLOCKS)                                              \
    if (pass * PASS_BLOCKS + d < own)                               \
      put_block(PASS_AT(d), PASS_PITCH, x[pass * PASS_BLOCKS + d]); \
  barrier();
// Stores x[own] of all owners, slices of one tensor.
#define STORE_SLICES(x, own, t, r0, limit)          \
  EACH(pass, PASSES(own)) {                         \
    PUT_PASS(x, own, pass)                          \
    store_pass(t, 0, OWNERS, own, r0, pass, limit); \
  }
