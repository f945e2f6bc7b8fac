// SPDX-License-Identifier: MIT OR Apache-2.0
// Online softmax of a consumer warpgroup, on the accumulators of S = Q K^T.
#ifndef TANDEM_CUDA_SM90_FWD_SOFTMAX_CUH
#define TANDEM_CUDA_SM90_FWD_SOFTMAX_CUH
#include "problem/rounded_weights.h"
#include "problem/tile_range.h"
#include "shared_storage.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Whether scores are multiplied by the scale after they are compared. A scale that is not positive,
// or hardly, comes before the comparison.
TANDEM_DEVICE bool plain_scale(const FwdBlock& u) { return u.scale > kPlainScale; }
// The factor that turns products into scores in natural units. Where the scale came first, products
// are already in powers of two.
TANDEM_DEVICE float product_unit(const FwdBlock& u) { return plain_scale(u) ? u.scale : kLn2; }
// The factor of products in Softmax::step().
TANDEM_DEVICE float step_scale(const FwdBlock& u) {
  return plain_scale(u) ? u.scale * kLog2e : 1.f;
}
// Multiplies products by a scale that comes before the comparison.
template <int COUNT>
TANDEM_DEVICE void scale_products(float (&s)[COUNT], const FwdBlock& u) {
  if (plain_scale(u)) return;
  const float first = opaque(u.scale) * kLog2e;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) s[i] *= first;
}
// Row and column of the thread's first accumulator of a tile. They are computed again at each use:
// in the main loops, accumulators need the registers.
TANDEM_DEVICE int accumulator_row() {
  const int thread = read_tid_x() - 128;
  return thread / 32 * 16 + thread % 32 / 4;
}
TANDEM_DEVICE int accumulator_col() { return read_tid_x() % 4 * 2; }

// Sets the elements that the band hides to `hidden`. row, col: of the thread's first element.
template <int N>
TANDEM_DEVICE void mask_tile(float (&s)[N / 2], TandemBand band, int row, int col, int seq_kv,
                             float hidden) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r + band.off;
    const int most = min(seq_kv - 1, at + band.right) - col, least = at - band.left - col;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int x = 8 * j + c;
        s[4 * j + 2 * r + c] = (x > most) | (x < least) ? hidden : s[4 * j + 2 * r + c];
      }
  }
}

// The bits of the largest of a thread's elements of row r. The elements are compared as integers,
// three at a time: their order is that of numbers where one is not negative, and the opposite order
// if all are negative.
template <int N>
TANDEM_DEVICE int top_word(const float (&s)[N / 2], int r) {
  const auto word = [&](int j, int c) { return float_bits(s[4 * j + 2 * r + c]); };
  int a = max(word(0, 0), word(0, 1)), b = max(word(1, 0), word(1, 1));
#pragma unroll
  for (int j = 2; j < N / 8; j += 2) {
    a = __vimax3_s32(a, word(j, 0), word(j, 1));
    b = __vimax3_s32(b, word(j + 1, 0), word(j + 1, 1));
  }
  return max(a, b);
}
// The bits of the smallest one as integers: of negative numbers the largest.
template <int N>
TANDEM_DEVICE int bottom_word(const float (&s)[N / 2], int r) {
  const auto word = [&](int j, int c) { return float_bits(s[4 * j + 2 * r + c]); };
  int a = min(word(0, 0), word(0, 1)), b = min(word(1, 0), word(1, 1));
#pragma unroll
  for (int j = 2; j < N / 8; j += 2) {
    a = __vimin3_s32(a, word(j, 0), word(j, 1));
    b = __vimin3_s32(b, word(j + 1, 0), word(j + 1, 1));
  }
  return min(a, b);
}

// The maximum of each of the thread's two rows, over all columns.
template <int N>
TANDEM_DEVICE void find_tops(float (&top)[2], const float (&s)[N / 2]) {
  const int word[2] = {quad_max(top_word<N>(s, 0)), quad_max(top_word<N>(s, 1))};
#pragma unroll
  for (int r = 0; r < 2; ++r) top[r] = __int_as_float(word[r]);
  if (__any_sync(kAllLanes, (word[0] | word[1]) < 0)) {  // seldom
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int least = ~quad_max(~bottom_word<N>(s, r));
      if (word[r] < 0) top[r] = __int_as_float(least);
    }
  }
}

// A score beyond +-2^20, in powers of two, is far: an exact product minus the rounded origin is
// then off by 2^-4 and more, up to 2^100.
constexpr float kFarScore = 1048576.f;

// Origin of a row, which its weights are relative to. Near: 2^m. Far: m is in units of products,
// before the scale, and is subtracted from those, which f32 does exactly or nearly so. A row that
// has seen no key is far, and m is minus infinity.
struct Origin {
  float m;
  bool far;
  // The factor that turns m into ln of the origin. natural: the factor that turns products into
  // scores.
  TANDEM_DEVICE float ln_unit(float natural) const { return far ? natural : kLn2; }
  // How many powers of two this origin is above b. NaN if neither row has seen a key.
  TANDEM_DEVICE float above(const Origin& b, float scale) const {
    if (far) return b.far ? (m - b.m) * scale : fmaf(m, scale, -b.m);
    return b.far ? -fmaf(b.m, scale, -m) : m - b.m;
  }
};

// Online softmax: the running maximum and sum of a thread's two rows.
template <int N>
struct Softmax {
  // l: sum of the weights of this thread's columns. Its sign is negative where the row is far: a
  // flag of its own would take a register.
  float m[2], l[2];
  TANDEM_DEVICE Softmax() : m{-INFINITY, -INFINITY}, l{-0.f, -0.f} {}
  TANDEM_DEVICE Origin origin(int r) const { return {m[r], float_bits(l[r]) < 0}; }
  TANDEM_DEVICE float sum(int r) const { return fabsf(l[r]); }
  TANDEM_DEVICE void move(int r, const Origin& to) {
    m[r] = to.m;
    l[r] = to.far ? -sum(r) : sum(r);
  }

  // The score that is the origin of a row.
  TANDEM_DEVICE float top(int r, float natural) const { return m[r] * origin(r).ln_unit(natural); }
  // lse of a row whose weights add up to l.
  TANDEM_DEVICE float lse(int r, float l, float natural) const {
    return l == 0.f ? -INFINITY : fmaf(m[r], origin(r).ln_unit(natural), logf(l));
  }

  // Turns products into weights. factor: what earlier results have to be multiplied by. m follows
  // the maximum of the row by slack (FwdBlock). Returns whether any factor in the warp is not 1.
  TANDEM_DEVICE bool step(float (&s)[N / 2], float scale, float slack, float (&factor)[2]) {
    return step(s, scale, slack, factor, [] {});
  }
  // The same; checked() is called after a vote on all products.
  template <typename Checked>
  TANDEM_DEVICE bool step(float (&s)[N / 2], float scale, float slack, float (&factor)[2],
                          const Checked& checked) {
    // A row rarely needs another m. Each thread first tests its own numbers, without waiting for
    // the maximum of its row. If all are negative, 0 is tested instead.
    bool grown = (float_bits(l[0]) | float_bits(l[1])) < 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      grown |= !(__int_as_float(max(top_word<N>(s, r), 0)) * scale <= m[r] + slack);
      factor[r] = 1.f;
    }
    grown = __any_sync(kAllLanes, grown);
    if (grown) {
      float top[2];
      find_tops<N>(top, s);
      bool grows[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float powers = top[r] * scale;
        grows[r] = origin(r).far ? top[r] > m[r] : powers > m[r] + slack;
        if (grows[r]) {
          const bool far = !(fabsf(powers) <= kFarScore);
          const Origin to{far ? top[r] : powers, far};
          factor[r] = exp2_fast(origin(r).above(to, scale));
          move(r, to);
        }
        if (origin(r).far & (m[r] > -INFINITY)) {
#pragma unroll
          for (int i = 0; i < N / 4; ++i) s[i / 2 * 4 + 2 * r + i % 2] -= m[r];
        }
      }
      grown = __any_sync(kAllLanes, grows[0] | grows[1]);
    }
    checked();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // No key is visible yet: any finite number gives weights of 0.
      const float base = origin(r).far ? 0.f : m[r];
      float x = 0.f, y = 0.f;
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        s[4 * j + 2 * r] = exp2_fast(fmaf(s[4 * j + 2 * r], scale, -base));
        s[4 * j + 2 * r + 1] = exp2_fast(fmaf(s[4 * j + 2 * r + 1], scale, -base));
        x += s[4 * j + 2 * r];
        y += s[4 * j + 2 * r + 1];
      }
      l[r] = fmaf(l[r], factor[r], copysignf(x + y, l[r]));
    }
    return grown;
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
