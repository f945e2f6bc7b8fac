// SPDX-License-Identifier: MIT OR Apache-2.0
// Blocks of dS as they are stored as d_bias.

// One head's part of d_bias, [rows, Sk], of type D_BIAS.
struct Gradient {
  uvec2 base, row, col; // bytes
  int rows;
};
Gradient d_bias;
const int D_BIAS_SHIFT = D_BIAS == F32 ? 2 : 1;

// elements: offset of the head's part.
void begin_ds(uvec2 elements, int rows) {
  d_bias.base = add64(push.d_bias, to_bytes(elements, D_BIAS_SHIFT));
  d_bias.row = to_bytes(block.d_bias.sd.xy, D_BIAS_SHIFT);
  d_bias.col = to_bytes(block.d_bias.sd.zw, D_BIAS_SHIFT);
  d_bias.rows = rows;
}

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Stores4 {
  uvec4 w[];
};
// dS is stored by chunks of the kernel's operand type.
const bool DS_HALVES =
    TANDEM_CM2 == 1 && KN == 1 && WIDE != 0 && D_BIAS_WIDE != 0 && D_BIAS == DTYPE;
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
      const uvec4 words = uvec4(ds_pair(low.x, low.y), ds_pair(low.z, low.w),
                                ds_pair(high.x, high.y), ds_pair(high.z, high.w));
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
#if TANDEM_CM2
// nearest16() of all elements. For f16 by sums whose last bit is that of f16: with 2^13 (13 bits
// less) times 1.5 times the number's power of two, or at least that of f16's smallest numbers.
ACC round_ds(ACC ds) {
  ELEMENTS(k, ds) {
    if (DTYPE == F16) {
      const float far =
          max(uintBitsToFloat((floatBitsToUint(ds[k]) & 0x7f800000u) + 0x06c00000u), 0.75);
      precise float x = ds[k] + far;
      precise float nearest = x - far;
      ds[k] = abs(nearest) >= 65536.0
                  ? uintBitsToFloat(floatBitsToUint(nearest) & 0x80000000u | 0x7f800000u)
                  : nearest;
    } else {
      ds[k] = nearest16(ds[k]);
    }
  }
  return ds;
}
// Stores numbers that are already rounded: the operand by which d_q is multiplied.
void store_rounded(OPERAND_A ds, int i0, int j0, int to) {
  const int pitch = KEYS / 8 + 1;
  coopMatStore(ds, scratch, to, pitch, ROW_MAJOR);
  subgroupBarrier();
  EACH(turn, BIAS_TURNS) {
    const int n = block_chunk(turn), i = n / (KEYS / 8), j = j0 + n % (KEYS / 8) * 8;
    const uvec4 words = floatBitsToUint(scratch[to + i * pitch + n % (KEYS / 8)]);
    if ((BLOCK_CHUNKS % SUBGROUP == 0 || LANE + turn * SUBGROUP < BLOCK_CHUNKS) &&
        i0 + i < d_bias.rows && j < block.seq_kv)
      Stores4(add64(d_bias.base, mul64(d_bias.row, i0))).w[i * int(d_bias.row.x >> 4) + (j >> 3)] =
          words;
  }
  subgroupBarrier();
}
#endif
// to: the part of scratch that it uses.
void store_ds(ACC ds, int i0, int j0, int to) {
#if TANDEM_CM2
  if (DS_HALVES) {
    store_rounded(OPERAND_A(round_ds(ds)), i0, j0, to);
    return;
  }
#endif
  coopMatStore(ds, scratch, to, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  EACH(turn, BIAS_TURNS) {
    const int n = block_chunk(turn), at = to + n / (KEYS / 8) * KEYS_PITCH + n % (KEYS / 8) * 2;
    if (BLOCK_CHUNKS % SUBGROUP == 0 || LANE + turn * SUBGROUP < BLOCK_CHUNKS)
      store_chunk(i0 + n / (KEYS / 8), j0 + n % (KEYS / 8) * 8, scratch[at], scratch[at + 1]);
  }
  subgroupBarrier();
}
// Stores zeros to the workgroup's rows from i0, and keys from j0 to before end.
void store_no_ds(int i0, int j0, int end) {
  const int chunks = (end - j0 + 7) / 8;
  [[dont_unroll]] for (int n = TID; n < ROWS * chunks; n += WG)
      store_chunk(i0 + n / chunks, j0 + n % chunks * 8, vec4(0), vec4(0));
}
