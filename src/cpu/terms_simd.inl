// SPDX-License-Identifier: MIT OR Apache-2.0
// Optional inputs: turns the products of a tile into scores, in the order of the reference
// (ScoreRows::add_terms). Included inside an anonymous namespace, after simd_tile.inl.

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

// A tile of scores: steps of lanes, at a pitch. KEYS: lanes are keys and steps are rows, else the
// other way round.
struct ScoreTile {
  float scale;
  TandemBand band;
  int row0, rows, col0, cols;
  float* s;     // products, then scores; -inf where keep or spans hide
  float* bend;  // null, or the derivatives of softcap, which has them
  float* term;  // scratch, as large as s
  int64_t pitch;
};

// Whether none of 8 bytes is 0.
inline bool all_kept(const uint8_t* at) {
  uint64_t x;
  std::memcpy(&x, at, 8);
  return ((x - 0x0101010101010101u) & ~x & 0x8080808080808080u) == 0;
}

// Puts -inf in place of the terms of pairs that keep hides, of a mask with a row for each query.
template <bool KEYS>
inline void hide_by_keep(const SimdTerms& x, const ScoreTile& t) {
  for (int r = 0; r < t.rows; ++r) {
    const uint8_t* at = x.keep + (t.row0 + r) * x.keep_row + t.col0 * x.keep_key;
    for (int j = 0; j < t.cols; ++j) {
      if (x.keep_key == 1 && j + 8 <= t.cols && all_kept(at + j)) {
        j += 7;
        continue;
      }
      if (!at[j * x.keep_key]) t.term[KEYS ? r * t.pitch + j : j * t.pitch + r] = -kInfinity;
    }
  }
}

// The rows of the tile that see a key by an interval, from the tile's first row on.
inline void clamp_span(const int32_t* span, const ScoreTile& t, float* begin, float* end) {
  const auto within = [&](int32_t row) {
    return float(row <= t.row0 ? 0 : row >= t.row0 + t.rows ? t.rows : row - t.row0);
  };
  *begin = within(span[0]), *end = within(span[1]);
}

template <bool KEYS>
void add_terms(const SimdTerms& x, const ScoreTile& t) {
  const int steps = KEYS ? t.rows : t.cols;
  const int64_t lanes = round_up(KEYS ? t.cols : t.rows, kLanes);
  const bool keep_rows = x.keep && x.keep_row != 0, keep_keys = x.keep && !keep_rows;
  const bool has_tile = x.bias.base || keep_rows;
  if (x.bias.base) {
    SimdRows bias = x.bias;
    const int64_t size = bias.dtype == TANDEM_F32 ? 4 : 2;
    bias.base = static_cast<char*>(bias.base) + t.col0 * bias.feature * size;
    if (KEYS)
      for (int r = 0; r < t.rows; ++r) load_row(bias, t.row0 + r, t.cols, t.term + r * t.pitch);
    else
      stage_lanes(bias, t.row0, t.rows, lanes, t.cols, t.term, t.pitch);
  } else if (has_tile) {
    clear(t.term, steps, lanes, t.pitch);
  }
  if (keep_rows) hide_by_keep<KEYS>(x, t);
  // Of each lane that is a key: whether a mask of one row keeps it, and its intervals.
  float kept[kSimdMaxFeatures], begin[2][kSimdMaxFeatures], end[2][kSimdMaxFeatures];
  if (KEYS)
    for (int j = 0; j < lanes; ++j) {
      kept[j] = !keep_keys || (j < t.cols && x.keep[(t.col0 + j) * x.keep_key]) ? 0 : -kInfinity;
      for (int n = 0; n < x.span_count; ++n) {
        begin[n][j] = end[n][j] = 0;
        if (j < t.cols)
          clamp_span(x.spans + (int64_t(t.col0 + j) * x.span_count + n) * 2, t, &begin[n][j],
                     &end[n][j]);
      }
    }
  const Vec hidden = splat(-kInfinity), scale = splat(t.scale), cap = splat(x.softcap),
            over_cap = splat(x.softcap > 0 ? 1 / x.softcap : 0);
  for (int i = 0; i < steps; ++i) {
    const bool step_hidden = !KEYS && keep_keys && !x.keep[(t.col0 + i) * x.keep_key];
    float lo[2] = {0, 0}, hi[2] = {0, 0};
    for (int n = 0; !KEYS && n < x.span_count; ++n)
      clamp_span(x.spans + (int64_t(t.col0 + i) * x.span_count + n) * 2, t, &lo[n], &hi[n]);
    // Of lane 0; it falls from key to key and rises from row to row.
    const float distance =
        float(KEYS ? t.row0 + i + t.band.off - t.col0 : t.row0 + t.band.off - (t.col0 + i));
    for (int64_t c = 0; c < lanes; c += kLanes) {
      float* s = t.s + i * t.pitch + c;
      Vec y = load(s) * scale;
      const Vec lane = count_from(int(c));
      if (x.softcap > 0) {
        Vec derivative;
        y = cap * tanh_of(y * over_cap, &derivative);
        if (t.bend) store(t.bend + i * t.pitch + c, derivative);
      }
      Vec term = splat(0);
      if (has_tile) term = load(t.term + i * t.pitch + c), y = y + term;
      if (x.has_slope) {
        const Vec d = KEYS ? splat(distance) - lane : splat(distance) + lane;
        y = y - splat(x.slope) * max(d, splat(0) - d);
      }
      if (has_tile) y = select(equal(term, hidden), hidden, y);
      if (KEYS && keep_keys) y = select(equal(load(kept + c), hidden), hidden, y);
      if (step_hidden) y = hidden;
      if (x.span_count > 0) {
        IntVec seen{};
        for (int n = 0; n < x.span_count; ++n) {
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
}
