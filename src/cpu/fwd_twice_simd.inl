// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of elastic softmax and entmax: one tile of query rows, which are the lanes. The first pass
// over the keys keeps their scores; lse or the threshold is known then, and the second one forms
// weights. Included inside an anonymous namespace, after entmax_simd.inl.

// What weights of rows are relative to, and what is stored of it. As in the backward: rows that
// are not far have no origin.
inline void set_origins(const SimdFwd& t, float* origin, float* lse, float* shift) {
  const bool entmax = t.normal.kind == SimdKind::entmax;
  for (int64_t r = 0; r < round_up(t.rows, kLanes); ++r) {
    float m = t.m[r], l = t.l[r];
    const bool sees = entmax ? m != -kInfinity : l != 0;
    if (sees && t.has_sink) {
      const float top = larger(m, t.sink);
      l = l * std::exp(m - top) + std::exp(t.sink - top);
      m = top;
    }
    const float rest = entmax ? l : std::log(l), whole = m + rest;
    // The rounding of a threshold moves all weights of its row, so entmax has far rows sooner.
    const bool far = entmax ? std::fabs(m) > 8 : tandem_is_far(whole);
    origin[r] = sees && far ? m : 0;
    lse[r] = !sees ? kInfinity : far ? rest : whole;
    shift[r] = sees && r < t.rows ? elastic_shift(t.normal, t.band, 0, t.row0 + int(r)) : 0;
    if (!t.lse || r >= t.rows) continue;
    // A row that sees a key keeps a finite lse.
    const float most = std::numeric_limits<float>::max();
    t.lse[r] = sees ? smaller(larger(whole, -most), most) : -kInfinity;
  }
}

// o^T += V^T Y^T over all tiles, with weights times factor.
inline void add_values(const SimdFwd& t, const float* origin, const float* lse, const float* shift,
                       float factor, int64_t lanes) {
  const int64_t Dv = t.head_dim_v;
  clear(t.ot, Dv, lanes, t.pitch);
  for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
    const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
    const TermsTile<false> terms = terms_tile(t, col0, keys);
    if (!terms.any()) continue;
    for (int j = 0; j < keys; ++j)
      for (int64_t c = 0; c < lanes; c += kLanes) {
        const Vec s = load(t.scores + (col0 + j) * t.pitch + c);
        const Weights w =
            weights_of(t.normal, s, load(origin + c), load(lse + c), load(shift + c));
        store(t.s + j * t.pitch + c, w.y * splat(factor));
      }
    if (terms.drops()) terms.draw(), terms.drop(t.s);
    add_weighted(t.pairs.weights, t.v, col0, keys, Dv, t.v_staged, {}, t.s, t.ot, t.pitch, lanes);
  }
}

void fwd_twice_kernel(const SimdFwd& t) {
  const int64_t lanes = round_up(t.rows, kLanes);
  const Side q = stage_side(t.pairs.qk, t.q, t.row0, t.rows, lanes, t.head_dim, t.qt, t.pitch);
  for (int64_t c = 0; c < lanes; c += kLanes) {
    store(t.m + c, splat(-kInfinity));
    store(t.l + c, splat(0));
  }
  const bool entmax = t.normal.kind == SimdKind::entmax;
  for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
    const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
    if (!keep_scores(t, q, tile, lanes)) {
      hide_scores(t, tile, lanes);
      continue;
    }
    for (int64_t c = 0; c < lanes && !entmax; c += kLanes)
      softmax_tile<false>(t, c, col0, keys, 1);
  }
  if (entmax) find_thresholds(t, lanes);

  float origin[kSimdMaxFeatures], lse[kSimdMaxFeatures], shift[kSimdMaxFeatures];
  set_origins(t, origin, lse, shift);
  add_values(t, origin, lse, shift, 1, lanes);
  Vec beyond = splat(0);  // NaN where something is not finite
  for (int64_t d = 0; d < t.head_dim_v; ++d)
    for (int64_t c = 0; c < lanes; c += kLanes) {
      const Vec o = load(t.ot + d * t.pitch + c);
      beyond = beyond + (o - o);
    }
  if (!all(equal(beyond, splat(0)))) {
    // Weights sum to 1, but for rounding, which may carry a mean of values beyond f32.
    add_values(t, origin, lse, shift, 0.5f, lanes);
    double_within(t, lanes);
  }
  store_lanes(t.ot, t.pitch, t.o, t.row0, t.rows, t.head_dim_v);
}
