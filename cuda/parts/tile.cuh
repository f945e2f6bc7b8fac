// SPDX-License-Identifier: MIT OR Apache-2.0
// Staging and the two products that every tiled kernel is made of (docs/kernels/overview.md). Twin
// of shaders/parts/tile.glsl.
#ifndef TANDEM_CUDA_PARTS_TILE_CUH
#define TANDEM_CUDA_PARTS_TILE_CUH
#include "plan/simt/tiles.h"
#include "tensor.cuh"

namespace tandem {
namespace cuda {

// ---- the tile -----------------------------------------------------------------------------------

template <int ROW>
struct Shape {  // a row of plan/simt/tiles.inc
  static constexpr Tile tile = kSimtTiles[ROW];
  static constexpr int M = tile.br, N = tile.bc, TR = tile.tr, TC = tile.tc;
  static constexpr int DK = tile.dk, KC = tile.kc;
  static constexpr int WG = TR * TC;
  static constexpr bool PAIRS = tile.pairs;
  static constexpr int RM = M / TR;    // rows of an invocation
  static constexpr int COLS = 4 * TC;  // columns of one accumulator block
  static constexpr int POOL = tile_pool_vec4(tile), PTILE = tile_ptile_vec4(tile);
  static constexpr int P_PITCH = N / 4 + 1, NT_PITCH = DK / 4 + 1, NN_PITCH = TC + 1;
  // Staging: quads that an invocation loads, and the rows between them.
  static constexpr int NT_QUADS = DK / 4, NT_STEP = WG / NT_QUADS;
  static constexpr int A_COUNT = M / NT_STEP, B_COUNT = N / NT_STEP;
  static constexpr int NN_STEP = WG / TC, NN_COUNT = KC / NN_STEP;
  // How many of BLOCKS accumulator blocks a step of product_nn takes side by side; its rows are
  // fewer by that factor.
  template <int BLOCKS>
  static constexpr int SIDE = BLOCKS % 2 == 0 ? 2 : 1;
  static constexpr int STAGED = A_COUNT + B_COUNT > NN_COUNT ? A_COUNT + B_COUNT : NN_COUNT;
  // Workgroups that an SM is to hold at least, as a bound on registers: 384 threads of 168
  // registers where the accumulators of an invocation leave room for that, else 256 of 255.
  static constexpr int groups(int accumulators, bool wide) {
    const int threads = accumulators <= 32 && wide ? 384 : 256;
    return threads > WG ? threads / WG : 1;
  }
  static constexpr int FULL_GROUPS = 256 / WG;  // for kernels with optional inputs
  static_assert(WG % NT_QUADS == 0 && M % NT_STEP == 0 && N % NT_STEP == 0,
                "whole rows are staged");
  static_assert(KC % NN_STEP == 0 && KC % 8 == 0 && NN_STEP % 2 == 0, "whole rows are staged");
  static_assert(WG % 32 == 0 && 32 % ((PAIRS ? 2 : 1) * TC) == 0,
                "row reductions are shuffles inside a warp");
};

template <typename S>
struct Invocation {  // which rows and columns of the tile an invocation has
  int tr, tc;
  TANDEM_DEVICE Invocation() {
    const int n = int(threadIdx.x);
    tr = S::PAIRS ? n / (2 * S::TC) * 2 + n % 2 : n / S::TC;
    tc = S::PAIRS ? n / 2 % S::TC : n % S::TC;
  }
  TANDEM_DEVICE int row(int i) const { return tr + S::TR * i; }
  TANDEM_DEVICE int col(int c) const { return 4 * tc + c; }
};

// Register prefetch: the loads of the next step, in flight while the present one is multiplied.
// Without WIDE, loads go straight to the pool, from rolled loops, when they are due. Prefetched
// element by element, and in each type where T is Any, they would take the registers of the
// accumulators.
template <typename T, typename S, bool WIDE>
struct Stage {
  static constexpr bool ANY = std::is_same<T, Any>::value, LAZY = !WIDE;
  typename T::Raw quad[S::STAGED];

  // Loads DK features from `feature` on, of M rows of a and N rows of b.
  TANDEM_DEVICE void fetch_nt(const View<T>& a, int a_row, const View<T>& b, int b_row,
                              int feature) {
    const int r = int(threadIdx.x) / S::NT_QUADS, q = int(threadIdx.x) % S::NT_QUADS;
    load<S::A_COUNT, S::NT_STEP>(quad, a, a_row, r, feature, 4 * q);
    load<S::B_COUNT, S::NT_STEP>(quad + S::A_COUNT, b, b_row, r, feature, 4 * q);
  }
  // Stores what was fetched with the same arguments to the pool.
  TANDEM_DEVICE void put_nt(float4* pool, const View<T>& a, int a_row, const View<T>& b, int b_row,
                            int feature) const {
    const int r = int(threadIdx.x) / S::NT_QUADS, q = int(threadIdx.x) % S::NT_QUADS;
    as_type(a, [&](auto e) {
      using E = decltype(e);
      put<E, S::A_COUNT, S::NT_STEP>(pool, quad, a, a_row, r, feature, 4 * q,
                                     [&](int row) { return row * S::NT_PITCH + q; });
      // Neighbours read rows 4 tc + j of b, which are stored so that these are consecutive.
      put<E, S::B_COUNT, S::NT_STEP>(
          pool, quad + S::A_COUNT, b, b_row, r, feature, 4 * q,
          [&](int row) { return (S::M + row % 4 * S::TC + row / 4) * S::NT_PITCH + q; });
    });
  }

  // Loads KC / SIDE rows of b, the columns of SIDE accumulator blocks.
  template <int SIDE = 1>
  TANDEM_DEVICE void fetch_nn(const View<T>& b, int b_row, int col) {
    const int r = int(threadIdx.x) / (SIDE * S::TC), q = int(threadIdx.x) % (SIDE * S::TC);
    load<S::NN_COUNT, S::NN_STEP / SIDE>(quad, b, b_row, r, b.first + col, 4 * q);
  }
  template <int SIDE = 1>
  TANDEM_DEVICE void put_nn(float4* pool, const View<T>& b, int b_row, int col) const {
    constexpr int PITCH = SIDE * S::TC + 1;
    const int r = int(threadIdx.x) / (SIDE * S::TC), q = int(threadIdx.x) % (SIDE * S::TC);
    as_type(b, [&](auto e) {
      put<decltype(e), S::NN_COUNT, S::NN_STEP / SIDE>(
          pool, quad, b, b_row, r, b.first + col, 4 * q, [&](int row) { return row * PITCH + q; });
    });
  }

 private:
  template <int COUNT, int STEP>
  TANDEM_DEVICE static void load(typename T::Raw* out, const View<T>& m, int row0, int row,
                                 int col0, int col) {
    if constexpr (WIDE && !ANY)
      load_words<T, WIDE, COUNT, STEP>(out, m, row0, row, col0, col);
    else if constexpr (WIDE)
      load_any<COUNT, STEP>(out, m, row0, row, col0, col);
  }
  // Stores what load() has fetched, or with LAZY the elements themselves, as floats: row to
  // pool[place(row)].
  template <typename E, int COUNT, int STEP, typename Place>
  TANDEM_DEVICE static void put(float4* pool, const typename T::Raw* fetched, const View<T>& m,
                                int row0, int row, int col0, int col, const Place& place) {
    if constexpr (LAZY) {
#pragma unroll 1
      for (int n = 0; n < COUNT; ++n)
        pool[place(row + n * STEP)] = load_one<E>(m, row0, row + n * STEP, col0, col);
    } else {
#pragma unroll
      for (int n = 0; n < COUNT; ++n) pool[place(row + n * STEP)] = floats<E>(fetched[n]);
    }
  }
  template <typename E>
  TANDEM_DEVICE static float4 load_one(const View<T>& m, int row0, int row, int col0, int col) {
    typename E::Raw raw;
    if constexpr (ANY)
      load_words<E, false, 1, 1>(&raw, m.template as<E>(), row0, row, col0, col);
    else
      load_words<E, false, 1, 1>(&raw, m, row0, row, col0, col);
    return E::to_floats(raw);
  }
  // Calls f with the element type, which all tensors of a problem share.
  template <typename F>
  TANDEM_DEVICE static void as_type(const View<T>& m, const F& f) {
    if constexpr (ANY)
      with_type(m.dtype, f);
    else
      f(T());
  }
  template <typename E>
  TANDEM_DEVICE static float4 floats(const typename T::Raw& r) {
    if constexpr (ANY) {
      typename E::Raw raw;
      narrow(r, &raw);
      return E::to_floats(raw);
    } else {
      return E::to_floats(r);
    }
  }
};

// s += (M rows of a) . (N rows of b)^T over depth features. stage holds the first step on entry.
// next() issues the loads of what comes after the last step.
template <typename T, typename S, bool WIDE, typename Next>
TANDEM_DEVICE void product_nt(float (&s)[S::RM][4], Stage<T, S, WIDE>& stage, float4* pool,
                              const View<T>& a, int a_row, const View<T>& b, int b_row, int depth,
                              const Next& next) {
  const Invocation<S> me;
  for (int feature = 0; feature < depth; feature += S::DK) {
    __syncthreads();  // the pool's readers of the step before are done
    stage.put_nt(pool, a, a_row, b, b_row, feature);
    __syncthreads();
    if (feature + S::DK < depth)
      stage.fetch_nt(a, a_row, b, b_row, feature + S::DK);
    else
      next();
    const float4* pa = pool + me.tr * S::NT_PITCH;
    const float4* pb = pool + (S::M + me.tc) * S::NT_PITCH;
#pragma unroll 4  // unrolled whole, ptxas would hoist operands until accumulators spill
    for (int k = 0; k < S::DK / 4; ++k) {
      float4 x[S::RM], y[4];
#pragma unroll
      for (int i = 0; i < S::RM; ++i) x[i] = pa[S::TR * i * S::NT_PITCH + k];
#pragma unroll
      for (int j = 0; j < 4; ++j) y[j] = pb[j * S::TC * S::NT_PITCH + k];
        // Ascending features, one fma each: this order gives a score the same bits in every kernel.
#pragma unroll
      for (int i = 0; i < S::RM; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          s[i][j] = fmaf(x[i].x, y[j].x, s[i][j]);
          s[i][j] = fmaf(x[i].y, y[j].y, s[i][j]);
          s[i][j] = fmaf(x[i].z, y[j].z, s[i][j]);
          s[i][j] = fmaf(x[i].w, y[j].w, s[i][j]);
        }
    }
  }
}

TANDEM_DEVICE void fma4(float (&acc)[4], float x, float4 y) {
  acc[0] = fmaf(x, y.x, acc[0]);
  acc[1] = fmaf(x, y.y, acc[1]);
  acc[2] = fmaf(x, y.z, acc[2]);
  acc[3] = fmaf(x, y.w, acc[3]);
}

template <typename S>
TANDEM_DEVICE void take_rows(float4 (&x)[S::RM], const float4* at) {
#pragma unroll
  for (int i = 0; i < S::RM; ++i) x[i] = at[S::TR * i * S::P_PITCH];
}
template <typename S>
TANDEM_DEVICE void fma_rows(float (&acc)[S::RM][4], const float4 (&x)[S::RM],
                            const float4 (&y)[4]) {
#pragma unroll
  for (int i = 0; i < S::RM; ++i) {
    fma4(acc[i], x[i].x, y[0]);
    fma4(acc[i], x[i].y, y[1]);
    fma4(acc[i], x[i].z, y[2]);
    fma4(acc[i], x[i].w, y[3]);
  }
}

// acc += (M x N of the P tile) . (N rows of b x width). stage and next are as above. Of several acc
// each has a P tile of its own, one behind the other. SIDE blocks share what an invocation reads
// from the P tiles.
template <int SIDE = 1, typename T, typename S, bool WIDE, int BLOCKS, typename Next,
          typename... More>
TANDEM_DEVICE void product_nn(float (&acc)[BLOCKS][S::RM][4], Stage<T, S, WIDE>& stage,
                              float4* pool, const float4* ptile, const View<T>& b, int b_row,
                              const Next& next, More&... more) {
  constexpr int ROWS = S::KC / SIDE, COLS = SIDE * S::COLS, PITCH = SIDE * S::TC + 1;
  static_assert(BLOCKS % SIDE == 0 && ROWS * PITCH <= S::POOL, "whole steps");
  const Invocation<S> me;
  if (b.first > 0 &&
      b.first >= b.width) {  // the other tensor has features of this part, b has none
    next();
    return;
  }
#pragma unroll
  for (int block = 0; block < BLOCKS; block += SIDE) {
    const int col = block * S::COLS;
    if (b.first + col >= b.width) break;  // the accumulators are wider than the head
#pragma unroll(SIDE == 1 ? S::N / ROWS \
                         : 1)  // otherwise the code of a tile outgrows the instruction cache
    for (int row = 0; row < S::N; row += ROWS) {
      __syncthreads();  // the pool's readers of the step before are done
      stage.template put_nn<SIDE>(pool, b, b_row + row, col);
      __syncthreads();
      if (row + ROWS < S::N)
        stage.template fetch_nn<SIDE>(b, b_row + row + ROWS, col);
      else if (block + SIDE < BLOCKS && b.first + col + COLS < b.width)
        stage.template fetch_nn<SIDE>(b, b_row, col + COLS);
      else
        next();
      const float4* pp = ptile + me.tr * S::P_PITCH + row / 4;
      const float4* pb = pool + me.tc;
#pragma unroll 4  // unrolled whole, ptxas would hoist operands until accumulators spill
      for (int k = 0; k < ROWS / 4; ++k) {
        float4 x[S::RM], y[SIDE][4];
#pragma unroll
        for (int side = 0; side < SIDE; ++side)
#pragma unroll
          for (int j = 0; j < 4; ++j) y[side][j] = pb[(4 * k + j) * PITCH + side * S::TC];
        take_rows<S>(x, pp + k);
#pragma unroll
        for (int side = 0; side < SIDE; ++side) fma_rows<S>(acc[block + side], x, y[side]);
        [[maybe_unused]] const float4* tile = pp + k;
        [[maybe_unused]] const auto again = [&](float(&a)[BLOCKS][S::RM][4]) {
          take_rows<S>(x, tile += S::PTILE);
#pragma unroll
          for (int side = 0; side < SIDE; ++side) fma_rows<S>(a[block + side], x, y[side]);
        };
        (again(more), ...);
      }
    }
  }
}

// The P tile: an invocation writes its own elements, so it may read them back without a barrier.
template <typename S>
TANDEM_DEVICE void put_ptile(float4* ptile, const float (&p)[S::RM][4]) {
  const Invocation<S> me;
#pragma unroll
  for (int i = 0; i < S::RM; ++i)
    ptile[me.row(i) * S::P_PITCH + me.tc] = make_float4(p[i][0], p[i][1], p[i][2], p[i][3]);
}
template <typename S>
TANDEM_DEVICE void take_ptile(const float4* ptile, float (&p)[S::RM][4]) {
  const Invocation<S> me;
#pragma unroll
  for (int i = 0; i < S::RM; ++i) {
    const float4 x = ptile[me.row(i) * S::P_PITCH + me.tc];
    p[i][0] = x.x, p[i][1] = x.y, p[i][2] = x.z, p[i][3] = x.w;
  }
}

// Stores all accumulator blocks, times factor, to the view.
template <typename T, typename S, int BLOCKS>
TANDEM_DEVICE void store_blocks(const View<T>& m, int row0, const float (&acc)[BLOCKS][S::RM][4],
                                float factor) {
  const Invocation<S> me;
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
    for (int i = 0; i < S::RM; ++i) {
      float x[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = acc[block][i][c] * factor;
      store_words(m, row0 + me.row(i), m.first + block * S::COLS + me.col(0), x);
    }
}

// ---- where a workgroup works --------------------------------------------------------------------

struct Place {
  int tile, head, batch;
};

// The place of this workgroup. False if it has none: the folded grid may have more workgroups than
// there is work. first: the number of the launch's first workgroup, where it is a slice.
TANDEM_DEVICE bool place_of(uint index, uint tiles, uint total, int heads, Place* place) {
  if (index >= total) return false;
  place->tile = int(tiles - 1 - index % tiles);
  place->head = int(index / tiles % uint(heads));
  place->batch = int(index / tiles / uint(heads));
  return true;
}
TANDEM_DEVICE bool find_place(uint tiles, uint total, int heads, Place* place, uint first = 0) {
  return place_of(first + blockIdx.y * gridDim.x + blockIdx.x, tiles, total, heads, place);
}

// The first feature that this workgroup sums, of a head of which BLOCKS accumulator blocks of a
// workgroup are a part. The part is taken out of the tile's number, of which `rows` rows have so
// many. 0, known to the compiler, for tiles that take no wider heads.
template <typename S, int BLOCKS>
TANDEM_DEVICE int take_part(Place* place, int rows) {
  if constexpr (BLOCKS * S::COLS < kWholeFeatures) return 0;
  const int tiles = max((rows + S::M - 1) / S::M, 1), part = place->tile / tiles;
  place->tile -= part * tiles;
  return part * BLOCKS * S::COLS;
}
template <typename V>
TANDEM_DEVICE V own_features(V view, int first) {
  view.first = first;
  return view;
}

}  // namespace cuda
}  // namespace tandem
#endif
