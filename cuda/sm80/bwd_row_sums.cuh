// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums on tensor cores: delta of the rows of elastic softmax and entmax, and the rows'
// parts of d_tau and d_slope. The operation is that of cuda/simt/bwd_row_sums.cu.
#ifndef TANDEM_CUDA_SM80_BWD_ROW_SUMS_CUH
#define TANDEM_CUDA_SM80_BWD_ROW_SUMS_CUH
#include "weights_full.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_row_sums(const __grid_constant__ BwdRowSumsFull params) {
  using S = MmaShape<ROW>;
  constexpr int BR = S::BR, N = S::BC / 8;
  const BwdRowSumsBlock& u = params.block;
  const BwdRowSumsPush& push = params.push;
  Place at;
  if (!find_queries<ROW>(params, &at)) return;
  const int row0 = at.tile * BR;
  const Extra e = make_extra(params, at.batch);
  const PairOf<T> p = make_pair<T>(params, e, at.head);

  const Lane me;
  const int row = row0 + 16 * me.warp + me.g;  // the lane's first row
  // This lane's parts of sum g M dp, sum g and sum M dp, and of the first two with |t|.
  float gdp[2] = {}, gs[2] = {}, dps[2] = {}, tgdp[2] = {}, tg[2] = {};
  using Weights = FullRows<T, S, false>;
  Weights weights(e, p, row, false);
  const TandemTiles span = tandem_key_tiles(e.band, row0, BR, S::BC, e.seq_q, e.seq_kv);
  kv_loop<T, S>(weights, p, row0, span, [&](KeyTile<S, Weights>& tile) {
    each<N>([&](int n, int x) {
      const int h = x / 2;
      const float g = tile.s[0][n][x], counted = weights.counted_dp(tile, 0, n, x);
      dps[h] += counted;
      gdp[h] = fmaf(g, counted, gdp[h]);
      gs[h] += g;
      tile.dp[0][n][x] = g * counted;
    });
    if (params.spec.ROW_SLOPE)
      each<N>([&](int n, int x) {
        const Spot<true, N> spot = weights.spot(tile);
        const int h = x / 2, distance = spot.i(n, x) + e.band.off - spot.j(n, x);
        const float length = float(distance < 0 ? -distance : distance);
        tgdp[h] = fmaf(length, tile.dp[0][n][x], tgdp[h]);
        tg[h] = fmaf(length, tile.s[0][n][x], tg[h]);
      });
  });
  const int64_t rows0 = int64_t(p.of.index) * u.seq_q;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + 8 * h;
    const auto put = [&](uint64_t address, float x) {
      if (me.t == 0 && i < u.seq_q) reinterpret_cast<float*>(address)[rows0 + i] = x;
    };
    float delta = quad_sum(gdp[h]);
    const float sum = quad_sum(gs[h]), counts = quad_sum(dps[h]);
    if (is_entmax(e)) delta = sum > 0.f ? __fdiv_rn(delta, sum) : 0.f;
    if (e.f.D_LSE && sum > 0.f) delta -= d_lse_of(e, rows0 + i);
    put(push.delta, delta);
    if (params.spec.ROW_TAU) {
      const int n = tandem_key_count(e.band, i, e.seq_q, e.seq_kv);
      put(push.tau_rows, n > 0 ? __fdiv_rn(counts, float(n)) : 0.f);
    }
    if (params.spec.ROW_SLOPE) put(push.slope_rows, quad_sum(tgdp[h]) - delta * quad_sum(tg[h]));
  }
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
