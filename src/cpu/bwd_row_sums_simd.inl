// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums: delta of a tile of query rows, which are the lanes, from their weights, and the
// rows' parts of d_slope and d_tau. It runs where delta is not <d_o, o>, or where o, which is
// rounded, would be too coarse for it.

// Adds to the rows' sums: g M dp; |distance| g M dp; |distance| g; M dp; g. M is 1 but for elastic
// softmax.
inline void add_row_sums(const SimdBwdDq& t, int64_t lane, int col0, int keys, float factor_of_s,
                         const float* shifts) {
  const Vec lanes = count_from(int(lane)), scale = splat(factor_of_s);
  const Vec lse = load(t.lse_lanes + lane), origin = load(t.origin_lanes + lane);
  const Vec shift = load(shifts + lane);
  Vec sum[kSimdRowSums];
  for (int n = 0; n < kSimdRowSums; ++n) sum[n] = splat(0);
  for (int j = 0; j < keys; ++j) {
    const LaneRange see = rows_that_see(t, col0, j);
    const Vec x = hide(load(t.s + j * t.pitch + lane) * scale, lanes, see.lo, see.hi);
    const Weights w = weights_of(t.normal, x, origin, lse, shift);
    const Vec dp = select(w.pass, load(t.dp + j * t.pitch + lane), splat(0)), gradient = w.g * dp;
    const Vec d = splat(float(t.row0 + t.band.off - (col0 + j))) + lanes, far = max(d, splat(0) - d);
    sum[0] = sum[0] + gradient;
    sum[1] = sum[1] + far * gradient;
    sum[2] = sum[2] + far * w.g;
    sum[3] = sum[3] + dp;
    sum[4] = sum[4] + w.g;
  }
  for (int n = 0; n < kSimdRowSums; ++n) {
    float* to = t.row_sums + n * t.pitch + lane;
    store(to, load(to) + sum[n]);
  }
}

void bwd_row_sums_kernel(const SimdBwdDq& t) {
  const int64_t D = t.head_dim, Dv = t.head_dim_v, lanes = round_up(t.rows, kLanes);
  const QuerySides sides = stage_query_rows(t, lanes);
  float shifts[kSimdMaxFeatures];
  std::memcpy(shifts, t.row_sums, size_t(lanes) * sizeof(float));
  clear(t.row_sums, kSimdRowSums, lanes, t.pitch);
  for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
    const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
    const TermsTile<false> terms = terms_tile(t, col0, keys);
    if (!terms.any()) continue;
    dots(sides.q, t.k, col0, keys, D, t.k_staged, t.s, lanes);
    dots(sides.d_o, t.v, col0, keys, Dv, t.v_staged, t.dp, lanes);
    const float scale = terms.form_scores();
    if (terms.drops()) terms.draw(), terms.drop(t.dp);
    for (int64_t c = 0; c < lanes; c += kLanes) add_row_sums(t, c, col0, keys, scale, shifts);
  }
  for (int r = 0; r < t.rows; ++r) {
    const float* const sum = t.row_sums + r;
    const float weights = t.normal.kind == SimdKind::entmax ? sum[4 * t.pitch] : 1;
    const float d_lse = t.d_lse && t.lse[r] != -kInfinity ? t.d_lse[r] : 0;
    const float delta = weights == 0 ? 0 : sum[0] / weights - d_lse;
    t.new_delta[r] = delta;
    if (t.slope_rows) t.slope_rows[r] = sum[t.pitch] - delta * sum[2 * t.pitch];
    if (t.tau_rows) {
      const int keys = tandem_key_count(t.band, t.row0 + r, t.normal.seq_q, t.normal.seq_kv);
      t.tau_rows[r] = keys > 0 ? sum[3 * t.pitch] / float(keys) : 0;
    }
  }
}
