// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot: delta, less d_lse, of a block of rows, which are the lanes. The sum has the order of
// that of dp in the product. So in a row with a single key, where o is v and d_lse is absent, delta
// and dp have the same bits and ds is exactly 0.
void bwd_dot_kernel(const SimdBwdDot& t) {
  float o[kSimdMaxFeatures * kLanes], d_o[kSimdMaxFeatures * kLanes];
  for (int i = 0; i < t.rows; i += kLanes) {
    const int rows = smaller(kLanes, t.rows - i);
    stage_lanes(t.o, t.row0 + i, rows, kLanes, t.head_dim_v, o, kLanes);
    stage_lanes(t.d_o, t.row0 + i, rows, kLanes, t.head_dim_v, d_o, kLanes);
    float delta[kLanes];
    Vec sum = splat(0);
    for (int64_t first = 0; first < t.head_dim_v; first += kChain) {
      Vec part = splat(0);
      for (int64_t c = first; c < t.head_dim_v && c < first + kChain; ++c)
        part = fma(load(d_o + c * kLanes), load(o + c * kLanes), part);
      sum = sum + part;
    }
    store(delta, sum);
    for (int n = 0; n < rows; ++n) {
      const bool takes = t.d_lse && t.lse[i + n] != -kInfinity;
      t.delta[i + n] = takes ? delta[n] - t.d_lse[i + n] : delta[n];
    }
  }
}
