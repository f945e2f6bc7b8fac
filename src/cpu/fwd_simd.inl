// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: one tile of query rows, which are the lanes, over all key tiles that it visits.

// The lanes that see key j of the tile from col0 on. Tile: SimdFwd or SimdBwdOrigin, also below.
template <typename Tile>
inline LaneRange rows_that_see(const Tile& t, int col0, int j) {
  const int64_t diagonal = int64_t(col0) + j - t.band.off - t.row0;
  return LaneRange(diagonal - t.band.right, diagonal + t.band.left, t.pitch);
}

// The optional inputs' part in a tile of keys. Tile: SimdFwd, SimdBwdOrigin or SimdBwdDq.
template <typename Tile>
inline TermsTile<false> terms_tile(const Tile& t, int col0, int keys) {
  return {t.terms, {t.scale, t.band, t.row0, t.rows, col0, keys, t.s, t.pitch}};
}

// Turns one tile's scores into p (in place), with the online row state. True if m grew in some
// lane: o so far must then be multiplied by factor.
template <bool kMasked, typename Tile>
inline bool softmax_tile(const Tile& t, int64_t lane, int col0, int keys, float factor_of_s) {
  const Vec lanes = count_from(int(lane)), scale = splat(factor_of_s), old = load(t.m + lane);
  float* s = t.s + lane;
  Vec m = old;
  for (int j = 0; j < keys; ++j) {
    Vec x = load(s + j * t.pitch) * scale;
    if (kMasked) {
      const LaneRange see = rows_that_see(t, col0, j);
      x = hide(x, lanes, see.lo, see.hi);
    }
    store(s + j * t.pitch, x);
    m = max(x, m);
  }
  // A row that has seen no key yet: p = exp(-inf - 0) = 0.
  const Vec base = select(equal(m, splat(-kInfinity)), splat(0), m);
  Vec l = splat(0);
  for (int j = 0; j < keys; ++j) {
    const Vec p = exp(load(s + j * t.pitch) - base);
    store(s + j * t.pitch, p);
    l = l + p;
  }
  const bool grew = !all(equal(m, old));
  const Vec factor = exp(old - base);
  store(t.m + lane, m);
  store(t.l + lane, fma(load(t.l + lane), factor, l));
  store(t.factor + lane, factor);
  return grew;
}

// Doubles o, whose weights were halved, within f32.
inline void double_within(const SimdFwd& t, int64_t lanes) {
  const Vec most = splat(std::numeric_limits<float>::max() / 2), least = splat(0) - most;
  for (int64_t c = 0; c < lanes; c += kLanes)
    for (int64_t d = 0; d < t.head_dim_v; ++d) {
      float* o = t.ot + d * t.pitch + c;
      Vec x = load(o);
      x = select(both(less(most, x), less(x, splat(kInfinity))), most, x);
      x = select(both(less(x, least), less(splat(-kInfinity), x)), least, x);
      store(o, x + x);
    }
}

// Forms o again with weights that are normalised before they are multiplied by v. It is for a v so
// large that sums of p v leave f32, although their means do not. Weights are halved, so that
// rounding cannot carry a sum beyond f32. factor: 1 / l.
inline void average_again(const SimdFwd& t, const Side& q, int64_t lanes) {
  const int64_t D = t.head_dim, Dv = t.head_dim_v;
  clear(t.ot, Dv, lanes, t.pitch);
  for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
    const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
    const TermsTile<false> terms = terms_tile(t, col0, keys);
    if (!terms.any()) continue;
    dots(q, t.k, col0, keys, D, t.k_staged, t.s, lanes);
    const float scale = terms.form_scores();
    for (int64_t c = 0; c < lanes; c += kLanes) {
      const Vec m = load(t.m + c), base = select(equal(m, splat(-kInfinity)), splat(0), m);
      const Vec half = load(t.factor + c) * splat(0.5f);
      for (int j = 0; j < keys; ++j) {
        const LaneRange see = rows_that_see(t, col0, j);
        float* s = t.s + j * t.pitch + c;
        const Vec x = hide(load(s) * splat(scale), count_from(int(c)), see.lo, see.hi);
        store(s, exp(x - base) * half);
      }
    }
    if (terms.drops()) terms.draw(), terms.drop(t.s);
    add_weighted(t.pairs.weights, t.v, col0, keys, Dv, t.v_staged, {}, t.s, t.ot, t.pitch, lanes);
  }
  double_within(t, lanes);
}

void fwd_kernel(const SimdFwd& t) {
  const int64_t D = t.head_dim, Dv = t.head_dim_v, lanes = round_up(t.rows, kLanes);
  const Side q = stage_side(t.pairs.qk, t.q, t.row0, t.rows, lanes, D, t.qt, t.pitch);
  for (int64_t c = 0; c < lanes; c += kLanes) {
    store(t.m + c, splat(-kInfinity));
    store(t.l + c, splat(0));
  }
  clear(t.ot, Dv, lanes, t.pitch);

  for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
    const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
    const TermsTile<false> terms = terms_tile(t, col0, keys);
    if (!terms.any()) continue;
    dots(q, t.k, col0, keys, D, t.k_staged, t.s, lanes);
    const bool masked = tile < t.tiles.full_begin || tile >= t.tiles.full_end;
    const float scale = terms.form_scores();
    for (int64_t c = 0; c < lanes; c += kLanes) {
      const bool grew = masked ? softmax_tile<true>(t, c, col0, keys, scale)
                               : softmax_tile<false>(t, c, col0, keys, scale);
      if (!grew) continue;
      const Vec factor = load(t.factor + c);
      for (int64_t d = 0; d < Dv; ++d)
        store(t.ot + d * t.pitch + c, load(t.ot + d * t.pitch + c) * factor);
    }
    if (terms.drops()) terms.draw(), terms.drop(t.s);
    add_weighted(t.pairs.weights, t.v, col0, keys, Dv, t.v_staged, {}, t.s, t.ot, t.pitch, lanes);
  }

  Vec beyond = splat(0);  // NaN where something is not finite
  for (int64_t c = 0; c < lanes; c += kLanes) {
    float* factor = t.factor + c;
    for (int n = 0; n < kLanes; ++n) {
      const float of_keys = t.m[c + n];
      float l = t.l[c + n], m = of_keys, own = 1;  // own: of the sum of the keys
      if (t.has_sink && l != 0) {
        m = larger(of_keys, t.sink), own = std::exp(of_keys - m);
        l = l * own + std::exp(t.sink - m);
      }
      factor[n] = l == 0 ? 0 : own / l;
      if (t.top && c + n < t.rows && l != 0) *t.top = larger(*t.top, of_keys);
      if (t.lse && c + n < t.rows) t.lse[c + n] = l == 0 ? -kInfinity : m + std::log(l);
    }
    const Vec x = load(factor);
    for (int64_t d = 0; d < Dv; ++d) {
      const Vec o = load(t.ot + d * t.pitch + c) * x;
      store(t.ot + d * t.pitch + c, o);
      beyond = beyond + (o - o);
    }
  }
  if (!all(equal(beyond, splat(0)))) average_again(t, q, lanes);
  store_lanes(t.ot, t.pitch, t.o, t.row0, t.rows, Dv);
}
