// SPDX-License-Identifier: MIT OR Apache-2.0
// Matrices of a subgroup, and how they exchange numbers with single rows or elements
// (docs/kernels/coopmat.md). TANDEM_CM2: 1: VK_NV_cooperative_matrix2's reductions and conversions;
// 0: VK_KHR_cooperative_matrix alone, and shared memory for both. TANDEM_BF16: the type of the
// operands; accumulators are f32.
//
// The device's shape: left operands are MM x MK, right ones MK x MN, accumulators MM x MN. MK is KN
// times MN: KN adjacent blocks of columns become one left operand. KN is 1, or 2 in separate
// modules: if it is a constant of the pipeline, NVIDIA (H100, 580.159.04) keeps matrices in memory.
// A subgroup owns RM blocks of MM rows and all COLS columns of a tile, so row sums and maxima never
// leave it. The driver chooses how a matrix's elements are distributed over invocations. Where an
// element's row or column is needed, a second matrix holds row or column numbers.

const int SUBGROUPS = WG / SUBGROUP;
const int NB = COLS / MN; // blocks of columns
#if TANDEM_KN == 1
#define KN 1
#define MK MN
#define COL_STEPS NB
#define STEP_BLOCKS RM
#define STEP_ROW(q) ((q) * MM)
#define STEP_COL(q) 0
#define AT_COL(x, q) x
#define STEP_QUERY(q, flip) (flip ? 0 : q) * MM
#define STEP_KEY(q, flip) (flip ? q : 0) * MM
#define OF_ROW(x, q) x[q]
#define D_OUT D_BLOCKS
#define DV_OUT DV_BLOCKS
#define MOST_OUT MOST_BLOCKS
#else
#define KN 2
const int MK = KN * MN;
// Kernels that loop over a tile's columns take MK at a time, STEP_BLOCKS accumulators: first row
// and column of the q-th accumulator, and the numbers of its rows.
const int COL_STEPS = COLS / MK;
const int STEP_BLOCKS = RM * KN;
#define STEP_ROW(q) ((q) / KN * MM)
#define STEP_COL(q) ((q) % KN * MN)
#define AT_COL(x, q) x + STEP_COL(q)
#define STEP_QUERY(q, flip) (flip ? STEP_COL(q) : STEP_ROW(q))
#define STEP_KEY(q, flip) (flip ? STEP_ROW(q) : STEP_COL(q))
#define OF_ROW(x, q) x[(q) / KN]
// Accumulators that cover D and Dv. D_BLOCKS and DV_BLOCKS count operands.
const int D_OUT = D_BLOCKS * KN, DV_OUT = DV_BLOCKS * KN;
const int MOST_OUT = D_OUT > DV_OUT ? D_OUT : DV_OUT;
#endif
#define TID int(gl_LocalInvocationIndex)
#define LANE int(gl_SubgroupInvocationID)
// A kernel that takes several batch entries at once (bwd_dq) divides its workgroup into teams, one
// for each entry. Each team has its own tiles, ROWS and part of the streamed array.
#if TEAMS
const int TEAM_SIZE = WG / ENTRIES, TEAM_SUBGROUPS = SUBGROUPS / ENTRIES;
#define TEAM int(gl_SubgroupID / uint(TEAM_SUBGROUPS))
#define TEAM_SUBGROUP int(gl_SubgroupID % uint(TEAM_SUBGROUPS))
#define TEAM_TID int(gl_LocalInvocationIndex % uint(TEAM_SIZE))
#define OWN_STREAMED(n) (TEAM * STREAMED + (n))
#else
#if !HAS_ENTRIES
const int ENTRIES = 1;
#endif
#define TEAM_SIZE WG
#if SUBGROUP_PAIRS
#define TEAM_SUBGROUP (int(gl_SubgroupID) % (SUBGROUPS / 2))
#elif SPLIT_D
const int OWNERS = SUBGROUPS * MM / ROWS; // subgroups that own the same rows; RM is 1
#define TEAM_SUBGROUP (int(gl_SubgroupID) % (SUBGROUPS / OWNERS))
#else
#define TEAM_SUBGROUP int(gl_SubgroupID)
#endif
#define TEAM_TID TID
#define OWN_STREAMED(n) (n)
#endif
#define BLOCK_ROW (TEAM_SUBGROUP * RM * MM)     // the subgroup's first row of the tile
#define OWN_BLOCK(r) (TEAM_SUBGROUP * RM + (r)) // number of the subgroup's r-th block of rows

#if TANDEM_BF16
#define HALF bfloat16_t
#else
#define HALF float16_t
#endif
// Whether bias is loaded by whole blocks (bias.glsl); coopmat2 loads it another way. PAIRS: for
// 16-bit elements a word holds two keys. The even ones of 2 MN keys make one block of a tile, the
// odd ones the next.
const bool BIAS_BLOCKS =
    TANDEM_CM2 == 0 && BIAS_IN_BLOCKS && BIAS != 0 && WIDE != 0 && BIAS_WIDE == 2;
const bool PAIRS = BIAS_BLOCKS && BIAS != F32;
const int KEY_STEP = PAIRS ? 2 : 1;
// block_key(): first key of a tile's n-th block, whose keys are KEY_STEP apart. key_place(): where
// the tile's key in a row lies.
int block_key(int first, int n) { return PAIRS ? first + (n & ~1) * MN + (n & 1) : first + n * MN; }
int key_place(int row) {
  return PAIRS ? (row & ~(2 * MN - 1)) + (row & 1) * MN + (row >> 1 & MN - 1) : row;
}
#define ACC coopmat<float, gl_ScopeSubgroup, MM, MN, gl_MatrixUseAccumulator>
#define ACC_16 coopmat<HALF, gl_ScopeSubgroup, MM, MN, gl_MatrixUseAccumulator>
#define ACC_F16 coopmat<float16_t, gl_ScopeSubgroup, MM, MN, gl_MatrixUseAccumulator>
#define OPERAND_A coopmat<HALF, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA>
#define OPERAND_B coopmat<HALF, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB>
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COL_MAJOR gl_CooperativeMatrixLayoutColumnMajor

// Loops over blocks and over an invocation's elements of a matrix. Matrices stay in registers only
// if every index is a constant, so the loops are unrolled.
#define EACH(i, count) [[unroll]] for (int i = 0; i < (count); i++)
#define ELEMENTS(k, matrix) [[unroll]] for (int k = 0; k < matrix.length(); k++)

// ---- shared arrays: src/plan/coopmat/tile.h counts them ----
const int MOST_BLOCKS = D_BLOCKS > DV_BLOCKS ? D_BLOCKS : DV_BLOCKS;
const int D_CHUNKS = D_BLOCKS * MK / 8; // uvec4s, of 8 elements, of a row
const int DV_CHUNKS = DV_BLOCKS * MK / 8;
// One chunk more, so that the 16-byte reads of 8 rows hit different banks.
const int PITCH = (D_BLOCKS > DV_BLOCKS ? D_CHUNKS : DV_CHUNKS) + 1;
const int SECOND = COLS * PITCH;
#ifndef STREAMED
// Two tiles of COLS rows, the second from SECOND on. Behind them LEFT_SHARED left operands, the
// last ones that the kernel loads, for which there are no registers. Whole tiles of rows also use
// it as they are loaded and stored.
const int HELD = ROWS * PITCH;
const int BOTH = 2 * COLS * PITCH + LEFT_SHARED * HELD;
#define STREAMED (BOTH > HELD ? BOTH : HELD)
#endif
#if TEAMS
shared uvec4 streamed[ENTRIES * STREAMED];
#else
shared uvec4 streamed[STREAMED];
#endif
const int BLOCK_CHUNKS = MM * MN / 8; // chunks of 8 elements of a block
// A subgroup's own scratch; behind it, with keep, its bits of a tile (skip.glsl). Where nothing in
// the loop over tiles needs the scratch, they lie in it: 24,576 bytes are soon full.
const int PLAIN_SCRATCH = (MM * MN + 4 * (MM > MN ? MM : MN)) / 4;
const bool SCRATCH_IDLE =
    int(TANDEM_CM2 == 0) + int(NORM != SOFTMAX) + int(BIAS != 0) + int(DROPOUT != 0) == 0;
#if KEEP_BY_ELEMENT
const int KEEP_ROOM = 0;
#else
const int OWN = RM * MM; // rows of a subgroup: query rows, or keys if FLIPS
const int KEEP_WORDS = FLIPS ? COLS : OWN * ((COLS + 31) / 32);
const int KEEP_AT = SCRATCH_IDLE ? 0 : PLAIN_SCRATCH;
const int KEEP_ROOM = int(KEEP == 0) + int(SCRATCH_IDLE) == 0 ? KEEP_WORDS / 4 : 0;
#endif
const int SCRATCH = PLAIN_SCRATCH + KEEP_ROOM;
#if NO_SCRATCH
shared vec4 scratch[1];
#else
shared vec4 scratch[SUBGROUPS * SCRATCH];
#endif
// 0, 1, 2, ...; with several entries at once also two numbers a row for each subgroup.
const int IOTA = MM > MN ? MM : MN;
#if TEAMS
const int ROW_NUMBERS = ENTRIES > 1 ? SUBGROUPS * MM / 2 : 0;
#else
const int ROW_NUMBERS = 0;
#endif
// Behind them with keep, for each of 32 keys a word with its bit, in the order of a tile's columns.
const int KEY_BITS = IOTA / 4 + ROW_NUMBERS;
#if KEEP_BY_ELEMENT
shared vec4 iota[KEY_BITS];
#else
shared vec4 iota[KEY_BITS + (KEEP != 0 ? 8 : 0)];
#endif
#define MY_SCRATCH (int(gl_SubgroupID) * SCRATCH)
#define SCRATCH_FLOAT(n) scratch[MY_SCRATCH + (n) / 4][(n) % 4]
const int SCRATCH_PITCH = (MN + 4) / 4;
// Shapes of a block in the order of query rows and keys.
const int QUERIES = FLIPS ? MN : MM, KEYS = FLIPS ? MM : MN;
const int KEYS_PITCH = (KEYS + 4) / 4;

void begin_iota() { // a barrier follows
  if (WG >= IOTA) {
    if (TID < IOTA) iota[TID / 4][TID % 4] = float(TID);
  } else {
    for (int n = TID; n < IOTA; n += WG) iota[n / 4][n % 4] = float(n);
  }
#if !KEEP_BY_ELEMENT
  if (KEEP != 0) {
    for (int n = TID; n < 32; n += WG)
      iota[KEY_BITS + key_place(n) / 4][key_place(n) % 4] = uintBitsToFloat(1u << n);
  }
#endif
}
// Row or column number of each element. With stride 0 all rows, or all columns, are the same.
ACC row_numbers() {
  ACC x;
  coopMatLoad(x, iota, 0, 0, COL_MAJOR);
  return x;
}
ACC col_numbers() {
  ACC x;
  coopMatLoad(x, iota, 0, 0, ROW_MAJOR);
  return x;
}
// Numbers of query rows and of keys, from the block's first on. flip: the rows are the keys.
ACC query_numbers(bool flip) {
  ACC x;
  if (flip)
    x = col_numbers();
  else
    x = row_numbers();
  return x;
}
ACC key_numbers(bool flip) {
  ACC x;
  if (flip)
    x = row_numbers();
  else
    x = col_numbers();
  if (PAIRS) {
    ELEMENTS(k, x) x[k] *= KEY_STEP;
  }
  return x;
}

// ---- a row's maximum or sum, in all of its elements ----
#if TANDEM_CM2
float max_of(const in float a, const in float b) { return max(a, b); }
float sum_of(const in float a, const in float b) { return a + b; }
void row_max(inout ACC x) { coopMatReduceNV(x, x, gl_CooperativeMatrixReduceRowNV, max_of); }
void row_sum(inout ACC x) { coopMatReduceNV(x, x, gl_CooperativeMatrixReduceRowNV, sum_of); }
#else
// By columns, so that neighbours read neighbouring words. The results lie behind the matrix.
void reduce_rows(inout ACC x, bool sum) {
  coopMatStore(x, scratch, MY_SCRATCH, MM / 4, COL_MAJOR);
  subgroupBarrier();
  for (int row = LANE; row < MM; row += SUBGROUP) {
    float y = SCRATCH_FLOAT(row);
    for (int c = 1; c < MN; c++) {
      const float next = SCRATCH_FLOAT(c * MM + row);
      y = sum ? y + next : max(y, next);
    }
    SCRATCH_FLOAT(MM * MN + row) = y;
  }
  subgroupBarrier();
  coopMatLoad(x, scratch, MY_SCRATCH + MM * MN / 4, 0, COL_MAJOR);
  subgroupBarrier();
}
void row_max(inout ACC x) { reduce_rows(x, false); }
void row_sum(inout ACC x) { reduce_rows(x, true); }
#endif

// ---- from an accumulator to the left operand of the next product, or to shared memory ----
#if TANDEM_BF16
// For a conversion of operands to bf16. NVIDIA's truncates (580.159.04): a weight just below 1
// would become 0.996. So it is rounded here, to nearest with ties away from 0; infinities and NaNs
// are kept. finite: a NaN may become a number.
void round_operand(inout ACC x, bool finite) {
  ELEMENTS(k, x) {
    const uint bits = floatBitsToUint(x[k]);
    // A NaN may become a number only if its sign is set and so are its last bits, and there are
    // none of these here.
    if (ROUNDS_FAST)
      x[k] = intBitsToFloat((finite ? int(bits) : min(int(bits), 0x7fff7fff)) + 0x8000);
    else
      x[k] = uintBitsToFloat(bits + (finite || (bits & 0x7f800000u) != 0x7f800000u ? 0x8000u : 0u));
  }
}
#endif
#if !TANDEM_CM2
#if TANDEM_BF16 && ROUNDS_IN_SCRATCH
// Eight elements of the block in scratch, rounded.
uvec4 packed_chunk(int n) {
  const int at = MY_SCRATCH + n / (MN / 8) * SCRATCH_PITCH + n % (MN / 8) * 2;
  const vec4 low = scratch[at], high = scratch[at + 1];
  return uvec4(to_bits16(low.x) | to_bits16(low.y) << 16, to_bits16(low.z) | to_bits16(low.w) << 16,
               to_bits16(high.x) | to_bits16(high.y) << 16,
               to_bits16(high.z) | to_bits16(high.w) << 16);
}
#elif TANDEM_BF16
// Accumulators of bf16 are rare. Those of f16 carry the upper halves of the elements instead, which
// are bf16. Conversions between accumulators go component by component (OpFConvert), so an
// element of f32 and one of f16 with the same index are in the same place.
ACC_F16 halves_of(ACC x) {
  ACC_F16 y;
  ELEMENTS(k, x) y[k] = unpackFloat2x16(floatBitsToUint(x[k])).y;
  return y;
}
#else
ACC_F16 halves_of(ACC x) { return ACC_16(x); }
#endif
#endif

const int OPERAND_PITCH = MK / 8 + 1;
// Whether an operand's elements have to move between invocations, through the scratch: without
// NV_cooperative_matrix2, unless they have the places of an accumulator's (matrix_places.comp).
const bool MOVES = TANDEM_CM2 == 0 && COPIES == 0;
// finite: a NaN may become a number. at, pitch: a part of the scratch for it.
OPERAND_A to_operand(ACC x, bool finite, int at, int pitch) {
#if TANDEM_BF16 && !(ROUNDS_IN_SCRATCH && !TANDEM_CM2)
  round_operand(x, finite);
#endif
#if TANDEM_CM2
  return OPERAND_A(x);
#else
  OPERAND_A a;
  if (COPIES != 0) {
    ELEMENTS(k, x) a[k] = HALF(x[k]);
    return a;
  }
#if TANDEM_BF16 && ROUNDS_IN_SCRATCH
  const int most = (BLOCK_CHUNKS + SUBGROUP - 1) / SUBGROUP;
  uvec4 packed[most];
  coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  EACH(i, most)
    if (LANE + i * SUBGROUP < BLOCK_CHUNKS) packed[i] = packed_chunk(LANE + i * SUBGROUP);
  subgroupBarrier();
  EACH(i, most) {
    const int n = LANE + i * SUBGROUP;
    if (n < BLOCK_CHUNKS)
      scratch[at + n / (MN / 8) * pitch + n % (MN / 8)] = uintBitsToFloat(packed[i]);
  }
#else
  coopMatStore(halves_of(x), scratch, at, pitch, ROW_MAJOR);
#endif
  subgroupBarrier();
  coopMatLoad(a, scratch, at, pitch, ROW_MAJOR);
  subgroupBarrier();
  return a;
#endif
}
OPERAND_A to_operand(ACC x, bool finite) {
  return to_operand(x, finite, MY_SCRATCH, OPERAND_PITCH);
}
OPERAND_A to_operand(ACC x) { return to_operand(x, false); }

// A step's q-th block becomes an operand in a[RM]; with KN 2, once the second block is there.
#if TANDEM_KN == 1
#define COLS_TO_OPERAND(x, n) to_operand(x[n], true)
#define BEFORE(a)
#define PUT_OPERAND(a, q, x, arguments) a[q] = to_operand arguments;
#else // f16 without NVIDIA's conversions, which keep the edges (src/plan/coopmat/planner.cpp)
#define COLS_TO_OPERAND(x, n) to_operand(x[2 * (n)], x[2 * (n) + 1])
#define BEFORE(a) ACC before_##a;
#define PUT_OPERAND(a, q, x, arguments) \
  if ((q) % KN == 0)                    \
    before_##a = x;                     \
  else                                  \
    a[(q) / KN] = to_operand(before_##a, x);
OPERAND_A to_operand(ACC first, ACC last) {
  OPERAND_A a;
  coopMatStore(halves_of(first), scratch, MY_SCRATCH, OPERAND_PITCH, ROW_MAJOR);
  coopMatStore(halves_of(last), scratch, MY_SCRATCH + MN / 8, OPERAND_PITCH, ROW_MAJOR);
  subgroupBarrier();
  coopMatLoad(a, scratch, MY_SCRATCH, OPERAND_PITCH, ROW_MAJOR);
  subgroupBarrier();
  return a;
}
#endif

// Stores a result's block in the streamed tiles' array, as 16-bit elements, rounded to nearest even
// whatever a conversion does, as its input needs no rounding.
void put_block(int to, int pitch, ACC x) {
#if TANDEM_BF16 && ROUNDS_IN_SCRATCH && !TANDEM_CM2
  coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  // Without a loop that stays, around which Mesa would keep the blocks in memory.
  EACH(i, (BLOCK_CHUNKS + SUBGROUP - 1) / SUBGROUP) {
    const int n = LANE + i * SUBGROUP;
    if (n < BLOCK_CHUNKS)
      streamed[OWN_STREAMED(to) + n / (MN / 8) * pitch + n % (MN / 8)] = packed_chunk(n);
  }
  subgroupBarrier();
#else
  ELEMENTS(k, x) x[k] = nearest16(x[k]);
#if !TANDEM_CM2
  coopMatStore(halves_of(x), streamed, OWN_STREAMED(to), pitch, ROW_MAJOR);
#elif TANDEM_BF16
  coopMatStore(OPERAND_A(x), streamed, OWN_STREAMED(to), pitch, ROW_MAJOR);
#else
  coopMatStore(ACC_16(x), streamed, OWN_STREAMED(to), pitch, ROW_MAJOR);
#endif
#endif
}
void put_block(int to, ACC x) { put_block(to, PITCH, x); }

// ---- numbers a row ----
// A number for each of the block's rows, from its invocation (LANE < MM, or several times if
// subgroups are smaller), as a matrix of equal columns.
#define ROWS_TO_MATRIX(x, row, value)                                           \
  {                                                                             \
    for (int row = LANE; row < MM; row += SUBGROUP) SCRATCH_FLOAT(row) = value; \
    subgroupBarrier();                                                          \
    coopMatLoad(x, scratch, MY_SCRATCH, 0, COL_MAJOR);                          \
    subgroupBarrier();                                                          \
  }
