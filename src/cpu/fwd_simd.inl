// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: one tile of query rows, which are the lanes, over all key tiles that it visits.

// One tile's scores (in place) to p, with the online row state. True where m grew in some lane: what o has
// so far must then be multiplied by factor.
template <bool kMasked>
inline bool softmax_tile(const SimdFwd& t, int64_t lane, int col0, int keys) {
  const Vec lanes = count_from(int(lane)), scale = splat(t.scale), old = load(t.m + lane);
  const int64_t top = t.pitch;
  float* s = t.s + lane;
  Vec m = old;
  for (int j = 0; j < keys; ++j) {
    Vec x = load(s + j * t.pitch) * scale;
    if (kMasked) {
      const int64_t diagonal = int64_t(col0) + j - t.band.off - t.row0;
      const LaneRange see(diagonal - t.band.right, diagonal + t.band.left, top);
      x = hide(x, lanes, see.lo, see.hi);
    }
    store(s + j * t.pitch, x);
    m = max(x, m);
  }
  // A row that has seen nothing yet: p = exp(-inf - 0) = 0.
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

void fwd_kernel(const SimdFwd& t) {
  const int64_t D = t.head_dim, Dv = t.head_dim_v, lanes = round_up(t.rows, kLanes);
  stage_lanes(t.q, t.row0, t.rows, lanes, D, t.qt, t.pitch);
  for (int64_t c = 0; c < lanes; c += kLanes) {
    store(t.m + c, splat(-kInfinity));
    store(t.l + c, splat(0));
  }
  clear(t.ot, Dv, lanes, t.pitch);

  for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
    const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
    const Staged k = stage(t.k, col0, keys, D, t.k_staged);
    product<false>({D, k.data, k.pitch, 1, t.qt, t.s, t.pitch}, keys, lanes);
    const bool masked = tile < t.tiles.full_begin || tile >= t.tiles.full_end;
    for (int64_t c = 0; c < lanes; c += kLanes) {
      const bool grew =
          masked ? softmax_tile<true>(t, c, col0, keys) : softmax_tile<false>(t, c, col0, keys);
      if (!grew) continue;
      const Vec factor = load(t.factor + c);
      for (int64_t d = 0; d < Dv; ++d)
        store(t.ot + d * t.pitch + c, load(t.ot + d * t.pitch + c) * factor);
    }
    const Staged v = stage(t.v, col0, keys, Dv, t.v_staged);
    product<true>({keys, v.data, 1, v.pitch, t.s, t.ot, t.pitch}, Dv, lanes);
  }

  for (int64_t c = 0; c < lanes; c += kLanes) {
    float factor[kLanes];
    for (int n = 0; n < kLanes; ++n) {
      const float l = t.l[c + n];
      factor[n] = l == 0 ? 0 : 1 / l;
      if (t.lse && c + n < t.rows) t.lse[c + n] = l == 0 ? -kInfinity : t.m[c + n] + std::log(l);
    }
    const Vec x = load(factor);
    for (int64_t d = 0; d < Dv; ++d)
      store(t.ot + d * t.pitch + c, load(t.ot + d * t.pitch + c) * x);
  }
  store_lanes(t.ot, t.pitch, t.o, t.row0, t.rows, Dv);
}
