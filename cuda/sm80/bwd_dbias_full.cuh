// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias on tensor cores with optional inputs and any normaliser. The operation is that of
// cuda/simt/bwd_dbias.cu.
#ifndef TANDEM_CUDA_SM80_BWD_DBIAS_FULL_CUH
#define TANDEM_CUDA_SM80_BWD_DBIAS_FULL_CUH
#include "dbias_sum.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dbias_full(const __grid_constant__ BwdDbiasFull params) {
  using S = MmaShape<ROW>;
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC, STEPS = DbiasShape<S>::STEPS;
  if (params.first_group + block_number() >= params.block.total) return;
  const Lane me;
  const DbiasPlace<S> place(params, params.first_group + block_number(), me);
  const DbiasTiles<S> tiles;
  const Reach<W> k_at(tiles.k, false), v_at(tiles.v, false);
  const bool skip = params.features.SKIP != 0;
  float sum[STEPS][2][4][4] = {};

  const auto left_out = [&](const Member& of) {
    const Extra e = make_extra(params, of.batch);
    if (!tile_visible(e, of.row0, BR, place.col0, BC)) return true;
    return skip && tile_hidden<S::THREADS>(e, head_extra(e, of.head), of.row0, BR, place.col0, BC);
  };
  each_member<T, S, true>(params, place, left_out, [&](const Member& of, int stage, bool far) {
    const Extra e = make_extra(params, of.batch);
    const PairOf<T> p = make_pair<T>(params, e, of.head);
    const TandemTiles span = tandem_key_tiles(e.band, of.row0, BR, BC, e.seq_q, e.seq_kv);
    const int t = place.col0 / BC;
    const bool edge = t < span.full_begin || t >= span.full_end || of.row0 + BR > e.seq_q;
    const SharedLeft<W, 2> q_at(tiles.q, stage * BR + place.own),
        o_at(tiles.d_o, stage * BR + place.own);
    float number[2][2][2], share[2][2];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int row = place.own + 8 * n + me.g;
      tiles.lse_and_delta(number[n / 2][n % 2], stage, row);
      share[n / 2][n % 2] = tiles.share(stage, row);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int key = place.key + 32 * step;
      float g[2][4][4];
      product_nt<W, T>(g, q_at, k_at, stage * BC + key);
      uint counted[2];
      bool some = false;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const Spot<true, 4> spot{of.row0 + place.own + 16 * m + me.g, place.col0 + key + 2 * me.t};
        float slope[4][4];
        const uint seen = score_block<false>(g[m], slope, e, p.of, spot, edge);
        if (far) take_far_rows(g[m], p, spot, e.seq_q);
        counted[m] = weigh_block(
            g[m], e, seen,
            [&](int, int x) {
              // Elsewhere it is minus infinity that a row without keys has.
              const float lse = number[m][x / 2][0];
              return lse == -minus_infinity() ? minus_infinity() : lse;
            },
            [&](int, int x) { return share[m][x / 2]; }, [](int, int, float) {});
        each<4>([&](int n, int x) { some |= g[m][n][x] != 0.f; });
        counted[m] &= kept_block(e, p.of, spot);
      }
      // Only entmax has blocks without any weight often.
      if (is_entmax(e) && skip && !any_of_warp(some)) continue;
      float dp[2][4][4];
      product_nt<W, T>(dp, o_at, v_at, stage * BC + key);
#pragma unroll
      for (int m = 0; m < 2; ++m)
        each<4>([&](int n, int x) {
          const float less = number[m][x / 2][1];
          sum[step][m][n][x] +=
              g[m][n][x] * (counted_dp(dp[m][n][x], counted[m], e.x.drop_scale, n, x) - less);
        });
    }
  });
  store_sums<S>(params, sum);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
