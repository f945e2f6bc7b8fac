// SPDX-License-Identifier: MIT OR Apache-2.0
// Which weights of a tile dropout keeps: the words of src/problem/philox.h, whose constants these
// are, of as many counters at a time as a vector has lanes. Included inside an anonymous namespace,
// after shown_simd.inl.

struct Counters {
  UintVec x, y, z, w;
};

// The factors of the weights of some counters, of which each has four.
struct Draws {
  Vec of[4];
};

inline Draws draw(const SimdTerms& x, UintVec quad, UintVec row) {
  Counters c{quad, row, fill(uint32_t(x.head)), fill(x.drop_offset)};
  uint32_t key0 = x.seed_low, key1 = x.seed_high;
  for (int round = 0; round < 10; ++round) {
    const Words a = multiply_words(c.x, 0xD2511F53u), b = multiply_words(c.z, 0xCD9E8D57u);
    c = {exclusive_or(b.high, c.y, fill(key0)), b.low, exclusive_or(a.high, c.w, fill(key1)),
         a.low};
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  const Vec dropped = splat(0), kept = splat(x.keeps);
  return {{select(below(c.x, x.drop_below), dropped, kept),
           select(below(c.y, x.drop_below), dropped, kept),
           select(below(c.z, x.drop_below), dropped, kept),
           select(below(c.w, x.drop_below), dropped, kept)}};
}

// The factors of a tile, 0 or 1 / (1 - p), in the order of scores. Lanes behind the tile have some
// as well. A tile of keys begins at a multiple of 4.
template <bool KEYS>
void draw_factors(const SimdTerms& x, const ScoreTile& t, float* to) {
  const int64_t lanes = round_up(KEYS ? t.cols : t.rows, kLanes);
  const auto quad0 = uint32_t(t.col0) / 4, row0 = uint32_t(t.row0);
  if (!KEYS) {
    for (int j = 0; j < t.cols; j += 4)
      for (int64_t c = 0; c < lanes; c += kLanes) {
        const Draws draws = draw(x, fill(quad0 + uint32_t(j) / 4), counters(row0 + uint32_t(c), 1));
        for (int w = 0; w < smaller(4, t.cols - j); ++w)
          store(to + (j + w) * t.pitch + c, draws.of[w]);
      }
    return;
  }
  float words[4 * kLanes], row[4 * kLanes];
  for (int r = 0; r < t.rows; ++r)
    for (int64_t c = 0; c < lanes; c += 4 * kLanes) {
      const Draws draws = draw(x, counters(quad0 + uint32_t(c) / 4, 1), fill(row0 + uint32_t(r)));
      for (int w = 0; w < 4; ++w) store(words + w * kLanes, draws.of[w]);
      float* const at = to + r * t.pitch + c;
      const bool whole = c + 4 * kLanes <= lanes;
      transpose(words, kLanes, 4, kLanes, whole ? at : row, 4);
      if (!whole) std::memcpy(at, row, sizeof(float) * size_t(lanes - c));
    }
}
