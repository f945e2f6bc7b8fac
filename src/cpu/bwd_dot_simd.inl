// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot: delta of a block of rows.

void bwd_dot_kernel(const SimdBwdDot& t) {
  float o[kSimdMaxFeatures], d_o[kSimdMaxFeatures];
  const int64_t padded = round_up(t.head_dim_v, kLanes);
  for (int64_t c = t.head_dim_v; c < padded; ++c) o[c] = d_o[c] = 0;
  for (int i = 0; i < t.rows; ++i) {
    load_row(t.o, t.row0 + i, t.head_dim_v, o);
    load_row(t.d_o, t.row0 + i, t.head_dim_v, d_o);
    Vec sum = splat(0);
    for (int64_t c = 0; c < padded; c += kLanes) sum = fma(load(o + c), load(d_o + c), sum);
    float lane[kLanes], delta = 0;
    store(lane, sum);
    for (int n = 0; n < kLanes; ++n) delta += lane[n];
    t.delta[i] = delta;
  }
}
