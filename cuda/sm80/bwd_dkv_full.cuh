// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv on tensor cores with optional inputs and any normaliser. The operation is that of
// cuda/simt/bwd_dkv_full.cu.
#ifndef TANDEM_CUDA_SM80_BWD_DKV_FULL_CUH
#define TANDEM_CUDA_SM80_BWD_DKV_FULL_CUH
#include "../parts/bwd_head_sums.cuh"
#include "bwd_dq_full.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// The row of kAmpereTiles of bwd_dq that has the width of this row.
constexpr int dq_row(int row) {
  for (int n = 0; n < kAmpereTileCount; ++n)
    if (kAmpereTiles[n].stem == Stem::bwd_dq && kAmpereTiles[n].table != TileTable::ampere_plain &&
        kAmpereTiles[n].width == kAmpereTiles[row].width)
      return n;
  return -1;
}
template <int ROW>
constexpr int kDqRow = dq_row(ROW);

// The workgroups behind those of bwd_dkv: bwd_dq, then bwd_head_sums.
template <typename T, int DQ_ROW>
TANDEM_DEVICE void finish_with(const BwdDkvHeadFull& params) {
  const BwdDqBlock& u = params.dq.block;
  const uint index = block_number() - params.block.total;
  if (index < u.total) {
    // bwd_dq may have fewer threads than bwd_dkv. Barriers do not wait for threads that have ended.
    if (int(threadIdx.x) >= MmaShape<DQ_ROW>::THREADS) return;
    Place at;
    at.tile = int(u.tiles - 1 - index % u.tiles);
    at.head = int(index / u.tiles % uint(u.heads_q));
    at.batch = int(index / u.tiles / uint(u.heads_q));
    form_dq<T, DQ_ROW>(params.dq, at);
  } else if (index - u.total < params.head.block.total) {
    sum_head(params.head, int(index - u.total), reinterpret_cast<float*>(shared_memory()));
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dkv_full(const __grid_constant__ BwdDkvHeadFull params) {
  using S = MmaShape<ROW>;
  // HALVES as in bwd_dkv.
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC, TILE = BR * 2 * W;
  constexpr int HALVES = S::HALVES, N = BR / HALVES / 8, F = W / HALVES / 8;
  static_assert(S::MT == 1 && S::STAGES == 2, "as it is written");
  const BwdDkvBlock& u = params.block;
  const BwdDkvPush& push = params.push;
  Place at;
  if (!find_keys<ROW>(u, &at)) {
    finish_with<T, kDqRow<ROW>>(params);
    return;
  }
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = (int(u.tiles) - 1 - at.tile) * BC;
  const bool grad_k = push.d_k != 0, grad_v = push.d_v != 0;
  const Extra e = make_extra(params, at.batch);
  const bool skip = e.f.SKIP != 0;
  const TandemTiles span = tandem_query_tiles(e.band, row0, BC, BR, e.seq_q, e.seq_kv);

  const Lane me;
  const int half = HALVES > 1 ? me.warp % HALVES : 0;
  const uint k_tile = shared_start(), v_tile = k_tile + BC * 2 * W, q_tile = v_tile + BC * 2 * W,
             o_tile = q_tile + S::STAGES * TILE, numbers = o_tile + S::STAGES * TILE,
             p_tile = numbers + S::STAGES * 12 * BR, s_tile = p_tile + BC * 2 * BR;
  const int own = 16 * (me.warp / HALVES), row = row0 + own + me.g;  // the lane's first key
  // The warp's first feature and query.
  const int feature = half * (W / HALVES), query = half * (BR / HALVES);
  const SharedLeft<W, 1> k_at(k_tile, own), v_at(v_tile, own);
  const Reach<W> q_at(q_tile, false), o_at(o_tile, false), q_across(q_tile, true),
      o_across(o_tile, true);
  float d_k[1][F][4], d_v[1][F][4];
  clear(d_k), clear(d_v);

#pragma unroll 1
  for (int member = 0; member < u.group; ++member) {
    const PairOf<T> p = make_pair<T>(params, e, at.head * u.group + member);
    const auto left_out = [&](int t) {
      return e.f.KEEP && skip && !tile_kept<S::THREADS>(e, p.of, t * BR, BR, row0, BC);
    };
    // Of a query row: its origin, delta, and its share in elastic softmax.
    float lse = 0.f, delta = 0.f, share = 0.f;
    bool far = false;  // lse is relative (src/problem/far_row.h)
    const auto fetch = [&](int stage, int first) {
      load_rows<W, BR, S::THREADS>(q_tile + stage * TILE, p.q, first);
      load_rows<W, BR, S::THREADS>(o_tile + stage * TILE, p.d_o, first);
      const int i = first + int(threadIdx.x);
      if (int(threadIdx.x) >= BR) return;
      lse = i < e.seq_q ? __ldg(p.lse + i) : minus_infinity();
      far = tandem_is_far(lse);
      if (far) lse = p.far(i).relative;
      delta = i < e.seq_q && grad_k ? __ldg(p.delta + i) : 0.f;
      share = elastic_shift(e, p.of, i);
    };
    const auto put_numbers = [&](int stage) {
      if (int(threadIdx.x) >= BR) return;
      put_number(numbers + uint(stage * 12 * BR + 4 * int(threadIdx.x)), lse);
      put_number(numbers + uint(stage * 12 * BR + 4 * BR + 4 * int(threadIdx.x)), delta);
      put_number(numbers + uint(stage * 12 * BR + 8 * BR + 4 * int(threadIdx.x)), share);
    };
    __syncthreads();  // all warps have read the tiles of the head before
    if (member == 0) {
      load_rows<W, BC, S::THREADS>(k_tile, p.k, row0);
      load_rows<W, BC, S::THREADS>(v_tile, p.v, row0);
    }
    int t = next_tile(span.begin, span.end, left_out), stage = 0;
    if (t < span.end) fetch(0, t * BR), put_numbers(0);
    commit();
#pragma unroll 1
    while (t < span.end) {
      const Spot<false, N> spot{row, t * BR + query + 2 * me.t};
      const bool edge = t < span.full_begin || t >= span.full_end || row0 + BC > e.seq_kv;
      t = next_tile(t + 1, span.end, left_out);
      wait<0>();
      const bool some_far = __syncthreads_or(far) != 0;
      if (t < span.end) fetch(1 - stage, t * BR);
      commit();
      float s[1][N][4], slope[N][4];
      product_nt<W, T>(s, k_at, q_at, stage * BR + query);
      const uint seen = score_block<true>(s[0], slope, e, p.of, spot, edge);
      if (some_far) take_far_rows(s[0], p, spot, e.seq_q);
      const uint first = numbers + uint(stage * 12 * BR + 4 * (query + 2 * me.t));
      float origin[N][2], shift[N][2];
#pragma unroll
      for (int n = 0; n < N; ++n)
        get_numbers(origin[n], first + 32 * n), get_numbers(shift[n], first + 8 * BR + 32 * n);
      const uint kept = kept_block(e, p.of, spot);
      uint q[1][N / 2][4];
      float y[1][N][4];
      uint counted = weigh_block(
          s[0], e, seen, [&](int n, int x) { return origin[n][x % 2]; },
          [&](int n, int x) { return shift[n][x % 2]; },
          [&](int n, int x, float weight) {
            y[0][n][x] = kept >> (4 * n + x) & 1u ? weight * e.x.drop_scale : 0.f;
          });
      counted &= kept;
      pack_rows<T>(q, y);
      bool counts = true;
      if (is_entmax(e) && skip) {
        bool some = false;
        each<N>([&](int n, int x) { some |= s[0][n][x] != 0.f; });
        counts = __syncthreads_or(some) != 0;
      }
      if (counts) {
        if constexpr (HALVES == 1) {
          if (grad_v) product_nn<W, T>(d_v, q, o_across, stage * BR);
        } else {
          put_rows<BR>(p_tile, own, query, q);
        }
        if (grad_k) {
          if (e.f.SOFTCAP) each<N>([&](int n, int x) { s[0][n][x] *= slope[n][x]; });
          float dp[1][N][4];
          product_nt<W, T>(dp, v_at, o_at, stage * BR + query);
#pragma unroll
          for (int n = 0; n < N; ++n) {
            float less[2];
            get_numbers(less, first + 4 * BR + 32 * n);
#pragma unroll
            for (int x = 0; x < 4; ++x)
              dp[0][n][x] = s[0][n][x] *
                            (counted_dp(dp[0][n][x], counted, e.x.drop_scale, n, x) - less[x % 2]);
          }
          pack_rows<T>(q, dp);
          if constexpr (HALVES == 1)
            product_nn<W, T>(d_k, q, q_across, stage * BR);
          else
            put_rows<BR>(s_tile, own, query, q);
        }
        if constexpr (HALVES > 1) {
          __syncthreads();
          const SharedLeft<BR, 1> p_at(p_tile, own), s_at(s_tile, own);
          if (grad_v) product_nn<W, T, BR / 16>(d_v, p_at, o_across, stage * BR, feature);
          if (grad_k) product_nn<W, T, BR / 16>(d_k, s_at, q_across, stage * BR, feature);
        }
      }
      stage = 1 - stage;
      if (t < span.end) put_numbers(stage);
    }
    wait<0>();
  }
  __syncthreads();  // two warps may share rows of K and V
  if (grad_k)
    store_rows<W>(
        make_rows_view<T>(0, push.d_k, u.d_k, at.batch, at.head, e.first_kv, e.written_kv,
                          u.head_dim, push.wide & 16u),
        row0, k_tile, own, d_k, [&](float x, int, int) { return x * u.scale; }, feature);
  if (grad_v)
    store_rows<W>(
        make_rows_view<T>(0, push.d_v, u.d_v, at.batch, at.head, e.first_kv, e.written_kv,
                          u.head_dim_v, push.wide & 32u),
        row0, v_tile, own, d_v, [](float x, int, int) { return x; }, feature);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
