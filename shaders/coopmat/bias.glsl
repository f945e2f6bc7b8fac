// SPDX-License-Identifier: MIT OR Apache-2.0
// A dense bias by 8 keys at once: blocks of it come in registers while the products are under way, and become matrices
// by way of the subgroup's scratch. And blocks of ds on their way to d_bias.

// No branches of some invocations here but around one store, as matrices that live through them wait in memory on NVIDIA:
// what does not exist is loaded from the nearest place that does.

// With BIAS_BLOCKS (every block of MM rows and, of 16-bit elements, 2 MN keys exists as a whole) neither chunks nor
// scratch: the blocks are loaded as accumulators of 32-bit words. It takes more registers, which fwd has.
// Otherwise, where rows are no chunks, bias goes element by element (score.glsl).
const bool BIAS_CHUNKS = BIAS != 0 && WIDE != 0 && BIAS_WIDE != 0 && !BIAS_BLOCKS;
// For kernels that ask for it: a block goes through the scratch under the products, and the next one's chunks are fetched
// then. One block at a time.
#ifndef OWNS_KEYS // the kernel, not query rows
#define OWNS_KEYS false
#endif
#ifndef PIPES_BIAS
#define PIPES_BIAS false
#endif
const bool BIAS_PIPED = BIAS_CHUNKS && PIPES_BIAS && RM == 1 && KN == 1;
const int BIAS_TURNS = (BLOCK_CHUNKS + SUBGROUP - 1) / SUBGROUP;
const int BIAS_WORDS = BIAS == F32 ? 2 : 1; // uvec4s of a chunk
const int BIAS_VEC = BIAS_CHUNKS || BIAS_BLOCKS ? BIAS_TURNS * 2 : 1;
struct Bias {
  uvec4 chunks[BIAS_VEC];
  ACC words;
};

// An invocation's chunk of a block; more invocations than chunks repeat them.
int block_chunk(int turn) {
  const int n = LANE + turn * SUBGROUP;
  return BLOCK_CHUNKS % SUBGROUP == 0 ? n : n % BLOCK_CHUNKS;
}
// The same of a block of words.
const int WORD_TURNS = (MM * MN / 4 + SUBGROUP - 1) / SUBGROUP;
int word_chunk(int turn) {
  const int n = LANE + turn * SUBGROUP;
  return MM * MN / 4 % SUBGROUP == 0 ? n : n % (MM * MN / 4);
}
// Of the block with query rows from i0 + i and keys from j0 + j on. i0 and j0 are the workgroup's, i and j can be the
// subgroup's own: chunks by an index off one address, as in stage.glsl.
void fetch_bias(out Bias x, int i0, int i, int j0, int j) {
  const uvec2 row = to_bytes(extra.bias.sd.xy, BIAS_SHIFT);
  const int pitch = int(row.x >> 4);
  if (BIAS_BLOCKS) {
    const int top = clamp(i0, 0, max(block.seq_q - MM, 0)), left = min(j0, block.seq_kv - KEY_STEP * MN);
    const int rows = max(block.seq_q - MM - top, 0), keys = block.seq_kv - KEY_STEP * MN - left;
    Rows4 at = Rows4(add64(add64(inputs.bias, mul64(row, top)), left << BIAS_SHIFT));
    const int first = min(i, rows) * pitch + ((TILES_EXIST ? j : min(j, keys)) << BIAS_SHIFT >> 4);
    EACH(turn, WORD_TURNS) {
      const int n = word_chunk(turn);
      x.chunks[turn] = at.w[first + n / (MN / 4) * pitch + n % (MN / 4)];
    }
  }
  if (!BIAS_CHUNKS) return;
  const bool whole = WHOLE != 0 && OWNS_KEYS; // all blocks have all of their rows
  const int top = whole ? min(i0, block.seq_q - MK) : clamp(i0, 0, max(entry.seq_q - 1, 0)), left = min(j0, block.seq_kv - 8);
  const int rows = max(entry.seq_q - 1 - top, 0), keys = block.seq_kv - 8 - left;
  Rows4 at = Rows4(add64(add64(inputs.bias, mul64(row, top)), left << BIAS_SHIFT));
  EACH(turn, BIAS_TURNS) {
    const int n = block_chunk(turn), key = min(j + n % (KEYS / 8) * 8, keys);
    const int row_n = i + n / (KEYS / 8), from = (whole ? row_n : min(row_n, rows)) * pitch + (key << BIAS_SHIFT >> 4);
    x.chunks[turn * BIAS_WORDS] = at.w[from];
    if (BIAS == F32) x.chunks[turn * BIAS_WORDS + BIAS_WORDS - 1] = at.w[from + 1];
  }
}
// Of a tile's blocks, bias[RM][NB]; with PAIRS every second one is two.
#define FETCH_BIAS(bias, i0, j0)                                                        \
  EACH(r, RM) EACH(n, NB)                                                               \
    if (!PAIRS || n % 2 == 0) fetch_bias(bias[r][n], i0, BLOCK_ROW + r * MM, j0, n * MN);
// Two words of a chunk, four keys.
vec4 bias_floats(uint a, uint b) {
  if (BIAS == F16) return vec4(unpackHalf2x16(a), unpackHalf2x16(b));
  return uintBitsToFloat(uvec4(a << 16, a & 0xffff0000u, b << 16, b & 0xffff0000u));
}
// Chunks on their way to become a matrix: it is loaded after a barrier of the subgroup, and another one follows.
void put_bias(Bias from) {
  EACH(turn, BIAS_TURNS) {
    const int n = block_chunk(turn), at = MY_SCRATCH + n / (KEYS / 8) * KEYS_PITCH + n % (KEYS / 8) * 2;
    const uvec4 w = from.chunks[turn * BIAS_WORDS], next = from.chunks[turn * BIAS_WORDS + BIAS_WORDS - 1];
    scratch[at] = BIAS == F32 ? uintBitsToFloat(w) : bias_floats(w.x, w.y);
    scratch[at + 1] = BIAS == F32 ? uintBitsToFloat(next) : bias_floats(w.z, w.w);
  }
}
// The words of a block that was fetched, by way of the scratch.
void settle_bias(inout Bias x) {
  EACH(turn, WORD_TURNS) {
    const int n = word_chunk(turn);
    scratch[MY_SCRATCH + n / (MN / 4) * SCRATCH_PITCH + n % (MN / 4)] = uintBitsToFloat(x.chunks[turn]);
  }
  subgroupBarrier();
  coopMatLoad(x.words, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
}
// n: the block's number, of which with PAIRS the last bit says which keys of the words are its own.
ACC bias_block(Bias from, int n, bool flip) {
  if (BIAS_BLOCKS) {
    ACC x = from.words;
    if (PAIRS) {
      ELEMENTS(k, x) {
        const uint word = floatBitsToUint(from.words[k]);
        x[k] = BIAS == F16 ? unpackHalf2x16(word >> 16 * (n & 1)).x
                           : uintBitsToFloat(word << 16 * (~n & 1) & 0xffff0000u);
      }
    }
    return x;
  }
  ACC bias;
  if (!BIAS_PIPED) {
    put_bias(from);
    subgroupBarrier();
  }
  if (flip)
    coopMatLoad(bias, scratch, MY_SCRATCH, KEYS_PITCH, COL_MAJOR);
  else
    coopMatLoad(bias, scratch, MY_SCRATCH, KEYS_PITCH, ROW_MAJOR);
  subgroupBarrier();
  return bias;
}

#ifdef STORES_DS
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
  if (WIDE != 0 && D_BIAS_WIDE != 0) {
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
// to: the part of scratch that it goes through.
void store_ds(ACC ds, int i0, int j0, int to) {
  coopMatStore(ds, scratch, to, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  EACH(turn, BIAS_TURNS) {
    const int n = block_chunk(turn), at = to + n / (KEYS / 8) * KEYS_PITCH + n % (KEYS / 8) * 2;
    if (BLOCK_CHUNKS % SUBGROUP == 0 || LANE + turn * SUBGROUP < BLOCK_CHUNKS)
      store_chunk(i0 + n / (KEYS / 8), j0 + n % (KEYS / 8) * 8, scratch[at], scratch[at + 1]);
  }
  subgroupBarrier();
}
// The workgroup's rows from i0, keys from j0 to the one before end: zeros.
void store_no_ds(int i0, int j0, int end) {
  const int chunks = (end - j0 + 7) / 8;
  [[dont_unroll]] for (int n = TID; n < ROWS * chunks; n += WG)
    store_chunk(i0 + n / chunks, j0 + n % chunks * 8, vec4(0), vec4(0));
}
#endif
