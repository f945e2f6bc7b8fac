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
  float* s;  // products, then scores; -inf where keep or spans hide
  int64_t pitch;
};

// Whether none of 8 bytes is 0.
inline bool all_kept(const uint8_t* at) {
  uint64_t x;
  std::memcpy(&x, at, 8);
  return ((x - 0x0101010101010101u) & ~x & 0x8080808080808080u) == 0;
}

// Whether a mask with a row for each query hides a pair of the tile.
inline bool hides_pairs(const SimdTerms& x, const ScoreTile& t) {
  for (int r = 0; r < t.rows; ++r) {
    const uint8_t* at = x.keep + (t.row0 + r) * x.keep_row + t.col0 * x.keep_key;
    int j = 0;
    for (; x.keep_key == 1 && j + 8 <= t.cols; j += 8)
      if (!all_kept(at + j)) return true;
    for (; j < t.cols; ++j)
      if (!at[j * x.keep_key]) return true;
  }
  return false;
}
// That mask as numbers: 0, or -inf where it hides, in the order of scores.
template <bool KEYS>
inline void stage_keep(const SimdTerms& x, const ScoreTile& t, int64_t lanes, float* to) {
  const auto put_row = [&](int r, float* row) {
    const uint8_t* at = x.keep + (t.row0 + r) * x.keep_row + t.col0 * x.keep_key;
    if (x.keep_key == 1)
      for (int j = 0; j < t.cols; ++j) row[j] = at[j] ? 0 : -kInfinity;
    else
      for (int j = 0; j < t.cols; ++j) row[j] = at[j * x.keep_key] ? 0 : -kInfinity;
  };
  if (KEYS) {
    for (int r = 0; r < t.rows; ++r) put_row(r, to + r * t.pitch);
    return;
  }
  float block[4 * kSimdMaxFeatures];
  for (int64_t r = 0; r < t.rows; r += 4) {
    const int count = smaller(4, int(t.rows - r));
    for (int n = 0; n < count; ++n) put_row(int(r) + n, block + n * kSimdMaxFeatures);
    transpose(block, kSimdMaxFeatures, count, t.cols, to + r, t.pitch);
  }
  for (int64_t r = t.rows; r < lanes; ++r)
    for (int64_t j = 0; j < t.cols; ++j) to[j * t.pitch + r] = 0;
}
// Whether a mask of one row hides a key of the tile.
inline bool hides_keys(const SimdTerms& x, const ScoreTile& t) {
  for (int j = 0; j < t.cols; ++j)
    if (!x.keep[(t.col0 + j) * x.keep_key]) return true;
  return false;
}

// The rows of the tile that see a key by an interval, from the tile's first row on.
inline void clamp_span(const int32_t* span, const ScoreTile& t, float* begin, float* end) {
  const auto within = [&](int32_t row) {
    return float(row <= t.row0 ? 0 : row >= t.row0 + t.rows ? t.rows : row - t.row0);
  };
  *begin = within(span[0]), *end = within(span[1]);
}

// Returns the factor that the scores still have: the scale, if nothing is added or hidden.
template <bool KEYS>
float add_terms(const SimdTerms& x, const ScoreTile& t) {
  const int steps = KEYS ? t.rows : t.cols;
  const int64_t lanes = round_up(KEYS ? t.cols : t.rows, kLanes);
  const bool keep_keys = x.keep && x.keep_row == 0 && hides_keys(x, t);
  const bool keep_pairs = x.keep && x.keep_row != 0 && hides_pairs(x, t);
  if (keep_pairs) stage_keep<KEYS>(x, t, lanes, x.hides);
  if (x.bias.base) {
    SimdRows bias = x.bias;
    const int64_t size = bias.dtype == TANDEM_F32 ? 4 : 2;
    bias.base = static_cast<char*>(bias.base) + t.col0 * bias.feature * size;
    if (KEYS)
      for (int r = 0; r < t.rows; ++r) load_row(bias, t.row0 + r, t.cols, x.term + r * t.pitch);
    else
      stage_lanes(bias, t.row0, t.rows, lanes, t.cols, x.term, t.pitch);
  }
  if (!x.bias.base && !keep_pairs && !keep_keys && x.span_count == 0 && x.softcap == 0 && !x.has_slope)
    return t.scale;
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
        if (x.bend) store(x.bend + i * t.pitch + c, derivative);
      }
      if (x.bias.base) y = y + load(x.term + i * t.pitch + c);
      if (x.has_slope) {
        const Vec d = KEYS ? splat(distance) - lane : splat(distance) + lane;
        y = y - splat(x.slope) * max(d, splat(0) - d);
      }
      if (keep_pairs)
        y = select(equal(load(x.hides + i * t.pitch + c), hidden), hidden, y);
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
  return 1;
}
