// SPDX-License-Identifier: MIT OR Apache-2.0
// The parts of the f32 kernels with 8 x 8 elements a thread (trait::outer). 128 rows stay,
// transposed, in shared memory. Rows of the other side are streamed past them by
// copies that bypass the registers. A product takes a column of 8 rows and a row of 8 columns at a
// time: 4 loads of 16 bytes for 64 fma, and few registers for what has been loaded.
#ifndef TANDEM_CUDA_SIMT_F32_CUH
#define TANDEM_CUDA_SIMT_F32_CUH
#include "../kernels.h"
#include "../parts/copy.cuh"
#include "../parts/mask.cuh"
#include "../parts/softmax.cuh"
#include "plan/simt/outer_tiles.h"

namespace tandem {
namespace cuda {
namespace outer {

constexpr int kRows = kOuterRows, kThreads = kOuterThreads, kWidth = kOuterWidth;
// Pitches in floats. Transposed rows differ by 4 banks, so that 8 features of 4 rows, which a warp
// copies at a time, lie in 32 banks; and so do quads of 8 streamed rows.
constexpr int kRowsPitch = kRows + 4, kPitch = kWidth + 4;
constexpr int kWarpRows = 32;

// A thread has rows row(i) of the 128, i < 8, in two quads. A warp has 32 rows, and all columns.
// Neighbours have the same columns of two rows (Tile::pairs).
struct Invocation {
  int warp, rg, cg;  // row group 0..3, column group 0..7
  TANDEM_DEVICE Invocation() {
    const int lane = int(threadIdx.x) % 32;
    warp = int(threadIdx.x) / 32, rg = lane / 16 * 2 + lane % 2, cg = lane / 2 % 8;
  }
  TANDEM_DEVICE int row(int i) const { return warp * kWarpRows + i / 4 * 16 + rg * 4 + i % 4; }
  // Feature of a sum, j < 8: two quads.
  TANDEM_DEVICE int feature(int j) const { return j / 4 * 32 + cg * 4 + j % 4; }
};

// Reductions over the columns of a row, which 8 lanes share.
template <typename F>
TANDEM_DEVICE float reduce_row(float x, const F& f) {
#pragma unroll
  for (int lane = 2; lane < 16; lane *= 2) x = f(x, __shfl_xor_sync(kAllLanes, x, lane));
  return x;
}
TANDEM_DEVICE float row_max(float x) {
  return reduce_row(x, [](float a, float b) { return fmaxf(a, b); });
}
TANDEM_DEVICE float row_sum(float x) {
  return reduce_row(x, [](float a, float b) { return a + b; });
}

#if defined(__CUDACC__)
TANDEM_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
using simt::warp::exp2_approx;
#endif
// e^x, 1 of 0 and 0 of minus infinity. The product's rounding costs |x| 2^-25, as much as that of a
// difference of scores.
TANDEM_DEVICE float exp_of(float x) { return exp2_approx(__fmul_rn(x, 1.4426950408889634f)); }

// How many features of a product are in shared memory: those beyond a head's own are zeros.
TANDEM_DEVICE int depth_of(int head_dim) { return (head_dim + 7) / 8 * 8; }

// ---- staging ------------------------------------------------------------------------------------

// Starts to copy COUNT rows from row0 on, transposed: feature d of row r to to[d * PITCH + r]. So
// many features as are a multiple of 8; beyond the view there are zeros.
template <int COUNT, int PITCH, bool WIDE>
TANDEM_DEVICE void copy_transposed(float* to, const View<F32>& m, int row0) {
  const int lane = int(threadIdx.x) % 32, d0 = lane % 8, r0 = int(threadIdx.x) / 32 * 4 + lane / 8;
  const float* from = m.base + (row0 + r0) * m.s + d0 * m.d;
  to += d0 * PITCH + r0;
  if (WIDE && row0 + COUNT <= m.rows && m.width == kWidth) {
#pragma unroll 4
    for (int r = 0; r < COUNT; r += 16, from += 16 * m.s)
#pragma unroll
      for (int d = 0; d < kWidth; d += 8) copy_word(to + d * PITCH + r, from + d, true);
    return;
  }
#pragma unroll 1
  for (int r = 0; r < COUNT; r += 16, from += 16 * m.s)
#pragma unroll 1
    for (int d = 0; d < m.width; d += 8)
      copy_word(to + d * PITCH + r, from + d * m.d, row0 + r0 + r < m.rows && d0 + d < m.width);
}

// Starts to copy COUNT rows from row0 on to rows of kPitch floats, of kWidth features each; beyond
// the view there are zeros.
template <int COUNT, bool WIDE>
TANDEM_DEVICE void copy_rows(float* to, const View<F32>& m, int row0) {
  constexpr int QUADS = kWidth / 4, STEP = kThreads / QUADS;
  const int r0 = int(threadIdx.x) / QUADS, d = int(threadIdx.x) % QUADS * 4;
  const float* from = m.base + (row0 + r0) * m.s + d * m.d;
  to += r0 * kPitch + d;
  if constexpr (WIDE) {
#pragma unroll
    for (int r = 0; r < COUNT; r += STEP)
      copy_quad(to + r * kPitch, from + r * m.s, row0 + r0 + r < m.rows && d < m.width);
  } else {
#pragma unroll 1
    for (int r = 0; r < COUNT; r += STEP, from += STEP * m.s)
#pragma unroll 1
      for (int c = 0; c < 4; ++c)
        copy_word(to + r * kPitch + c, from + c * m.d, row0 + r0 + r < m.rows && d + c < m.width);
  }
}

// ---- products -----------------------------------------------------------------------------------

TANDEM_DEVICE void take(float (&x)[8], const float* low, const float* high) {
  *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(low);
  *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(high);
}
template <int COLS>
TANDEM_DEVICE void multiply(float (&sum)[8][COLS], const float (&x)[8], const float (&y)[COLS]) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < COLS; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
}

// s += rows of x . rows of y, both transposed, y with PITCH, over depth features: a thread's 8
// columns are features(j) of a row of y. Ascending features, one fma each, as in every kernel.
template <int PITCH>
TANDEM_DEVICE void product_nt(float (&s)[8][8], const float* x, const float* y, int depth) {
  const Invocation me;
  x += me.row(0), y += me.feature(0);
  float a[2][8], b[2][8];
  take(a[0], x, x + 16), take(b[0], y, y + 32);
#pragma unroll 4
  for (int d = 0; d < depth; d += 2) {
    x += kRowsPitch, y += PITCH;
    take(a[1], x, x + 16), take(b[1], y, y + 32);
    multiply(s, a[0], b[0]);
    x += kRowsPitch, y += PITCH;
    // What the last turn takes here lies behind the operand and is not used.
    take(a[0], x, x + 16), take(b[0], y, y + 32);
    multiply(s, a[1], b[1]);
  }
}

// The same for 32 rows of y as they are, kPitch floats apart: a thread has the columns me.cg + 8 j,
// j < 4.
TANDEM_DEVICE void product_nt(float (&s)[8][4], const float* x, const float* y, int depth) {
  const Invocation me;
  x += me.row(0), y += me.cg * kPitch;
  float a[2][8];
  float4 b[2][4];
  const auto take_y = [&](float4(&to)[4], int d) {
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = *reinterpret_cast<const float4*>(y + 8 * j * kPitch + d);
  };
  const auto take_x = [&](float(&to)[8], int d) {
    take(to, x + d * kRowsPitch, x + d * kRowsPitch + 16);
  };
  take_y(b[0], 0), take_x(a[0], 0);
#pragma unroll 4
  for (int d = 0; d < depth; d += 8, x += 8 * kRowsPitch, y += 8) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float4(&of)[4] = b[h];
      take_y(b[1 - h], 4 * h + 4);
      take_x(a[1], 4 * h + 1);
      multiply(s, a[0], {of[0].x, of[1].x, of[2].x, of[3].x});
      take_x(a[0], 4 * h + 2);
      multiply(s, a[1], {of[0].y, of[1].y, of[2].y, of[3].y});
      take_x(a[1], 4 * h + 3);
      multiply(s, a[0], {of[0].z, of[1].z, of[2].z, of[3].z});
      take_x(a[0], 4 * h + 4);
      multiply(s, a[1], {of[0].w, of[1].w, of[2].w, of[3].w});
    }
  }
}

// The P tile of a warp: 32 rows of each column, one column behind the other. Quads of rows are
// turned by the column, so that the columns of neighbours hit different banks. turn: of the column.
TANDEM_DEVICE float* ptile_at(float* ptile, const Invocation& me, int column, int turn, int half) {
  return ptile + column * kWarpRows + ((me.rg + 4 * half) ^ (turn % 4 * 2)) * 4;
}
TANDEM_DEVICE const float* ptile_at(const float* ptile, const Invocation& me, int column, int turn,
                                    int half) {
  return ptile + column * kWarpRows + ((me.rg + 4 * half) ^ (turn % 4 * 2)) * 4;
}
template <int COLS>
TANDEM_DEVICE float4 quad_of(const float (&s)[8][COLS], int half, int j) {
  return make_float4(s[4 * half][j], s[4 * half + 1][j], s[4 * half + 2][j], s[4 * half + 3][j]);
}
// With 64 columns the turn is that of the column / 4, with 32 that of the column.
TANDEM_DEVICE void put_ptile(float* ptile, const float (&s)[8][8]) {
  const Invocation me;
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<float4*>(ptile_at(ptile, me, me.feature(j), me.cg, half)) =
          quad_of(s, half, j);
}
TANDEM_DEVICE void put_ptile(float* ptile, const float (&s)[8][4]) {
  const Invocation me;
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<float4*>(ptile_at(ptile, me, me.cg + 8 * j, me.cg, half)) =
          quad_of(s, half, j);
}
TANDEM_DEVICE void take_ptile(const float* ptile, float (&s)[8][4]) {
  const Invocation me;
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 x =
          *reinterpret_cast<const float4*>(ptile_at(ptile, me, me.cg + 8 * j, me.cg, half));
      s[4 * half][j] = x.x, s[4 * half + 1][j] = x.y;
      s[4 * half + 2][j] = x.z, s[4 * half + 3][j] = x.w;
    }
}

// acc += the warp's P tile of COLS columns . so many rows of y, kPitch floats apart.
template <int COLS>
TANDEM_DEVICE void product_nn(float (&acc)[8][8], const float* ptile, const float* y) {
  const Invocation me;
  y += me.feature(0);
  float a[2][8], b[2][8];
  const auto take_p = [&](float(&to)[8], int c) {
    const int turn = COLS == 64 ? c / 4 : c;
    take(to, ptile_at(ptile, me, c, turn, 0), ptile_at(ptile, me, c, turn, 1));
  };
  const auto take_y = [&](float(&to)[8], int c) { take(to, y + c * kPitch, y + c * kPitch + 32); };
  take_p(a[0], 0), take_y(b[0], 0);
#pragma unroll 4
  for (int c = 0; c < COLS; c += 2) {
    take_p(a[1], c + 1), take_y(b[1], c + 1);
    multiply(acc, a[0], b[0]);
    if (c + 2 < COLS) take_p(a[0], c + 2), take_y(b[0], c + 2);
    multiply(acc, a[1], b[1]);
  }
}

// Products are rounded before anything is subtracted: contracted into fma(s, scale, -m), the weight
// of a row's only key would not be exactly 1.
template <int COLS>
TANDEM_DEVICE void scale_scores(float (&s)[8][COLS], float scale) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < COLS; ++j) s[i][j] = __fmul_rn(s[i][j], scale);
}
// lse of a row that sees no key is -inf, which would give weights of infinity.
TANDEM_DEVICE float seen_lse(float lse) { return lse == minus_infinity() ? INFINITY : lse; }

// Hides what the band, seq_q and seq_kv hide. row_of(i), col_of(j): query rows and keys of a
// thread's scores.
template <int COLS, typename Query, typename Key>
TANDEM_DEVICE void mask_scores(float (&s)[8][COLS], TandemBand band, int seq_q, int seq_kv,
                               const Query& query, const Key& key) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < COLS; ++j) {
      const int q = query(i, j), k = key(i, j);
      // | in place of ||: so many branches would cost more than the comparisons.
      const bool hidden = (q >= seq_q) | (k >= seq_kv) | !tandem_visible(band, q, k);
      s[i][j] = hidden ? minus_infinity() : s[i][j];
    }
}

// Stores sums, times factor, to rows from row0 on.
TANDEM_DEVICE void store_sums(const View<F32>& m, int row0, const float (&acc)[8][8],
                              float factor) {
  const Invocation me;
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = acc[i][4 * h + c] * factor;
      store_words(m, row0 + me.row(i), me.feature(4 * h), x);
    }
}

}  // namespace outer
}  // namespace cuda
}  // namespace tandem
#endif
