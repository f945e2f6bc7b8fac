// SPDX-License-Identifier: MIT OR Apache-2.0
// Pairs of subgroups, for heads so wide that one subgroup has no registers for the operands and the
// accumulators of its rows. Both subgroups of a pair own the same rows. The first forms S, the
// second dP, so each holds one of the two left operands. They exchange the products through their
// scratch, behind a barrier of the workgroup. What is different between the two is an offset or a
// choice between two numbers, and hardly ever a branch.
#define SECOND_OF_PAIR (gl_SubgroupID >= uint(SUBGROUPS / 2))
// Scratch of a subgroup of the pair, 0 or 1.
#define PAIR_SCRATCH(of) ((TEAM_SUBGROUP + (of) * (SUBGROUPS / 2)) * SCRATCH)
// Two streamed tiles are in shared memory at a time, in the room through which the workgroup's own
// rows pass. RM is 1 (pair_refusal(), src/plan/coopmat/planner.cpp).
const int STAGES = 2;
#define STAGE(n) ((n)*2 * SECOND)
// Whether what stands between the products needs the scratch that they passed through.
const bool REUSES_SCRATCH = BIAS_CHUNKS || DROPOUT != 0;
// Where an operand of bwd_dkv passes if it MOVES. The second's product is not read by the first, so
// there is room in its scratch for both of the pair.
#define CONVERT_AT (REUSES_SCRATCH ? MY_SCRATCH : PAIR_SCRATCH(1) + (SECOND_OF_PAIR ? MK / 8 : 0))
const int CONVERT_PITCH = 2 * (MK / 8) + 1;

// Left operands and results are PASS_BLOCKS blocks of features of both tensors at a time, side by
// side in the streamed tiles' array.
const int PASS_BLOCKS = MOST_BLOCKS > 1 ? MOST_BLOCKS / 2 : 1;
const int PASS_CHUNKS = PASS_BLOCKS * MK / 8;
const int PASSES = (MOST_BLOCKS + PASS_BLOCKS - 1) / PASS_BLOCKS;
#define PASS_AT(r, d) ((BLOCK_ROW + (r) * MM) * PITCH + (second ? PASS_CHUNKS : 0) + (d) * (MK / 8))

void put_pass(int to, View t, int r0, int chunk) {
  [[dont_unroll]] for (int n = TID; n < ROWS * PASS_CHUNKS; n += WG)
      streamed[to + n / PASS_CHUNKS * PITCH + n % PASS_CHUNKS] =
          load_chunk(t, r0 + n / PASS_CHUNKS, chunk + n % PASS_CHUNKS);
}
// The subgroup's rows of t, or of u in the second of the pair, as left operands x[RM][MOST_BLOCKS].
#define LOAD_PAIR(x, t, u, r0)                                                                  \
  EACH(pass, PASSES) {                                                                          \
    barrier();                                                                                  \
    put_pass(0, t, r0, pass* PASS_CHUNKS);                                                      \
    put_pass(PASS_CHUNKS, u, r0, pass* PASS_CHUNKS);                                            \
    barrier();                                                                                  \
    EACH(r, RM)                                                                                 \
      EACH(d, PASS_BLOCKS)                                                                      \
        if (pass * PASS_BLOCKS + d < MOST_BLOCKS)                                               \
          coopMatLoad(x[r][pass * PASS_BLOCKS + d], streamed, PASS_AT(r, d), PITCH, ROW_MAJOR); \
  }                                                                                             \
  barrier();

// S in the first of the pair, dP in the second: x[RM]. at: the stage's rows that the subgroup
// multiplies. Both have as many features, as a branch around products costs more than zeros. Two
// sums, over even and odd blocks of features, as a product waits for the one before it in its sum;
// but where scores are compared with lse, they have to have the forward's last bit.
const bool TWO_SUMS = NORM == SOFTMAX;
#define PAIR_PRODUCTS(x, left, at)                                     \
  {                                                                    \
    ACC odd[RM];                                                       \
    EACH(r, RM) x[r] = odd[r] = ACC(0.0);                              \
    EACH(d, MOST_BLOCKS) {                                             \
      OPERAND_B y;                                                     \
      coopMatLoad(y, streamed, (at) + d * (MK / 8), PITCH, COL_MAJOR); \
      EACH(r, RM) {                                                    \
        if (!TWO_SUMS || d % 2 == 0)                                   \
          x[r] = coopMatMulAdd(left[r][d], y, x[r]);                   \
        else                                                           \
          odd[r] = coopMatMulAdd(left[r][d], y, odd[r]);               \
      }                                                                \
    }                                                                  \
    if (TWO_SUMS) {                                                    \
      EACH(r, RM) x[r] += odd[r];                                      \
    }                                                                  \
  }
// Zeros for the features that the narrower of the two streamed tensors does not have.
const int LEAST_CHUNKS = D_BLOCKS < DV_BLOCKS ? D_CHUNKS : DV_CHUNKS;
const int TAIL_CHUNKS = MOST_CHUNKS > LEAST_CHUNKS ? MOST_CHUNKS - LEAST_CHUNKS : 1;
#define ZERO_TAILS                                                                            \
  if (D_BLOCKS != DV_BLOCKS) {                                                                \
    [[dont_unroll]] for (int n = TID; n < STAGES * COLS * TAIL_CHUNKS; n += WG) {             \
      const int row = n / TAIL_CHUNKS;                                                        \
      streamed[STAGE(row / COLS) + (DV_BLOCKS < D_BLOCKS ? SECOND : 0) + row % COLS * PITCH + \
               LEAST_CHUNKS + n % TAIL_CHUNKS] = uvec4(0);                                    \
    }                                                                                         \
  }

// Fetches a streamed tile's rows from r0 on, by 32 bits of index off the tensor's first row
// (pair_refusal(), src/plan/coopmat/planner.cpp). Steps are so short that arithmetic on addresses
// would take as long as their products. Rows past the end repeat the last one, as in stage.glsl.
void fetch_rows(out uvec4 stage[VEC], View t, int r0, int chunks) {
  if (!PREFETCHES) return;
  Rows4 from = Rows4(row_address(t, 0));
  const int pitch = ROW_CHUNKS(t, chunks), last = t.rows - 1;
  EACH(i, VEC) {
    if (i * TEAM_SIZE >= COLS * chunks || !in_tile(i, chunks)) continue;
    const int row = r0 + chunk_row(i, chunks), col = chunk_col(i, chunks);
    const int at = (TILES_EXIST ? row : min(row, last)) * pitch;
    if (WIDE != RAGGED) {
      stage[i] = from.w[at + col];
    } else {
      const int width = t.width / 8;
      const uvec4 words = from.w[at + min(col, width - 1)];
      stage[i] = col < width ? words : uvec4(0);
    }
  }
}

// Stores one part of a result, whose chunks begin at from in the streamed tiles' array and at chunk
// in the tensor. Rows from limit on are stored as zeros.
void store_pass(View t, int from, int r0, int chunk, int limit) {
  [[dont_unroll]] for (int n = TID; n < ROWS * PASS_CHUNKS; n += WG) {
    const int row = r0 + n / PASS_CHUNKS, col = (chunk + n % PASS_CHUNKS) * 8;
    if (row >= t.rows || col >= t.width) continue;
    const uvec4 words =
        row < limit ? streamed[from + n / PASS_CHUNKS * PITCH + n % PASS_CHUNKS] : uvec4(0);
    const uvec2 at = row_address(t, row);
    if (WIDE != 0)
      Store4(add64(at, 2 * col)).w = words;
    else [[dont_unroll]]
      for (int e = 0; e < 8 && col + e < t.width; e += 4)
        store_words(t, at, col + e, to_floats(e == 0 ? words.xyzw : words.zwxy));
  }
}

// Each subgroup's part of features of a result of one tensor (bwd_dq): HALF_OUT blocks. Where the
// number of blocks is odd both have the middle one.
const int HALF_OUT = (D_OUT + 1) / 2;
#define FIRST_OUT (second ? D_OUT - HALF_OUT : 0)
#define PUT_HALVES(x)                                                                  \
  barrier();                                                                           \
  EACH(r, RM)                                                                          \
    EACH(d, HALF_OUT)                                                                  \
      if (D_OUT % 2 == 0 || d > 0 || !second)                                          \
        put_block((BLOCK_ROW + r * MM) * PITCH + (FIRST_OUT + d) * (MN / 8), x[r][d]); \
  barrier();
