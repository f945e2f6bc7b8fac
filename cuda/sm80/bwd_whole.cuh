// SPDX-License-Identifier: MIT OR Apache-2.0
// The backward of whole heads (whole_head.cuh): d_q, d_k, d_v and d_bias in one launch. d_bias of a
// bias that the batch shares is summed in registers over the entries of a workgroup, in order.
#ifndef TANDEM_CUDA_SM80_BWD_WHOLE_CUH
#define TANDEM_CUDA_SM80_BWD_WHOLE_CUH
#include "bwd_dq_full.cuh"
#include "whole_head.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// acc = (64 rows of a)^T, of which the warp's 16 columns from `col` on, times (64 rows of b).
template <int W, typename T, int N>
TANDEM_DEVICE void product_tn(float (&acc)[1][N][4], const Reach<kWholeRows>& a, int col,
                              const Reach<W>& b) {
  clear(acc);
#pragma unroll
  for (int k = 0; k < kWholeRows / 16; ++k) {
    uint left[4];
    load_matrices_transposed(left, a.at(16 * k, col));
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      uint r[4];
      load_matrices_transposed(r, b.at(16 * k, 16 * n));
      multiply<T>(acc[0][2 * n], left, r[0], r[1]);
      multiply<T>(acc[0][2 * n + 1], left, r[2], r[3]);
    }
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_whole(const __grid_constant__ BwdWholeFull params) {
  using S = MmaShape<ROW>;
  constexpr int W = S::WIDTH, R = kWholeRows, TILE = R * 2 * W;
  static_assert(S::BR == R && S::BC == R && S::THREADS == kWholeThreads && S::STAGES == 2,
                "as it is written");
  const BwdDqBlock& u = params.block;
  const BwdDqPush& push = params.push;
  WholeWork work;
  if (!find_whole(u, params.batch, &work)) return;
  const int head = work.head;
  const Lane me;
  const uint tiles = shared_start(), p_tile = tiles + 8 * TILE, ds_tile = p_tile + R * 2 * R;
  const int own = 16 * me.warp;
  const auto view = [&](uint64_t address, const Strides& strides, int entry, int rows, int width,
                        bool wide) {
    return make_view<T>(address, strides, entry, head, rows, width, wide);
  };
  const auto fetch = [&](int entry, int stage) {
    const uint to = tiles + uint(stage * 4 * TILE);
    load_rows<W, R, S::THREADS>(to, view(push.q, u.q, entry, u.seq_q, u.head_dim, push.wide & 1u),
                                0);
    load_rows<W, R, S::THREADS>(to + TILE,
                                view(push.k, u.k, entry, u.seq_kv, u.head_dim, push.wide & 2u), 0);
    load_rows<W, R, S::THREADS>(
        to + 2 * TILE, view(push.v, u.v, entry, u.seq_kv, u.head_dim_v, push.wide & 4u), 0);
    load_rows<W, R, S::THREADS>(
        to + 3 * TILE, view(push.d_o, u.d_o, entry, u.seq_q, u.head_dim_v, push.wide & 8u), 0);
  };
  if (work.begin < work.end) fetch(work.begin, 0);
  commit();
  WholeScores scores(params, head, work.begin, ds_tile + R * 2 * R);
  const bool has_bias = params.features.BIAS != 0, stores = params.spec.D_BIAS != 0;
  WholeBlock d_bias;
  clear(d_bias);
  // Stores the sum of d_bias: of an entry, or of the workgroup's slice.
  const auto store_bias = [&](int index) {
    const Strides& to = u.d_bias;
    const int size = params.spec.D_BIAS == TANDEM_F32 ? 4 : 2;
    const BiasRows rows = {
        params.spec.D_BIAS,
        reinterpret_cast<char*>(push.d_bias) + (index * to.b + head * to.h) * size,
        to,
        u.seq_q,
        u.seq_kv,
        to.d == 1 && to.s % 2 == 0 && to.h % 2 == 0 && to.b % 2 == 0 &&
            push.d_bias % (2 * size) == 0};
#pragma unroll
    for (int n = 0; n < kWholeBlocks; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        rows.put(scores.spot.i(n, 2 * h), scores.spot.j(n, 0), d_bias[0][n][2 * h],
                 d_bias[0][n][2 * h + 1]);
  };
  int stage = 0;
#pragma unroll 1
  for (int entry = work.begin; entry < work.end; ++entry, stage ^= 1) {
    wait<0>();
    __syncthreads();  // all rows are there, and no warp reads the other stage any more
    if (entry + 1 < work.end) fetch(entry + 1, 1 - stage);
    commit();
    scores.begin(params, head, entry);
    const uint q = tiles + uint(stage * 4 * TILE), k = q + TILE, v = k + TILE, d_o = v + TILE;
    WholeBlock s, dp;
    product_nt<W, T>(s, SharedLeft<W, 1>(q, own), Reach<W>(k, false), 0);
    float m[2], l[2];
    scores.weigh(s, u.scale, has_bias, m, l);
    product_nt<W, T>(dp, SharedLeft<W, 1>(d_o, own), Reach<W>(v, false), 0);
    float delta[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float inverse = l[h] > 0.f ? __fdiv_rn(1.f, l[h]) : 0.f;
      float sum = 0.f;
#pragma unroll
      for (int n = 0; n < kWholeBlocks; ++n)
#pragma unroll
        for (int c = 2 * h; c < 2 * h + 2; ++c) {
          s[0][n][c] *= inverse;
          sum = fmaf(s[0][n][c], dp[0][n][c], sum);
        }
      delta[h] = quad_sum(sum);
    }
    uint words[1][kWholeBlocks / 2][4];
    pack_rows<T>(words, s);
    put_rows<R>(p_tile, own, 0, words);
    each<kWholeBlocks>([&](int n, int x) {
      dp[0][n][x] = s[0][n][x] * (dp[0][n][x] - delta[x / 2]);
      if (stores) d_bias[0][n][x] += dp[0][n][x];
    });
    pack_rows<T>(words, dp);
    put_rows<R>(ds_tile, own, 0, words);
    float d_q[1][W / 8][4];
    clear(d_q);
    if (push.d_q) product_nn<W, T>(d_q, words, Reach<W>(k, true), 0);
    __syncthreads();  // P and dS are whole
    float d_v[1][W / 8][4], d_k[1][W / 8][4];
    product_tn<W, T>(d_v, Reach<R>(p_tile, false), own, Reach<W>(d_o, true));
    product_tn<W, T>(d_k, Reach<R>(ds_tile, false), own, Reach<W>(q, true));
    __syncthreads();  // the rows have been read, and outputs pass through them
    const auto scaled = [&](float x, int, int) { return x * u.scale; };
    if (push.d_q)
      store_rows<W>(view(push.d_q, u.d_q, entry, u.seq_q, u.head_dim, push.wide & 16u), 0, q, own,
                    d_q, scaled);
    if (params.d_k_at)
      store_rows<W>(
          view(params.d_k_at, params.d_k, entry, u.seq_kv, u.head_dim, params.wide_kv & 1u), 0, k,
          own, d_k, scaled);
    if (params.d_v_at)
      store_rows<W>(
          view(params.d_v_at, params.d_v, entry, u.seq_kv, u.head_dim_v, params.wide_kv & 2u), 0, v,
          own, d_v, [](float x, int, int) { return x; });
    if (stores && params.each_d_bias) {
      store_bias(entry);
      clear(d_bias);
    }
  }
  wait<0>();
  if (stores && !params.each_d_bias) store_bias(work.slice);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
