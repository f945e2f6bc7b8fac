// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv: one tile of keys, which are the lanes, over the query heads of the group and their
// tiles.

// Turns scores into p (in place) and, if d_k is wanted, dp into ds (in place). lse, delta and
// origin (null: no row is far) start at row0.
template <bool kMasked, bool kGradK, bool kFar>
inline void weights_rows(const SimdBwdDkv& t, int64_t lane, int row0, int rows, const float* lse,
                         const float* delta, const float* origin, float factor_of_s) {
  const Vec lanes = count_from(int(lane)), scale = splat(factor_of_s);
  for (int i = 0; i < rows; ++i) {
    float *s = t.s + i * t.pitch + lane, *dp = t.dp + i * t.pitch + lane;
    const bool sees = lse[i] != -kInfinity;
    Vec x = load(s) * scale;
    if (kMasked) {
      const int64_t diagonal = int64_t(row0) + i + t.band.off - t.col0;
      const LaneRange see(diagonal - t.band.left, diagonal + t.band.right, t.pitch);
      x = hide(x, lanes, see.lo, see.hi);
    }
    if (kFar) x = x - splat(origin[i]);
    const Vec p = exp(x - splat(sees ? lse[i] : kInfinity));
    store(s, p);
    if (kGradK) store(dp, p * (load(dp) - splat(sees ? delta[i] : 0)));
  }
}

// The same of elastic softmax and entmax, of head h of the group, for all lanes; and with rows that
// may be far.
inline void weights_rows_of(const SimdBwdDkv& t, int h, int row0, int rows, const float* lse,
                            const float* delta, const float* origin, float factor_of_s,
                            int64_t lanes) {
  const Vec lane0 = count_from(0);
  for (int i = 0; i < rows; ++i) {
    const bool sees = lse[i] != -kInfinity;
    const int64_t diagonal = int64_t(row0) + i + t.band.off - t.col0;
    const LaneRange see(diagonal - t.band.left, diagonal + t.band.right, t.pitch);
    const Vec of_row = splat(sees ? lse[i] : kInfinity), from = splat(sees && origin ? origin[i] : 0),
              shift = splat(sees ? elastic_shift(t.normal, t.band, h, row0 + i) : 0);
    for (int64_t c = 0; c < lanes; c += kLanes) {
      float *s = t.s + i * t.pitch + c, *dp = t.dp + i * t.pitch + c;
      const Vec x = hide(load(s) * splat(factor_of_s), lane0 + splat(float(c)), see.lo, see.hi);
      const Weights w = weights_of(t.normal, x, from, of_row, shift);
      store(s, w.y);
      if (!t.want_k) continue;
      const Vec passed = select(w.pass, load(dp), splat(0));
      store(dp, w.g * (passed - splat(sees ? delta[i] : 0)));
    }
  }
}

void bwd_dkv_kernel(const SimdBwdDkv& t) {
  const int64_t D = t.head_dim, Dv = t.head_dim_v, lanes = round_up(t.cols, kLanes);
  const Side k = stage_side(t.pairs.qk, t.k, t.col0, t.cols, lanes, D, t.kt, t.pitch);
  Side v{};
  if (t.want_k) {
    v = stage_side(t.pairs.v, t.v, t.col0, t.cols, lanes, Dv, t.vt, t.pitch);
    clear(t.d_kt, D, lanes, t.pitch);
  }
  if (t.want_v) clear(t.d_vt, Dv, lanes, t.pitch);

  const int64_t element = t.q.dtype == TANDEM_F32 ? 4 : 2;
  const int group = t.tiles.begin < t.tiles.end ? t.group : 0;  // without rows there is no q
  for (int h = 0; h < group; ++h) {
    SimdRows q_rows = t.q, d_o_rows = t.d_o;
    q_rows.base = static_cast<char*>(t.q.base) + h * t.q_head * element;
    d_o_rows.base = static_cast<char*>(t.d_o.base) + h * t.d_o_head * element;
    for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
      const int row0 = tile * t.br, rows = smaller(t.br, t.seq_q - row0);
      const SimdTerms* const inputs = t.terms ? t.terms + h : nullptr;
      const TermsTile<true> terms(inputs,
                                  {t.scale, t.band, row0, rows, t.col0, t.cols, t.s, t.pitch});
      if (!terms.any()) continue;
      const int64_t row = h * t.lse_head + row0;
      Staged d_o{};
      const Staged q = dots(k, q_rows, row0, rows, D, t.q_staged, t.s, lanes);
      if (t.want_k)
        d_o = dots(v, d_o_rows, row0, rows, Dv, t.d_o_staged, t.dp, lanes);

      // The geometry counts the tile that reaches past seq_q as masked. Here its missing rows do
      // not exist.
      const bool masked = tile < t.tiles.full_begin || tile >= t.tiles.full_end;
      const float *lse = t.lse + row, *delta = t.want_k ? t.delta + row : nullptr;
      const float* origin = t.origin ? t.origin + row : nullptr;
      const float scale = terms.form_scores();
      if (terms.drops()) terms.draw();
      if (terms.drops() && t.want_k) terms.drop(t.dp);
      const bool softmax = t.normal.kind == SimdKind::softmax;
      if (!softmax) weights_rows_of(t, h, row0, rows, lse, delta, origin, scale, lanes);
      for (int64_t c = 0; softmax && c < lanes; c += kLanes) {
        const auto weigh = t.want_k ? origin   ? weights_rows<true, true, true>
                                      : masked ? weights_rows<true, true, false>
                                               : weights_rows<false, true, false>
                           : origin ? weights_rows<true, false, true>
                           : masked ? weights_rows<true, false, false>
                                    : weights_rows<false, false, false>;
        weigh(t, c, row0, rows, lse, delta, origin, scale);
      }
      if (terms.drops() && t.want_v) terms.drop(t.s);
      if (t.want_k && inputs && inputs->bend) multiply(t.dp, inputs->bend, rows, lanes, t.pitch);
      if (t.want_v)
        add_weighted(t.pairs.weights, d_o_rows, row0, rows, Dv, t.d_o_staged, d_o, t.s, t.d_vt, t.pitch, lanes);
      if (t.want_k)
        add_weighted(t.pairs.weights, q_rows, row0, rows, D, t.q_staged, q, t.dp, t.d_kt, t.pitch, lanes);
    }
  }

  if (t.want_k) {
    scale_lanes(t.d_kt, t.scale, D, lanes, t.pitch);
    store_lanes(t.d_kt, t.pitch, t.d_k, t.col0, t.cols, D);
  }
  if (t.want_v) store_lanes(t.d_vt, t.pitch, t.d_v, t.col0, t.cols, Dv);
}
