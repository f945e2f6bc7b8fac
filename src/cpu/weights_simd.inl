// SPDX-License-Identifier: MIT OR Apache-2.0
// Weights of elastic softmax and entmax, and what their gradients need (the table of
// docs/kernels/overview.md). Softmax has them in its kernels. Included inside an anonymous
// namespace, after terms_simd.inl.

// Natural logarithm of a positive normal number, to about an ulp: x = 2^n f, f between sqrt(1/2)
// and sqrt(2); log f = 2 atanh(q), q = (f - 1) / (f + 1).
inline Vec log(Vec x) {
  const IntVec number = bits(x);
  // The exponent of x / sqrt(1/2), and x without it.
  const Vec n = exponent_of(number, 0x3f3504f3);
  const Vec f = without_exponent(number, 0x3f3504f3);
  const Vec q = (f - splat(1)) / (f + splat(1)), z = q * q;
  // 2 atanh(q) = 2 q + q^3 P(q^2); P has a relative error of 1e-8 up to q = 0.1716.
  Vec p = splat(0x1.c71c72p-3f);        // 2 / 9
  p = fma(p, z, splat(0x1.24924ap-2f));  // 2 / 7
  p = fma(p, z, splat(0x1.99999ap-2f));  // 2 / 5
  p = fma(p, z, splat(0x1.555556p-1f));  // 2 / 3
  const Vec head = q + q, tail = p * z * q;
  return fma(n, splat(0x1.62e4p-1f), head + fma(n, splat(0x1.7f7d1cp-20f), tail));
}

struct Weights {
  Vec y, g;
  IntVec pass;  // M of elastic softmax
};

// From a score, -inf where it is hidden. shift: tau / n. lse: +inf where a row sees no key. Without
// a shift p is above 0, although exp() may end in 0.
inline Weights elastic_weights(Vec s, Vec origin, Vec lse, Vec shift) {
  const Vec p = exp((s - origin) - lse), y = p + shift, zero = splat(0);
  const IntVec pass = both(either(not_less(shift, zero), less(zero, y)), less(splat(-kInfinity), s));
  return {select(pass, y, zero), p, pass};
}

// From x = z - t.
inline Weights entmax_weights(const SimdNormal& n, Vec x) {
  const IntVec has = less(splat(0), x);
  const Vec zero = splat(0);
  if (n.exponent == 1) return {select(has, x, zero), select(has, splat(1), zero), has};
  if (n.exponent == 2) return {select(has, x * x, zero), select(has, x, zero), has};
  Vec u = splat(1);
  if (n.whole > 0) {
    Vec power = x;
    for (int rest = n.whole - 1; rest > 0; rest /= 2, power = power * power)
      if (rest % 2 != 0) u = u * power;
  } else {
    const Vec least = splat(std::numeric_limits<float>::min());
    u = exp(splat(n.exponent - 1) * log(max(x, least)));
  }
  return {select(has, x * u, zero), select(has, u, zero), has};
}

inline Weights weights_of(const SimdNormal& n, Vec s, Vec origin, Vec lse, Vec shift) {
  if (n.kind == SimdKind::elastic) return elastic_weights(s, origin, lse, shift);
  if (n.kind == SimdKind::entmax)
    return entmax_weights(n, (s * splat(n.alpha_less_1) - origin) - lse);
  const Vec p = exp((s - origin) - lse);
  return {p, p, less(splat(-kInfinity), s)};
}

// tau / n_i of row i, of a head of the group; 0 where the row has none.
inline float elastic_shift(const SimdNormal& n, TandemBand band, int h, int i) {
  if (n.kind != SimdKind::elastic) return 0;
  const int64_t first = larger(int64_t(0), int64_t(i) + band.off - band.left),
                last = smaller(int64_t(n.seq_kv - 1), int64_t(i) + band.off + band.right);
  return i < n.seq_q && first <= last ? n.tau[h] / float(last - first + 1) : 0;
}
