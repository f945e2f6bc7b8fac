// SPDX-License-Identifier: MIT OR Apache-2.0
// The search for the thresholds of entmax of a tile of query rows, which are the lanes, from its
// scores, which are kept for it: [keys][pitch]. Included inside an anonymous namespace, after
// fwd_simd.inl.

// The scores of a tile of keys, -inf where they are hidden, to t.scores. Tile: SimdFwd or
// SimdBwdOrigin, as below. False: nothing of the tile is shown.
template <typename Tile>
inline bool keep_scores(const Tile& t, const Side& q, int tile, int64_t lanes) {
  const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
  const TermsTile<false> terms = terms_tile(t, col0, keys);
  if (!terms.any()) return false;
  dots(q, t.k, col0, keys, t.head_dim, t.k_staged, t.s, lanes);
  const Vec lane0 = count_from(0), scale = splat(terms.form_scores());
  for (int j = 0; j < keys; ++j) {
    const LaneRange see = rows_that_see(t, col0, j);
    float* const to = t.scores + (col0 + j) * t.pitch;
    for (int64_t c = 0; c < lanes; c += kLanes) {
      const Vec x = hide(load(t.s + j * t.pitch + c) * scale, lane0 + splat(float(c)), see.lo, see.hi);
      store(to + c, x);
      store(t.s + j * t.pitch + c, x);
    }
  }
  return true;
}
template <typename Tile>
inline void hide_scores(const Tile& t, int tile, int64_t lanes) {
  const int col0 = tile * t.bc, keys = smaller(t.bc, t.seq_kv - col0);
  for (int j = 0; j < keys; ++j)
    for (int64_t c = 0; c < lanes; c += kLanes)
      store(t.scores + (col0 + j) * t.pitch + c, splat(-kInfinity));
}

// Sums over the keys [first, end) of some lanes: of x and x^2 and the number of x above 0 where
// entmax has a power for it, else of y and u. x = (z - m) - r.
struct EntmaxSums {
  Vec x, xx, n;
};
inline EntmaxSums entmax_sums(const SimdNormal& normal, const float* s, int64_t pitch, int first,
                              int end, Vec m, Vec r) {
  const Vec scale = splat(normal.alpha_less_1), zero = splat(0);
  EntmaxSums all{zero, zero, zero};
  for (int from = first; from < end; from += int(kChain)) {
    EntmaxSums part{zero, zero, zero};
    for (int j = from; j < end && j < from + int(kChain); ++j) {
      const Vec above = (load(s + j * pitch) * scale - m) - r;
      if (normal.exponent > 2 || (normal.exponent < 2 && normal.exponent > 1)) {
        const Weights w = entmax_weights(normal, above);
        part.x = part.x + w.y, part.xx = part.xx + w.g;
      } else {
        const Vec x = max(above, zero);
        part.x = part.x + x, part.xx = fma(x, x, part.xx);
        part.n = part.n + select(less(zero, above), splat(1), zero);
      }
    }
    all = {all.x + part.x, all.xx + part.xx, all.n + part.n};
  }
  return all;
}

// The step of a lane's threshold: with an alpha of 1.5 or 2 to the root if the support stays the
// same (shaders/parts/entmax.glsl), else Newton's for the norm of the x, which is nearly linear
// (src/cpu/ref_entmax.cpp).
inline float entmax_step(const SimdNormal& normal, float x, float xx, float n) {
  if (normal.exponent == 1) return (x - 1) / n;
  if (normal.exponent != 2) {
    if (!(x > 0 && xx > 0)) return -1;
    const float less = std::expm1(std::log(x) / normal.exponent);  // the norm less 1
    return less * x / ((less + 1) * xx);
  }
  const float rest = x * x - n * (xx - 1);
  return (xx - 1) / (x + std::sqrt(rest > 0 ? rest : 0));
}

// m: the largest z of each row, and l: the threshold relative to it; -inf and 0 where a row sees no
// key. A limit on the passes that no row is known to need.
constexpr int kMostPasses = 64;
template <typename Tile>
inline void find_thresholds(const Tile& t, int64_t lanes) {
  const int first = t.tiles.begin * t.bc, end = smaller(t.tiles.end * t.bc, t.seq_kv);
  const Vec scale = splat(t.normal.alpha_less_1);
  for (int64_t c = 0; c < lanes; c += kLanes) {
    const float* const s = t.scores + c;
    Vec m = splat(-kInfinity);
    for (int j = first; j < end; ++j) m = max(load(s + j * t.pitch) * scale, m);
    store(t.m + c, m);
    float r[kLanes], low[kLanes], high[kLanes];
    bool moving[kLanes], any = false;
    for (int n = 0; n < kLanes; ++n) {
      moving[n] = t.m[c + n] != -kInfinity;
      any = any || moving[n];
      // The root of equal scores may not lie on the bound.
      const float keys = float(end - first);
      low[n] = -1, high[n] = -0.999f * std::pow(keys, -t.normal.alpha_less_1);
      r[n] = moving[n] ? -1.f : 0.f;
    }
    for (int pass = 0; any && pass < kMostPasses; ++pass) {
      const EntmaxSums sums = entmax_sums(t.normal, s, t.pitch, first, end, m, load(r));
      float x[kLanes], xx[kLanes], count[kLanes];
      store(x, sums.x), store(xx, sums.xx), store(count, sums.n);
      any = false;
      for (int n = 0; n < kLanes; ++n) {
        if (!moving[n]) continue;
        const float step = entmax_step(t.normal, x[n], xx[n], count[n]);
        (step >= 0 ? low : high)[n] = r[n];
        float next = r[n] + step;
        // A step of a few units in the last place ends the search.
        bool last = std::fabs(step) <= 2e-7f * std::fabs(r[n]);
        if (!(next > low[n] && next < high[n])) {
          if (last) {
            next = r[n];
          } else {
            next = 0.5f * (low[n] + high[n]);
            last = next <= low[n] || next >= high[n];
          }
        }
        r[n] = next;
        moving[n] = !last;
        any = any || moving[n];
      }
    }
    for (int n = 0; n < kLanes; ++n) t.l[c + n] = r[n];
  }
}
