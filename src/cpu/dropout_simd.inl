// SPDX-License-Identifier: MIT OR Apache-2.0
// Which weights of a tile dropout keeps: words of src/problem/philox.h, 16 counters at a time.
// Included inside an anonymous namespace, after shown_simd.inl.

constexpr int kDraws = 16;
struct Draws {  // factors of the weights of 16 counters, of which each has four
  float of[4][kDraws];
};

// Counter n has the quad and the row of n. The loop over n is vectorised: its body has no branch.
template <typename Quad, typename Row>
inline void draw(const SimdTerms& x, Quad quad, Row row, Draws* to) {
  const uint32_t head = uint32_t(x.head), offset = x.drop_offset, below = x.drop_below;
  const uint32_t low = x.seed_low, high = x.seed_high;
  const float keeps = x.keeps;
  for (int n = 0; n < kDraws; ++n) {
    TandemPhilox c{uint32_t(quad(n)), uint32_t(row(n)), head, offset};
    uint32_t key0 = low, key1 = high;
    const auto next = [&] {  // as tandem_philox()
      c = tandem_philox_round(c, key0, key1);
      key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    };
    next(), next(), next(), next(), next(), next(), next(), next(), next(), next();
    to->of[0][n] = c.x < below ? 0 : keeps;
    to->of[1][n] = c.y < below ? 0 : keeps;
    to->of[2][n] = c.z < below ? 0 : keeps;
    to->of[3][n] = c.w < below ? 0 : keeps;
  }
}

// The factors of a tile, 0 or 1 / (1 - p), in the order of scores. Lanes behind the tile have some
// as well.
template <bool KEYS>
void draw_factors(const SimdTerms& x, const ScoreTile& t, float* to) {
  const int64_t lanes = round_up(KEYS ? t.cols : t.rows, kLanes);
  const int quad0 = t.col0 / 4;  // a tile of keys begins at a multiple of 4
  Draws draws;
  if (!KEYS) {
    for (int j = 0; j < t.cols; j += 4)
      for (int64_t c = 0; c < lanes; c += kDraws) {
        draw(
            x, [=](int) { return quad0 + j / 4; }, [=](int n) { return t.row0 + int(c) + n; },
            &draws);
        const size_t bytes = sizeof(float) * size_t(c + kDraws <= lanes ? kDraws : lanes - c);
        for (int w = 0; w < smaller(4, t.cols - j); ++w)
          std::memcpy(to + (j + w) * t.pitch + c, draws.of[w], bytes);
      }
    return;
  }
  float row[4 * kDraws];
  for (int r = 0; r < t.rows; ++r)
    for (int64_t c = 0; c < lanes; c += 4 * kDraws) {
      draw(
          x, [=](int n) { return quad0 + int(c / 4) + n; }, [=](int) { return t.row0 + r; },
          &draws);
      float* const at = to + r * t.pitch + c;
      const bool whole = c + 4 * kDraws <= lanes;
      transpose(draws.of[0], kDraws, 4, kDraws, whole ? at : row, 4);
      if (!whole) std::memcpy(at, row, sizeof(float) * size_t(lanes - c));
    }
}
