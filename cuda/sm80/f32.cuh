// SPDX-License-Identifier: MIT OR Apache-2.0
// Products of f32 operands on tensor cores, which take 11 bits of each (TF32). x = hi + lo, where
// hi is x rounded to TF32 and lo is the rest, and a b = lo hi + hi lo + hi hi. lo lo, at most 2^-22
// of a b, is left out. Tensor cores cut off what does not fit a sum, always towards zero, so sums
// of products stay short. Those of a tile begin at 0, with the small terms apart, and join longer
// sums by additions that round (docs/kernels/sm80.md). With TANDEM_FLAG_TF32 there is hi hi alone.
#ifndef TANDEM_CUDA_SM80_F32_CUH
#define TANDEM_CUDA_SM80_F32_CUH
#include "tile.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// ---- where operands lie -------------------------------------------------------------------------

// Addresses of f32 rows for ldmatrix. A row of D half words holds D / 2 numbers. A matrix of 8 rows
// and 16 bytes then has 4 numbers a row, and ldmatrix gives lane 4 g + t number t of row g. These
// are the operands as multiply_tf32() takes them.
template <int D>
struct Reach32 : Reach<D> {
  TANDEM_DEVICE Reach32(uint base, bool down) : Reach<D>(base, down) {}
};

// Rows of a tile as rows of a right operand. Of eight rows, 2 t and 2 t + 1 stand for rows t
// and t + 4 of the operand, as accumulators have their columns. Of 32 features, 4 g to 4 g + 3
// stand for column g of four blocks of columns. A load of 16 bytes then has one number of each
// block, and its eight lanes are on different banks. Sums have their features in this order, too:
// columns 2 t and 2 t + 1 of block c of a lane are features 8 t + c and 8 t + 4 + c.
template <int D>
struct Columns {
  uint even, odd;
  TANDEM_DEVICE Columns(uint base, bool) {
    const Lane me;
    static_assert(D % 64 == 0, "turned by the row's last three bits");
    even = base + Rows<D>::at(2 * me.t, me.g);
    odd = base + Rows<D>::at(2 * me.t + 1, me.g);
  }
  // Loads from the 8 rows from row0 (a multiple of 8) and the 32 features from `feature` (a
  // multiple of 32) on.
  TANDEM_DEVICE void load(uint4 (&x)[2], int row0, int feature) const {
    const uint from = uint(row0 * Rows<D>::PITCH + 4 * feature);
    x[0] = get_chunk(even + from);
    x[1] = get_chunk(odd + from);
  }
};

template <typename T, int D>
using RowsReach = typename std::conditional<kIsF32<T>, Reach32<D>, Reach<D>>::type;
template <typename T, int D>
using AcrossReach = typename std::conditional<kIsF32<T>, Columns<D>, Reach<D>>::type;

// ---- products -----------------------------------------------------------------------------------

TANDEM_DEVICE uint high_part(uint x) { return (x + 0x1000u) & 0xffffe000u; }
TANDEM_DEVICE uint low_part(uint x, uint high) {
  return __float_as_uint(__fsub_rn(__uint_as_float(x), __uint_as_float(high)));
}
// Rounds to TF32. NaN stays NaN.
TANDEM_DEVICE uint round_once(uint x) {
  return __uint_as_float(x) == __uint_as_float(x) ? x + 0x1000u : x;
}

// Short sums of a few blocks of columns. big: those of hi hi. small: those of the small terms.
template <typename T, int MT, int N>
struct ShortSums {
  static constexpr bool WHOLE = std::is_same<T, F32>::value;
  float big[MT][N][4], small[WHOLE ? MT : 1][WHOLE ? N : 1][4];
  TANDEM_DEVICE ShortSums() { clear(big), clear(small); }
  // Adds a product. a: of 16 MT rows, b: of N blocks of columns.
  TANDEM_DEVICE void add(const uint (&a)[MT][4], const uint (&b)[N][2]) {
    uint high[MT][4], low[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        high[m][c] = WHOLE ? high_part(a[m][c]) : round_once(a[m][c]);
        low[m][c] = WHOLE ? low_part(a[m][c], high[m][c]) : 0u;
      }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if constexpr (WHOLE) {
        const uint h0 = high_part(b[n][0]), h1 = high_part(b[n][1]);
        const uint l0 = low_part(b[n][0], h0), l1 = low_part(b[n][1], h1);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          multiply_tf32(small[m][n], low[m], h0, h1);
          multiply_tf32(big[m][n], high[m], h0, h1);
          multiply_tf32(small[m][n], high[m], l0, l1);
        }
      } else {
#pragma unroll
        for (int m = 0; m < MT; ++m)
          multiply_tf32(big[m][n], high[m], round_once(b[n][0]), round_once(b[n][1]));
      }
    }
  }
  TANDEM_DEVICE float sum(int m, int n, int c) const {
    if constexpr (WHOLE)
      return big[m][n][c] + small[m][n][c];
    else
      return big[m][n][c];
  }
};

// s = (16 MT rows of a) (8 N rows of b)^T over D / 2 features, four blocks of columns at a time.
template <int D, typename T, int MT, int N, typename Left>
TANDEM_DEVICE void product_nt(float (&s)[MT][N][4], const Left& left, const Reach32<D>& b,
                              int b_row) {
  constexpr int SIDE = N < 4 ? N : 4;
#pragma unroll
  for (int n0 = 0; n0 < N; n0 += SIDE) {
    ShortSums<T, MT, SIDE> sums;
#pragma unroll 2
    for (int k = 0; k < D / 16; ++k) {
      uint a[MT][4], r[SIDE][2];
      left(a, k);
#pragma unroll
      for (int n = 0; n < SIDE; n += 2) {
        uint of[4];
        load_matrices(of, b.at(b_row + 8 * (n0 + n), 16 * k));
        r[n][0] = of[0], r[n][1] = of[1], r[n + 1][0] = of[2], r[n + 1][1] = of[3];
      }
      sums.add(a, r);
    }
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < SIDE; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) s[m][n0 + n][c] = sums.sum(m, n, c);
  }
}

// acc += (16 MT rows of p, 8 K columns) (8 K rows of b, the 8 N features from feature on).
// left(a, k) gives the columns of p.
template <int D, typename T, int K, int MT, int N, typename Left>
TANDEM_DEVICE void product_nn_of(float (&acc)[MT][N][4], const Left& left, const Columns<D>& b,
                                 int b_row, int feature) {
  static_assert(N % 4 == 0, "32 features at a time");
#pragma unroll
  for (int n0 = 0; n0 < N; n0 += 4) {
    ShortSums<T, MT, 4> sums;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      uint a[MT][4];
      left(a, k);
      uint4 x[2];
      b.load(x, b_row + 8 * k, feature + 8 * n0);
      const uint r[4][2] = {{x[0].x, x[1].x}, {x[0].y, x[1].y}, {x[0].z, x[1].z}, {x[0].w, x[1].w}};
      sums.add(a, r);
    }
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[m][n0 + n][c] += sums.sum(m, n, c);
  }
}
template <int D, typename T, int MT, int K, int N>
TANDEM_DEVICE void product_nn(float (&acc)[MT][N][4], const uint (&p)[MT][K][4],
                              const Columns<D>& b, int b_row, int feature = 0) {
  product_nn_of<D, T, K>(
      acc,
      [&](uint(&a)[MT][4], int k) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
          for (int c = 0; c < 4; ++c) a[m][c] = p[m][k][c];
      },
      b, b_row, feature);
}

// Packs accumulators into a left operand. Of eight columns, 2 t and 2 t + 1 count as t and t + 4.
template <typename T, int MT, int N>
TANDEM_DEVICE void pack_rows(uint (&p)[MT][N][4], const float (&s)[MT][N][4]) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) p[m][n][c] = __float_as_uint(s[m][n][c % 2 * 2 + c / 2]);
}

// ---- through shared memory ----------------------------------------------------------------------

// Stores what pack_rows() made to the rows from row0 and the columns from col on of a tile of D / 2
// columns.
template <int D, int MT, int N>
TANDEM_DEVICE void put_numbers_of(uint tile, int row0, int col, const uint (&p)[MT][N][4]) {
  const Lane me;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        put_pair(tile + Rows<D>::at(row0 + 16 * m + me.g + 8 * half, col / 4 + 2 * n + me.t / 2) +
                     uint(8 * (me.t % 2)),
                 p[m][n][half], p[m][n][half + 2]);
}
// A left operand from the transpose of that tile: its rows are the 16 columns from col on. Rows
// of the tile are taken as Columns takes them.
template <int D>
struct TurnedLeft {
  uint at[2][2];  // of rows 2 t and 2 t + 1, of columns g and g + 8
  TANDEM_DEVICE TurnedLeft(uint tile, int col) {
    const Lane me;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        at[r][half] =
            tile + Rows<D>::at(2 * me.t + r, (col + 8 * half + me.g) / 4) + uint(4 * (me.g % 4));
  }
  TANDEM_DEVICE void operator()(uint (&a)[1][4], int k) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) a[0][c] = get_word(at[c / 2][c % 2] + uint(8 * k * Rows<D>::PITCH));
  }
};

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
