// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of elastic softmax with nothing but a distance bias, lengths and a sink: as fwd_full.cu, with
// the element type and the features known at compile time.
#include "../parts/elastic.cuh"
#include "../parts/pair.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <typename T, int ROW, int BLOCKS, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG,
                                  Shape<ROW>::groups(BLOCKS* Shape<ROW>::RM * 4, WIDE))
    fwd_elastic(const __grid_constant__ FwdFull params) {
  using S = Shape<ROW>;
  constexpr int SIDE = S::template SIDE<BLOCKS>;
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  const uint dtype = params.spec.DTYPE;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int kv_head = at.head / u.group;
  const int row0 = at.tile * S::M;
  const Extra e = make_extra(params, at.batch);
  const HeadExtra of = head_extra(e, at.head);
  const View<T> q = query_view<T>(e, dtype, push.q, u.q, at.head, u.head_dim, push.wide & 1u);
  const View<T> k = key_view<T>(e, dtype, push.k, u.k, kv_head, u.head_dim, push.wide & 2u);
  const View<T> v = key_view<T>(e, dtype, push.v, u.v, kv_head, u.head_dim_v, push.wide & 4u);
  const TandemTiles span = tandem_key_tiles(e.band, row0, S::M, S::N, e.seq_q, e.seq_kv);
  const auto edge = [&](int t) {
    return t < span.full_begin || t >= span.full_end || row0 + S::M > e.seq_q;
  };

  const Invocation<S> me;
  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  Stage<T, S, WIDE> stage;

  // The first pass over the keys: lse.
  RowOrigin origin[S::RM];
  bool some_far = false;
  const float* sink = params.spec.SINK ? reinterpret_cast<const float*>(push.sink) +
                                             sink_head(params.spec.SINK, u, at.batch, at.head)
                                       : nullptr;
  {
    float m[S::RM], l[S::RM];  // of this invocation's part of the row
#pragma unroll
    for (int r = 0; r < S::RM; ++r) m[r] = minus_infinity(), l[r] = 0.f;
    if (span.begin < span.end) stage.fetch_nt(q, row0, k, span.begin * S::N, 0);
#pragma unroll 1
    for (int t = span.begin; t < span.end; ++t) {
      const int col0 = t * S::N;
      float s[S::RM][4] = {};
      product_nt(s, stage, pool, q, row0, k, col0, u.head_dim, [&] {
        if (t + 1 < span.end) stage.fetch_nt(q, row0, k, col0 + S::N, 0);
      });
      score_elastic<S, true>(s, e, of.dist, row0, col0, edge(t));
#pragma unroll
      for (int r = 0; r < S::RM; ++r) {
        const float top = fmaxf(fmaxf(m[r], fmaxf(s[r][0], s[r][1])), fmaxf(s[r][2], s[r][3]));
        const float base = top == minus_infinity() ? 0.f : top;
        float sum = 0.f;
#pragma unroll
        for (int c = 0; c < 4; ++c) sum += expf(__fsub_rn(s[r][c], base));
        l[r] = fmaf(l[r], expf(m[r] - base), sum);
        m[r] = top;
      }
    }
#pragma unroll
    for (int r = 0; r < S::RM; ++r) {
      const float top = row_max<S>(m[r]);
      const float sum = row_sum<S>(l[r] * expf(m[r] - (top == minus_infinity() ? 0.f : top)));
      if (tandem_is_far(top))
        origin[r] = RowOrigin{joined_lse_from(sink, top, sum), top}, some_far = true;
      else
        origin[r].at = sum > 0.f ? joined_lse(sink, top, sum) : minus_infinity();
    }
  }

  float o[BLOCKS][S::RM][4] = {};
  if (span.begin < span.end) stage.fetch_nt(q, row0, k, span.begin * S::N, 0);
#pragma unroll 1
  for (int t = span.begin; t < span.end; ++t) {
    const int col0 = t * S::N;
    float s[S::RM][4] = {};
    product_nt(s, stage, pool, q, row0, k, col0, u.head_dim,
               [&] { stage.template fetch_nn<SIDE>(v, col0, 0); });
    uint counted = score_elastic<S, true>(s, e, of.dist, row0, col0, edge(t));
    if (some_far)
#pragma unroll
      for (int r = 0; r < S::RM; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) s[r][c] = __fsub_rn(s[r][c], origin[r].from);
#pragma unroll
    for (int r = 0; r < S::RM; ++r) {
      const float shift = elastic_shift(e, of, row0 + me.row(r));
#pragma unroll
      for (int c = 0; c < 4; ++c)
        s[r][c] = elastic_weight(weight(s[r][c], origin[r].at), shift, 1u << (4 * r + c), &counted);
    }
    put_ptile<S>(ptile, s);
    product_nn<SIDE>(o, stage, pool, ptile, v, col0, [&] {
      if (t + 1 < span.end) stage.fetch_nt(q, row0, k, col0 + S::N, 0);
    });
  }

  float* lse = reinterpret_cast<float*>(push.lse);
  const int64_t lse0 = int64_t(of.index) * u.seq_q;
#pragma unroll
  for (int r = 0; r < S::RM; ++r) {
    const int row = row0 + me.row(r);
    if (lse && me.tc == 0 && row < u.seq_q) lse[lse0 + row] = origin[r].lse(sink);
  }
  store_blocks<T, S>(make_rows_view<T>(dtype, push.o, u.o, at.batch, at.head, e.first_q,
                                       e.written_q, u.head_dim_v, push.wide & 8u),
                     row0, o, 1.f);
}

TANDEM_FIXED_FAMILY(FwdElastic, FwdFull, fwd_elastic)

Kernel<FwdFull> fwd_elastic_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide) {
  return select_fixed<FwdElastic>(dtype, wide, of.tile, of.dv_blocks);
}

}  // namespace cuda
}  // namespace tandem
