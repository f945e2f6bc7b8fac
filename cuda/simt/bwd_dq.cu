// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq: d_q of Br query rows of one head. Twin of shaders/scalar/bwd_dq.comp.
#include "../parts/mask.cuh"
#include "../parts/score.cuh"
#include "../parts/softmax.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <typename T, int ROW, int BLOCKS, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG,
                                  Shape<ROW>::groups(BLOCKS* Shape<ROW>::RM * 4, WIDE))
    bwd_dq(const __grid_constant__ BwdDqParams params) {
  using S = Shape<ROW>;
  constexpr int SIDE = S::RM >= 8 ? S::template SIDE<BLOCKS> : 1;
  const BwdDqBlock& u = params.block;
  const BwdDqPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int features = take_part<S, BLOCKS>(&at, u.seq_q);
  const int kv_head = at.head / u.group;
  const int row0 = at.tile * S::M;
  const View<T> q =
      make_view<T>(push.q, u.q, at.batch, at.head, u.seq_q, u.head_dim, push.wide & 1u);
  const View<T> k = own_features(
      make_view<T>(push.k, u.k, at.batch, kv_head, u.seq_kv, u.head_dim, push.wide & 2u), features);
  const View<T> v =
      make_view<T>(push.v, u.v, at.batch, kv_head, u.seq_kv, u.head_dim_v, push.wide & 4u);
  const View<T> d_o =
      make_view<T>(push.d_o, u.d_o, at.batch, at.head, u.seq_q, u.head_dim_v, push.wide & 8u);
  const TandemBand band = mask_band(u);
  const TandemTiles span = tandem_key_tiles(band, row0, S::M, S::N, u.seq_q, u.seq_kv);

  const Invocation<S> me;
  float lse[S::RM], delta[S::RM];
  bool some_far = false;
  const int64_t rows0 = (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q;
#pragma unroll
  for (int i = 0; i < S::RM; ++i) {
    const int row = row0 + me.row(i);
    lse[i] = minus_infinity(), delta[i] = 0.f;
    if (row < u.seq_q) {
      lse[i] = __ldg(reinterpret_cast<const float*>(push.lse) + rows0 + row);
      delta[i] = __ldg(reinterpret_cast<const float*>(push.delta) + rows0 + row);
      if (tandem_is_far(lse[i]))
        lse[i] = far_row(push.delta, rows0 + row).relative, some_far = true;
    }
  }

  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  Stage<T, S, WIDE> stage;
  float d_q[BLOCKS][S::RM][4] = {};

  if (span.begin < span.end) stage.fetch_nt(q, row0, k, span.begin * S::N, 0);
  for (int t = span.begin; t < span.end; ++t) {
    const int col0 = t * S::N;
    float s[S::RM][4] = {};
    product_nt(s, stage, pool, q, row0, k, col0, u.head_dim,
               [&] { stage.fetch_nt(d_o, row0, v, col0, 0); });
    score_tile<S>(s, u.scale);
    if (t < span.full_begin || t >= span.full_end)
      mask_tile<S>(s, band, row0, col0, u.seq_q, u.seq_kv);
    if (some_far) take_far_rows<S>(s, push.lse, push.delta, rows0 + row0, u.seq_q - row0);
#pragma unroll
    for (int i = 0; i < S::RM; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) s[i][c] = weight(s[i][c], lse[i]);
    // p waits in the P tile, as registers limit the next product. All readers of the P tile of the
    // step before have passed the barriers of the product above.
    put_ptile<S>(ptile, s);
    float dp[S::RM][4] = {};
    product_nt(dp, stage, pool, d_o, row0, v, col0, u.head_dim_v,
               [&] { stage.template fetch_nn<SIDE>(k, col0, 0); });
    take_ptile<S>(ptile, s);
#pragma unroll
    for (int i = 0; i < S::RM; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) s[i][c] *= dp[i][c] - delta[i];
    put_ptile<S>(ptile, s);
    product_nn<SIDE>(d_q, stage, pool, ptile, k, col0, [&] {
      if (t + 1 < span.end) stage.fetch_nt(q, row0, k, col0 + S::N, 0);
    });
  }
  store_blocks<T, S>(own_features(make_view<T>(push.d_q, u.d_q, at.batch, at.head, u.seq_q,
                                               u.head_dim, push.wide & 16u),
                                  features),
                     row0, d_q, u.scale);
}

struct BwdDq {
  using Pointer = Kernel<BwdDqParams>;
  template <typename T, int ROW, int BLOCKS, bool WIDE>
  static Pointer get() {
    return bwd_dq<T, ROW, BLOCKS, WIDE>;
  }
};

Kernel<BwdDqParams> bwd_dq_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide) {
  return select_kernel<BwdDq>(dtype, wide, of.tile, of.d_blocks);
}

}  // namespace cuda
}  // namespace tandem
