// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq: one tile of query rows, which are the lanes, over all key tiles that it visits.

// Turns scores into ds (in place). kFar: subtracts the rows' origins first.
template <bool kMasked, bool kFar>
inline void ds_keys(const SimdBwdDq& t, int64_t lane, int col0, int keys, float factor_of_s) {
  const Vec lanes = count_from(int(lane)), scale = splat(factor_of_s);
  const Vec lse = load(t.lse_lanes + lane), delta = load(t.delta_lanes + lane);
  for (int j = 0; j < keys; ++j) {
    float* s = t.s + j * t.pitch + lane;
    Vec x = load(s) * scale;
    if (kMasked) {
      const int64_t diagonal = int64_t(col0) + j - t.band.off - t.row0;
      const LaneRange see(diagonal - t.band.right, diagonal + t.band.left, t.pitch);
      x = hide(x, lanes, see.lo, see.hi);
    }
    if (kFar) x = x - load(t.origin_lanes + lane);
    store(s, exp(x - lse) * (load(t.dp + j * t.pitch + lane) - delta));
  }
}

// The same of elastic softmax and entmax, for all lanes. t.row_sums has tau / n of each row.
inline void ds_keys_of(const SimdBwdDq& t, int col0, int keys, float factor_of_s, int64_t lanes) {
  const Vec lane0 = count_from(0);
  for (int j = 0; j < keys; ++j) {
    const LaneRange see = rows_that_see(t, col0, j);
    for (int64_t c = 0; c < lanes; c += kLanes) {
      float* s = t.s + j * t.pitch + c;
      const Vec x = hide(load(s) * splat(factor_of_s), lane0 + splat(float(c)), see.lo, see.hi);
      const Weights w = weights_of(t.normal, x, load(t.origin_lanes + c), load(t.lse_lanes + c),
                                   load(t.row_sums + c));
      const Vec dp = select(w.pass, load(t.dp + j * t.pitch + c), splat(0));
      store(s, w.g * (dp - load(t.delta_lanes + c)));
    }
  }
}

// Stages what the rows of a tile are and brought along; tau / n of each to t.row_sums.
struct QuerySides {
  Side q, d_o;
};
inline QuerySides stage_query_rows(const SimdBwdDq& t, int64_t lanes) {
  const Side q = stage_side(t.pairs.qk, t.q, t.row0, t.rows, lanes, t.head_dim, t.qt, t.pitch);
  const Side d_o = stage_side(t.pairs.v, t.d_o, t.row0, t.rows, lanes, t.head_dim_v, t.d_ot, t.pitch);
  for (int64_t r = 0; r < lanes; ++r) {
    // +inf makes every p of a row 0: for rows that see no key, and lanes past the end.
    const bool sees = r < t.rows && t.lse[r] != -kInfinity;
    t.lse_lanes[r] = sees ? t.lse[r] : kInfinity;
    t.delta_lanes[r] = sees && !t.new_delta ? t.delta[r] : 0;
    t.origin_lanes[r] = sees && t.origin ? t.origin[r] : 0;
    t.row_sums[r] = sees ? elastic_shift(t.normal, t.band, 0, t.row0 + int(r)) : 0;
  }
  return {q, d_o};
}

void bwd_dq_kernel(const SimdBwdDq& t) {
  const int64_t D = t.head_dim, Dv = t.head_dim_v, lanes = round_up(t.rows, kLanes);
  const QuerySides sides = stage_query_rows(t, lanes);
  const bool want_q = t.d_q.base != nullptr;
  if (want_q) clear(t.d_qt, D, lanes, t.pitch);

  for (int tile = t.tiles.begin; tile < t.tiles.end; ++tile) {
    const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
    const TermsTile<false> terms = terms_tile(t, col0, keys);
    if (!terms.any()) continue;
    const Staged k = dots(sides.q, t.k, col0, keys, D, t.k_staged, t.s, lanes);
    dots(sides.d_o, t.v, col0, keys, Dv, t.v_staged, t.dp, lanes);
    const bool masked = tile < t.tiles.full_begin || tile >= t.tiles.full_end;
    const float scale = terms.form_scores();
    if (terms.drops()) terms.draw(), terms.drop(t.dp);
    const bool softmax = t.normal.kind == SimdKind::softmax;
    if (!softmax) ds_keys_of(t, col0, keys, scale, lanes);
    for (int64_t c = 0; softmax && c < lanes; c += kLanes) {
      if (t.origin)
        ds_keys<true, true>(t, c, col0, keys, scale);
      else
        masked ? ds_keys<true, false>(t, c, col0, keys, scale)
               : ds_keys<false, false>(t, c, col0, keys, scale);
    }
    add_ds(t, col0, keys, lanes);
    if (!want_q) continue;
    if (t.terms && t.terms->bend) multiply(t.s, t.terms->bend, keys, lanes, t.pitch);
    add_weighted(t.pairs.weights, t.k, col0, keys, D, t.k_staged, k, t.s, t.d_qt, t.pitch, lanes);
  }

  if (want_q) {
    scale_lanes(t.d_qt, t.scale, D, lanes, t.pitch);
    store_lanes(t.d_qt, t.pitch, t.d_q, t.row0, t.rows, D);
  }
}
