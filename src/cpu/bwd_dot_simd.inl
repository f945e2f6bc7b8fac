// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot: delta, less d_lse, of a block of rows, which are the lanes. The sum has the order of
// that of dp in the product. So in a row with a single key, where o is v and d_lse is absent, delta
// and dp have the same bits and ds is exactly 0.
void bwd_dot_kernel(const SimdBwdDot& t) {
  float o[kSimdMaxFeatures * kLanes], d_o[kSimdMaxFeatures * kLanes];
  for (int i = 0; i < t.rows; i += kLanes) {
    const int rows = smaller(kLanes, t.rows - i);
    const Side o_side = stage_side(t.pairs, t.o, t.row0 + i, rows, kLanes, t.head_dim_v, o, kLanes);
    const Side d_o_side = stage_side(t.pairs, t.d_o, t.row0 + i, rows, kLanes, t.head_dim_v, d_o, kLanes);
    float delta[kLanes];
    const int64_t steps = t.pairs ? (t.head_dim_v + 1) / 2 : t.head_dim_v;
    const int64_t chain = t.pairs ? kChain / 2 : kChain;
    Vec sum = splat(0);
    for (int64_t first = 0; first < steps; first += chain) {
      Vec part = splat(0);
      for (int64_t c = first; c < steps && c < first + chain; ++c) {
        const Vec x = load(d_o + c * kLanes), y = load(o + c * kLanes);
        part = t.pairs ? multiply_pairs(o_side.subnormal || d_o_side.subnormal, part, x, y) : fma(x, y, part);
      }
      sum = sum + part;
    }
    store(delta, sum);
    for (int n = 0; n < rows; ++n) {
      const bool takes = t.d_lse && t.lse[i + n] != -kInfinity;
      t.delta[i + n] = takes ? delta[n] - t.d_lse[i + n] : delta[n];
    }
  }
}
