// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias of f32 problems with optional inputs (inputs.cuh): p is exp(s - lse) and ds is
// p (dp - delta).
#ifndef TANDEM_CUDA_SM80_BWD_DBIAS_INPUTS_CUH
#define TANDEM_CUDA_SM80_BWD_DBIAS_INPUTS_CUH
#include "dbias_sum.cuh"
#include "inputs.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dbias_inputs(const __grid_constant__ BwdDbiasFull params) {
  using S = MmaShape<ROW>;
  using Inputs = SimpleInputs<T, BwdDbiasFull>;
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC;
  static_assert(DbiasShape<S>::STEPS == 1, "registers for one block of a product");
  if (params.first_group + block_number() >= params.block.total) return;
  const Lane me;
  const DbiasPlace<S> place(params, params.first_group + block_number(), me);
  const DbiasTiles<S> tiles;
  const Reach32<W> k_at(tiles.k, false), v_at(tiles.v, false);
  const Exponent exponent(params.block.scale, true);
  float sum[1][2][4][4] = {};

  const auto left_out = [&](const Member& of) {
    const Inputs in(params, of.batch);
    return !tile_visible(in.e, of.row0, BR, place.col0, BC) ||
           in.template leaves_out<S::THREADS>(of.head, of.row0, BR, place.col0, BC);
  };
  each_member<T, S, false>(params, place, left_out, [&](const Member& of, int stage, bool far) {
    const Inputs in(params, of.batch);
    const int row = of.row0 + place.own + me.g, col = place.col0 + place.key + 2 * me.t;
    BiasBlock<2, 4> bias;
    in.template load_bias<true>(bias, of.head, row, col);
    float s[2][4][4], dp[2][4][4];
    product_nt<W, T>(s, SharedLeft<W, 2>(tiles.q, stage * BR + place.own), k_at,
                     stage * BC + place.key);
    exponent.apply(s);
    in.template apply<true>(s, bias, of.head, row, col);
    const TandemTiles span = tandem_key_tiles(in.band(), of.row0, BR, BC, in.seq_q(), in.seq_kv());
    const int t = place.col0 / BC;
    if (t < span.full_begin || t >= span.full_end)
      hide(
          s, row, col, [&](int i) { return i + in.band().off - in.band().left; },
          [&](int i) { return tandem_min(i + in.band().off + in.band().right, in.seq_kv() - 1); });
    if (far) {
      const int64_t rows0 =
          (int64_t(of.batch) * params.block.heads_q + of.head) * params.block.seq_q;
      take_far_rows<false>(s, exponent, params.push.lse, params.push.delta, rows0, row, in.seq_q());
    }
    product_nt<W, T>(dp, SharedLeft<W, 2>(tiles.d_o, stage * BR + place.own), v_at,
                     stage * BC + place.key);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float number[2];  // lse and delta
        tiles.lse_and_delta(number, stage, place.own + 16 * m + 8 * h + me.g);
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
          for (int x = 2 * h; x < 2 * h + 2; ++x)
            sum[0][m][n][x] = fmaf(weight_of<T>(s[m][n][x], exponent, number[0]),
                                   dp[m][n][x] - number[1], sum[0][m][n][x]);
      }
  });
  store_sums<S>(params, sum);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
