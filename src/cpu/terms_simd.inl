// SPDX-License-Identifier: MIT OR Apache-2.0
// Optional inputs: turns the products of a tile into scores, in the order of the reference
// (ScoreRows::add_terms). Included inside an anonymous namespace, after shown_simd.inl.

// tanh to about an ulp, and its derivative 1 / cosh^2, which keeps its bits far from 0.
inline Vec tanh_of(Vec x, Vec* derivative) {
  const Vec size = max(x, splat(0) - x), e = exp(splat(-2) * size), sum = splat(1) + e;
  *derivative = (splat(4) * e) / (sum * sum);
  const Vec far = (splat(1) - e) / sum, z = x * x;
  // tanh(x) = x + x^3 P(x^2) below 0.625; P has a relative error of 5e-9.
  Vec p = splat(-0x1.75e166p-8f);
  p = fma(p, z, splat(0x1.522682p-6f));
  p = fma(p, z, splat(-0x1.b83c56p-5f));
  p = fma(p, z, splat(0x1.110726p-3f));
  p = fma(p, z, splat(-0x1.555532p-2f));
  const Vec near = fma(p, z * x, x);
  return select(less(size, splat(0.625f)), near, select(less(x, splat(0)), splat(0) - far, far));
}

// Biases of a row's keys that a table has: numbers of its entries, a number behind it adds 0.
template <typename Number>
inline void look_up(const SimdTerms& x, const Number* numbers, int keys, float* to) {
  const float* const table = x.table;
  const uint32_t size = uint32_t(x.table_size);
  int j = 0;
#if defined(TANDEM_SIMD_TABLES)
  const ShortTable entries(table, size);
  for (; size <= ShortTable::kMost && j + kLanes <= keys; j += kLanes)
    store(to + j, entries.look_up(numbers + j));
#endif
  for (; j < keys; ++j) {  // without branches, which would depend on the numbers
    const uint32_t n = uint32_t(numbers[j]), inside = 0u - uint32_t(n < size);
    to[j] = bits_float(float_bits(table[n & inside]) & inside);
  }
}
inline void look_up_row(const SimdTerms& x, const ScoreTile& t, int r, float* to) {
  const int64_t at = (t.row0 + r) * x.index_row + t.col0;
  if (x.index_dtype == TANDEM_U8)
    look_up(x, static_cast<const uint8_t*>(x.index) + at, t.cols, to);
  else if (x.index_dtype == TANDEM_U16)
    look_up(x, static_cast<const uint16_t*>(x.index) + at, t.cols, to);
  else
    look_up(x, static_cast<const int32_t*>(x.index) + at, t.cols, to);
}

// The distance biases of a tile: of step i, those of its lanes lie side by side. Distances of rows
// and keys rise with the row and fall with the key.
template <bool KEYS>
struct Diagonals {
  float of[2 * kSimdMaxFeatures + kSimdMaxLanes];
  bool any;
  Diagonals(const SimdTerms& x, const ScoreTile& t) {
    const int64_t most = int64_t(t.row0) + t.rows - 1 + t.band.off - t.col0;
    const int64_t count = t.rows + t.cols - 1, least = most - count + 1;
    any = x.dist && most >= 0 && least < x.dist_window;
    for (int64_t n = 0; any && n < count + kLanes; ++n) {
      const int64_t distance = KEYS ? most - n : least + n;
      of[n] = distance >= 0 && distance < x.dist_window ? x.dist[distance] : 0;
    }
  }
  const float* step(const ScoreTile& t, int i) const {
    return of + (KEYS ? t.rows : t.cols) - 1 - i;
  }
};

// Writes the biases of a tile's pairs to x.term.
template <bool KEYS>
inline void stage_bias(const SimdTerms& x, const ScoreTile& t, int64_t lanes) {
  if (x.table) {
    stage_pairs<KEYS>(t, lanes, x.term, [&](int r, float* row) { look_up_row(x, t, r, row); });
    return;
  }
  SimdRows bias = x.bias;
  const int64_t size = bias.dtype == TANDEM_F32 ? 4 : 2;
  bias.base = static_cast<char*>(bias.base) + t.col0 * bias.feature * size;
  if (KEYS)
    for (int r = 0; r < t.rows; ++r) load_row(bias, t.row0 + r, t.cols, x.term + r * t.pitch);
  else
    stage_lanes(bias, t.row0, t.rows, lanes, t.cols, x.term, t.pitch);
}

// Returns the factor that the scores still have: the scale, if nothing is added or hidden.
template <bool KEYS>
float add_terms(const SimdTerms& x, const ScoreTile& t, const Shown& shown) {
  const int steps = KEYS ? t.rows : t.cols;
  const int64_t lanes = round_up(KEYS ? t.cols : t.rows, kLanes);
  const Diagonals<KEYS> dist(x, t);
  const bool biased = x.bias.base || x.table;
  if (!biased && !dist.any && !shown.pairs && !shown.keys && !shown.spans && x.softcap == 0 &&
      !x.has_slope)
    return t.scale;
  if (shown.pairs)
    stage_pairs<KEYS>(t, lanes, x.hides,
                      [&](int r, float* row) { put_hides(x, t, shown, r, row); });
  if (biased) stage_bias<KEYS>(x, t, lanes);
  // Of each lane that is a key: whether a mask of one row keeps it, and its intervals.
  const int spans = shown.spans ? x.span_count : 0;
  float kept[kSimdMaxFeatures], begin[2][kSimdMaxFeatures], end[2][kSimdMaxFeatures];
  for (int j = 0; KEYS && (shown.keys || spans > 0) && j < lanes; ++j) {
    const bool inside = j < t.cols;
    kept[j] = !shown.keys || (inside && x.keep[(t.col0 + j) * x.keep_key]) ? 0 : -kInfinity;
    for (int n = 0; n < spans; ++n) {
      const Span s = inside ? clamp_span(spans_of(x, t, j) + 2 * n, t) : Span{0, 0};
      begin[n][j] = float(s.begin), end[n][j] = float(s.end);
    }
  }
  const Vec lane0 = count_from(0), hidden = splat(-kInfinity), scale = splat(t.scale), cap = splat(x.softcap),
            over_cap = splat(x.softcap > 0 ? 1 / x.softcap : 0);
  for (int i = 0; i < steps; ++i) {
    const bool step_hidden = !KEYS && shown.keys && !x.keep[(t.col0 + i) * x.keep_key];
    float lo[2] = {0, 0}, hi[2] = {0, 0};
    for (int n = 0; !KEYS && n < spans; ++n) {
      const Span s = clamp_span(spans_of(x, t, i) + 2 * n, t);
      lo[n] = float(s.begin), hi[n] = float(s.end);
    }
    // Of lane 0; it falls from key to key and rises from row to row.
    const float distance =
        float(KEYS ? t.row0 + i + t.band.off - t.col0 : t.row0 + t.band.off - (t.col0 + i));
    for (int64_t c = 0; c < lanes; c += kLanes) {
      float* s = t.s + i * t.pitch + c;
      Vec y = load(s) * scale;
      const Vec lane = lane0 + splat(float(c));
      if (x.softcap > 0) {
        Vec derivative;
        y = cap * tanh_of(y * over_cap, &derivative);
        if (x.bend) store(x.bend + i * t.pitch + c, derivative);
      }
      if (biased) y = y + load(x.term + i * t.pitch + c);
      if (dist.any) y = y + load(dist.step(t, i) + c);
      if (x.has_slope) {
        const Vec d = KEYS ? splat(distance) - lane : splat(distance) + lane;
        y = y - splat(x.slope) * max(d, splat(0) - d);
      }
      if (shown.pairs) y = select(equal(load(x.hides + i * t.pitch + c), hidden), hidden, y);
      if (KEYS && shown.keys) y = select(equal(load(kept + c), hidden), hidden, y);
      if (step_hidden) y = hidden;
      if (spans > 0) {
        IntVec seen{};
        for (int n = 0; n < spans; ++n) {
          const Vec row = KEYS ? splat(float(i)) : lane,
                    from = KEYS ? load(begin[n] + c) : splat(lo[n]),
                    to = KEYS ? load(end[n] + c) : splat(hi[n]);
          const IntVec inside = both(not_less(row, from), less(row, to));
          seen = n == 0 ? inside : either(seen, inside);
        }
        y = select(seen, y, hidden);
      }
      store(s, y);
    }
  }
  return 1;
}

// A tile of a kernel with optional inputs: what is shown of it, then its scores, then what dropout
// keeps. Without inputs all is shown and the scores keep the scale.
template <bool KEYS>
class TermsTile {
 public:
  // Nothing is read of terms that are null.
  TermsTile(const SimdTerms* terms, const ScoreTile& tile) : x_(terms), t_(tile) {
    if (x_) look_at(*x_, t_, &shown_);
  }
  bool any() const { return shown_.any; }
  // Products become scores, but for the factor that is returned.
  float form_scores() const { return x_ ? add_terms<KEYS>(*x_, t_, shown_) : t_.scale; }
  bool drops() const { return x_ && x_->keeps != 0; }
  void draw() const { draw_factors<KEYS>(*x_, t_, x_->drop); }
  // After draw().
  void drop(float* weights) const {
    const int64_t lanes = round_up(KEYS ? t_.cols : t_.rows, kLanes);
    multiply(weights, x_->drop, KEYS ? t_.rows : t_.cols, lanes, t_.pitch);
  }

 private:
  const SimdTerms* x_;
  const ScoreTile t_;
  Shown shown_;
};
