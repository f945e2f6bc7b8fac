// SPDX-License-Identifier: MIT OR Apache-2.0
// From products in accumulators to what exp2 takes.
#ifndef TANDEM_CUDA_SM80_SCORES_CUH
#define TANDEM_CUDA_SM80_SCORES_CUH
#include "../softmax.cuh"
#include "tile.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// exp2 takes the product of a score and c in one fma. Not for scales whose sign or size would not do: those multiply the
// scores first.
struct Exponent {
  bool first;  // scores are multiplied by scale first
  float scale, c;
  explicit TANDEM_DEVICE Exponent(float of, bool always = false)
      : first(always || !(of >= 1e-3f && of <= 1e3f)), scale(of), c(first ? kLog2e : of * kLog2e) {}
  template <int MT, int N>
  TANDEM_DEVICE void apply(float (&s)[MT][N][4]) const {
    if (!first) return;
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[r][n][x] = __fmul_rn(s[r][n][x], scale);
  }
};

// What the backward takes off a row's exponents: then weights are 0 in rows that saw nothing. Of f32, whose weights are not
// rounded again, lse itself, off scores times the scale: then a key that is seen alone has weight 1 to the last bit.
template <typename T>
TANDEM_DEVICE float base_of_row(float lse) {
  return lse == minus_infinity() ? -minus_infinity() : kIsF32<T> ? lse : lse * kLog2e;
}
template <typename T>
TANDEM_DEVICE float weight_of(float s, const Exponent& e, float base) {
  return exp2_fast(kIsF32<T> ? __fmul_rn(s - base, kLog2e) : fmaf(s, e.c, -base));
}

// A far row's score (src/far_row.h), still without scale where e multiplies by that later, becomes
// relative to its origin.
TANDEM_DEVICE float from_origin(float s, const Exponent& e, float origin) {
  const float unit = e.first ? 1.f : e.scale;
  return fminf(fmaf(s, unit, -origin), 0.f) / unit;
}
// The same of a tile, far rows alone: columns are query rows (the lane's are col0 + 8 n and the
// next one), or rows are (row0 + 16 r + 8 half). rows0: the head's first row, of all; seq_q: how
// many it has.
template <bool COLUMNS, int MT, int N>
TANDEM_DEVICE void take_far_rows(float (&s)[MT][N][4], const Exponent& e, uint64_t lse,
                                 uint64_t deltas, int64_t rows0, int first, int seq_q) {
  constexpr int COUNT = COLUMNS ? 2 * N : 2 * MT;
#pragma unroll
  for (int n = 0; n < COUNT; ++n) {
    const int i = first + (COLUMNS ? 8 * (n / 2) + n % 2 : 8 * n);
    if (i >= seq_q || !tandem_is_far(__ldg(reinterpret_cast<const float*>(lse) + rows0 + i)))
      continue;
    const float origin = far_row(deltas, rows0 + i).origin;
    if constexpr (COLUMNS) {
#pragma unroll
      for (int r = 0; r < MT; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          s[r][n / 2][2 * h + n % 2] = from_origin(s[r][n / 2][2 * h + n % 2], e, origin);
    } else {
#pragma unroll
      for (int m = 0; m < N; ++m)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          s[n / 2][m][2 * (n % 2) + c] = from_origin(s[n / 2][m][2 * (n % 2) + c], e, origin);
    }
  }
}

// Elements outside [lo, hi] of their row become -inf. The lane's rows are row0 + 16 r + 8 half, its columns col0 + 8 n
// and the next one.
template <int MT, int N, typename Low, typename High>
TANDEM_DEVICE void hide(float (&s)[MT][N][4], int row0, int col0, const Low& low,
                        const High& high) {
#pragma unroll
  for (int r = 0; r < MT; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row0 + 16 * r + 8 * h;
      const int lo = low(row) - col0, hi = high(row) - col0;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = 8 * n + c;
          s[r][n][2 * h + c] = (at < lo) | (at > hi) ? minus_infinity() : s[r][n][2 * h + c];
        }
    }
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
