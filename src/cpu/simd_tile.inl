// SPDX-License-Identifier: MIT OR Apache-2.0
// The parts that all simd kernels share: rows in and out, and the product. Included inside an
// anonymous namespace, after simd_vector.inl.

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr float smaller(float a, float b) { return a < b ? a : b; }
constexpr float larger(float a, float b) { return a > b ? a : b; }

// ---- one row ----

inline void widen_f16(const uint16_t* from, int64_t count, float* to) {
  int64_t n = 0;
#if defined(__F16C__)
  for (; n + 8 <= count; n += 8)
    _mm256_storeu_ps(to + n,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + n))));
#endif
  for (; n < count; ++n) to[n] = f16_to_float(from[n]);
}

inline void narrow_f16(const float* from, int64_t count, uint16_t* to) {
  int64_t n = 0;
#if defined(__F16C__)
  for (; n + 8 <= count; n += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + n),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + n), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; n < count; ++n) to[n] = float_to_f16(from[n]);
}

// Row i as contiguous floats.
inline void load_row(const SimdRows& t, int64_t i, int64_t count, float* __restrict to) {
  const int64_t at = i * t.row, step = t.feature;
  if (t.dtype == TANDEM_F32) {
    const float* from = static_cast<const float*>(t.base) + at;
    if (step == 1)
      std::memcpy(to, from, size_t(count) * sizeof(float));
    else
      for (int64_t n = 0; n < count; ++n) to[n] = from[n * step];
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(t.base) + at;
  if (t.dtype == TANDEM_F16) {
    if (step == 1)
      widen_f16(from, count, to);
    else
      for (int64_t n = 0; n < count; ++n) to[n] = f16_to_float(from[n * step]);
  } else {
    if (step == 1)
      for (int64_t n = 0; n < count; ++n) to[n] = bf16_to_float(from[n]);
    else
      for (int64_t n = 0; n < count; ++n) to[n] = bf16_to_float(from[n * step]);
  }
}

inline void store_row(const SimdRows& t, int64_t i, int64_t count, const float* __restrict from) {
  const int64_t at = i * t.row, step = t.feature;
  if (t.dtype == TANDEM_F32) {
    float* to = static_cast<float*>(t.base) + at;
    if (step == 1)
      std::memcpy(to, from, size_t(count) * sizeof(float));
    else
      for (int64_t n = 0; n < count; ++n) to[n * step] = from[n];
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(t.base) + at;
  if (t.dtype == TANDEM_F16) {
    if (step == 1)
      narrow_f16(from, count, to);
    else
      for (int64_t n = 0; n < count; ++n) to[n * step] = float_to_f16(from[n]);
  } else {
    if (step == 1)
      for (int64_t n = 0; n < count; ++n) to[n] = float_to_bf16(from[n]);
    else
      for (int64_t n = 0; n < count; ++n) to[n * step] = float_to_bf16(from[n]);
  }
}

// ---- rows of a tile ----

struct Staged {
  const float* data;
  int64_t pitch;
};

// Rows [first, first + rows) as floats with unit feature stride. Rows that already are, and are
// near each other, stay in place; others are copied to scratch. A large pitch would put all rows of
// a tile into the same few cache sets.
inline Staged stage(const SimdRows& t, int64_t first, int64_t rows, int64_t features,
                    float* scratch) {
  if (t.dtype == TANDEM_F32 && t.feature == 1 && t.row <= kSimdMaxFeatures)
    return {static_cast<const float*>(t.base) + first * t.row, t.row};
  for (int64_t r = 0; r < rows; ++r) load_row(t, first + r, features, scratch + r * features);
  return {scratch, features};
}

// to[c * to_pitch + r] = from[r * from_pitch + c], 4 x 4 at a time.
inline void transpose(const float* from, int64_t from_pitch, int64_t rows, int64_t columns,
                      float* to, int64_t to_pitch) {
  int64_t r = 0;
#if defined(__SSE2__)
  for (; r + 4 <= rows; r += 4) {
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) {
      const float* f = from + r * from_pitch + c;
      float* t = to + c * to_pitch + r;
      __m128 a = _mm_loadu_ps(f), b = _mm_loadu_ps(f + from_pitch);
      __m128 d = _mm_loadu_ps(f + 2 * from_pitch), e = _mm_loadu_ps(f + 3 * from_pitch);
      _MM_TRANSPOSE4_PS(a, b, d, e);
      _mm_storeu_ps(t, a), _mm_storeu_ps(t + to_pitch, b);
      _mm_storeu_ps(t + 2 * to_pitch, d), _mm_storeu_ps(t + 3 * to_pitch, e);
    }
    for (; c < columns; ++c)
      for (int64_t n = 0; n < 4; ++n) to[c * to_pitch + r + n] = from[(r + n) * from_pitch + c];
  }
#endif
  for (; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[c * to_pitch + r] = from[r * from_pitch + c];
}

// Rows as lanes: to[feature][pitch]; lanes from rows up to lanes are zeros.
inline void stage_lanes(const SimdRows& t, int64_t first, int64_t rows, int64_t lanes,
                        int64_t features, float* to, int64_t pitch) {
  float block[4 * kSimdMaxFeatures];
  for (int64_t r = 0; r < rows; r += 4) {
    const int64_t count = rows - r < 4 ? rows - r : 4;
    for (int64_t n = 0; n < count; ++n)
      load_row(t, first + r + n, features, block + n * kSimdMaxFeatures);
    transpose(block, kSimdMaxFeatures, count, features, to + r, pitch);
  }
  if (rows < lanes)
    for (int64_t c = 0; c < features; ++c)
      for (int64_t r = rows; r < lanes; ++r) to[c * pitch + r] = 0;
}

// The reverse: lanes [0, rows) of from[feature][pitch] to rows from first on.
inline void store_lanes(const float* from, int64_t pitch, const SimdRows& t, int64_t first,
                        int64_t rows, int64_t features) {
  float block[4 * kSimdMaxFeatures];
  for (int64_t r = 0; r < rows; r += 4) {
    const int64_t count = rows - r < 4 ? rows - r : 4;
    if (count == 4) {
      int64_t c = 0;
      for (; c + 4 <= features; c += 4)
        transpose(from + c * pitch + r, pitch, 4, 4, block + c, kSimdMaxFeatures);
      for (; c < features; ++c)
        for (int64_t n = 0; n < 4; ++n) block[n * kSimdMaxFeatures + c] = from[c * pitch + r + n];
    } else {
      for (int64_t c = 0; c < features; ++c)
        for (int64_t n = 0; n < count; ++n)
          block[n * kSimdMaxFeatures + c] = from[c * pitch + r + n];
    }
    for (int64_t n = 0; n < count; ++n)
      store_row(t, first + r + n, features, block + n * kSimdMaxFeatures);
  }
}

inline void clear(float* to, int64_t rows, int64_t lanes, int64_t pitch) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < lanes; c += kLanes) store(to + r * pitch + c, splat(0));
}

inline void multiply(float* x, const float* by, int64_t rows, int64_t lanes, int64_t pitch) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r * pitch; c < r * pitch + lanes; c += kLanes)
      store(x + c, load(x + c) * load(by + c));
}

inline void scale_lanes(float* x, float factor, int64_t rows, int64_t lanes, int64_t pitch) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < lanes; c += kLanes)
      store(x + r * pitch + c, load(x + r * pitch + c) * splat(factor));
}

// ---- the product ----
// C[r][lane] (+)= sum over k of A(r, k) B[k][lane], k ascending, with A(r, k) = a[r * a_row + k *
// a_step]. B and C have lanes. A is the side that changes from tile to tile and is read in place:
// row-major for S and dP (a_step = 1), transposed for O, d_q, d_k, d_v (a_row = 1).

struct Product {
  int64_t depth;
  const float* a;
  int64_t a_row, a_step;
  const float* b;
  float* c;
  int64_t pitch;
};

template <int kRows, int kVecs, bool kAdd>
inline void product_block(const Product& p, int64_t row, int64_t lane) {
  Vec sum[kRows][kVecs];
  float* c = p.c + row * p.pitch + lane;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) sum[r][v] = splat(0);
  const float *a = p.a + row * p.a_row, *b = p.b + lane;
  for (int64_t k = 0; k < p.depth; ++k, a += p.a_step, b += p.pitch) {
    Vec right[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec left = splat(a[r * p.a_row]);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) sum[r][v] = fma(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      float* to = c + r * p.pitch + v * kLanes;
      store(to, kAdd ? load(to) + sum[r][v] : sum[r][v]);
    }
}

// As many accumulators as registers allow besides the operands.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kBlockRows = 6, kBlockVecs = 4;
#else
constexpr int kBlockRows = 6, kBlockVecs = 2;
#endif

template <int kVecs, bool kAdd>
inline void product_lanes(const Product& p, int64_t rows, int64_t lane) {
  int64_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows)
    product_block<kBlockRows, kVecs, kAdd>(p, row, lane);
  if (row + 4 <= rows) product_block<4, kVecs, kAdd>(p, row, lane), row += 4;
  if (row + 2 <= rows) product_block<2, kVecs, kAdd>(p, row, lane), row += 2;
  if (row < rows) product_block<1, kVecs, kAdd>(p, row, lane);
}

template <bool kAdd>
inline void product_part(const Product& p, int64_t rows, int64_t lanes) {
  int64_t lane = 0;
  for (; lane + kBlockVecs * kLanes <= lanes; lane += kBlockVecs * kLanes)
    product_lanes<kBlockVecs, kAdd>(p, rows, lane);
  if (kBlockVecs > 2 && lane + 2 * kLanes <= lanes)
    product_lanes<2, kAdd>(p, rows, lane), lane += 2 * kLanes;
  if (lane < lanes) product_lanes<1, kAdd>(p, rows, lane);
}

// Longer sums are sums of sums of so many terms, as rounding errors grow with the length of a
// chain.
constexpr int64_t kChain = 64;

// lanes is a multiple of kLanes.
template <bool kAdd>
void product(const Product& p, int64_t rows, int64_t lanes) {
  for (int64_t k = 0; k < p.depth; k += kChain) {
    Product part = p;
    part.depth = p.depth - k < kChain ? p.depth - k : kChain;
    part.a += k * p.a_step;
    part.b += k * p.pitch;
    if (kAdd || k > 0)
      product_part<true>(part, rows, lanes);
    else
      product_part<false>(part, rows, lanes);
  }
}

// ---- score and mask ----

// Rows and keys of a score are lanes and steps, or the reverse. In both cases the lanes [lo, hi] of
// a step are visible. Returns s, -inf if hidden.
inline Vec hide(Vec s, Vec lane, Vec lo, Vec hi) {
  const Vec hidden = splat(-kInfinity);
  return select(less(lane, lo), hidden, select(less(hi, lane), hidden, s));
}

// An interval of lane numbers, clamped so that it is exact as float.
struct LaneRange {
  Vec lo, hi;
  LaneRange(int64_t first, int64_t last, int64_t lanes)
      : lo(splat(float(first < 0       ? 0
                       : first > lanes ? lanes
                                       : first))),
        hi(splat(float(last < -1      ? -1
                       : last > lanes ? lanes
                                      : last))) {}
};
