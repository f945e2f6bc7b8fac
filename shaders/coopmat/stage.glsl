// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of tensors into shared memory and out of matrices. WIDE: every tensor has feature stride 1, rows that begin at
// multiples of 16 bytes and a width that is a multiple of 8: rows travel as uvec4s, 8 elements, and those of the next
// tile fly in registers while this one is multiplied. Otherwise they go element by element from rolled loops when their
// turn comes: slow, never wrong.

const int MOST_CHUNKS = D_BLOCKS > DV_BLOCKS ? D_CHUNKS : DV_CHUNKS;
const int VEC = WIDE != 0 ? (COLS * MOST_CHUNKS + WG - 1) / WG : 1;
uvec4 stage_1[VEC], stage_2[VEC];

// Invocation n of a tile's copy, counted on over the workgroup's turns.
int chunk_row(int turn, int chunks) {
  return WG % chunks == 0 ? TID / chunks + turn * (WG / chunks) : (TID + turn * WG) / chunks;
}
int chunk_col(int turn, int chunks) { return WG % chunks == 0 ? TID % chunks : (TID + turn * WG) % chunks; }

// Eight features of any row and column; those that do not exist are zeros.
uvec4 load_chunk(View t, int r, int chunk) {
  const int col = 8 * chunk;
  if (r >= t.rows || col >= t.width) return uvec4(0);
  const uvec2 row = row_address(t, r);
  if (WIDE != 0) return Load4(add64(row, 16 * chunk)).w;
  const uvec2 low = load_words(t, row, col).xy;
  return uvec4(low, col + 4 < t.width ? load_words(t, row, col + 4).xy : uvec2(0));
}

// Whether the tile of COLS rows from r0 flies in registers: nearly all do. Those that reach past the end would need
// tests around every load; they come like tensors that are not wide.
bool flies(View t, int r0, int chunks) { return WIDE != 0 && r0 + COLS <= t.rows && t.width == 8 * chunks; }
bool in_tile(int turn, int chunks) { return COLS * chunks % WG == 0 || chunk_row(turn, chunks) < COLS; }

void fetch_tile(out uvec4 stage[VEC], View t, int r0, int chunks) {
  if (!flies(t, r0, chunks)) return;
  uvec2 at = add64(row_address(t, r0 + TID / chunks), 16 * (TID % chunks));
  const uvec2 at_step = mul64(t.row, WG / chunks);
  EACH(i, VEC) {
    if (i * WG >= COLS * chunks) continue;
    if (WG % chunks != 0) at = add64(row_address(t, r0 + chunk_row(i, chunks)), 16 * chunk_col(i, chunks));
    if (in_tile(i, chunks)) stage[i] = Load4(at).w;
    if (WG % chunks == 0) at = add64(at, at_step);
  }
}
void put_rows(int to, int rows, View t, int r0, int chunks) {
  [[dont_unroll]] for (int n = TID; n < rows * chunks; n += WG)
    streamed[to + n / chunks * PITCH + n % chunks] = load_chunk(t, r0 + n / chunks, n % chunks);
}
void put_tile(int to, uvec4 stage[VEC], View t, int r0, int chunks) {
  if (!flies(t, r0, chunks)) {
    put_rows(to, COLS, t, r0, chunks);
    return;
  }
  EACH(i, VEC)
    if (i * WG < COLS * chunks && in_tile(i, chunks))
      streamed[to + chunk_row(i, chunks) * PITCH + chunk_col(i, chunks)] = stage[i];
}

// The subgroup's rows of a tensor as left operands x[RM][blocks], by way of the streamed tiles' array, which holds
// 2 COLS rows at a time. r0: the workgroup's first row. Everyone is done with the array before and after.
#define LOAD_OPERANDS(x, t, r0, blocks, chunks)                                                       \
  for (int piece = 0; piece < ROWS; piece += 2 * COLS) {                                              \
    barrier();                                                                                        \
    put_rows(0, min(2 * COLS, ROWS - piece), t, r0 + piece, chunks);                                  \
    barrier();                                                                                        \
    EACH(r, RM) {                                                                                     \
      const int from = BLOCK_ROW + r * MATRIX - piece;                                                \
      if (from >= 0 && from < 2 * COLS) {                                                             \
        EACH(d, blocks) coopMatLoad(x[r][d], streamed, from * PITCH + d * (MATRIX / 8), PITCH, ROW_MAJOR); \
      }                                                                                               \
    }                                                                                                 \
  }                                                                                                   \
  barrier();

// A block to rows from r0 and features from col of t, rounded to nearest even by our own code (tensor.glsl). Rows from
// limit on are stored as zeros. Rounding is much code for something done once: the loop stays rolled, and the words
// wait in the place of their numbers.
void store_block(View t, int r0, int col, int limit, ACC x) {
  coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  [[dont_unroll]] for (int n = LANE; n < MATRIX * MATRIX / 8; n += SUBGROUP) {
    const int row = n / (MATRIX / 8), from = col + n % (MATRIX / 8) * 8;
    const int at = MY_SCRATCH + row * SCRATCH_PITCH + n % (MATRIX / 8) * 2;
    if (r0 + row >= t.rows || from >= t.width) continue;
    const bool zero = r0 + row >= limit;
    if (WIDE == 0) {
      [[dont_unroll]] for (int e = 0; e < 2; e++)
        if (from + 4 * e < t.width)
          store_words(t, row_address(t, r0 + row), from + 4 * e, zero ? vec4(0) : scratch[at + e]);
      continue;
    }
    [[dont_unroll]] for (int e = 0; e < 2; e++) {
      const vec4 y = zero ? vec4(0) : scratch[at + e];
      const uvec2 words = uvec2(pack_pair(y.x, y.y), pack_pair(y.z, y.w));
      if (e == 0)
        scratch[at].xy = uintBitsToFloat(words);
      else
        Store4(add64(row_address(t, r0 + row), 2 * from)).w = uvec4(floatBitsToUint(scratch[at].xy), words);
    }
  }
  subgroupBarrier();
}

// The same to a split's part, as it is.
void store_part(View t, int r0, int col, ACC x) {
  coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  [[dont_unroll]] for (int n = LANE; n < MATRIX * MATRIX / 4; n += SUBGROUP) {
    const int row = n / (MATRIX / 4), from = n % (MATRIX / 4);
    if (r0 + row < t.rows && col + 4 * from < t.width)
      Store4(part_address(t, r0 + row, col + 4 * from)).w =
          floatBitsToUint(scratch[MY_SCRATCH + row * SCRATCH_PITCH + from]);
  }
  subgroupBarrier();
}
