// SPDX-License-Identifier: MIT OR Apache-2.0
// Tensors by address: 64-bit offsets from 32-bit arithmetic, loads of four features as raw words,
// and stores with rounding. No 16-bit storage or arithmetic is needed, so f16 and bf16 tensors work
// on every device with buffer addresses.
#include "problem/sequence.h"

#include "problem/far_row.h"

#include "address.glsl"

const int SIZE_SHIFT = DTYPE == F32 ? 2 : 1;
uvec2 to_bytes(uvec2 elements, int shift) { // 1 or 2
  return uvec2(elements.x << shift, elements.y << shift | elements.x >> (32 - shift));
}
uvec2 to_bytes(uvec2 elements) { return to_bytes(elements, SIZE_SHIFT); }

// The rows of one head of a tensor. Rows and features past the end read as zeros.
struct View {
  uvec2 base;     // address of element (b, h, 0, 0)
  uvec2 row, col; // strides in bytes
  int rows, width;
  bool wide; // 4-feature accesses are allowed (docs/kernels/overview.md)
  int slot;  // where park() has left it (tile.glsl)
  int first; // first feature of the sums of this workgroup (own_features() in tile.glsl)
};

View view_of(int shift, uvec2 address, Strides s, int b, int h, int rows, int width, bool wide) {
  View t;
  t.base = add64(address, to_bytes(add64(mul64(s.bh.xy, b), mul64(s.bh.zw, h)), shift));
  t.row = to_bytes(s.sd.xy, shift);
  t.col = to_bytes(s.sd.zw, shift);
  t.rows = rows;
  t.width = width;
  t.wide = wide;
  t.slot = 0;
  t.first = 0;
  return t;
}
View make_view(uvec2 address, Strides s, int b, int h, int rows, int width, bool wide) {
  return view_of(SIZE_SHIFT, address, s, b, h, rows, width, wide);
}
uvec2 row_address(View t, int r) { return add64(t.base, mul64(t.row, r)); }

// Partial outputs of split keys, with any DTYPE: f32, rows of a multiple of four.
View part_view(uvec2 address, Strides s, int part, int h, int rows) {
  return view_of(2, address, s, part, h, rows, int(s.sd.x), true);
}
uvec2 part_address(View t, int r, int col) { return add64(row_address(t, r), col << 2); }

// Four features in storage form: f32 in xyzw, 16-bit types in the halves of xy. They are converted
// when the words are used, so that loads stay in flight during the arithmetic in between.
uvec4 load_wide(uvec2 row, int col) {
  uvec2 at = add64(row, col << SIZE_SHIFT);
  if (DTYPE == F32) return Load4(at).w;
  return uvec4(Load2(at).w, 0, 0);
}

// The same for any tensor. The loop stays rolled, as this is the slow path and code size matters.
uvec4 load_words(View t, uvec2 row, int col) {
  if (t.wide && col + 4 <= t.width) return load_wide(row, col);
  uvec4 e = uvec4(0);
  const int n = min(4, t.width - col);
  uvec2 at = add64(row, mul64(t.col, col));
  [[dont_unroll]] for (int i = 0; i < n; i++) {
    if (DTYPE == F32) {
      e[i] = Load1(at).w;
    } else {
      uint pair = Load1(uvec2(at.x & ~3u, at.y)).w;
      e[i] = (at.x & 2u) != 0 ? pair >> 16 : pair & 0xffffu;
    }
    at = add64(at, t.col);
  }
  return DTYPE == F32 ? e : uvec4(e.x | e.y << 16, e.z | e.w << 16, 0, 0);
}

vec4 to_floats(uvec4 w) {
  if (DTYPE == F32) return uintBitsToFloat(w);
  if (DTYPE == F16) return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
  return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u));
}

// Rounds to nearest even. packHalf2x16 may truncate, as its rounding is the driver's choice.
uint to_f16(float x) {
  uint u = floatBitsToUint(x);
  uint sign = u >> 16 & 0x8000u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return sign | 0x7e00u;
  if (u >= 0x477ff000u) return sign | 0x7c00u; // 65520 and more
  if (u >= 0x38800000u) return sign | (u - 0x38000000u + 0xfffu + (u >> 13 & 1u)) >> 13;
  uint shift = 126u - (u >> 23); // below 2^-14: a multiple of 2^-24
  if (shift > 24u) return sign;
  uint mantissa = (u & 0x7fffffu) | 0x800000u;
  uint rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
  mantissa >>= shift;
  return sign | (mantissa + (rest > tie || (rest == tie && (mantissa & 1u) != 0) ? 1u : 0u));
}
uint to_bf16(float x) {
  uint u = floatBitsToUint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40u;
  return u + 0x7fffu + (u >> 16 & 1u) >> 16;
}
uint to_bits16(int dtype, float x) { return dtype == F16 ? to_f16(x) : to_bf16(x); }
uint to_bits16(float x) { return to_bits16(DTYPE, x); }
// The same as a float, in few instructions.
float nearest16(float x) {
  const uint u = floatBitsToUint(x), sign = u & 0x80000000u, size = u ^ sign;
  if (size > 0x7f800000u) return x;
  if (DTYPE != F16) return uintBitsToFloat(u + 0x7fffu + (u >> 16 & 1u) & 0xffff0000u);
  uint nearest = size + 0xfffu + (size >> 13 & 1u) & 0xffffe000u;
  if (size >= 0x477ff000u) nearest = 0x7f800000u; // 65520 and more
  // Below 2^-14: a multiple of 2^-24. The ulp of 0.5 and the floats behind it is 2^-24.
  precise float steps = uintBitsToFloat(size) + 0.5;
  precise float low = steps - 0.5;
  if (size < 0x38800000u) nearest = floatBitsToUint(low);
  return uintBitsToFloat(sign | nearest);
}

// Stores one half of a word. The other half can belong to another invocation or to a gap between
// rows, and without 16-bit storage only atomics leave it unchanged.
void store_half(uvec2 at, uint bits) {
  uint shift = (at.x & 2u) * 8u;
  uvec2 word = uvec2(at.x & ~3u, at.y);
  atomicAnd(Store1(word).w, ~(0xffffu << shift));
  atomicOr(Store1(word).w, bits << shift);
}

// Features col .. col+3 of a row.
void store_wide(uvec2 row, int col, vec4 x) {
  uvec2 at = add64(row, col << SIZE_SHIFT);
  if (DTYPE == F32)
    Store4(at).w = floatBitsToUint(x);
  else
    Store2(at).w =
        uvec2(to_bits16(x.x) | to_bits16(x.y) << 16, to_bits16(x.z) | to_bits16(x.w) << 16);
}

// The same for any tensor; features past the width are dropped.
void store_words(View t, uvec2 row, int col, vec4 x) {
  if (t.wide && col + 4 <= t.width) {
    store_wide(row, col, x);
    return;
  }
  const int n = min(4, t.width - col);
  [[dont_unroll]] for (int i = 0; i < n; i++) {
    uvec2 at = add64(row, mul64(t.col, col + i));
    if (DTYPE == F32) Store1(at).w = floatBitsToUint(x[i]);
    // both halves are this invocation's
    else if (t.col == uvec2(2, 0) && (at.x & 2u) == 0 && i + 1 < n) {
      Store1(at).w = to_bits16(x[i]) | to_bits16(x[i + 1]) << 16;
      i++;
    } else
      store_half(at, to_bits16(x[i]));
  }
}

// One number of any type.
float load_float(int dtype, uvec2 at) {
  if (dtype == F32) return uintBitsToFloat(Load1(at).w);
  uint pair = Load1(uvec2(at.x & ~3u, at.y)).w;
  uint bits = (at.x & 2u) != 0 ? pair >> 16 : pair & 0xffffu;
  return dtype == F16 ? unpackHalf2x16(bits).x : uintBitsToFloat(bits << 16);
}
void store_float(int dtype, uvec2 at, float x) {
  if (dtype == F32)
    Store1(at).w = floatBitsToUint(x);
  else
    store_half(at, to_bits16(dtype, x));
}
// Element n >= 0 of a contiguous array of f32 or int32.
uvec2 word_address(uvec2 address, int n) { return add64(address, to_bytes(uvec2(n, 0), 2)); }

// First row of a batch entry's sequence in the tensors, and its length. lengths: where these are,
// or cumulative offsets, or what place_entries wrote. total: rows of a packed tensor.
ivec2 sequence(uvec2 lengths, int kind, int b, int longest, int total) {
  if (kind == GAPPED) lengths = add64(lengths, mul64(uvec2(4 * (TANDEM_PLACE_NUMBERS - 1), 0), b));
  const int given = int(Load1(word_address(lengths, b)).w);
  if (kind < PACKED) return ivec2(0, tandem_padded_rows(given, longest));
  TandemSequence s =
      tandem_packed_rows(given, int(Load1(word_address(lengths, b + 1)).w), total, longest);
  return ivec2(s.first, s.rows);
}

// lse and delta: f32 [B,Hq,Sq], contiguous. head counts over batch and heads.
uvec2 stat_address(uvec2 address, int head, int seq, int i) {
  uint high, low;
  umulExtended(uint(head), uint(seq), high, low);
  uvec2 at = add64(uvec2(low, high), i);
  return add64(address, uvec2(at.x << 2, at.y << 2 | at.x >> 30));
}

// The numbers of a far row that bwd_origin stores (src/problem/far_row.h): its origin, and lse
// relative to that. They lie in front of delta, indexed downwards.
uvec2 far_address(uvec2 delta, int head, int seq, int i) {
  const uvec2 offset = stat_address(uvec2(0), head, seq, i); // 4 bytes a row
  const uvec2 bytes = add64(uvec2(offset.x << 1, offset.y << 1 | offset.x >> 31), 8);
  uint borrow;
  const uint low = usubBorrow(delta.x, bytes.x, borrow);
  return uvec2(low, delta.y - bytes.y - borrow);
}
vec2 load_far(uvec2 delta, int head, int seq, int i) {
  return uintBitsToFloat(Load2(far_address(delta, head, seq, i)).w);
}

// lse of a part of a row's keys, a + b, and the rounding error of the sum, which fwd_combine reads.
// The rounding errors lie in front of all lse, indexed downwards.
uvec2 part_rest_address(uvec2 address, int head, int seq, int i) {
  const uvec2 bytes = add64(stat_address(uvec2(0), head, seq, i), 4);
  uint borrow;
  const uint low = usubBorrow(address.x, bytes.x, borrow);
  return uvec2(low, address.y - bytes.y - borrow);
}
void store_part_lse(uvec2 address, int head, int seq, int i, float a, float b) {
  precise float sum = a + b;
  precise float of_b = sum - a;
  precise float of_a = sum - of_b;
  precise float rest_a = a - of_a;
  precise float rest_b = b - of_b;
  Store1(stat_address(address, head, seq, i)).w = floatBitsToUint(sum);
  Store1(part_rest_address(address, head, seq, i)).w = floatBitsToUint(rest_a + rest_b);
}
