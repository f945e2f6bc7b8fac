// SPDX-License-Identifier: MIT OR Apache-2.0
// Vec: as many floats as the instruction set of this translation unit holds in a register, and the
// few operations that the kernels use. Included inside an anonymous namespace.

// TANDEM_SIMD_PLAIN: the form for other compilers, so that these can test it.
#if defined(__GNUC__) && !defined(TANDEM_SIMD_PLAIN)
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#if defined(__AVX512BF16__)
#define TANDEM_SIMD_PAIRS 1  // pairs_simd.inl
#endif
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vec __attribute__((vector_size(4 * kLanes), may_alias));
typedef float LooseVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int IntVec __attribute__((vector_size(4 * kLanes)));
typedef uint32_t UintVec __attribute__((vector_size(4 * kLanes)));

inline Vec load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<LooseVec*>(p) = x; }
inline Vec splat(float x) { return x - Vec{}; }
inline Vec bits(IntVec x) { return reinterpret_cast<Vec>(x); }
inline IntVec bits(Vec x) { return reinterpret_cast<IntVec>(x); }
// (a - b) << by, modulo 2^32.
inline IntVec shifted_difference(IntVec a, IntVec b, int by) {
  return IntVec((UintVec(a) - UintVec(b)) << by);
}

// The exponent of x / least, of x > 0, both as bits, and x without it.
inline Vec exponent_of(IntVec x, int least) {
  return __builtin_convertvector((x - least) >> 23, Vec);
}
inline Vec without_exponent(IntVec x, int least) {
  return bits(((x - least) & 0x007fffff) + least);
}

// first, first + step, first + 2 step, ..., modulo 2^32.
inline UintVec counters(uint32_t first, uint32_t step) {
  UintVec x;
  for (int n = 0; n < kLanes; ++n) x[n] = first + uint32_t(n) * step;
  return x;
}
inline UintVec fill(uint32_t x) { return x - UintVec{}; }
inline UintVec exclusive_or(UintVec a, UintVec b, UintVec c) { return a ^ b ^ c; }
inline IntVec below(UintVec a, uint32_t limit) { return a < fill(limit); }
// The products of 32 and 32 bits, as high and low words.
struct Words {
  UintVec high, low;
};
inline Words multiply_words(UintVec a, uint32_t by) {
#if defined(__AVX512F__)
  const __m512i x = __m512i(a), y = _mm512_set1_epi32(int(by));
  const __m512i even = _mm512_mul_epu32(x, y),
                odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), y);
  return {UintVec(_mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_CDAB)),
          UintVec(_mm512_mask_shuffle_epi32(even, 0xaaaa, odd, _MM_PERM_CDAB))};
#elif defined(__AVX2__) && defined(__FMA__)
  const __m256i x = __m256i(a), y = _mm256_set1_epi32(int(by));
  const __m256i even = _mm256_mul_epu32(x, y),
                odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), y);
  return {UintVec(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa)),
          UintVec(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa))};
#elif defined(__SSE2__)
  const __m128i x = __m128i(a), y = _mm_set1_epi32(int(by)), lows = _mm_set1_epi64x(0xffffffff);
  const __m128i even = _mm_mul_epu32(x, y), odd = _mm_mul_epu32(_mm_srli_epi64(x, 32), y);
  return {UintVec(_mm_or_si128(_mm_srli_epi64(even, 32), _mm_andnot_si128(lows, odd))),
          UintVec(_mm_or_si128(_mm_and_si128(even, lows), _mm_slli_epi64(odd, 32)))};
#else
  Words words{};
  for (int n = 0; n < kLanes; ++n) {
    const uint64_t product = uint64_t(a[n]) * by;
    words.high[n] = uint32_t(product >> 32), words.low[n] = uint32_t(product);
  }
  return words;
#endif
}

// a * b + c, rounded once if the machine can. Only this contracts: the files are compiled without
// contraction, so that a score has the same bits wherever it is formed.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return Vec(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__AVX2__) && defined(__FMA__)
  return Vec(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif defined(__aarch64__)
  return Vec(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#else
  return a * b + c;
#endif
}

// The larger; b where a is not a number.
inline Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return Vec(_mm512_max_ps(__m512(a), __m512(b)));
#elif defined(__AVX2__) && defined(__FMA__)
  return Vec(_mm256_max_ps(__m256(a), __m256(b)));
#else
  return a > b ? a : b;
#endif
}

inline Vec select(IntVec condition, Vec yes, Vec no) { return condition ? yes : no; }
inline IntVec less(Vec a, Vec b) { return a < b; }
inline IntVec equal(Vec a, Vec b) { return a == b; }
inline IntVec not_less(Vec a, Vec b) { return a >= b; }
inline IntVec both(IntVec a, IntVec b) { return a & b; }
inline IntVec either(IntVec a, IntVec b) { return a | b; }

#if defined(__AVX512F__)
// A table of so few entries that registers hold it, with zeros behind it.
#define TANDEM_SIMD_TABLES 1
class ShortTable {
 public:
  static constexpr uint32_t kMost = 64;
  ShortTable(const float* table, uint32_t size) : size_(_mm512_set1_epi32(int(size))) {
    for (uint32_t n = 0; n < 4; ++n) {
      const uint32_t left = size > 16 * n ? size - 16 * n : 0;
      const auto some = __mmask16(left >= 16 ? 0xffff : (1u << left) - 1);
      part_[n] = _mm512_maskz_loadu_ps(some, table + 16 * n);
    }
  }
  template <typename Number>
  Vec look_up(const Number* numbers) const {
    const __m512i n = widen(numbers);
    const __m512 low = _mm512_permutex2var_ps(part_[0], n, part_[1]),
                 high = _mm512_permutex2var_ps(part_[2], n, part_[3]);
    const __mmask16 second = _mm512_test_epi32_mask(n, _mm512_set1_epi32(32));
    return Vec(_mm512_maskz_mov_ps(_mm512_cmplt_epu32_mask(n, size_),
                                   _mm512_mask_mov_ps(low, second, high)));
  }

 private:
  static __m512i widen(const uint8_t* x) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
  static __m512i widen(const uint16_t* x) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
  static __m512i widen(const int32_t* x) { return _mm512_loadu_si512(x); }
  __m512 part_[4];
  __m512i size_;
};
#endif

// Without vector extensions: plain loops, which the compiler may vectorise.
#else

constexpr int kLanes = 4;
struct IntVec {
  int32_t x[kLanes];
};
struct Vec {
  float x[kLanes];
};
template <typename R, typename F>
inline R lanewise(F f) {
  R r;
  for (int n = 0; n < kLanes; ++n) r.x[n] = f(n);
  return r;
}
inline Vec load(const float* p) {
  return lanewise<Vec>([=](int n) { return p[n]; });
}
inline void store(float* p, Vec v) {
  for (int n = 0; n < kLanes; ++n) p[n] = v.x[n];
}
inline Vec splat(float x) {
  return lanewise<Vec>([=](int) { return x; });
}
inline Vec bits(IntVec v) {
  return lanewise<Vec>([=](int n) { return bits_float(uint32_t(v.x[n])); });
}
inline IntVec bits(Vec v) {
  return lanewise<IntVec>([=](int n) { return int32_t(float_bits(v.x[n])); });
}
inline Vec operator+(Vec a, Vec b) {
  return lanewise<Vec>([=](int n) { return a.x[n] + b.x[n]; });
}
inline Vec operator-(Vec a, Vec b) {
  return lanewise<Vec>([=](int n) { return a.x[n] - b.x[n]; });
}
inline Vec operator*(Vec a, Vec b) {
  return lanewise<Vec>([=](int n) { return a.x[n] * b.x[n]; });
}
inline Vec operator/(Vec a, Vec b) {
  return lanewise<Vec>([=](int n) { return a.x[n] / b.x[n]; });
}
inline IntVec shifted_difference(IntVec a, IntVec b, int by) {
  return lanewise<IntVec>(
      [=](int n) { return int32_t((uint32_t(a.x[n]) - uint32_t(b.x[n])) << by); });
}
struct UintVec {
  uint32_t x[kLanes];
};
struct Words {
  UintVec high, low;
};
inline UintVec counters(uint32_t first, uint32_t step) {
  return lanewise<UintVec>([=](int n) { return first + uint32_t(n) * step; });
}
inline UintVec fill(uint32_t x) { return counters(x, 0); }
inline UintVec exclusive_or(UintVec a, UintVec b, UintVec c) {
  return lanewise<UintVec>([=](int n) { return a.x[n] ^ b.x[n] ^ c.x[n]; });
}
inline IntVec below(UintVec a, uint32_t limit) {
  return lanewise<IntVec>([=](int n) { return a.x[n] < limit ? -1 : 0; });
}
inline Words multiply_words(UintVec a, uint32_t by) {
  return {lanewise<UintVec>([=](int n) { return uint32_t(uint64_t(a.x[n]) * by >> 32); }),
          lanewise<UintVec>([=](int n) { return a.x[n] * by; })};
}
inline Vec exponent_of(IntVec x, int least) {
  return lanewise<Vec>([=](int n) { return float((x.x[n] - least) >> 23); });
}
inline Vec without_exponent(IntVec x, int least) {
  return bits(lanewise<IntVec>([=](int n) { return ((x.x[n] - least) & 0x007fffff) + least; }));
}
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec max(Vec a, Vec b) {
  return lanewise<Vec>([=](int n) { return a.x[n] > b.x[n] ? a.x[n] : b.x[n]; });
}
inline Vec select(IntVec condition, Vec yes, Vec no) {
  return lanewise<Vec>([=](int n) { return condition.x[n] ? yes.x[n] : no.x[n]; });
}
inline IntVec less(Vec a, Vec b) {
  return lanewise<IntVec>([=](int n) { return a.x[n] < b.x[n] ? -1 : 0; });
}
inline IntVec equal(Vec a, Vec b) {
  return lanewise<IntVec>([=](int n) { return a.x[n] == b.x[n] ? -1 : 0; });
}
inline IntVec not_less(Vec a, Vec b) {
  return lanewise<IntVec>([=](int n) { return a.x[n] >= b.x[n] ? -1 : 0; });
}
inline IntVec both(IntVec a, IntVec b) {
  return lanewise<IntVec>([=](int n) { return a.x[n] & b.x[n]; });
}
inline IntVec either(IntVec a, IntVec b) {
  return lanewise<IntVec>([=](int n) { return a.x[n] | b.x[n]; });
}
#endif

inline bool all(IntVec condition) {
  int32_t x[kLanes];
  std::memcpy(x, &condition, sizeof x);
  int32_t every = -1;
  for (int n = 0; n < kLanes; ++n) every &= x[n];
  return every != 0;
}

// 0, 1, 2, ... from first on. Lane numbers are small, so floats hold them exactly.
inline Vec count_from(int first) {
  float x[kLanes];
  for (int n = 0; n < kLanes; ++n) x[n] = float(first + n);
  return load(x);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// exp to about an ulp; exactly 1 at 0 and 0 at -inf. Below the smallest normal number it is 0. NaN
// stays. x = n ln 2 + r, e^r = 1 + r + r^2 P(r) with |r| <= ln 2 / 2; P has a relative error of
// 4e-9.
inline Vec exp(Vec x) {
  const Vec shift = splat(0x1.8p23f);  // adding it rounds to an integer, in the low bits of the sum
  const Vec y = fma(x, splat(0x1.715476p+0f), shift);
  const Vec n = y - shift;
  Vec r = fma(n, splat(-0x1.63p-1f), x);  // n times the short head of ln 2 is exact
  r = fma(n, splat(0x1.bd0106p-13f), r);
  Vec p = splat(0x1.6a2434p-10f);
  p = fma(p, r, splat(0x1.1239e2p-7f));
  p = fma(p, r, splat(0x1.5558f2p-5f));
  p = fma(p, r, splat(0x1.555492p-3f));
  p = fma(p, r, splat(0x1.fffffcp-2f));
  p = fma(p, r * r, r) + splat(1);
  // 2^n: the low bits of y, and the exponent's bias, shifted into the exponent.
  const Vec power = bits(shifted_difference(bits(y), bits(splat(0x1.7fff02p23f)), 23));
  const Vec e = select(less(splat(88), x), splat(kInfinity), p * power);
  return select(less(x, splat(-87)), splat(0), e);
}
