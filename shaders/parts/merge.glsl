// SPDX-License-Identifier: MIT OR Apache-2.0
// What merge and bwd_merge share: tensors of parts, and the weights of a row's parts. The includer
// has OTHER_DTYPE, and the parameters seq_q, heads and parts in `block`. Twin of
// cuda/parts/merge.cuh.

// Four features of a tensor of another type than DTYPE, as floats.
View other_view(uvec2 address, Strides s, int b, int h, bool wide) {
  return view_of(OTHER_DTYPE == F32 ? 2 : 1, address, s, b, h, block.seq_q, block.head_dim_v, wide);
}
vec4 load_other(View t, int row, int col) {
  const uvec2 at = row_address(t, row);
  if (t.wide && col + 4 <= t.width) {
    if (OTHER_DTYPE == F32) return uintBitsToFloat(Load4(add64(at, col << 2)).w);
    const uvec2 w = Load2(add64(at, col << 1)).w;
    if (OTHER_DTYPE == F16) return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
    return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u));
  }
  vec4 x = vec4(0);
  [[dont_unroll]] for (int i = 0; i < min(4, t.width - col); i++) x[i] =
      load_float(OTHER_DTYPE, add64(at, mul64(t.col, col + i)));
  return x;
}

// The view of part n of a tensor of parts.
View nth(View t, Strides step, int n, int shift) {
  t.base = add64(t.base, to_bytes(mul64(step.bh.xy, n), shift));
  return t;
}

// lse of a part as bits: LSE_NONE is that of one that saw no key.
uvec2 part_lse_address(uvec2 address, int n, int head, int row) {
  return stat_address(address, n * block.heads + head, block.seq_q, row);
}

// The largest lse of a row's parts, of how many parts it is, and the sum of their weights relative
// to it.
struct Sums {
  float origin, sum;
  int seen;
};
void add_origin(inout Sums s, uint lse) {
  if (lse == LSE_NONE) return;
  const float x = uintBitsToFloat(lse);
  if (s.seen == 0 || x > s.origin) s.origin = x;
  s.seen++;
}
// precise: the largest part has a weight of exactly 1 before the division.
float raw_weight(Sums s, uint lse) {
  if (lse == LSE_NONE) return 0.0;
  const float x = uintBitsToFloat(lse);
  precise float far = x - s.origin;
  return x == s.origin ? 1.0 : exp(far);
}
