// SPDX-License-Identifier: MIT OR Apache-2.0
// A dense bias by 8 keys at once: blocks of it come in registers while the products are under way, and become matrices
// by way of the subgroup's scratch. And blocks of ds on their way to d_bias.

// No branches of some invocations here but around one store, as matrices that live through them wait in memory on NVIDIA:
// what does not exist is loaded from the nearest place that does.

// With BIAS_BLOCKS (every block of MATRIX rows and, of 16-bit elements, 2 MATRIX keys exists as a whole) no chunks and no
// scratch: the blocks are loaded as accumulators of 32-bit words. Otherwise, without WIDE, bias goes element by element
// (score.glsl).
const bool BIAS_CHUNKS = BIAS != 0 && WIDE != 0 && BIAS_WIDE != 0 && !BIAS_BLOCKS;
// One block at a time: it goes through the scratch under the products, and the next one's chunks are fetched.
#ifndef ONE_BLOCK
#define ONE_BLOCK false
#endif
const bool BIAS_PIPED = BIAS_CHUNKS && ONE_BLOCK && RM == 1;
const int BIAS_TURNS = (BLOCK_CHUNKS + SUBGROUP - 1) / SUBGROUP;
const int BIAS_WORDS = BIAS == F32 ? 2 : 1; // uvec4s of a chunk
const int BIAS_VEC = BIAS_CHUNKS ? BIAS_TURNS * BIAS_WORDS : 1;
struct Bias {
  uvec4 chunks[BIAS_VEC];
  ACC words;
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Blocks { uvec4 w[]; };

// An invocation's chunk of a block; more invocations than chunks repeat them.
int block_chunk(int turn) {
  const int n = LANE + turn * SUBGROUP;
  return BLOCK_CHUNKS % SUBGROUP == 0 ? n : n % BLOCK_CHUNKS;
}
// Of the block with query rows from i0 + i and, of the keys from first on, the n-th block of keys. flip: its rows are the
// keys. i0 and first are the workgroup's, i and n can be the subgroup's own: an index off one address, as in stage.glsl.
void fetch_bias(out Bias x, int i0, int i, int first, int n, bool flip) {
  const uvec2 row = to_bytes(extra.bias.sd.xy, BIAS_SHIFT);
  const int pitch = int(row.x >> 4), most = BIAS_BLOCKS ? MATRIX : 1;
  const int top = clamp(i0, 0, max(block.seq_q - most, 0)), left = min(first, block.seq_kv - 8);
  const int rows = max(block.seq_q - most - top, 0);
  Blocks at = Blocks(add64(add64(inputs.bias, mul64(row, top)), left << BIAS_SHIFT));
  if (BIAS_BLOCKS) { // whose rows or keys do not exist at all: others, as above
    const int j = min((PAIRS ? n & ~1 : n) * MATRIX, max(block.seq_kv - KEY_STEP * MATRIX - left, 0));
    const int from = min(i, rows) * pitch + (j << BIAS_SHIFT >> 4);
    if (flip)
      coopMatLoad(x.words, at.w, from, pitch, COL_MAJOR);
    else
      coopMatLoad(x.words, at.w, from, pitch, ROW_MAJOR);
  }
  if (!BIAS_CHUNKS) return;
  EACH(turn, BIAS_TURNS) {
    const int c = block_chunk(turn), j = min(n * MATRIX + c % (MATRIX / 8) * 8, block.seq_kv - 8 - left);
    const int from = min(i + c / (MATRIX / 8), rows) * pitch + (j >> (BIAS == F32 ? 2 : 3));
    x.chunks[turn * BIAS_WORDS] = at.w[from];
    if (BIAS == F32) x.chunks[turn * BIAS_WORDS + BIAS_WORDS - 1] = at.w[from + 1];
  }
}
// Of a tile's blocks, bias[RM][NB]; with PAIRS every second one is two.
#define FETCH_BIAS(bias, i0, first)                                    \
  EACH(r, RM) EACH(n, NB)                                              \
    if (!PAIRS || n % 2 == 0) fetch_bias(bias[r][n], i0, BLOCK_ROW + r * MATRIX, first, n, false);
// Of a column of blocks, which of them has the r-th one's words.
#define WORDS_OF(r, flip) (PAIRS && (flip) && RM % 2 == 0 ? (r) & ~1 : (r))
// Two words of a chunk, four keys.
vec4 bias_floats(uint a, uint b) {
  if (BIAS == F16) return vec4(unpackHalf2x16(a), unpackHalf2x16(b));
  return uintBitsToFloat(uvec4(a << 16, a & 0xffff0000u, b << 16, b & 0xffff0000u));
}
// Chunks on their way to become a matrix, which is loaded after a barrier of the subgroup, and followed by another one.
void put_bias(Bias from) {
  EACH(turn, BIAS_TURNS) {
    const int n = block_chunk(turn), at = MY_SCRATCH + n / (MATRIX / 8) * SCRATCH_PITCH + n % (MATRIX / 8) * 2;
    const uvec4 w = from.chunks[turn * BIAS_WORDS], next = from.chunks[turn * BIAS_WORDS + BIAS_WORDS - 1];
    scratch[at] = BIAS == F32 ? uintBitsToFloat(w) : bias_floats(w.x, w.y);
    scratch[at + 1] = BIAS == F32 ? uintBitsToFloat(next) : bias_floats(w.z, w.w);
  }
}
// n: the block's number, of which with PAIRS the last bit says which keys of the words are its own.
ACC bias_block(Bias from, int n, bool flip) {
  ACC bias;
  if (BIAS_BLOCKS) {
    if (!PAIRS) return from.words;
    ELEMENTS(k, bias) {
      const uint word = floatBitsToUint(from.words[k]);
      bias[k] = BIAS == F16 ? unpackHalf2x16(word >> 16 * (n & 1)).x
                            : uintBitsToFloat(word << 16 * (~n & 1) & 0xffff0000u);
    }
    return bias;
  }
  if (!BIAS_PIPED) {
    put_bias(from);
    subgroupBarrier();
  }
  if (flip)
    coopMatLoad(bias, scratch, MY_SCRATCH, SCRATCH_PITCH, COL_MAJOR);
  else
    coopMatLoad(bias, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  return bias;
}

#ifdef STORES_DS
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer DsBlocks { uvec4 w[]; };

// One head's part of d_bias, [rows, Sk], of type D_BIAS.
struct Gradient {
  uvec2 base, row, col; // bytes
  int rows;
};
Gradient d_bias;
const int D_BIAS_SHIFT = D_BIAS == F32 ? 2 : 1;

// elements: what lies before the head's part.
void begin_ds(uvec2 elements, int rows) {
  d_bias.base = add64(push.d_bias, to_bytes(elements, D_BIAS_SHIFT));
  d_bias.row = to_bytes(block.d_bias.sd.xy, D_BIAS_SHIFT);
  d_bias.col = to_bytes(block.d_bias.sd.zw, D_BIAS_SHIFT);
  d_bias.rows = rows;
}

uint ds_pair(float a, float b) { return to_bits16(D_BIAS, a) | to_bits16(D_BIAS, b) << 16; }
// Eight keys of a row.
void store_chunk(int i, int j, vec4 low, vec4 high) {
  const bool exists = i < d_bias.rows && j < block.seq_kv;
  uvec2 at = add64(d_bias.base, mul64(d_bias.row, i));
  if (WIDE != 0 && D_BIAS_WIDE != 0) { // 2: blocks are whole as above
    at = add64(at, j << D_BIAS_SHIFT);
    if (D_BIAS == F32) {
      if (exists) Store4(at).w = floatBitsToUint(low);
      if (exists) Store4(add64(at, 16)).w = floatBitsToUint(high);
    } else {
      const uvec4 words = uvec4(ds_pair(low.x, low.y), ds_pair(low.z, low.w), ds_pair(high.x, high.y),
                                ds_pair(high.z, high.w));
      if (exists) Store4(at).w = words;
    }
    return;
  }
  if (!exists) return;
  at = add64(at, mul64(d_bias.col, j));
  const int n = min(8, block.seq_kv - j);
  [[dont_unroll]] for (int c = 0; c < n; c++) {
    store_float(D_BIAS, at, c < 4 ? low[c] : high[c - 4]);
    at = add64(at, d_bias.col);
  }
}
// Of 16 bits, rounded already.
void store_ds16(OPERAND_A ds, int i0, int j0) {
  DsBlocks at = DsBlocks(add64(add64(d_bias.base, mul64(d_bias.row, i0)), j0 << 1));
  if (i0 < d_bias.rows && j0 < block.seq_kv)
    coopMatStore(ds, at.w, 0, d_bias.row.x >> 4 | d_bias.row.y << 28, ROW_MAJOR);
}
void store_ds(ACC ds, int i0, int j0) {
  if (D_BIAS == F32 && WIDE != 0 && D_BIAS_WIDE == 2) {
    DsBlocks at = DsBlocks(add64(add64(d_bias.base, mul64(d_bias.row, i0)), j0 << 2));
    if (i0 < d_bias.rows && j0 < block.seq_kv)
      coopMatStore(ds, at.w, 0, d_bias.row.x >> 4 | d_bias.row.y << 28, ROW_MAJOR);
    return;
  }
  coopMatStore(ds, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  EACH(turn, BIAS_TURNS) {
    const int n = block_chunk(turn), at = MY_SCRATCH + n / (MATRIX / 8) * SCRATCH_PITCH + n % (MATRIX / 8) * 2;
    if (BLOCK_CHUNKS % SUBGROUP == 0 || LANE + turn * SUBGROUP < BLOCK_CHUNKS)
      store_chunk(i0 + n / (MATRIX / 8), j0 + n % (MATRIX / 8) * 8, scratch[at], scratch[at + 1]);
  }
  subgroupBarrier();
}
// With PAIRS: the even and the odd keys of 2 MATRIX, from j0.
float ds_word(float even, float odd) {
  if (D_BIAS != DTYPE) return uintBitsToFloat(ds_pair(even, odd));
  const float a = nearest16(even), b = nearest16(odd);
  return uintBitsToFloat(D_BIAS == F16 ? packHalf2x16(vec2(a, b)) : floatBitsToUint(a) >> 16 | floatBitsToUint(b));
}
void store_ds_pair(ACC even, ACC odd, int i0, int j0) {
  if (D_BIAS != F32 && D_BIAS_WIDE == 2) {
    ACC words;
    ELEMENTS(k, words) words[k] = ds_word(even[k], odd[k]);
    DsBlocks at = DsBlocks(add64(add64(d_bias.base, mul64(d_bias.row, i0)), j0 << 1));
    if (i0 < d_bias.rows && j0 < block.seq_kv)
      coopMatStore(words, at.w, 0, d_bias.row.x >> 4 | d_bias.row.y << 28, ROW_MAJOR);
    return;
  }
  const int turns = (MATRIX * MATRIX / 4 + SUBGROUP - 1) / SUBGROUP;
  vec4 x[turns];
  EACH(which, 2) {
    if (which == 0)
      coopMatStore(even, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
    else
      coopMatStore(odd, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
    subgroupBarrier();
    EACH(turn, turns) {
      const int n = LANE + turn * SUBGROUP, i = n / (MATRIX / 4), quad = n % (MATRIX / 4);
      const vec4 y = scratch[MY_SCRATCH + i % MATRIX * SCRATCH_PITCH + quad];
      if (which == 0)
        x[turn] = y;
      else if (i < MATRIX)
        store_chunk(i0 + i, j0 + 8 * quad, vec4(x[turn].x, y.x, x[turn].y, y.y), vec4(x[turn].z, y.z, x[turn].w, y.w));
    }
    subgroupBarrier();
  }
}
// ds[RM][NB] of a tile.
#define STORE_DS_TILE(ds, i0, first)                                                                  \
  EACH(r, RM) EACH(n, NB) {                                                                           \
    if (!PAIRS)                                                                                       \
      store_ds(ds[r][n], (i0) + r * MATRIX, (first) + n * MATRIX);                                    \
    else if (n % 2 == 0)                                                                              \
      store_ds_pair(ds[r][n], ds[r][min(n + 1, NB - 1)], (i0) + r * MATRIX, (first) + n * MATRIX);    \
  }
// The workgroup's rows from i0, keys from j0 to the one before end: zeros.
void store_no_ds(int i0, int j0, int end) {
  const int chunks = (end - j0 + 7) / 8;
  [[dont_unroll]] for (int n = TID; n < ROWS * chunks; n += WG)
    store_chunk(i0 + n / chunks, j0 + n % chunks * 8, vec4(0), vec4(0));
}
#endif
