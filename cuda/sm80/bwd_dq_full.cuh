// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq on tensor cores with optional inputs and any normaliser; and d_bias, where no element of
// the bias is read twice.
#ifndef TANDEM_CUDA_SM80_BWD_DQ_FULL_CUH
#define TANDEM_CUDA_SM80_BWD_DQ_FULL_CUH
#include "bias_rows.cuh"
#include "kv_loop.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Forms d_q of a query tile, by MmaShape<ROW>::THREADS threads of a workgroup.
template <typename T, int ROW>
TANDEM_DEVICE void form_dq(const BwdDqFull& params, const Place& at) {
  using S = MmaShape<ROW>;
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC, N = BC / 8;
  const BwdDqBlock& u = params.block;
  const BwdDqPush& push = params.push;
  const int row0 = at.tile * BR;
  const Extra e = make_extra(params, at.batch);
  const PairOf<T> p = make_pair<T>(params, e, at.head);

  const Lane me;
  const WalkTiles<S> tiles;
  const Reach<W> k_across(tiles.k, true);
  const int own = 16 * me.warp, row = row0 + own + me.g;  // the lane's first row
  const bool stores = params.spec.D_BIAS != 0;
  BiasRows bias{};
  if (stores) {
    const int size = params.spec.D_BIAS == TANDEM_F32 ? 4 : 2;
    const Strides& s = u.d_bias;
    bias = {
        params.spec.D_BIAS,
        reinterpret_cast<char*>(push.d_bias) + (at.batch * s.b + at.head * s.h) * size,
        s,
        u.seq_q,
        u.seq_kv,
        s.d == 1 && s.s % 2 == 0 && s.h % 2 == 0 && s.b % 2 == 0 && push.d_bias % (2 * size) == 0};
    // d_bias of tiles that are not visited is 0.
    const TandemTiles span = tandem_key_tiles(e.band, row0, BR, BC, e.seq_q, e.seq_kv);
    const int all = (u.seq_kv + BC - 1) / BC;
    for (int t = 0; t < all; ++t) {
      if (t >= span.begin && t < span.end) continue;
#pragma unroll 1
      for (int n = 0; n < 2 * N; ++n)
        bias.put(row + 8 * (n % 2), t * BC + 8 * (n / 2) + 2 * me.t, 0.f, 0.f);
    }
  }
  float delta[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) delta[h] = row + 8 * h < e.seq_q ? __ldg(p.delta + row + 8 * h) : 0.f;
  float d_q[1][W / 8][4];
  clear(d_q);
  walk_keys<T, S, true>(e, p, row0, stores, [&](PairTile<N>& tile) {
    each<N>([&](int n, int x) {
      tile.dp[0][n][x] = tile.g[0][n][x] * (tile.counted_dp(e.x.drop_scale, n, x) - delta[x / 2]);
    });
    if (stores)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          bias.put(tile.at.i(n, 2 * h), tile.at.j(n, 0), tile.dp[0][n][2 * h],
                   tile.dp[0][n][2 * h + 1]);
    if (e.f.SOFTCAP) each<N>([&](int n, int x) { tile.dp[0][n][x] *= tile.slope[n][x]; });
    uint ds[1][N / 2][4];
    pack_rows<T>(ds, tile.dp);
    product_nn<W, T>(d_q, ds, k_across, tile.stage * BC);
  });
  store_rows<W>(make_rows_view<T>(0, push.d_q, u.d_q, at.batch, at.head, e.first_q, e.written_q,
                                  u.head_dim, push.wide & 16u),
                row0, tiles.q, own, d_q, [&](float x, int, int) { return x * u.scale; });
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dq_full(const __grid_constant__ BwdDqFull params) {
  Place at;
  if (find_queries<ROW>(params.block, &at)) form_dq<T, ROW>(params, at);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
