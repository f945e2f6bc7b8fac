// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles of rows in shared memory, and the two products that the kernels of this path are made of
// (docs/kernels/sm80.md). A warp owns MT blocks of 16 rows and all columns of a tile; what is in
// accumulators becomes a left operand in place.
#ifndef TANDEM_CUDA_SM80_TILE_CUH
#define TANDEM_CUDA_SM80_TILE_CUH
#include "../parts/tile.cuh"
#include "mma.cuh"
#include "problem/rounded_weights.h"

namespace tandem {
namespace cuda {
namespace sm80 {

struct TF32 : F32 {};  // f32 numbers, of which products take the first 11 bits (f32.cuh)
template <typename T>
constexpr bool kIsF32 = std::is_base_of<F32, T>::value;
// Depth of one mma: columns of its left operand, rows of its right one.
template <typename T>
constexpr int kDepth = kIsF32<T> ? 8 : 16;

// Layout of rows of D 16-bit features, or half as many in f32. The 16-byte chunks of a row are
// swizzled, so that the eight rows of a matrix lie in different banks wherever they begin.
template <int D>
struct Rows {
  static_assert(D % 32 == 0, "a row of an odd number of half lines would need another exchange");
  static constexpr int CHUNKS = D / 8, PITCH = 2 * D;
  static constexpr TANDEM_DEVICE int turn(int row) {
    return D % 64 == 0 ? row & 7 : (row >> 1) & 3;
  }
  static TANDEM_DEVICE uint at(int row, int chunk) {
    return uint(row * PITCH + ((chunk ^ turn(row)) << 4));
  }
};

// Starts copies of the CHUNKS chunks from FIRST on of COUNT rows of a head from row0 on, whose rows
// are wide, with zeros outside of it. me: number of this thread, of THREADS.
template <int D, int FIRST, int CHUNKS, int COUNT, int THREADS, typename T>
TANDEM_DEVICE void copy_rows(uint to, const View<T>& m, int row0, int me) {
  using R = Rows<D>;
  constexpr int SIZE = int(sizeof(typename T::Element)), PER = 16 / SIZE;  // elements of a chunk
  constexpr int ALL = COUNT * CHUNKS, EACH = (ALL + THREADS - 1) / THREADS;
  // A thread loads the same chunk of each of its rows. The swizzle repeats every PERIOD steps.
  static_assert(THREADS % CHUNKS == 0, "whole rows are copied");
  constexpr int STEP = THREADS / CHUNKS, PERIOD = STEP < 8 ? 8 / STEP : 1;
  static_assert(STEP % 8 == 0 || 8 % STEP == 0, "whole periods");
  static_assert(ALL % THREADS == 0 || ALL < THREADS,
                "each thread copies as many, or some copy one");
  const int row = me / CHUNKS, chunk = FIRST + me % CHUNKS;
  if (ALL < THREADS && row >= COUNT) return;
  const int left = m.rows - row0 - row, columns = m.width - PER * chunk;
  const auto* from = m.base + (row0 + row) * m.s + PER * chunk;
  if (columns > 0 && columns < PER) {
#pragma unroll 1
    for (int n = 0; n < EACH; ++n, from += STEP * m.s)
      copy_chunk(to + R::at(row + n * STEP, chunk), n * STEP < left ? from : m.base,
                 n * STEP < left ? SIZE * columns : 0);
    return;
  }
  uint place[PERIOD];
#pragma unroll
  for (int n = 0; n < PERIOD; ++n)
    place[n] = to + R::at(row + n * STEP, chunk) - uint(n * STEP * R::PITCH);
  const int last = columns > 0 ? left : 0;
#pragma unroll
  for (int n = 0; n < EACH; ++n, from += STEP * m.s)
    copy_chunk(place[n % PERIOD] + uint(n * STEP * R::PITCH), from, n * STEP < last);
}

constexpr TANDEM_DEVICE int power_of_two_below(int n) {
  int x = 1;
  while (2 * x <= n) x *= 2;
  return x;
}
// The same for all chunks from FIRST on, in pieces that divide the threads.
template <int D, int FIRST, int COUNT, int THREADS, typename T>
TANDEM_DEVICE void copy_pieces(uint to, const View<T>& m, int row0, int me) {
  if constexpr (FIRST < Rows<D>::CHUNKS) {
    constexpr int CHUNKS = power_of_two_below(Rows<D>::CHUNKS - FIRST);
    copy_rows<D, FIRST, CHUNKS, COUNT, THREADS>(to, m, row0, me);
    copy_pieces<D, FIRST + CHUNKS, COUNT, THREADS>(to, m, row0, me);
  }
}

// Loads COUNT rows of a head from row0 on, with zeros outside of it, by THREADS threads, of which
// this is the one numbered me. Where rows are wide, copies (cp.async) are in flight on return.
// EARLY: the kernel may start before the one that writes the rows has ended. Rows that are not wide
// are then read past L1, too, as copies are: L1 may have what was there before.
template <int D, int COUNT, int THREADS, bool EARLY = false, typename T>
TANDEM_DEVICE void load_rows(uint to, const View<T>& m, int row0, int me) {
  using R = Rows<D>;
  constexpr int SIZE = int(sizeof(typename T::Element)), PER = 16 / SIZE;  // elements of a chunk
  constexpr int CHUNKS = COUNT * R::CHUNKS;
  if (m.wide) {
    copy_pieces<D, 0, COUNT, THREADS>(to, m, row0, me);
  } else {
#pragma unroll 1
    for (int at = me; at < CHUNKS; at += THREADS) {
      const int row = at / R::CHUNKS, chunk = at % R::CHUNKS;
      uint word[4] = {0u, 0u, 0u, 0u};
      if (row0 + row < m.rows) {
        const auto* from = m.base + (row0 + row) * m.s + PER * chunk * m.d;
#pragma unroll
        for (int c = 0; c < PER; ++c) {
          if (PER * chunk + c >= m.width) continue;
          const auto x = EARLY ? __ldcg(from + c * m.d) : __ldg(from + c * m.d);
          if constexpr (SIZE == 4)
            word[c] = __float_as_uint(x);
          else
            word[c / 2] |= uint(x) << (c % 2 * 16);
        }
      }
      put_chunk(to + R::at(row, chunk), make_uint4(word[0], word[1], word[2], word[3]));
    }
  }
}

// The same by all THREADS threads of the block.
template <int D, int COUNT, int THREADS, bool EARLY = false, typename T>
TANDEM_DEVICE void load_rows(uint to, const View<T>& m, int row0) {
  load_rows<D, COUNT, THREADS, EARLY>(to, m, row0, int(threadIdx.x));
}

// ---- where a lane's elements lie ----------------------------------------------------------------

struct Lane {
  int warp, g, t;
  explicit TANDEM_DEVICE Lane(int thread = int(threadIdx.x))
      : warp(thread / 32), g(thread % 32 / 4), t(thread % 4) {}
};

// Addresses that a lane gives to ldmatrix. The order of the four matrices is, for a left operand:
// rows 0-7, rows 8-15 of the first eight features, then of the next eight. For a right operand by
// rows it is: both for rows 0-7, then both for rows 8-15. Transposed it is as for a left operand.
template <int D>
struct Reach {
  uint row;     // address of the lane's row
  uint turned;  // offset of the first chunk in the row, swizzled
  // down: matrices 0 and 1 are rows 0-7 and 8-15. Otherwise they are features 0-7 and 8-15.
  TANDEM_DEVICE Reach(uint base, bool down) {
    const int lane = int(threadIdx.x) % 32, matrix = lane / 8;
    const int low = lane % 8 + 8 * (down ? matrix % 2 : matrix / 2),
              chunk = down ? matrix / 2 : matrix % 2;
    row = base + uint(low * Rows<D>::PITCH);
    turned = uint((chunk ^ Rows<D>::turn(low)) << 4);
  }
  // Address in the 16 rows from row0 and the 16 features from `feature` on, both multiples of 16.
  TANDEM_DEVICE uint at(int row0, int feature) const {
    return row + uint(row0 * Rows<D>::PITCH) + (turned ^ uint(2 * feature));
  }
};

// Left operands of a warp, read from shared memory one block of features at a time.
template <int D, int MT>
struct SharedLeft {
  Reach<D> at;
  int row0;
  TANDEM_DEVICE SharedLeft(uint base, int row0) : at(base, true), row0(row0) {}
  TANDEM_DEVICE void operator()(uint (&a)[MT][4], int k) const {
#pragma unroll
    for (int m = 0; m < MT; ++m) load_matrices(a[m], at.at(row0 + 16 * m, 16 * k));
  }
};

// Left operands of a warp, all in registers.
template <int D, int MT>
struct HeldLeft {
  uint a[D / 16][MT][4];
  TANDEM_DEVICE void load(const SharedLeft<D, MT>& from) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) from(a[k], k);
  }
  TANDEM_DEVICE void operator()(uint (&to)[MT][4], int k) const {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int c = 0; c < 4; ++c) to[m][c] = a[k][m][c];
  }
};

// ---- products -----------------------------------------------------------------------------------

template <int M, int N>
TANDEM_DEVICE void clear(float (&s)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) s[m][n][c] = 0.f;
}

// s += (16 MT rows of a) (8 N rows of b)^T over D features. left(a, k) gives the left operand of a
// block of 16 features.
template <int D, typename T, int MT, int N, typename Left>
TANDEM_DEVICE void add_product_nt(float (&s)[MT][N][4], const Left& left, const Reach<D>& b,
                                  int b_row) {
#pragma unroll(D > 64 ? 4 : D / 16)  // unrolled whole, ptxas loads ahead until accumulators spill
  for (int k = 0; k < D / 16; ++k) {
    uint a[MT][4];
    left(a, k);
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      uint r[4];
      load_matrices(r, b.at(b_row + 16 * n, 16 * k));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        multiply<T>(s[m][2 * n], a[m], r[0], r[1]);
        multiply<T>(s[m][2 * n + 1], a[m], r[2], r[3]);
      }
    }
  }
}

// The same from 0 on.
template <int D, typename T, int MT, int N, typename Left>
TANDEM_DEVICE void product_nt(float (&s)[MT][N][4], const Left& left, const Reach<D>& b,
                              int b_row) {
  clear(s);
  add_product_nt<D, T>(s, left, b, b_row);
}

// acc += (16 MT rows of p, 16 K columns) (16 K rows of b, the 8 N features from feature on).
template <int D, typename T, int MT, int K, int N>
TANDEM_DEVICE void product_nn(float (&acc)[MT][N][4], const uint (&p)[MT][K][4], const Reach<D>& b,
                              int b_row, int feature = 0) {
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      uint r[4];
      load_matrices_transposed(r, b.at(b_row + 16 * k, feature + 16 * n));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        multiply<T>(acc[m][2 * n], p[m][k], r[0], r[1]);
        multiply<T>(acc[m][2 * n + 1], p[m][k], r[2], r[3]);
      }
    }
}

// The same with p in shared memory.
template <int D, typename T, int K, int MT, int N, int P>
TANDEM_DEVICE void product_nn(float (&acc)[MT][N][4], const SharedLeft<P, MT>& p, const Reach<D>& b,
                              int b_row, int feature) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    uint a[MT][4];
    p(a, k);
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      uint r[4];
      load_matrices_transposed(r, b.at(b_row + 16 * k, feature + 16 * n));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        multiply<T>(acc[m][2 * n], a[m], r[0], r[1]);
        multiply<T>(acc[m][2 * n + 1], a[m], r[2], r[3]);
      }
    }
  }
}

// Packs accumulators into a left operand.
template <typename T, int MT, int N>
TANDEM_DEVICE void pack_rows(uint (&p)[MT][N / 2][4], const float (&s)[MT][N][4]) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      p[m][k][0] = pack<T>(s[m][2 * k][0], s[m][2 * k][1]);
      p[m][k][1] = pack<T>(s[m][2 * k][2], s[m][2 * k][3]);
      p[m][k][2] = pack<T>(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
      p[m][k][3] = pack<T>(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
    }
}

// Stores a left operand to the rows from row0 and the columns from col on of a tile of D columns.
// The addresses do not change from tile to tile, so the compiler keeps each of them in a register.
// APART, where registers are short: it keeps one for each eight columns, and reaches all rows from
// there by constants. row0 is a multiple of 16, col of 16 K.
template <int D, bool APART = false, int MT, int K>
TANDEM_DEVICE void put_rows(uint tile, int row0, int col, const uint (&p)[MT][K][4]) {
  using R = Rows<D>;
  static_assert(!APART || ((K & (K - 1)) == 0 && R::turn(8) == R::turn(0)),
                "one turn for all of a lane's rows");
  const Lane me;
  const uint first = tile + uint((row0 + me.g) * R::PITCH + 4 * me.t),
             turned = uint(((col / 8) ^ R::turn(me.g)) << 4);
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = 16 * m + 8 * (c % 2), chunk = 2 * k + c / 2;
        put_word(APART ? first + uint(row * R::PITCH) + (turned ^ uint(chunk << 4))
                       : tile + R::at(row0 + row + me.g, col / 8 + chunk) + uint(4 * me.t),
                 p[m][k][c]);
      }
}

// ---- results ------------------------------------------------------------------------------------

// Stores of_row(x, m, half) of sums x of f32 products (f32.cuh), straight from registers: a lane
// has eight numbers side by side. row: the first row of the lane.
template <typename T, int MT, int N, typename OfRow>
TANDEM_DEVICE void store_columns(const View<T>& to, int row, const float (&acc)[MT][N][4],
                                 const OfRow& of_row, int feature = 0) {
  const int t = int(threadIdx.x) % 4;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n0 = 0; n0 < N; n0 += 4)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float x[4];
#pragma unroll
          for (int n = 0; n < 4; ++n) x[n] = of_row(acc[m][n0 + n][2 * half + c], m, half);
          const int col = feature + 8 * n0 + 8 * t + 4 * c;
          if (col < to.width) store_words(to, row + 16 * m + 8 * half, col, x);
        }
}

// Stores of_row(x, m, half) of accumulators x (row g + 8 half of block m) to the view. They pass
// through the 16 MT rows of the warp, from row0 on, of a tile in shared memory, which no other warp
// reads any more.
template <int D, typename T, int MT, int N, typename OfRow>
TANDEM_DEVICE void store_rows(const View<T>& to, int to_row0, uint tile, int row0,
                              const float (&acc)[MT][N][4], const OfRow& of_row, int feature = 0) {
  const Lane me(thread_number());
  if constexpr (kIsF32<T>) {
    store_columns(to, to_row0 + row0 + me.g, acc, of_row, feature);
    return;
  } else {
    sync_warp();
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + 16 * m + me.g + 8 * half;
#pragma unroll
        for (int n = 0; n < N; ++n)
          put_word(tile + Rows<D>::at(row, feature / 8 + n) + uint(4 * me.t),
                   pack<T>(of_row(acc[m][n][2 * half], m, half),
                           of_row(acc[m][n][2 * half + 1], m, half)));
      }
    sync_warp();
    constexpr int CHUNKS = N;
#pragma unroll 1
    for (int at = int(threadIdx.x) % 32; at < 16 * MT * CHUNKS; at += 32) {
      const int row = row0 + at / CHUNKS, chunk = feature / 8 + at % CHUNKS;
      const int width = to.width - 8 * chunk;
      if (to_row0 + row >= to.rows || width <= 0) continue;
      const uint4 x = get_chunk(tile + Rows<D>::at(row, chunk));
      auto* p = to.base + (to_row0 + row) * to.s + 8 * chunk * to.d;
      if (to.wide && width >= 8) {
        *reinterpret_cast<uint4*>(p) = x;
      } else {
        const uint word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int c = 0; c < 8; ++c)
          if (c < width) p[c * to.d] = static_cast<unsigned short>(word[c / 2] >> (c % 2 * 16));
      }
    }
  }
}

// The same for elements of o (src/problem/rounded_weights.h). The vote costs a comparison an
// element; 4 operations for each took whole heads of f16 8 % longer (H100).
template <int D, typename T, int MT, int N, typename OfRow>
TANDEM_DEVICE void store_averages(const View<T>& to, int to_row0, uint tile, int row0,
                                  const float (&acc)[MT][N][4], const OfRow& of_row,
                                  int feature = 0) {
  if constexpr (std::is_same<T, F16>::value) {
    bool beyond = false;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = 0.f;
#pragma unroll
        for (int n = 0; n < N; ++n)
          top = fmaxf(top, fmaxf(fabsf(acc[m][n][2 * half]), fabsf(acc[m][n][2 * half + 1])));
        beyond |= of_row(top, m, half) > 65504.f;
      }
    if (__any_sync(kAllLanes, beyond)) {
      const auto limited = [&](float x, int m, int half) {
        return tandem_f16_average(of_row(x, m, half));
      };
      store_rows<D>(to, to_row0, tile, row0, acc, limited, feature);
      return;
    }
  }
  store_rows<D>(to, to_row0, tile, row0, acc, of_row, feature);
}

// Stores of_row(x, m, half) of sums x of 16-bit products in f32, straight from registers. row, col:
// of the first element of the lane.
template <int MT, int N, typename OfRow>
TANDEM_DEVICE void store_numbers(const View<F32>& to, int row, int col,
                                 const float (&acc)[MT][N][4], const OfRow& of_row) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 16 * m + 8 * half;
      if (i >= to.rows) continue;
      float* p = to.base + i * to.s + col;
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (col + 8 * n < to.width)  // the width is even
          *reinterpret_cast<float2*>(p + 8 * n) = make_float2(
              of_row(acc[m][n][2 * half], m, half), of_row(acc[m][n][2 * half + 1], m, half));
    }
}

// The sum, or the largest, of the four lanes of a row.
TANDEM_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
TANDEM_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
