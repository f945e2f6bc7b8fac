// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums_dq: bwd_row_sums and bwd_dq of elastic softmax (trait::fixed) in one KV
// loop. ds = p M dp - delta p is linear in delta, which is known only at the end of the row. So
// both of its parts are
// summed: d_q = sum p M dp k - delta sum p k. That takes four products in place of five.
#include "../parts/elastic.cuh"
#include "../parts/pair.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <typename T, int ROW, int BLOCKS, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG,
                                  Shape<ROW>::groups(2 * BLOCKS * Shape<ROW>::RM * 4, WIDE))
    bwd_row_sums_dq(const __grid_constant__ BwdRowSumsDqFull params) {
  using S = Shape<ROW>;
  constexpr int SIDE = S::template SIDE<BLOCKS>;
  const BwdRowSumsDqBlock& u = params.block;
  const BwdRowSumsDqPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int row0 = at.tile * S::M;
  const Extra e = make_extra(params, at.batch);
  const PairOf<T> pair = make_pair<T>(params, e, at.head);
  const TandemTiles span = tandem_key_tiles(e.band, row0, S::M, S::N, e.seq_q, e.seq_kv);

  const Invocation<S> me;
  float4* pool = shared_memory();
  float4 *ptile = pool + S::POOL, *second = ptile + S::PTILE;  // p, and p M dp
  Stage<T, S, WIDE> stage;
  float d_q[BLOCKS][S::RM][4] = {}, p_k[BLOCKS][S::RM][4] = {};
  float gdp[S::RM] = {}, dps[S::RM] = {};  // this invocation's parts of sum p M dp, sum M dp

  if (span.begin < span.end) stage.fetch_nt(pair.q, row0, pair.k, span.begin * S::N, 0);
#pragma unroll 1
  for (int t = span.begin; t < span.end; ++t) {
    const int col0 = t * S::N;
    float s[S::RM][4] = {};
    product_nt(s, stage, pool, pair.q, row0, pair.k, col0, u.head_dim,
               [&] { stage.fetch_nt(pair.d_o, row0, pair.v, col0, 0); });
    uint counted =
        score_elastic<S, true>(s, e, pair.of.dist, row0, col0,
                               t < span.full_begin || t >= span.full_end || row0 + S::M > e.seq_q);
#pragma unroll
    for (int r = 0; r < S::RM; ++r) {
      const int row = row0 + me.row(r);
      float lse = row < e.seq_q ? __ldg(pair.lse + row) : minus_infinity();
      if (tandem_is_far(lse)) {
        const FarRow far = pair.far(row);
        lse = far.relative;
#pragma unroll
        for (int c = 0; c < 4; ++c) s[r][c] = from_origin(s[r][c], far.origin);
      }
      const float shift = elastic_shift(e, pair.of, row);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        s[r][c] = weight(s[r][c], lse);
        elastic_weight(s[r][c], shift, 1u << (4 * r + c), &counted);
      }
    }
    // p waits in the P tile, as registers limit the next product. All readers of the P tile of the
    // step before have passed the barriers of the product above.
    put_ptile<S>(ptile, s);
    float dp[S::RM][4] = {};
    product_nt(dp, stage, pool, pair.d_o, row0, pair.v, col0, u.head_dim_v,
               [&] { stage.template fetch_nn<SIDE>(pair.k, col0, 0); });
    take_ptile<S>(ptile, s);
#pragma unroll
    for (int r = 0; r < S::RM; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float x = (counted >> (4 * r + c) & 1u) ? dp[r][c] : 0.f;
        dps[r] += x;
        gdp[r] = fmaf(s[r][c], x, gdp[r]);
        s[r][c] *= x;
      }
    put_ptile<S>(second, s);
    product_nn<SIDE>(
        p_k, stage, pool, ptile, pair.k, col0,
        [&] {
          if (t + 1 < span.end) stage.fetch_nt(pair.q, row0, pair.k, col0 + S::N, 0);
        },
        d_q);
  }

  const RowStore<S> store{int64_t(pair.of.index) * u.seq_q, u.seq_q};
#pragma unroll
  for (int r = 0; r < S::RM; ++r) {
    const int row = row0 + me.row(r);
    const float delta = row_sum<S>(gdp[r]), counts = row_sum<S>(dps[r]);
    store.put_delta(params, e, row, delta, counts);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        d_q[block][r][c] = fmaf(-delta, p_k[block][r][c], d_q[block][r][c]);
  }
  store_blocks<T, S>(make_rows_view<T>(params.spec.DTYPE, push.d_q, u.d_q, at.batch, at.head,
                                       e.first_q, e.written_q, u.head_dim, push.wide & 16u),
                     row0, d_q, u.scale);
}

TANDEM_FIXED_FAMILY(BwdRowSumsDq, BwdRowSumsDqFull, bwd_row_sums_dq)

Kernel<BwdRowSumsDqFull> bwd_row_sums_dq_kernel(tandem_dtype dtype, const KernelChoice& of,
                                                bool wide) {
  return select_fixed<BwdRowSumsDq>(dtype, wide, of.tile, of.d_blocks);
}

}  // namespace cuda
}  // namespace tandem
