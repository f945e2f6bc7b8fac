// SPDX-License-Identifier: MIT OR Apache-2.0
// From products in accumulators to exponents of exp2.
#ifndef TANDEM_CUDA_SM80_SCORES_CUH
#define TANDEM_CUDA_SM80_SCORES_CUH
#include "../parts/softmax.cuh"
#include "tile.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// The scale in the exponent: one fma multiplies a score by c and subtracts the origin. A scale
// whose sign or size does not allow this multiplies the scores first.
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

// What the backward subtracts from the exponents of a row. It is infinite in rows that saw no key,
// so that their weights are 0. For f32, whose weights are not rounded again, it is lse itself,
// subtracted from scores times the scale, so that a row's only visible key has weight 1 to the last
// bit.
template <typename T>
TANDEM_DEVICE float base_of_row(float lse) {
  return lse == minus_infinity() ? -minus_infinity() : kIsF32<T> ? lse : lse * kLog2e;
}
template <typename T>
TANDEM_DEVICE float weight_of(float s, const Exponent& e, float base) {
  return exp2_fast(kIsF32<T> ? __fmul_rn(s - base, kLog2e) : fmaf(s, e.c, -base));
}

// Makes the score of a far row (src/problem/far_row.h) relative to its origin. Where e applies the
// scale later, the score is still without it.
TANDEM_DEVICE float from_origin(float s, const Exponent& e, float origin) {
  const float unit = e.first ? 1.f : e.scale;
  return fminf(fmaf(s, unit, -origin), 0.f) / unit;
}
// The same for the far rows of a tile. COLUMNS: columns are query rows, and the lane has
// first + 8 n and the next one. Otherwise rows are query rows, and it has first + 16 r + 8 half.
// rows0: index of the first row of the head among all rows; seq_q: rows of the head.
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

// Sets elements outside [low(row), high(row)] to -inf. The rows of the lane are
// row0 + 16 r + 8 half, its columns col0 + 8 n and the next one.
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
