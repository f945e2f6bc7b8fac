// SPDX-License-Identifier: MIT OR Apache-2.0
// From the score to the weight y and to ds, by way of the base (docs/kernels/overview.md):
// softmax's p, below 0 for keys that elastic softmax does not see; entmax's distance x above the
// threshold. Also dropout.
#include "problem/philox.h"

// log2 of x > 0 to a few ulp also near 1, where GLSL promises absolute accuracy only, which powers
// near alpha = 1 multiply by a hundred.
float exact_log2(float x) {
  const int bits = floatBitsToInt(x), k = (bits - 0x3f2aaaab) >> 23;
  const float f = intBitsToFloat(bits - (k << 23)); // 2/3 to 4/3
  precise float s = (f - 1.0) / (f + 1.0);
  const float z = s * s;
  // s P(s^2); P has the least maximum of the relative error: 3e-9
  float p = fma(z, 0.4390832, 0.5763952);
  p = fma(p, z, 0.9618022);
  p = fma(p, z, 2.88539);
  return fma(s, p, float(k));
}

// x^((2 - alpha) / (alpha - 1)), 0 at 0. The weight is x times this.
float entmax_power(float x) {
  if (ALPHA == 1) return x;
  if (ALPHA == 2) return x > 0 ? 1.0 : 0.0;
  return x > 0 ? exp2((extra.entmax_exponent - 1.0) * exact_log2(x)) : 0.0;
}

float base_of(float s, float origin) {
  if (NORM == ENTMAX) {
    precise float x = s - origin;
    return max(x, 0.0);
  }
  if (NORM != ELASTIC) return weight(s, origin);
  // Other kernels may have summed the score by matrix hardware. The only key of a row has weight 1
  // at most.
  return is_hidden(s) ? -1.0 : min(weight(s, origin), 1.0);
}
vec4 bases(vec4 s, vec4 origin) {
  return vec4(base_of(s.x, origin.x), base_of(s.y, origin.y), base_of(s.z, origin.z),
              base_of(s.w, origin.w));
}

// tau / n_i of a query row; 0 unless softmax is elastic.
float share_of(int i) {
  if (NORM != ELASTIC) return 0;
  const int n = tandem_key_count(mask_band(), i, entry.seq_q, entry.seq_kv);
  precise float share = inputs.tau / float(max(n, 1));
  // Rows that do not exist have weight 0, whatever is loaded for them.
  return n > 0 ? share : 0.0;
}

// p + tau / n of a visible key.
float raised(float base, float share) {
  precise float y = base + share;
  return y;
}
// Without a share p is above 0, although exp may underflow to 0.
bool is_live(float base, float share) {
  return base >= 0 && (share >= 0 || raised(base, share) > 0);
}

float weight_of(float base, float share) {
  if (NORM == ELASTIC) return is_live(base, share) ? raised(base, share) : 0.0;
  if (NORM == ENTMAX) return base * entmax_power(base);
  return base;
}
vec4 weights_of(vec4 base, vec4 share) {
  if (NORM == SOFTMAX) return base;
  return vec4(weight_of(base.x, share.x), weight_of(base.y, share.y), weight_of(base.z, share.z),
              weight_of(base.w, share.w));
}

// g, and M dp: ds = g (M dp - delta).
float slope_of(float base) {
  if (NORM == ELASTIC) return max(base, 0.0);
  if (NORM == ENTMAX) return entmax_power(base);
  return base;
}
float live_dp(float base, float share, float dp) {
  return NORM != ELASTIC || is_live(base, share) ? dp : 0.0;
}

vec4 ds_of(vec4 base, vec4 share, vec4 dp, vec4 delta) {
  if (NORM == SOFTMAX) return base * (dp - delta);
  vec4 ds;
  [[unroll]] for (int c = 0; c < 4; c++) ds[c] =
      slope_of(base[c]) * (live_dp(base[c], share[c], dp[c]) - delta[c]);
  return ds;
}

#ifndef BY_ELEMENT
// entmax: whether a key of the tile has a weight in this invocation.
bool has_support(vec4 base[RQ]) {
  float top = 0;
  [[unroll]] for (int r = 0; r < RQ; r++) top =
      max(top, max(max(base[r].x, base[r].y), max(base[r].z, base[r].w)));
  return top > 0;
}
#endif

// Which keys dropout keeps, a bit for each: keys 4 quad to 4 quad + 3 of query row i.
uint drop_quad(int i, int quad) {
  uvec2 seed = push.extra[AT_SEED];
  TandemPhilox w = tandem_dropout_words(inputs.head, i, quad, seed.x, seed.y, push.drop_offset);
  return (w.x >= extra.drop_below ? 1u : 0u) | (w.y >= extra.drop_below ? 2u : 0u) |
         (w.z >= extra.drop_below ? 4u : 0u) | (w.w >= extra.drop_below ? 8u : 0u);
}
#ifndef BY_ELEMENT
// Bits of an invocation's keys in query row i, of which j is the first.
uint drop_bits(int i, int j) {
  uint bits = drop_quad(i, j >> 2);
  if (ANYWHERE && (j & 3) != 0) bits = (bits | drop_quad(i, (j >> 2) + 1) << 4) >> (j & 3);
  return bits;
}
#endif
vec4 drop_factor(uint bits) {
  return vec4((bits & 1u) != 0 ? extra.drop_scale : 0.0, (bits & 2u) != 0 ? extra.drop_scale : 0.0,
              (bits & 4u) != 0 ? extra.drop_scale : 0.0, (bits & 8u) != 0 ? extra.drop_scale : 0.0);
}
#ifndef BY_ELEMENT
void drop_tile(inout vec4 x[RQ], int i0, int j0) {
  [[unroll]] for (int r = 0; r < RQ; r++) x[r] *=
      drop_factor(drop_bits(i0 + ROW_OF(r), j0 + COL_OF(r)));
}
#endif
