// SPDX-License-Identifier: MIT OR Apache-2.0
// A dense bias by chunks of 8 keys. Its blocks are prefetched in registers during the products, and
// become matrices through the subgroup's scratch.

// There are no branches of some invocations here except around one store, as NVIDIA keeps matrices
// that live through one in memory. What does not exist is loaded from the nearest place
// that does.

// With BIAS_BLOCKS (all blocks of MM rows and, for 16-bit elements, 2 MN keys are whole) there are
// neither chunks nor scratch: blocks are loaded as accumulators of 32-bit words. It takes more
// registers, which fwd has. Otherwise, if rows are not chunks, bias is read element by element
// (score.glsl).
const bool BIAS_CHUNKS = BIAS != 0 && WIDE != 0 && BIAS_WIDE != 0 && !BIAS_BLOCKS;
// PIPES_BIAS: during the products a block passes through the scratch, and then the next block's
// chunks are fetched. One block at a time.
const bool BIAS_PIPED = BIAS_CHUNKS && PIPES_BIAS && RM == 1 && KN == 1;
// With coopmat2, 16-bit elements pass through the scratch unconverted, and become matrices by loads
// as f16 whatever their type is. NVIDIA's compiler has one instruction for an f16 matrix by rows or
// columns. SPAN: number of adjacent blocks that do so at once.
const bool BIAS_HALVES = TANDEM_CM2 == 1 && BIAS_CHUNKS && BIAS != F32;
const bool NB_EVEN = NB % 2 == 0;
const int SPAN = BIAS_HALVES && NB_EVEN ? BIAS_SPAN : 1;
// The block whose chunks or words hold those of the n-th one.
#define SPAN_FIRST(n) (PAIRS || SPAN > 1 ? (n) & ~1 : (n))
const int SPAN_CHUNKS = SPAN * KEYS / 8; // of a row
const int SPAN_TURNS = (SPAN * BLOCK_CHUNKS + SUBGROUP - 1) / SUBGROUP;
const int BIAS_TURNS = (BLOCK_CHUNKS + SUBGROUP - 1) / SUBGROUP;
const int BIAS_WORDS = BIAS == F32 ? 2 : 1; // uvec4s of a chunk
const int BIAS_VEC = BIAS_CHUNKS ? SPAN_TURNS * BIAS_WORDS : 1;
// A block has chunks, or with BIAS_BLOCKS words. These are two variables: Mesa's compiler for
// Intel's GPUs (25.0 to 26.2) crashes on a matrix in a struct. BIAS_ARRAY declares both for an
// array of blocks, BIAS_OF passes those of a block.
struct Chunks {
  uvec4 w[BIAS_VEC];
};
#define BIAS_ARRAY(bias, dims) \
  Chunks bias dims;            \
  ACC bias##_words dims;
#define BIAS_OF(bias, index) bias index, bias##_words index

// An invocation's chunk of a block; more invocations than chunks repeat them.
int block_chunk(int turn) {
  const int n = LANE + turn * SUBGROUP;
  return BLOCK_CHUNKS % SUBGROUP == 0 ? n : n % BLOCK_CHUNKS;
}
int span_chunk(int turn) {
  const int n = LANE + turn * SUBGROUP;
  return SPAN * BLOCK_CHUNKS % SUBGROUP == 0 ? n : n % (SPAN * BLOCK_CHUNKS);
}
// Fetches the block with query rows from i0 + i and keys from j0 + j on. i0 and j0 are the
// workgroup's, i and j may be the subgroup's. Chunks are indexed from one address, as in
// stage.glsl.
void fetch_bias(out Chunks x, out ACC words, int i0, int i, int j0, int j) {
  const uvec2 row = to_bytes(extra.bias.sd.xy, BIAS_SHIFT);
  const int pitch = int(row.x >> 4);
  if (BIAS_BLOCKS && ENTRIES > 1) {
    const int top = clamp(i0, 0, max(block.seq_q - MM, 0)),
              left = min(j0, block.seq_kv - KEY_STEP * MN);
    const int rows = max(block.seq_q - MM - top, 0), keys = block.seq_kv - KEY_STEP * MN - left;
    Rows4 at = Rows4(add64(add64(inputs.bias, mul64(row, top)), left << BIAS_SHIFT));
    coopMatLoad(words, at.w, min(i, rows) * pitch + (min(j, keys) << BIAS_SHIFT >> 4), pitch,
                ROW_MAJOR);
  } else if (BIAS_BLOCKS) {
    const int top = max(min(i0 + i, block.seq_q - MM), 0),
              left = min(j0 + j, block.seq_kv - KEY_STEP * MN);
    Rows4 at = Rows4(add64(add64(inputs.bias, mul64(row, top)), left << BIAS_SHIFT));
    coopMatLoad(words, at.w, 0, pitch, ROW_MAJOR);
  }
  if (!BIAS_CHUNKS) return;
  const bool whole = WHOLE != 0 && FLIPS; // all blocks have all of their rows
  const int top = whole ? min(i0, block.seq_q - MK) : clamp(i0, 0, max(entry.seq_q - 1, 0)),
            left = min(j0, block.seq_kv - 8);
  const int rows = max(entry.seq_q - 1 - top, 0), keys = block.seq_kv - 8 - left;
  Rows4 at = Rows4(add64(add64(inputs.bias, mul64(row, top)), left << BIAS_SHIFT));
  EACH(turn, SPAN_TURNS) {
    const int n = span_chunk(turn), key_n = j + n % SPAN_CHUNKS * 8,
              key = TILES_EXIST && !FLIPS ? key_n : min(key_n, keys);
    const int row_n = i + n / SPAN_CHUNKS,
              from = (whole ? row_n : min(row_n, rows)) * pitch + (key << BIAS_SHIFT >> 4);
    x.w[turn * BIAS_WORDS] = at.w[from];
    if (BIAS == F32) x.w[turn * BIAS_WORDS + BIAS_WORDS - 1] = at.w[from + 1];
  }
}
// Fetches a tile's blocks, bias[RM][NB]. With PAIRS every second one's words hold two blocks.
#define FETCH_BIAS(bias, i0, j0) \
  EACH(r, RM)                    \
    EACH(n, NB)                  \
      if (n == SPAN_FIRST(n)) fetch_bias(BIAS_OF(bias, [r][n]), i0, BLOCK_ROW + r * MM, j0, n * MN);
// Two words of a chunk, four keys.
vec4 bias_floats(uint a, uint b) {
  if (BIAS == F16) return vec4(unpackHalf2x16(a), unpackHalf2x16(b));
  return uintBitsToFloat(uvec4(a << 16, a & 0xffff0000u, b << 16, b & 0xffff0000u));
}
// Stores chunks that become a matrix. It is loaded after a barrier of the subgroup, and another
// barrier follows.
void put_bias(Chunks from) {
  EACH(turn, SPAN_TURNS) {
    const int n = span_chunk(turn),
              at = MY_SCRATCH + n / (KEYS / 8) * KEYS_PITCH + n % (KEYS / 8) * 2;
    if (BIAS_HALVES) {
      scratch[MY_SCRATCH + n / SPAN_CHUNKS * (SPAN_CHUNKS + 1) + n % SPAN_CHUNKS] =
          uintBitsToFloat(from.w[turn]);
      continue;
    }
    const uvec4 w = from.w[turn * BIAS_WORDS], next = from.w[turn * BIAS_WORDS + BIAS_WORDS - 1];
    scratch[at] = BIAS == F32 ? uintBitsToFloat(w) : bias_floats(w.x, w.y);
    scratch[at + 1] = BIAS == F32 ? uintBitsToFloat(next) : bias_floats(w.z, w.w);
  }
}
void begin_bias(Chunks from) {
  put_bias(from);
  subgroupBarrier();
}
// n: the block's number. With PAIRS its last bit selects the keys of the words.
ACC bias_block(Chunks from, ACC words, int n, bool flip) {
  if (BIAS_BLOCKS) {
    ACC x = words;
    if (PAIRS) {
      ELEMENTS(k, x) {
        const uint word = floatBitsToUint(words[k]);
        x[k] = BIAS == F16 ? unpackHalf2x16(word >> 16 * (n & 1)).x
                           : uintBitsToFloat(word << 16 * (~n & 1) & 0xffff0000u);
      }
    }
    return x;
  }
  ACC bias;
  if (!BIAS_PIPED && SPAN == 1) begin_bias(from);
#if TANDEM_CM2
  if (BIAS_HALVES) {
    ACC_F16 x;
    const int at = MY_SCRATCH + n % SPAN * (KEYS / 8);
    if (flip)
      coopMatLoad(x, scratch, at, SPAN_CHUNKS + 1, COL_MAJOR);
    else
      coopMatLoad(x, scratch, at, SPAN_CHUNKS + 1, ROW_MAJOR);
    ELEMENTS(k, x)
      bias[k] =
          BIAS == F16 ? float(x[k]) : uintBitsToFloat(packFloat2x16(f16vec2(float16_t(0), x[k])));
    subgroupBarrier();
    return bias;
  }
#endif
  if (flip)
    coopMatLoad(bias, scratch, MY_SCRATCH, KEYS_PITCH, COL_MAJOR);
  else
    coopMatLoad(bias, scratch, MY_SCRATCH, KEYS_PITCH, ROW_MAJOR);
  subgroupBarrier();
  return bias;
}
