// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv on tensor cores: d_k and d_v of Bc keys of a kv head, summed over its query heads and
// over all query tiles in a fixed order. Rows of a tile are keys and columns are queries, so that P
// and dS are A operands as they lie in registers. The operation is that of cuda/simt/bwd_dkv.cu.
#ifndef TANDEM_CUDA_SM80_BWD_DKV_CUH
#define TANDEM_CUDA_SM80_BWD_DKV_CUH
#include "inputs.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW, typename Params>
TANDEM_DEVICE void form_d_kv(const Params& params) {
  using S = MmaShape<ROW>;
  using Inputs = InputsOf<T, ROW, Params>;
  // HALVES = 2: two neighbouring warps own the same keys. Each multiplies half of the queries and
  // sums half of the features, and P and dS pass through shared memory.
  constexpr int W = S::WIDTH, MT = S::MT, BR = S::BR, BC = S::BC, TILE = BR * 2 * W;
  constexpr int HALVES = S::HALVES, N = BR / HALVES / 8, F = S::FEATURES / HALVES / 8;
  const BwdDkvBlock& u = params.block;
  const BwdDkvPush& push = params.push;
  Place at;
  if (!find_keys<ROW>(u, &at)) return;
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = (int(u.tiles) - 1 - at.tile) * BC;
  const bool grad_k = push.d_k != 0, grad_v = push.d_v != 0;
  const Inputs in(params, at.batch);
  const View<T> k = in.keys(push.k, u.k, at.head, u.head_dim, push.wide & 2u);
  const View<T> v = in.keys(push.v, u.v, at.head, u.head_dim_v, push.wide & 4u);
  // Rows of the group's first query head. base moves from head to head.
  View<T> q = in.queries(push.q, u.q, at.head * u.group, u.head_dim, push.wide & 1u);
  View<T> d_o = in.queries(push.d_o, u.d_o, at.head * u.group, u.head_dim_v, push.wide & 8u);
  int64_t queries0 = (int64_t(at.batch) * u.heads_q + at.head * u.group) * u.seq_q;
  const TandemBand band = in.band();
  const TandemTiles span = tandem_query_tiles(band, row0, BC, BR, in.seq_q(), in.seq_kv());

  const Lane me;
  const int half = HALVES > 1 ? me.warp % HALVES : 0;
  const uint k_tile = shared_start(), v_tile = k_tile + BC * 2 * W, q_tile = v_tile + BC * 2 * W,
             o_tile = q_tile + S::STAGES * TILE, numbers = o_tile + S::STAGES * TILE,
             p_tile = numbers + S::STAGES * 12 * BR, s_tile = p_tile + BC * 2 * BR;
  const int own = 16 * MT * (me.warp / HALVES), row = row0 + own + me.g;  // the lane's first key
  const int feature = half * (S::FEATURES / HALVES),
            query = half * (BR / HALVES);  // the warp's first feature and query
  const SharedLeft<W, MT> k_at(k_tile, own), v_at(v_tile, own);
  const RowsReach<T, W> q_at(q_tile, false), o_at(o_tile, false);
  const AcrossReach<T, W> q_across(q_tile, true), o_across(o_tile, true);
  const Exponent e(u.scale, kIsF32<T>);
  float d_k[MT][F][4], d_v[MT][F][4];
  clear(d_k), clear(d_v);

  // Of a query row, a thread each: the base that is subtracted from the exponent, and delta.
  float lse = 0.f, delta = 0.f;
  bool far = false;  // lse is relative (src/problem/far_row.h)
  const auto fetch_numbers = [&](int first) {
    const int i = first + int(threadIdx.x);
    if (int(threadIdx.x) >= BR) return;
    const bool there = i < in.seq_q();
    lse = there ? __ldg(reinterpret_cast<const float*>(push.lse) + queries0 + i) : minus_infinity();
    far = tandem_is_far(lse);
    if (far) lse = far_row(push.delta, queries0 + i).relative;
    delta =
        there && grad_k ? __ldg(reinterpret_cast<const float*>(push.delta) + queries0 + i) : 0.f;
  };
  const auto put_numbers = [&](int stage) {
    if (int(threadIdx.x) >= BR) return;
    put_number(numbers + uint(stage * 12 * BR + 4 * int(threadIdx.x)), base_of_row<T>(lse));
    put_number(numbers + uint(stage * 12 * BR + 4 * BR + 4 * int(threadIdx.x)), delta);
  };
  const auto load_queries = [&](int stage, int first) {
    load_rows<W, BR, S::THREADS>(q_tile + stage * TILE, q, first);
    load_rows<W, BR, S::THREADS>(o_tile + stage * TILE, d_o, first);
  };

  int t = span.begin, heads = span.begin < span.end ? u.group : 0;
  const auto advance = [&] {
    if (++t == span.end) {
      t = span.begin, --heads;
      q.base += u.q.h, d_o.base += u.d_o.h, queries0 += u.seq_q;
    }
  };
  // Goes on to a tile that keep leaves something of.
  const auto skip = [&] {
    if constexpr (Inputs::SOME)
      while (heads > 0 && in.template leaves_out<S::THREADS>((at.head + 1) * u.group - heads,
                                                             t * BR, BR, row0, BC))
        advance();
  };
  skip();
  load_rows<W, BC, S::THREADS>(k_tile, k, row0);
  load_rows<W, BC, S::THREADS>(v_tile, v, row0);
  if (heads > 0) {
    load_queries(0, t * BR);
    fetch_numbers(t * BR);
    put_numbers(0);
  }
  commit();
  int stage = 0;
#pragma unroll 1
  while (heads > 0) {
    const int col0 = t * BR;
    bool edge = t < span.full_begin || t >= span.full_end;
    // Rows behind the entry's length are written where it is padded.
    if constexpr (Inputs::SOME) edge |= row0 + BC > in.seq_kv();
    const int64_t rows0 = queries0;
    [[maybe_unused]] const int q_head = (at.head + 1) * u.group - heads;
    wait<0>();
    const bool some_far = __syncthreads_or(far) != 0;
    advance();
    skip();
    if (heads > 0) {
      if constexpr (S::STAGES > 1) load_queries(1 - stage, t * BR);
      fetch_numbers(t * BR);
    }
    if constexpr (S::STAGES > 1) commit();
    [[maybe_unused]] BiasBlock<MT, N> bias;
    if constexpr (Inputs::SOME)
      in.template load_bias<false>(bias, q_head, row, col0 + query + 2 * me.t);
    float s[MT][N][4];
    product_nt<W, T>(s, k_at, q_at, stage * BR + query);
    e.apply(s);
    if constexpr (Inputs::SOME)
      in.template apply<false>(s, bias, q_head, row, col0 + query + 2 * me.t);
    if (edge)
      hide(
          s, row, col0 + query + 2 * me.t, [&](int j) { return j - band.off - band.right; },
          [&](int j) {
            if (Inputs::SOME && j >= in.seq_kv()) return -1;
            return j - band.off + band.left;
          });
    if (some_far)
      take_far_rows<true>(s, e, push.lse, push.delta, rows0, col0 + query + 2 * me.t, in.seq_q());
    const uint first = numbers + uint(stage * 12 * BR + 4 * (query + 2 * me.t));
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float base[2];
      get_numbers(base, first + 32 * n);
#pragma unroll
      for (int r = 0; r < MT; ++r)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[r][n][x] = weight_of<T>(s[r][n][x], e, base[x % 2]);
    }
    uint p[MT][8 * N / kDepth<T>][4];
    pack_rows<T>(p, s);
    if constexpr (HALVES == 1) {
      if (grad_v) product_nn<W, T>(d_v, p, o_across, stage * BR);
    } else {
      put_rows<BR>(p_tile, own, query, p);
    }
    if (grad_k) {
      float dp[MT][N][4];
      product_nt<W, T>(dp, v_at, o_at, stage * BR + query);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float less[2];
        get_numbers(less, first + 4 * BR + 32 * n);
#pragma unroll
        for (int r = 0; r < MT; ++r)
#pragma unroll
          for (int x = 0; x < 4; ++x) dp[r][n][x] = s[r][n][x] * (dp[r][n][x] - less[x % 2]);
      }
      pack_rows<T>(p, dp);
      if constexpr (HALVES == 1)
        product_nn<W, T>(d_k, p, q_across, stage * BR);
      else
        put_rows<BR>(s_tile, own, query, p);
    }
    if constexpr (HALVES > 1) {
      __syncthreads();
      const SharedLeft<BR, MT> p_at(p_tile, own), s_at(s_tile, own);
      if (grad_v) product_nn<W, T, BR / 16>(d_v, p_at, o_across, stage * BR, feature);
      if (grad_k) product_nn<W, T, BR / 16>(d_k, s_at, q_across, stage * BR, feature);
    }
    if constexpr (S::STAGES > 1) {
      stage = 1 - stage;
    } else {
      __syncthreads();
      if (heads > 0) load_queries(0, t * BR);
      commit();
    }
    if (heads > 0) put_numbers(stage);
  }
  wait<0>();
  __syncthreads();  // two warps may share rows of K and V
  if (grad_k)
    store_rows<W>(
        in.written_keys(push.d_k, u.d_k, at.head, u.head_dim, push.wide & 16u), row0, k_tile, own,
        d_k, [&](float x, int, int) { return x * u.scale; }, feature);
  if (grad_v)
    store_rows<W>(
        in.written_keys(push.d_v, u.d_v, at.head, u.head_dim_v, push.wide & 32u), row0, v_tile, own,
        d_v, [](float x, int, int) { return x; }, feature);
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dkv(const __grid_constant__ BwdDkvParams params) {
  form_d_kv<T, ROW>(params);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
