// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq on tensor cores: d_q of Br query rows of a head. A warp owns 16 or 32 of them. The
// operation is that of cuda/simt/bwd_dq.cu.
#ifndef TANDEM_CUDA_SM80_BWD_DQ_CUH
#define TANDEM_CUDA_SM80_BWD_DQ_CUH
#include "bias_rows.cuh"
#include "inputs.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW, typename Params>
TANDEM_DEVICE void form_d_q(const Params& params) {
  using S = MmaShape<ROW>;
  using Inputs = InputsOf<T, ROW, Params>;
  constexpr int W = S::WIDTH, MT = S::MT, BR = S::BR, BC = S::BC, TILE = BC * 2 * W;
  const BwdDqBlock& u = params.block;
  const BwdDqPush& push = params.push;
  Place at;
  if (!find_queries<ROW>(u, &at)) return;
  const int kv_head = at.head / u.group;
  const int row0 = at.tile * BR;
  const Inputs in(params, at.batch);
  const View<T> q = in.queries(push.q, u.q, at.head, u.head_dim, push.wide & 1u);
  const View<T> k = in.keys(push.k, u.k, kv_head, u.head_dim, push.wide & 2u);
  const View<T> v = in.keys(push.v, u.v, kv_head, u.head_dim_v, push.wide & 4u);
  const View<T> d_o = in.queries(push.d_o, u.d_o, at.head, u.head_dim_v, push.wide & 8u);
  const TandemBand band = in.band();
  const TandemTiles span = tandem_key_tiles(band, row0, BR, BC, in.seq_q(), in.seq_kv());

  const Lane me;
  const uint q_tile = shared_start(), o_tile = q_tile + BR * 2 * W, k_tile = o_tile + BR * 2 * W,
             v_tile = k_tile + S::STAGES * TILE;
  const int own = 16 * MT * me.warp, row = row0 + own + me.g;  // the lane's first row
  const SharedLeft<W, MT> q_at(q_tile, own), o_at(o_tile, own);
  const RowsReach<T, W> k_at(k_tile, false), v_at(v_tile, false);
  const AcrossReach<T, W> k_across(k_tile, true);
  const Exponent e(u.scale, kIsF32<T>);
  float d_q[MT][S::FEATURES / 8][4];
  clear(d_q);

  // d_bias, where each of its elements has one reader. Tiles that are not visited have zeros in it.
  [[maybe_unused]] BiasRows d_bias{};
  [[maybe_unused]] bool stores = false;
  if constexpr (Inputs::SOME) {
    stores = params.spec.D_BIAS != 0;
    if (stores)
      d_bias = bias_rows_of(params.spec.D_BIAS, push.d_bias, u.d_bias, at.batch, at.head, u.seq_q,
                            u.seq_kv);
    for (int t = 0; stores && t * BC < u.seq_kv; ++t)
      if (t < span.begin || t >= span.end)
#pragma unroll 1
        for (int n = 0; n < BC / 4 * MT; ++n)
          d_bias.put(row + 8 * (n % (2 * MT)), t * BC + 8 * (n / (2 * MT)) + 2 * me.t, 0.f, 0.f);
  }
  const auto next = [&](int t) {
    if constexpr (Inputs::SOME)
      while (t < span.end && !stores &&
             in.template leaves_out<S::THREADS>(at.head, row0, BR, t * BC, BC))
        ++t;
    return t;
  };

  load_rows<W, BR, S::THREADS>(q_tile, q, row0);
  load_rows<W, BR, S::THREADS>(o_tile, d_o, row0);
  int t = next(span.begin);
  if (t < span.end) {
    load_rows<W, BC, S::THREADS>(k_tile, k, t * BC);
    load_rows<W, BC, S::THREADS>(v_tile, v, t * BC);
  }
  commit();
  float lse[MT][2], delta[MT][2];
  bool some_far = false;  // a row of the warp is far (src/problem/far_row.h)
  const int64_t rows0 = (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q;
#pragma unroll
  for (int r = 0; r < MT; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = row + 16 * r + 8 * h;
      const bool there = i < in.seq_q();
      float of_row =
          there ? __ldg(reinterpret_cast<const float*>(push.lse) + rows0 + i) : minus_infinity();
      if (tandem_is_far(of_row)) of_row = far_row(push.delta, rows0 + i).relative, some_far = true;
      lse[r][h] = base_of_row<T>(of_row);
      delta[r][h] = there ? __ldg(reinterpret_cast<const float*>(push.delta) + rows0 + i) : 0.f;
    }
  some_far = any_of_warp(some_far);
  int stage = 0;
#pragma unroll 1
  for (int after; t < span.end; t = Inputs::SOME ? after : t + 1) {
    const int col0 = t * BC;
    if constexpr (Inputs::SOME) after = next(t + 1);
    wait<0>();
    __syncthreads();
    if constexpr (S::STAGES > 1) {
      if ((Inputs::SOME ? after : t + 1) < span.end) {
        load_rows<W, BC, S::THREADS>(k_tile + (1 - stage) * TILE, k,
                                     Inputs::SOME ? after * BC : col0 + BC);
        load_rows<W, BC, S::THREADS>(v_tile + (1 - stage) * TILE, v,
                                     Inputs::SOME ? after * BC : col0 + BC);
      }
      commit();
    }
    [[maybe_unused]] BiasBlock<MT, BC / 8> bias;
    if constexpr (Inputs::SOME) in.template load_bias<true>(bias, at.head, row, col0 + 2 * me.t);
    float s[MT][BC / 8][4], dp[MT][BC / 8][4];
    product_nt<W, T>(s, q_at, k_at, stage * BC);
    e.apply(s);
    if constexpr (Inputs::SOME) in.template apply<true>(s, bias, at.head, row, col0 + 2 * me.t);
    if (t < span.full_begin || t >= span.full_end)
      hide(
          s, row, col0 + 2 * me.t, [&](int i) { return i + band.off - band.left; },
          [&](int i) { return tandem_min(i + band.off + band.right, in.seq_kv() - 1); });
    if (some_far) take_far_rows<false>(s, e, push.lse, push.delta, rows0, row, in.seq_q());
    product_nt<W, T>(dp, o_at, v_at, stage * BC);
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int n = 0; n < BC / 8; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          dp[r][n][x] =
              weight_of<T>(s[r][n][x], e, lse[r][x / 2]) * (dp[r][n][x] - delta[r][x / 2]);
    if constexpr (Inputs::SOME)
      if (stores)
#pragma unroll
        for (int r = 0; r < 2 * MT; ++r)
#pragma unroll
          for (int n = 0; n < BC / 8; ++n)
            d_bias.put(row + 8 * r, col0 + 8 * n + 2 * me.t, dp[r / 2][n][2 * (r % 2)],
                       dp[r / 2][n][2 * (r % 2) + 1]);
    uint ds[MT][BC / kDepth<T>][4];
    pack_rows<T>(ds, dp);
    product_nn<W, T>(d_q, ds, k_across, stage * BC);
    if constexpr (S::STAGES > 1) {
      stage = 1 - stage;
    } else {
      __syncthreads();
      if ((Inputs::SOME ? after : t + 1) < span.end) {
        load_rows<W, BC, S::THREADS>(k_tile, k, Inputs::SOME ? after * BC : col0 + BC);
        load_rows<W, BC, S::THREADS>(v_tile, v, Inputs::SOME ? after * BC : col0 + BC);
      }
      commit();
    }
  }
  wait<0>();
  __syncthreads();  // where no tile was visited, the copies of Q end only here
  store_rows<W>(in.written_queries(push.d_q, u.d_q, at.head, u.head_dim, push.wide & 16u), row0,
                q_tile, own, d_q, [&](float x, int, int) { return x * u.scale; });
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
