// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums: delta of the rows of elastic softmax and entmax, and the rows' parts of d_tau and
// d_slope. Twin of shaders/scalar/bwd_row_sums.comp.
#include "../parts/pair.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <int ROW, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG, Shape<ROW>::FULL_GROUPS)
    bwd_row_sums(const __grid_constant__ BwdRowSumsFull params) {
  using S = Shape<ROW>;
  const BwdRowSumsBlock& u = params.block;
  const BwdRowSumsPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int row0 = at.tile * S::M;
  const Extra e = make_extra(params, at.batch);
  const Pair pair = make_pair(params, e, at.head);
  const TandemTiles span = tandem_key_tiles(e.band, row0, S::M, S::N, e.seq_q, e.seq_kv);

  const Invocation<S> me;
  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  Stage<Any, S, WIDE> stage;
  // This invocation's parts of sum g M dp, sum g and sum M dp, and of the first two with |t|.
  float gdp[S::RM] = {}, gs[S::RM] = {}, dps[S::RM] = {}, tgdp[S::RM] = {}, tg[S::RM] = {};

  bool fetched = false;
  for (int t = span.begin; t < span.end; ++t) {
    const int col0 = t * S::N;
    uint counted, kept;
    float dp[S::RM][4];
    const bool ahead = fetch_ahead(e) && t + 1 < span.end;
    const bool visited = products_of_tile<S, WIDE, false>(
        dp, &counted, &kept, stage, pool, ptile, e, pair, row0, col0, fetched, [&] {
          if (ahead) stage.fetch_nt(pair.q, row0, pair.k, col0 + S::N, 0);
        });
    fetched = ahead;
    if (!visited) continue;
    float g[S::RM][4];
    take_ptile<S>(ptile, g);
#pragma unroll
    for (int r = 0; r < S::RM; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        dp[r][c] = counted_dp(dp[r][c], counted, kept, e.x.drop_scale, r, c);
        dps[r] += dp[r][c];
        gdp[r] = fmaf(g[r][c], dp[r][c], gdp[r]);
        dp[r][c] *= g[r][c];
        gs[r] += g[r][c];
      }
    if (params.spec.ROW_SLOPE) {
#pragma unroll
      for (int r = 0; r < S::RM; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int distance = row0 + me.row(r) + e.band.off - (col0 + me.col(c));
          const float length = float(distance < 0 ? -distance : distance);
          tgdp[r] = fmaf(length, dp[r][c], tgdp[r]);
          tg[r] = fmaf(length, g[r][c], tg[r]);
        }
    }
  }

  const RowStore<S> store{int64_t(pair.of.index) * u.seq_q, u.seq_q};
#pragma unroll
  for (int r = 0; r < S::RM; ++r) {
    const int row = row0 + me.row(r);
    float delta = row_sum<S>(gdp[r]);
    const float sum = row_sum<S>(gs[r]), counts = row_sum<S>(dps[r]);
    if (is_entmax(e)) delta = sum > 0.f ? __fdiv_rn(delta, sum) : 0.f;
    if (e.f.D_LSE && sum > 0.f) delta -= d_lse_of(e, store.rows0 + row);
    store.put_delta(params, e, row, delta, counts);
    if (params.spec.ROW_SLOPE)
      store.put(push.slope_rows, row, row_sum<S>(tgdp[r]) - delta * row_sum<S>(tg[r]));
  }
}

struct BwdRowSums {
  using Pointer = Kernel<BwdRowSumsFull>;
  template <typename, int ROW, int, bool WIDE>
  static Pointer get() {
    return bwd_row_sums<ROW, WIDE>;
  }
};

Kernel<BwdRowSumsFull> bwd_row_sums_full_kernel(tandem_dtype, const KernelChoice& of, bool wide) {
  return select_full<BwdRowSums>(wide, of.tile, 1);
}

}  // namespace cuda
}  // namespace tandem
