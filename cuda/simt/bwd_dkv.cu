// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv: d_k and d_v of Bc keys of one kv head, summed over its query heads and over all query
// tiles in a fixed order. Rows of the tile are keys, columns are queries. Twin of
// shaders/scalar/bwd_dkv.comp.
#include "../parts/mask.cuh"
#include "../parts/score.cuh"
#include "../parts/softmax.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <typename T, int ROW, int BLOCKS, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG,
                                  Shape<ROW>::groups(2 * BLOCKS * Shape<ROW>::RM * 4, WIDE))
    bwd_dkv(const __grid_constant__ BwdDkvParams params) {
  using S = Shape<ROW>;
  constexpr int SIDE = S::RM >= 8 ? S::template SIDE<BLOCKS> : 1;
  const BwdDkvBlock& u = params.block;
  const BwdDkvPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q / u.group, &at, params.first_group)) return;
  const int features = take_part<S, BLOCKS>(&at, u.seq_kv);
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = ((u.seq_kv + S::M - 1) / S::M - 1 - at.tile) * S::M;
  const bool grad_k = push.d_k != 0, grad_v = push.d_v != 0;
  const View<T> k =
      make_view<T>(push.k, u.k, at.batch, at.head, u.seq_kv, u.head_dim, push.wide & 2u);
  const View<T> v =
      make_view<T>(push.v, u.v, at.batch, at.head, u.seq_kv, u.head_dim_v, push.wide & 4u);
  // Rows of the group's first query head. base moves from head to head.
  View<T> q =
      make_view<T>(push.q, u.q, at.batch, at.head * u.group, u.seq_q, u.head_dim, push.wide & 1u);
  View<T> d_o = make_view<T>(push.d_o, u.d_o, at.batch, at.head * u.group, u.seq_q, u.head_dim_v,
                             push.wide & 8u);
  q.first = d_o.first = features;
  int64_t queries0 = (int64_t(at.batch) * u.heads_q + at.head * u.group) * u.seq_q;
  const TandemBand band = mask_band(u);
  const TandemTiles span = tandem_query_tiles(band, row0, S::M, S::N, u.seq_q, u.seq_kv);

  const Invocation<S> me;
  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  Stage<T, S, WIDE> stage;
  float d_k[BLOCKS][S::RM][4] = {}, d_v[BLOCKS][S::RM][4] = {};

  if (span.begin < span.end) stage.fetch_nt(k, row0, q, span.begin * S::N, 0);
  int t = span.begin;
  int heads = span.begin < span.end ? u.group : 0;
  while (heads > 0) {
    const int col0 = t * S::N;
    float s[S::RM][4] = {};
    product_nt(s, stage, pool, k, row0, q, col0, u.head_dim, [&] {
      if (grad_v)
        stage.template fetch_nn<SIDE>(d_o, col0, 0);
      else
        stage.fetch_nt(v, row0, d_o, col0, 0);
    });
    float lse[4], delta[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int col = col0 + me.col(c);
      lse[c] = minus_infinity(), delta[c] = 0.f;
      if (col < u.seq_q) {
        lse[c] = __ldg(reinterpret_cast<const float*>(push.lse) + queries0 + col);
        if (grad_k) delta[c] = __ldg(reinterpret_cast<const float*>(push.delta) + queries0 + col);
      }
    }
    score_tile<S>(s, u.scale);
    if (t < span.full_begin || t >= span.full_end)
      mask_tile_transposed<S>(s, band, col0, row0, u.seq_q, u.seq_kv);
    take_far_columns<S>(s, lse, push.delta, queries0 + col0);
#pragma unroll
    for (int i = 0; i < S::RM; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) s[i][c] = weight(s[i][c], lse[c]);
    // All readers of the P tile of the step before have passed the barriers of the product above. p
    // is multiplied first and read back afterwards, so that no product keeps it in registers.
    put_ptile<S>(ptile, s);

    const auto next_tile = [&] {
      if (++t == span.end) {
        t = span.begin, --heads;
        q.base += u.q.h, d_o.base += u.d_o.h, queries0 += u.seq_q;
      }
      if (heads > 0) stage.fetch_nt(k, row0, q, t * S::N, 0);
    };
    if (grad_v)
      product_nn<SIDE>(d_v, stage, pool, ptile, d_o, col0, [&] {
        if (grad_k)
          stage.fetch_nt(v, row0, d_o, col0, 0);
        else
          next_tile();
      });
    if (grad_k) {
      float dp[S::RM][4] = {};
      product_nt(dp, stage, pool, v, row0, d_o, col0, u.head_dim_v,
                 [&] { stage.template fetch_nn<SIDE>(q, col0, 0); });
      take_ptile<S>(ptile, s);
#pragma unroll
      for (int i = 0; i < S::RM; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) s[i][c] *= dp[i][c] - delta[c];
      put_ptile<S>(ptile, s);
      product_nn<SIDE>(d_k, stage, pool, ptile, q, col0, next_tile);
    }
  }
  if (grad_k)
    store_blocks<T, S>(own_features(make_view<T>(push.d_k, u.d_k, at.batch, at.head, u.seq_kv,
                                                 u.head_dim, push.wide & 16u),
                                    features),
                       row0, d_k, u.scale);
  if (grad_v)
    store_blocks<T, S>(own_features(make_view<T>(push.d_v, u.d_v, at.batch, at.head, u.seq_kv,
                                                 u.head_dim_v, push.wide & 32u),
                                    features),
                       row0, d_v, 1.f);
}

struct BwdDkv {
  using Pointer = Kernel<BwdDkvParams>;
  template <typename T, int ROW, int BLOCKS, bool WIDE>
  static Pointer get() {
    return bwd_dkv<T, ROW, BLOCKS, WIDE>;
  }
};

Kernel<BwdDkvParams> bwd_dkv_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide) {
  return select_kernel<BwdDkv>(dtype, wide, of.tile,
                               of.d_blocks > of.dv_blocks ? of.d_blocks : of.dv_blocks);
}

}  // namespace cuda
}  // namespace tandem
