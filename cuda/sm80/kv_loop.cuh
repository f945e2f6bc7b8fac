// SPDX-License-Identifier: MIT OR Apache-2.0
// The KV loop of the backward: what the kernels share that own query rows and stream tiles of keys
// past them. Rows of a tile of S are queries and columns are keys. What turns products into weights
// (weights.cuh, weights_full.cuh) and what becomes of these and dP are policies.
#ifndef TANDEM_CUDA_SM80_KV_LOOP_CUH
#define TANDEM_CUDA_SM80_KV_LOOP_CUH
#include "shape.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// The first tile from t on that is not left out. left_out(t) may have barriers.
template <typename LeftOut>
TANDEM_DEVICE int next_tile(int t, int end, const LeftOut& left_out) {
  while (t < end && left_out(t)) ++t;
  return t;
}

// A key tile in the loop, and what a lane has of its pairs.
template <typename S, typename Weights>
struct KeyTile {
  static constexpr int N = S::BC / S::HALVES / 8;
  int col0, stage;                        // col0: the first key of the warp
  bool edge;                              // some pairs are hidden by their position
  float s[S::MT][N][4], dp[S::MT][N][4];  // products, of which weigh() makes weights; dP
  typename Weights::State state;
};

// Calls use(tile) for each tile of keys in span that has weights. x: views q, k, v and d_o. row0:
// the workgroup's first query. HALVES = 2: a warp and its neighbour own the same queries. Each
// multiplies half of the keys, and use(tile, next) calls next() when all warps have left V.
template <typename T, typename S, typename Weights, typename Views, typename Use>
TANDEM_DEVICE void kv_loop(Weights& weights, const Views& x, int row0, const TandemTiles& span,
                           const Use& use) {
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC;
  const SharedArrays<S> tiles;
  constexpr int HALVES = S::HALVES;
  static_assert(HALVES == 1 || S::STAGES == 1, "barriers as they are");
  const int own = 16 * S::MT * (Lane().warp / HALVES),
            key = HALVES > 1 ? Lane().warp % HALVES * (BC / HALVES) : 0;
  const SharedLeft<W, S::MT> q_at(tiles.q, own), o_at(tiles.d_o, own);
  const RowsReach<T, W> k_at(tiles.k, false), v_at(tiles.v, false);
  const auto left_out = [&](int t) { return weights.leaves_out(row0, t * BC); };
  const auto load_keys = [&](int stage, int t) {
    load_rows<W, BC, S::THREADS>(tiles.k + stage * S::KV_TILE, x.k, t * BC);
    load_rows<W, BC, S::THREADS>(tiles.v + stage * S::KV_TILE, x.v, t * BC);
  };
  load_rows<W, BR, S::THREADS>(tiles.q, x.q, row0);
  load_rows<W, BR, S::THREADS>(tiles.d_o, x.d_o, row0);
  int t = next_tile(span.begin, span.end, left_out);
  if (t < span.end) load_keys(0, t);
  commit();
  weights.fetch_rows();
  int stage = 0;
#pragma unroll 1
  for (int after; t < span.end; t = after) {
    after = next_tile(t + 1, span.end, left_out);
    wait<0>();
    __syncthreads();
    if constexpr (S::STAGES > 1) {
      if (after < span.end) load_keys(1 - stage, after);
      commit();
    }
    KeyTile<S, Weights> tile;
    tile.col0 = t * BC + key, tile.stage = stage;
    weights.begin(tile);
    product_nt<W, T>(tile.s, q_at, k_at, stage * BC + key);
    tile.edge = t < span.full_begin || t >= span.full_end || weights.cuts_rows(row0);
    if (weights.weigh(tile)) {
      product_nt<W, T>(tile.dp, o_at, v_at, stage * BC + key);
      if constexpr (HALVES > 1)
        use(tile, [&] {
          if (after < span.end) load_rows<W, BC, S::THREADS>(tiles.v, x.v, after * BC);
          commit();
        });
      else
        use(tile);
    }
    if constexpr (HALVES > 1) {
      __syncthreads();
      if (after < span.end) load_rows<W, BC, S::THREADS>(tiles.k, x.k, after * BC);
      commit();
    } else if constexpr (S::STAGES > 1) {
      stage = 1 - stage;
    } else {
      __syncthreads();
      if (after < span.end) load_keys(0, after);
      commit();
    }
  }
  wait<0>();
  __syncthreads();  // where no tile was visited, the copies of Q end only here
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
