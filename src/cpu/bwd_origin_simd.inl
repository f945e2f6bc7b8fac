// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_origin: for a tile of query rows, which are the lanes, the numbers that replace lse in far
// rows (simd.h). Two passes over the keys, the first like fwd without v, the second for delta with
// the weights themselves. It runs only if a row is far.

// delta += p dp.
inline void delta_keys(const SimdBwdOrigin& t, int64_t lane, int col0, int keys, float scale) {
  const Vec m = load(t.m + lane), l = load(t.l + lane);
  Vec delta = load(t.delta + lane);
  for (int j = 0; j < keys; ++j) {
    const LaneRange see = rows_that_see(t, col0, j);
    const float* s = t.s + j * t.pitch + lane;
    const Vec x = hide(load(s) * splat(scale), count_from(int(lane)), see.lo, see.hi);
    // With a single key, p is 1 and delta is dp.
    delta = fma(exp((x - m) - l), load(t.dp + j * t.pitch + lane), delta);
  }
  store(t.delta + lane, delta);
}

void bwd_origin_kernel(const SimdBwdOrigin& t) {
  const int64_t D = t.head_dim, Dv = t.head_dim_v, lanes = round_up(t.rows, kLanes);
  const Side q = stage_side(t.pairs.qk, t.q, t.row0, t.rows, lanes, D, t.qt, t.pitch);
  Side d_o{};
  if (t.want_delta) d_o = stage_side(t.pairs.v, t.d_o, t.row0, t.rows, lanes, Dv, t.d_ot, t.pitch);
  for (int64_t c = 0; c < lanes; c += kLanes) {
    store(t.m + c, splat(-kInfinity));
    store(t.l + c, splat(0));
    store(t.delta + c, splat(0));
  }
  if (t.normal.kind == SimdKind::entmax) {
    for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile)
      if (!keep_scores(t, q, tile, lanes)) hide_scores(t, tile, lanes);
    find_thresholds(t, lanes);
    for (int64_t r = 0; r < lanes; ++r) {
      const bool sees = t.m[r] != -kInfinity;
      t.m[r] = sees ? t.m[r] : 0;
      t.l[r] = sees ? t.l[r] : kInfinity;
    }
    return;  // delta is bwd_row_sums's
  }
  for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
    const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
    const TermsTile<false> terms = terms_tile(t, col0, keys);
    if (!terms.any()) continue;
    dots(q, t.k, col0, keys, D, t.k_staged, t.s, lanes);
    const float scale = terms.form_scores();
    for (int64_t c = 0; c < lanes; c += kLanes) softmax_tile<true>(t, c, col0, keys, scale);
  }
  for (int64_t r = 0; r < lanes; ++r) {
    // A row that sees no key: p = exp(-inf - 0 - inf) = 0.
    const bool sees = t.l[r] != 0;
    if (sees && t.has_sink) {
      const float m = larger(t.m[r], t.sink);
      t.l[r] = t.l[r] * std::exp(t.m[r] - m) + std::exp(t.sink - m);
      t.m[r] = m;
    }
    t.m[r] = sees ? t.m[r] : 0;
    t.l[r] = sees ? std::log(t.l[r]) : kInfinity;
  }
  if (!t.want_delta) return;
  for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
    const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
    const TermsTile<false> terms = terms_tile(t, col0, keys);
    if (!terms.any()) continue;
    dots(q, t.k, col0, keys, D, t.k_staged, t.s, lanes);
    dots(d_o, t.v, col0, keys, Dv, t.v_staged, t.dp, lanes);
    const float scale = terms.form_scores();
    if (terms.drops()) terms.draw(), terms.drop(t.dp);
    for (int64_t c = 0; c < lanes; c += kLanes) delta_keys(t, c, col0, keys, scale);
  }
}
