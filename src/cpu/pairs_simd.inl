// SPDX-License-Identifier: MIT OR Apache-2.0
// Products of a tile's rows and lanes, by f32 or, for bf16 with AVX512-BF16, by pairs: words of two
// neighbours along the depth, which one instruction multiplies and adds up. It takes subnormal
// numbers as 0, so a tile that has some multiplies the halves of its words by f32. Included inside
// an anonymous namespace, after simd_tile.inl.

#if defined(TANDEM_SIMD_PAIRS)
// C[r][lane] (+)= sum over words k of A(r, k) . B[k][lane]. tail: one more word, of which A has the
// low half.
struct PairProduct {
  int64_t depth;
  bool tail;
  const char* a;
  int64_t a_row, a_step;  // in bytes
  const float* b;
  float* c;
  int64_t pitch;
};

template <bool kExact>
inline Vec add_pairs(Vec sum, __m512i a, Vec b) {
  if (!kExact) return Vec(_mm512_dpbf16_ps(__m512(sum), (__m512bh)a, (__m512bh)b));
  const __m512i word = (__m512i)b, heads = _mm512_set1_epi32(int(0xffff0000));
  const auto head = [&](__m512i x) { return (Vec)_mm512_and_si512(x, heads); };
  const auto tail = [](__m512i x) { return (Vec)_mm512_slli_epi32(x, 16); };
  return fma(head(a), head(word), fma(tail(a), tail(word), sum));
}

template <int kRows, int kVecs, bool kAdd, bool kExact>
inline void pairs_block(const PairProduct& p, int64_t row, int64_t lane) {
  Vec sum[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) sum[r][v] = splat(0);
  const char* a = p.a + row * p.a_row;
  const float* b = p.b + lane;
  for (int64_t k = 0; k < p.depth; ++k, a += p.a_step, b += p.pitch) {
    Vec right[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      int word;
      std::memcpy(&word, a + r * p.a_row, sizeof word);
      const __m512i left = _mm512_set1_epi32(word);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) sum[r][v] = add_pairs<kExact>(sum[r][v], left, right[v]);
    }
  }
  float* c = p.c + row * p.pitch + lane;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    uint16_t half = 0;
    if (p.tail) std::memcpy(&half, a + r * p.a_row, sizeof half);
    const __m512i left = _mm512_set1_epi32(half);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      Vec x = sum[r][v];
      if (p.tail) x = add_pairs<kExact>(x, left, load(b + v * kLanes));
      float* to = c + r * p.pitch + v * kLanes;
      store(to, kAdd ? load(to) + x : x);
    }
  }
}

template <int kVecs, bool kAdd, bool kExact>
inline void pairs_lanes(const PairProduct& p, int64_t rows, int64_t lane) {
  int64_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows)
    pairs_block<kBlockRows, kVecs, kAdd, kExact>(p, row, lane);
  if (row + 4 <= rows) pairs_block<4, kVecs, kAdd, kExact>(p, row, lane), row += 4;
  if (row + 2 <= rows) pairs_block<2, kVecs, kAdd, kExact>(p, row, lane), row += 2;
  if (row < rows) pairs_block<1, kVecs, kAdd, kExact>(p, row, lane);
}

template <bool kAdd, bool kExact>
inline void pairs_part(const PairProduct& p, int64_t rows, int64_t lanes) {
  int64_t lane = 0;
  for (; lane + kBlockVecs * kLanes <= lanes; lane += kBlockVecs * kLanes)
    pairs_lanes<kBlockVecs, kAdd, kExact>(p, rows, lane);
  if (lane + 2 * kLanes <= lanes) pairs_lanes<2, kAdd, kExact>(p, rows, lane), lane += 2 * kLanes;
  if (lane < lanes) pairs_lanes<1, kAdd, kExact>(p, rows, lane);
}

// In chains, as product().
template <bool kAdd, bool kExact>
void pairs_product(const PairProduct& p, int64_t rows, int64_t lanes) {
  const int64_t words = p.depth + p.tail, chain = kChain / 2;
  for (int64_t k = 0; k < words; k += chain) {
    PairProduct part = p;
    part.depth = smaller(chain, p.depth - k);
    part.tail = p.tail && k + chain >= words;
    part.a += k * p.a_step;
    part.b += k * p.pitch;
    if (kAdd || k > 0)
      pairs_part<true, kExact>(part, rows, lanes);
    else
      pairs_part<false, kExact>(part, rows, lanes);
  }
}

// Whether some of these numbers of bf16 are subnormal.
inline bool has_subnormal(const uint16_t* x, int64_t count) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80), fraction = _mm512_set1_epi16(0x7f);
  __mmask32 found = 0;
  for (int64_t n = 0; n < count; n += 32) {
    const __mmask32 inside = count - n < 32 ? (1u << (count - n)) - 1 : ~0u;
    const __m512i some = _mm512_maskz_loadu_epi16(inside, x + n);
    found |= _mm512_mask_test_epi16_mask(_mm512_testn_epi16_mask(some, exponent), some, fraction);
  }
  return found != 0;
}
inline bool has_subnormal(const float* x, int64_t rows, int64_t lanes, int64_t pitch) {
  __mmask16 found = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < lanes; c += kLanes)
      found |= _mm512_fpclass_ps_mask(__m512(load(x + r * pitch + c)), 0x20);
  return found != 0;
}

// Row i as it is in memory, with a zero behind an odd number of features.
inline void load_pairs(const SimdRows& t, int64_t i, int64_t count, uint16_t* to) {
  const uint16_t* from = static_cast<const uint16_t*>(t.base) + i * t.row;
  if (t.feature == 1)
    std::memcpy(to, from, size_t(count) * sizeof *to);
  else
    for (int64_t n = 0; n < count; ++n) to[n] = from[n * t.feature];
  to[count] = 0;
}

// As stage_lanes(), of words: to[features / 2][pitch]. Returns whether there are subnormal numbers.
inline bool stage_lane_pairs(const SimdRows& t, int64_t first, int64_t rows, int64_t lanes,
                             int64_t features, float* to, int64_t pitch) {
  constexpr int64_t kWords = kSimdMaxFeatures / 2 + 1;
  uint16_t row[2 * kWords];
  float block[4 * kWords];
  const int64_t words = (features + 1) / 2;
  bool subnormal = false;
  for (int64_t r = 0; r < rows; r += 4) {
    const int64_t count = smaller(int64_t(4), rows - r);
    for (int64_t n = 0; n < count; ++n) {
      load_pairs(t, first + r + n, features, row);
      subnormal |= has_subnormal(row, features);
      std::memcpy(block + n * kWords, row, size_t(words) * sizeof(float));
    }
    transpose(block, kWords, count, words, to + r, pitch);
  }
  for (int64_t c = 0; c < words && rows < lanes; ++c)
    for (int64_t r = rows; r < lanes; ++r) to[c * pitch + r] = 0;
  return subnormal;
}

// Words of two rows, one behind the other: to[rows / 2][features]. Returns as the above.
inline bool stage_row_pairs(const SimdRows& t, int64_t first, int64_t rows, int64_t features,
                            float* to) {
  uint16_t even[kSimdMaxFeatures + 1], odd[kSimdMaxFeatures + 1];
  uint32_t words[kSimdMaxFeatures];
  bool subnormal = false;
  for (int64_t r = 0; r < rows; r += 2) {
    load_pairs(t, first + r, features, even);
    if (r + 1 < rows)
      load_pairs(t, first + r + 1, features, odd);
    else
      std::memset(odd, 0, sizeof odd);
    subnormal |= has_subnormal(even, features) || has_subnormal(odd, features);
    for (int64_t c = 0; c < features; ++c) words[c] = even[c] | uint32_t(odd[c]) << 16;
    std::memcpy(to + r / 2 * features, words, size_t(features) * sizeof(float));
  }
  return subnormal;
}

// The nearest bf16 in the high half, by integers: the instruction takes subnormal numbers as 0.
inline __m512i round_pair(Vec x) {
  const __m512i number = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(number, 16),
                                                            _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(number, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 none = _mm512_cmpunord_ps_mask(__m512(x), __m512(x));
  return _mm512_mask_mov_epi32(up, none, _mm512_set1_epi32(0x7fc00000));
}

// Rows of numbers become words of two rows each, rounded to bf16, in their place.
template <bool kExact>
inline void pack_pairs(float* x, int64_t rows, int64_t lanes, int64_t pitch) {
  for (int64_t r = 0; r < rows; r += 2)
    for (int64_t c = 0; c < lanes; c += kLanes) {
      const Vec even = load(x + r * pitch + c),
                odd = r + 1 < rows ? load(x + (r + 1) * pitch + c) : splat(0);
      __m512i low, high;
      if (kExact) {
        low = _mm512_srli_epi32(round_pair(even), 16);
        high = _mm512_and_si512(round_pair(odd), _mm512_set1_epi32(int(0xffff0000)));
      } else {
        low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(__m512(even)));
        high = _mm512_slli_epi32(
            _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(__m512(odd))), 16);
      }
      _mm512_storeu_si512(x + r / 2 * pitch + c, _mm512_or_si512(low, high));
    }
}
constexpr bool kHasPairs = true;
inline Vec multiply_pairs(bool exact, Vec sum, Vec a, Vec b) {
  return exact ? add_pairs<true>(sum, (__m512i)a, b) : add_pairs<false>(sum, (__m512i)a, b);
}
#else
constexpr bool kHasPairs = false;
inline Vec multiply_pairs(bool, Vec sum, Vec, Vec) { return sum; }  // no problem has pairs
#endif

// The lanes of a dots(): [features][pitch], or words.
struct Side {
  const float* data;
  int64_t pitch;
  bool pairs, subnormal;
};
inline Side stage_side(bool pairs, const SimdRows& t, int64_t first, int64_t rows, int64_t lanes,
                       int64_t features, float* to, int64_t pitch) {
#if defined(TANDEM_SIMD_PAIRS)
  if (pairs)
    return {to, pitch, true, stage_lane_pairs(t, first, rows, lanes, features, to, pitch)};
#endif
  (void)pairs;
  stage_lanes(t, first, rows, lanes, features, to, pitch);
  return {to, pitch, false, false};
}

// to[r][lane] = the product of row first + r and a lane. Returns the rows if they had to be staged,
// else no data. Rows of a side in pairs are of bf16, with features side by side.
inline Staged dots(const Side& side, const SimdRows& t, int64_t first, int64_t rows,
                   int64_t features, float* scratch, float* to, int64_t lanes) {
#if defined(TANDEM_SIMD_PAIRS)
  if (side.pairs) {
    const uint16_t* const a = static_cast<const uint16_t*>(t.base) + first * t.row;
    bool exact = side.subnormal;
    for (int64_t r = 0; r < rows && !exact; ++r) exact = has_subnormal(a + r * t.row, features);
    const PairProduct p = {features / 2, features % 2 != 0, reinterpret_cast<const char*>(a),
                           2 * t.row,    4,                 side.data,
                           to,           side.pitch};
    exact ? pairs_product<false, true>(p, rows, lanes) : pairs_product<false, false>(p, rows, lanes);
    return {nullptr, 0};
  }
#endif
  const Staged staged = stage(t, first, rows, features, scratch);
  product<false>({features, staged.data, staged.pitch, 1, side.data, to, side.pitch}, rows, lanes);
  return staged;
}

// sums[feature][lane] += sum over rows of their features times weights[row][lane], which may be
// overwritten. staged: what dots() returned of the same rows, if it did.
inline void add_weighted(bool pairs, const SimdRows& t, int64_t first, int64_t rows, int64_t features,
                         float* scratch, Staged staged, float* weights, float* sums, int64_t pitch,
                         int64_t lanes) {
#if defined(TANDEM_SIMD_PAIRS)
  if (pairs) {
    const bool exact = stage_row_pairs(t, first, rows, features, scratch) ||
                       has_subnormal(weights, rows, lanes, pitch);
    const PairProduct p = {(rows + 1) / 2, false,        reinterpret_cast<const char*>(scratch),
                           4,              4 * features, weights,
                           sums,           pitch};
    if (exact) {
      pack_pairs<true>(weights, rows, lanes, pitch);
      pairs_product<true, true>(p, features, lanes);
    } else {
      pack_pairs<false>(weights, rows, lanes, pitch);
      pairs_product<true, false>(p, features, lanes);
    }
    return;
  }
#endif
  (void)pairs;
  if (!staged.data) staged = stage(t, first, rows, features, scratch);
  product<true>({rows, staged.data, 1, staged.pitch, weights, sums, pitch}, features, lanes);
}
