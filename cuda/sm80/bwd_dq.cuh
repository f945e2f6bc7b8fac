// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq on tensor cores: d_q of Br query rows of a head; and d_bias, where each of its elements
// has one reader. A warp owns 16 or 32 rows. The operation is that of cuda/simt/bwd_dq.cu.
#ifndef TANDEM_CUDA_SM80_BWD_DQ_CUH
#define TANDEM_CUDA_SM80_BWD_DQ_CUH
#include "bias_rows.cuh"
#include "kv_loop.cuh"
#include "weights.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// d_bias of a query head, if the kernel stores it.
template <typename Params>
TANDEM_DEVICE bool stores_bias(const Params& params) {
  return params.spec.D_BIAS != 0;
}
TANDEM_DEVICE bool stores_bias(const BwdDqParams&) { return false; }
template <typename Params>
TANDEM_DEVICE BiasRows bias_rows_of(const Params& params, const Place& at) {
  const BwdDqBlock& u = params.block;
  return bias_rows_of(params.spec.D_BIAS, params.push.d_bias, u.d_bias, at.batch, at.head, u.seq_q,
                      u.seq_kv);
}

// Forms d_q of the query rows from row0 on. views: of q, k, v and d_o. written() gives the view
// of d_q, in the end: before the loop it would take registers.
template <typename T, typename S, typename Params, typename Weights, typename Views,
          typename ViewOf>
TANDEM_DEVICE void form_d_q(const Params& params, const Place& at, Weights& weights,
                            const Views& views, const TandemTiles& span, const ViewOf& written) {
  // HALVES = 2: a warp and its neighbour own the same rows. Each sums half of the features, and dS
  // passes through shared memory.
  constexpr int W = S::WIDTH, MT = S::MT, BR = S::BR, BC = S::BC, HALVES = S::HALVES;
  const BwdDqBlock& u = params.block;
  const Lane me;
  const SharedArrays<S> tiles;
  const AcrossReach<T, W> k_across(tiles.k, true);
  const int half = HALVES > 1 ? me.warp % HALVES : 0, feature = half * (S::FEATURES / HALVES);
  const int row0 = at.tile * BR, own = 16 * MT * (me.warp / HALVES),
            row = row0 + own + me.g;  // the lane's first row
  [[maybe_unused]] BiasRows d_bias{};
  const bool stores = stores_bias(params);
  if constexpr (Weights::SOME) {
    if (stores) d_bias = bias_rows_of(params, at);
    // Tiles that are not visited have zeros in d_bias.
    for (int t = 0; stores && t * BC < u.seq_kv; ++t)
      if (t < span.begin || t >= span.end)
#pragma unroll 1
        for (int n = 0; n < BC / 4 * MT; ++n)
          d_bias.put(row + 8 * (n % (2 * MT)), t * BC + 8 * (n / (2 * MT)) + 2 * me.t, 0.f, 0.f);
  }
  float d_q[MT][S::FEATURES / HALVES / 8][4];
  clear(d_q);
  kv_loop<T, S>(weights, views, row0, span, [&](KeyTile<S, Weights>& tile, const auto&... next) {
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int n = 0; n < tile.N; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          tile.dp[r][n][x] = weights.weight(tile, r, n, x) *
                             (weights.counted_dp(tile, r, n, x) - weights.delta[r][x / 2]);
    if constexpr (Weights::SOME) {
      if (stores) {
#pragma unroll
        for (int r = 0; r < 2 * MT; ++r)
#pragma unroll
          for (int n = 0; n < tile.N; ++n)
            d_bias.put(row + 8 * r, tile.col0 + 8 * n + 2 * me.t, tile.dp[r / 2][n][2 * (r % 2)],
                       tile.dp[r / 2][n][2 * (r % 2) + 1]);
      }
    }
    weights.apply_slope(tile);
    uint ds[MT][BC / HALVES / kDepth<T>][4];
    pack_rows<T>(ds, tile.dp);
    if constexpr (HALVES > 1) {
      put_rows<BC>(tiles.ds, own, half * (BC / HALVES), ds);
      __syncthreads();  // dS is whole, and all warps have left V
      (next(), ...);
      product_nn<W, T, BC / 16>(d_q, SharedLeft<BC, MT>(tiles.ds, own), k_across, 0, feature);
    } else {
      product_nn<W, T>(d_q, ds, k_across, tile.stage * BC);
    }
  });
  store_rows<W>(
      written(), row0, tiles.q, own, d_q, [&](float x, int, int) { return x * u.scale; }, feature);
}

template <typename T>
struct DqViews {
  View<T> q, k, v, d_o;
};

template <typename T, int ROW, typename Params>
TANDEM_DEVICE void form_d_q(const Params& params) {
  using S = MmaShape<ROW>;
  using Inputs = InputsOf<T, ROW, Params>;
  const BwdDqBlock& u = params.block;
  const BwdDqPush& push = params.push;
  Place at;
  if (!find_queries<ROW>(params, &at)) return;
  const int kv_head = at.head / u.group, row0 = at.tile * S::BR;
  const Inputs in(params, at.batch);
  const DqViews<T> views{in.queries(push.q, u.q, at.head, u.head_dim, push.wide & 1u),
                         in.keys(push.k, u.k, kv_head, u.head_dim, push.wide & 2u),
                         in.keys(push.v, u.v, kv_head, u.head_dim_v, push.wide & 4u),
                         in.queries(push.d_o, u.d_o, at.head, u.head_dim_v, push.wide & 8u)};
  const TandemTiles span = tandem_key_tiles(in.band(), row0, S::BR, S::BC, in.seq_q(), in.seq_kv());
  const int64_t rows0 = (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q;
  const Lane me;
  SoftmaxRows<T, S, Inputs, Params> weights(params, in, at.head,
                                            row0 + 16 * S::MT * (me.warp / S::HALVES) + me.g, rows0,
                                            stores_bias(params));
  form_d_q<T, S>(params, at, weights, views, span, [&] {
    return in.written_queries(push.d_q, u.d_q, at.head, u.head_dim, push.wide & 16u);
  });
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dq(const __grid_constant__ BwdDqParams params) {
  form_d_q<T, ROW>(params);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
