// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of tensors into shared memory and out of matrices. WIDE (src/kernels/params.cpp): every
// tensor has feature stride 1, rows that begin at multiples of 16 bytes, less than 2^24 bytes
// apart, and a width that is a multiple of 8. Rows are then copied as uvec4s, 8 elements, and those
// of the next tile are prefetched in registers while this one is multiplied. RAGGED: also, some
// width is not a multiple of MK. Not WIDE: rows are copied element by element in rolled loops, when
// they are needed, which is slow, but always right.
//
// The loops over tiles contain one of the two paths. Both, with a test of where a tile ends, cost
// NVIDIA (H100, 580.159.04) a fifth of its speed. A branch or a loop of some invocations while
// matrices wait to be stored costs four fifths, as the matrices are then kept in memory. So all
// results are first put into shared memory, then everything else is done.

const int RAGGED = 2;
const int MOST_CHUNKS = D_BLOCKS > DV_BLOCKS ? D_CHUNKS : DV_CHUNKS;
const bool PREFETCHES =
    REGISTER_PREFETCH != 0 && WIDE != 0; // REGISTER_PREFETCH: there are registers for the prefetch
const int VEC = PREFETCHES ? (COLS * MOST_CHUNKS + TEAM_SIZE - 1) / TEAM_SIZE : 1;
uvec4 stage_1[VEC], stage_2[VEC];

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Rows4 { uvec4 w[]; };

// An invocation's chunk of a tile's copy in the turn-th of the workgroup's iterations, and its row
// and column. An invocation beyond the tile copies its first chunk once more, as two invocations
// may not store the same words. With a branch of some invocations in the loop over tiles backwards
// take longer (H200, 580.159.04: 4 % at D 72, up to 10 % at D 80). But where half of the
// invocations are beyond, a branch leaves them out of copies by kernels that ask for it
// (LEAVES_HALF). Tiles that iterations divide have neither, which costs the forward 13 % at D 64.
// Constants decide: by functions with && forwards of D 80 take 10 to 25 % longer.
const int TEAM_PART = LEAVES_HALF ? TEAM_SIZE / 2 : TEAM_SIZE;
#define OWN_CHUNK(n, first, chunks, divides) ((divides) || (n) < (chunks) ? (n) : (first))
int chunk_of(int turn, int chunks) {
  return OWN_CHUNK(TEAM_TID + turn * TEAM_SIZE, TEAM_TID, COLS * chunks,
                   COLS * chunks % TEAM_PART == 0);
}
int chunk_row(int turn, int chunks) {
  if (TEAM_SIZE % chunks != 0) return chunk_of(turn, chunks) / chunks;
  const int row = TEAM_TID / chunks;
  return OWN_CHUNK(row + turn * (TEAM_SIZE / chunks), row, COLS, COLS * chunks % TEAM_PART == 0);
}
int chunk_col(int turn, int chunks) {
  return TEAM_SIZE % chunks == 0 ? TEAM_TID % chunks : chunk_of(turn, chunks) % chunks;
}
// Whether the invocation copies a chunk.
bool in_tile(int turn, int chunks) {
  if (LEAVES_HALF && COLS * chunks % TEAM_SIZE * 2 == TEAM_SIZE)
    return chunk_row(turn, chunks) < COLS; // the branch
  return COLS * chunks >= TEAM_SIZE || TEAM_TID < COLS * chunks;
}

// n of eight features of a row, contiguous, at any address, with zeros behind them. Only words that
// hold one of them are read.
uvec4 load_packed(uvec2 at, int n) {
  const int odd = int(at.x >> 1 & 1u);
  const uvec2 from = uvec2(at.x & ~3u, at.y);
  uint w[5];
  EACH(i, 5) {
    w[i] = 0;
    if (2 * i < n + odd) w[i] = Load1(add64(from, 4 * i)).w;
  }
  uvec4 x;
  EACH(i, 4) {
    x[i] = odd != 0 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
    x[i] &= 2 * i + 1 < n ? ~0u : 2 * i < n ? 0xffffu : 0u;
  }
  return x;
}

// Eight features of any row and column; those that do not exist are zeros.
uvec4 load_chunk(View t, int r, int chunk) {
  const int col = 8 * chunk;
  if (r >= t.rows || col >= t.width) return uvec4(0);
  const uvec2 row = row_address(t, r);
  if (WIDE != 0) return Load4(add64(row, 16 * chunk)).w;
  if (t.col == uvec2(2, 0)) return load_packed(add64(row, 16 * chunk), min(8, t.width - col));
  const uvec2 low = load_words(t, row, col).xy;
  return uvec4(low, col + 4 < t.width ? load_words(t, row, col + 4).xy : uvec2(0));
}

// Rows past the end repeat the last one. This has no effect, as their keys are hidden and their
// query rows have weight 0. Chunks are indexed from one address of the whole workgroup: a 64-bit
// address for each invocation costs the forward a fifth of its speed at D 128, and other address
// arithmetic here matters as well.
void fetch_tile(out uvec4 stage[VEC], View t, int r0, int chunks) {
  if (!PREFETCHES) return;
  Rows4 tile = Rows4(row_address(t, r0));
  const int row = ROW_CHUNKS(t, chunks), last = (t.rows - 1 - r0) * row;
  const int first = TEAM_TID / chunks * row + TEAM_TID % chunks, end = last + TEAM_TID % chunks;
  EACH(i, VEC) {
    if (i * TEAM_SIZE >= COLS * chunks || !in_tile(i, chunks)) continue;
    if (TEAM_SIZE % chunks == 0 && (i == 0 || COLS * chunks % TEAM_SIZE == 0) && WIDE != RAGGED) {
      const int at = first + i * (TEAM_SIZE / chunks) * row;
      stage[i] = tile.w[TILES_EXIST ? at : min(at, end)];
    } else {
      const int col = chunk_col(i, chunks), width = t.width / 8;
      const uvec4 words = tile.w[min(chunk_row(i, chunks) * row, last) + min(col, width - 1)];
      stage[i] = col < width ? words : uvec4(0);
    }
  }
}
void put_rows(int to, int rows, View t, int r0, int chunks, bool keys) {
  [[dont_unroll]] for (int n = TEAM_TID; n < rows * chunks; n += TEAM_SIZE) {
    const int row = n / chunks, place = keys ? key_place(row) : row;
    streamed[OWN_STREAMED(to + place * PITCH + n % chunks)] = load_chunk(t, r0 + row, n % chunks);
  }
}
void put_tile(int to, uvec4 stage[VEC], View t, int r0, int chunks) {
  if (!PREFETCHES) {
    put_rows(to, COLS, t, r0, chunks, true);
    return;
  }
  EACH(i, VEC)
    if (i * TEAM_SIZE < COLS * chunks && in_tile(i, chunks))
      streamed[OWN_STREAMED(to + key_place(chunk_row(i, chunks)) * PITCH + chunk_col(i, chunks))] =
          stage[i];
}

// Loads the subgroup's rows of a tensor as left operands: into x[RM][blocks] through the streamed
// tiles' array, or, for the last LEFT_SHARED operands, into the array, to stay there. left: number
// of operands that are still to be loaded, this one included. Rows may pass through the room of
// operands that are still to be loaded. r0: the workgroup's first row. All invocations have left
// the array before and after.
const int LOAD_AT = LEFT_SHARED > 0 ? 2 * COLS * PITCH : 0;
#define HELD_AT(left) (2 * COLS * PITCH + ((left)-1) * HELD)
#define LOAD_OPERANDS(x, left, t, r0, blocks, chunks)                                           \
  barrier();                                                                                    \
  put_rows(LEFT_SHARED >= (left) ? HELD_AT(left) : LOAD_AT, ROWS, t, r0, chunks, false);        \
  barrier();                                                                                    \
  if (LEFT_SHARED < (left)) {                                                                   \
    EACH(r, RM)                                                                                 \
      EACH(d, blocks)                                                                           \
        coopMatLoad(x[r][d], streamed,                                                          \
                    OWN_STREAMED(LOAD_AT + (BLOCK_ROW + r * MM) * PITCH + d * (MK / 8)), PITCH, \
                    ROW_MAJOR);                                                                 \
  }                                                                                             \
  barrier();
// One of these operands, as a: from x, or from the array.
#define LEFT_OPERAND(a, x, left, r, d)                                                       \
  OPERAND_A a;                                                                               \
  if (LEFT_SHARED >= (left))                                                                 \
    coopMatLoad(a, streamed,                                                                 \
                OWN_STREAMED(HELD_AT(left) + (BLOCK_ROW + (r)*MM) * PITCH + (d) * (MK / 8)), \
                PITCH, ROW_MAJOR);                                                           \
  else                                                                                       \
    a = x[r][d];
// The d-th products of a step's blocks, s[STEP_BLOCKS], with the rows from at on in the streamed
// tiles' array.
#define MULTIPLY_BLOCK(s, x, left, at, d, index)                                   \
  {                                                                                \
    OPERAND_B y;                                                                   \
    coopMatLoad(y, streamed, OWN_STREAMED(at) + (d) * (MK / 8), PITCH, COL_MAJOR); \
    EACH(r, RM) {                                                                  \
      LEFT_OPERAND(a, x, left, r, d)                                               \
      s[index] = coopMatMulAdd(a, y, s[index]);                                    \
    }                                                                              \
  }
#if TANDEM_KN == 1
#define MULTIPLY_LEFT(s, x, left, at, d) MULTIPLY_BLOCK(s, x, left, at, d, r)
#else
#define MULTIPLY_LEFT(s, x, left, at, d)                       \
  {                                                            \
    MULTIPLY_BLOCK(s, x, left, at, d, r* KN)                   \
    MULTIPLY_BLOCK(s, x, left, at + MN * PITCH, d, r * KN + 1) \
  }
#endif

// Puts x[RM][blocks] into the streamed tiles' array. From there all invocations store it in the
// rows of a tensor from r0, the workgroup's first. Rows from limit on are stored as zeros.
#define PUT_BLOCKS(x, blocks)                                                        \
  barrier();                                                                         \
  EACH(r, RM)                                                                        \
    EACH(d, blocks) put_block((BLOCK_ROW + r * MM) * PITCH + d * (MN / 8), x[r][d]); \
  barrier();

void store_rows(View t, int r0, int chunks, int limit) {
  [[dont_unroll]] for (int n = TEAM_TID; n < ROWS * chunks; n += TEAM_SIZE) {
    const int row = r0 + n / chunks, col = n % chunks * 8;
    if (row >= t.rows || col >= t.width) continue;
    const uvec4 words =
        row < limit ? streamed[OWN_STREAMED(n / chunks * PITCH + n % chunks)] : uvec4(0);
    const uvec2 at = row_address(t, row);
    if (WIDE != 0)
      Store4(add64(at, 2 * col)).w = words;
    else [[dont_unroll]]
      for (int e = 0; e < 8 && col + e < t.width; e += 4)
        store_words(t, at, col + e, to_floats(e == 0 ? words.xyzw : words.zwxy));
  }
}

// The same for a split's partial output, in f32 without rounding, if the array holds it. It does
// for few rows, for which splits are made. Otherwise block by block through scratch, during which
// the matrices wait (see above).
const int PART_PITCH = DV_BLOCKS * MK / 4 + 1;
const bool PARTS_FIT = ROWS * PART_PITCH <= STREAMED;
#define PUT_PARTS(x)                                                                    \
  barrier();                                                                            \
  EACH(r, RM)                                                                           \
    EACH(d, DV_OUT)                                                                     \
      coopMatStore(x[r][d], streamed, (BLOCK_ROW + r * MM) * PART_PITCH + d * (MN / 4), \
                   PART_PITCH, ROW_MAJOR);                                              \
  barrier();

void store_parts(View t, int r0) {
  const int quads = DV_BLOCKS * MK / 4;
  [[dont_unroll]] for (int n = TEAM_TID; n < ROWS * quads; n += TEAM_SIZE) {
    const int row = n / quads, quad = n % quads;
    if (r0 + row < t.rows && 4 * quad < t.width)
      Store4(part_address(t, r0 + row, 4 * quad)).w = streamed[row * PART_PITCH + quad];
  }
}

void store_part(View t, int r0, int col, ACC x) {
  coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  [[dont_unroll]] for (int n = LANE; n < MM * MN / 4; n += SUBGROUP) {
    const int row = n / (MN / 4), from = n % (MN / 4);
    if (r0 + row < t.rows && col + 4 * from < t.width)
      Store4(part_address(t, r0 + row, col + 4 * from)).w =
          floatBitsToUint(scratch[MY_SCRATCH + row * SCRATCH_PITCH + from]);
  }
  subgroupBarrier();
}
