// SPDX-License-Identifier: MIT OR Apache-2.0
// The KV loop of bwd_dq and bwd_row_sums with optional inputs, over the keys of a tile of query
// rows: both products, and what dS is computed from.
#ifndef TANDEM_CUDA_SM80_KV_LOOP_CUH
#define TANDEM_CUDA_SM80_KV_LOOP_CUH
#include "shape.cuh"
#include "weigh.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// The first tile from t on that is not left out. left_out(t) may have barriers.
template <typename LeftOut>
TANDEM_DEVICE int next_tile(int t, int end, const LeftOut& left_out) {
  while (t < end && left_out(t)) ++t;
  return t;
}

// A tile of pairs of a query and a key, in accumulators.
template <int N>
struct PairTile {
  int t, stage;  // of the streamed keys
  Spot<true, N> at;
  float g[1][N][4], slope[N][4], dp[1][N][4];
  uint counted;  // elements that M and dropout leave, a bit each
  TANDEM_DEVICE float counted_dp(float drop_scale, int n, int x) const {
    return counted >> (4 * n + x) & 1u ? dp[0][n][x] * drop_scale : 0.f;
  }
};

template <typename S>
struct WalkTiles {  // addresses of the tiles in shared memory
  uint q = shared_start(), d_o = q + S::BR * 2 * S::WIDTH, k = d_o + S::BR * 2 * S::WIDTH,
       v = k + S::STAGES * S::BC * 2 * S::WIDTH;
};

// Calls use(tile) for each key tile that is visited. all: also for tiles in which keep or entmax
// leaves nothing.
template <typename T, typename S, bool CAP, typename Use>
TANDEM_DEVICE void walk_keys(const Extra& e, const PairOf<T>& p, int row0, bool all,
                             const Use& use) {
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC, TILE = BC * 2 * W, N = BC / 8;
  static_assert(S::MT == 1 && S::STAGES == 2, "as it is written");
  const TandemTiles span = tandem_key_tiles(e.band, row0, BR, BC, e.seq_q, e.seq_kv);
  const bool skip = e.f.SKIP != 0 && !all;
  const Lane me;
  const WalkTiles<S> tiles;
  const int own = 16 * me.warp, row = row0 + own + me.g;  // the lane's first row
  const SharedLeft<W, 1> q_at(tiles.q, own), o_at(tiles.d_o, own);
  const Reach<W> k_at(tiles.k, false), v_at(tiles.v, false);
  const auto left_out = [&](int t) {
    return e.f.KEEP && skip && !tile_kept<S::THREADS>(e, p.of, row0, BR, t * BC, BC);
  };

  load_rows<W, BR, S::THREADS>(tiles.q, p.q, row0);
  load_rows<W, BR, S::THREADS>(tiles.d_o, p.d_o, row0);
  int t = next_tile(span.begin, span.end, left_out);
  if (t < span.end) {
    load_rows<W, BC, S::THREADS>(tiles.k, p.k, t * BC);
    load_rows<W, BC, S::THREADS>(tiles.v, p.v, t * BC);
  }
  commit();
  float origin[2], shift[2];
  bool some_far = false;  // whether a row of the warp is far
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + 8 * h;
    origin[h] = i < e.seq_q ? __ldg(p.lse + i) : minus_infinity();
    if (tandem_is_far(origin[h])) origin[h] = p.far(i).relative, some_far = true;
    shift[h] = elastic_shift(e, p.of, i);
  }
  some_far = any_of_warp(some_far);
  PairTile<N> tile;
  tile.stage = 0;
#pragma unroll 1
  while (t < span.end) {
    tile.t = t;
    tile.at = {row, t * BC + 2 * me.t};
    const bool edge = t < span.full_begin || t >= span.full_end || row0 + BR > e.seq_q;
    t = next_tile(t + 1, span.end, left_out);
    wait<0>();
    __syncthreads();
    if (t < span.end) {
      load_rows<W, BC, S::THREADS>(tiles.k + (1 - tile.stage) * TILE, p.k, t * BC);
      load_rows<W, BC, S::THREADS>(tiles.v + (1 - tile.stage) * TILE, p.v, t * BC);
    }
    commit();
    product_nt<W, T>(tile.g, q_at, k_at, tile.stage * BC);
    const uint seen = score_block<CAP>(tile.g[0], tile.slope, e, p.of, tile.at, edge);
    if (some_far) take_far_rows(tile.g[0], p, tile.at, e.seq_q);
    tile.counted = weigh_block(
        tile.g[0], e, seen, [&](int, int x) { return origin[x / 2]; },
        [&](int, int x) { return shift[x / 2]; }, [](int, int, float) {});
    bool counts = true;
    if (is_entmax(e) && skip) {
      bool some = false;
      each<N>([&](int n, int x) { some |= tile.g[0][n][x] != 0.f; });
      counts = __syncthreads_or(some) != 0;
    }
    if (counts) {
      tile.counted &= kept_block(e, p.of, tile.at);
      product_nt<W, T>(tile.dp, o_at, v_at, tile.stage * BC);
      use(tile);
    }
    tile.stage = 1 - tile.stage;
  }
  wait<0>();
  __syncthreads();
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
