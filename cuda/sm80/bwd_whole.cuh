// SPDX-License-Identifier: MIT OR Apache-2.0
// The backward of whole heads (whole_head.cuh): d_q, d_k, d_v and d_bias in one launch. d_bias of a
// bias that the batch shares is summed in registers over the entries of a workgroup, in order.
#ifndef TANDEM_CUDA_SM80_BWD_WHOLE_CUH
#define TANDEM_CUDA_SM80_BWD_WHOLE_CUH
#include "bias_rows.cuh"
#include "whole_head.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// acc = (16 K rows of a)^T, of which 16 columns from `col` on, times (16 K rows of b).
template <int W, typename T, int K, int C, int N>
TANDEM_DEVICE void product_tn(float (&acc)[1][N][4], const Reach<C>& a, int col,
                              const Reach<W>& b) {
  clear(acc);
#pragma unroll
  for (int k = 0; k < K; ++k) {
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

// Stores 16 rows of dS, from row0 on, of a tile of C columns, which this warp has written, as
// d_bias of a pair. copies: it has the same type, and whole chunks begin at multiples of 16 bytes.
template <typename T, int C>
TANDEM_DEVICE void store_pair_bias(const BiasRows& to, bool copies, uint tile, int row0) {
  constexpr int CHUNKS = C / 8;
  sync_warp();
#pragma unroll 1
  for (int at = int(threadIdx.x) % 32; at < 16 * CHUNKS; at += 32) {
    const int row = row0 + at / CHUNKS, col = at % CHUNKS * 8;
    if (row >= to.rows || col >= to.cols) continue;
    const uint4 x = get_chunk(tile + Rows<C>::at(row, col / 8));
    if (copies && col + 8 <= to.cols) {
      *reinterpret_cast<uint4*>(to.base + 2 * (row * to.s.s + col)) = x;
      continue;
    }
    const uint word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int c = 0; c < 4; ++c)
      to.put(row, col + 2 * c, T::to_float(static_cast<unsigned short>(word[c])),
             T::to_float(static_cast<unsigned short>(word[c] >> 16)));
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_whole(const __grid_constant__ BwdWholeFull params) {
  using S = WholeShape<ROW>;
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC, C = S::P_COLS;
  const BwdDqBlock& u = params.block;
  const BwdDqPush& push = params.push;
  WholeWork work;
  if (!find_whole(params, params.sliced, &work)) return;
  const Lane me;
  const uint tiles = shared_start(), p_tile = tiles + S::shared.p, ds_tile = tiles + S::shared.ds,
             out_tile = tiles + S::shared.out;
  const int own = 16 * me.warp;
  WholeScores<S> scores(params, tiles + S::shared.end);
  const auto view = [&](uint64_t address, const Strides& strides, WholePair pair, int rows,
                        int width, bool wide) {
    return make_view<T>(address, strides, pair.entry, pair.head, rows, width, wide);
  };
  const auto fetch = [&](WholePair pair, int stage) {
    const uint to = tiles + uint(stage * S::shared.stage);
    load_whole<S, BR>(to, view(push.q, u.q, pair, u.seq_q, u.head_dim, push.wide & 1u));
    load_whole<S, BR>(to + S::shared.d_o,
                      view(push.d_o, u.d_o, pair, u.seq_q, u.head_dim_v, push.wide & 8u));
    load_whole<S, BC>(to + S::shared.k,
                      view(push.k, u.k, pair, u.seq_kv, u.head_dim, push.wide & 2u));
    load_whole<S, BC>(to + S::shared.v,
                      view(push.v, u.v, pair, u.seq_kv, u.head_dim_v, push.wide & 4u));
    scores.fetch(params, pair, stage);
  };
  WholePair pair = work.first;
  // The stage is a bit of the number of pairs that are left, for want of registers.
  if (S::STAGES > 1) fetch(pair, work.count & 1);
  commit();
  const bool stores = params.spec.D_BIAS != 0;
  const bool copies =
      stores && !params.sliced &&
      params.spec.D_BIAS == (std::is_same<T, F16>::value ? TANDEM_F16 : TANDEM_BF16) &&
      u.d_bias.d == 1 && (u.d_bias.s | u.d_bias.h | u.d_bias.b) % 8 == 0 && push.d_bias % 16 == 0;
  float d_bias[1][S::SUMS ? S::BLOCKS : 1][4];
  clear(d_bias);
  // d_bias of a pair, or of the workgroup's slice.
  const auto bias_rows = [&](int index, int head) {
    return bias_rows_of(params.spec.D_BIAS, push.d_bias, u.d_bias, index, head, u.seq_q, u.seq_kv);
  };
#pragma unroll 1
  for (int left = work.count; left > 0; --left, pair = pair.next(params.batch)) {
    const int stage = S::STAGES > 1 ? left & 1 : 0;
    if (S::STAGES == 1) {  // another workgroup of the SM multiplies meanwhile
      __syncthreads();     // no warp reads the rows any more
      fetch(pair, 0);
      commit();
    }
    wait<0>();
    __syncthreads();  // all rows are there, and no warp reads the other stage any more
    if (S::STAGES > 1 && left > 1) fetch(pair.next(params.batch), 1 - stage);
    commit();
    scores.begin(params, pair, stage);
    const uint q = tiles + uint(stage * S::shared.stage), d_o = q + S::shared.d_o,
               k = q + S::shared.k, v = q + S::shared.v;
    typename WholeScores<S>::Block s, dp;
    product_nt<W, T>(s, SharedLeft<W, 1>(q, own), Reach<W>(k, false), 0);
    float m[2], l[2];
    scores.template weigh<false>(s, u.scale, stage, m, l);
    product_nt<W, T>(dp, SharedLeft<W, 1>(d_o, own), Reach<W>(v, false), 0);
    float delta[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float inverse = l[h] > 0.f ? __fdiv_rn(1.f, l[h]) : 0.f;
      float sum = 0.f;
#pragma unroll
      for (int n = 0; n < S::BLOCKS; ++n)
#pragma unroll
        for (int c = 2 * h; c < 2 * h + 2; ++c) {
          s[0][n][c] *= inverse;
          sum = fmaf(s[0][n][c], dp[0][n][c], sum);
        }
      delta[h] = quad_sum(sum);
    }
    uint words[1][S::BLOCKS / 2][4];
    pack_rows<T>(words, s);
    put_rows<C>(p_tile, own, 0, words);
    each<S::BLOCKS>([&](int n, int x) {
      dp[0][n][x] = s[0][n][x] * (dp[0][n][x] - delta[x / 2]);
      if constexpr (S::SUMS)
        if (stores && params.sliced) d_bias[0][n][x] += dp[0][n][x];
    });
    pack_rows<T>(words, dp);
    put_rows<C>(ds_tile, own, 0, words);
    const auto scaled = [&](float x, int, int) { return x * u.scale; };
    // Outputs pass through rows of the warp's own, 16 at a time.
    if (push.d_q) {
      float d_q[1][W / 8][4];
      clear(d_q);
      product_nn<W, T>(d_q, words, Reach<W>(k, true), 0);
      store_rows<W>(view(push.d_q, u.d_q, pair, u.seq_q, u.head_dim, push.wide & 16u), 0, out_tile,
                    own, d_q, scaled);
    }
    if (stores && !params.sliced)
      store_pair_bias<T, C>(bias_rows(pair.entry, pair.head), copies, ds_tile, own);
    __syncthreads();  // P and dS are whole
#pragma unroll 1
    for (int key = own; key < BC && key < u.seq_kv; key += BR) {
      float sum[1][W / 8][4];
      if (params.d_v_at) {
        product_tn<W, T, BR / 16>(sum, Reach<C>(p_tile, false), key, Reach<W>(d_o, true));
        store_rows<W>(
            view(params.d_v_at, params.d_v, pair, u.seq_kv, u.head_dim_v, params.wide_kv & 2u),
            key - own, out_tile, own, sum, [](float x, int, int) { return x; });
      }
      if (params.d_k_at) {
        product_tn<W, T, BR / 16>(sum, Reach<C>(ds_tile, false), key, Reach<W>(q, true));
        store_rows<W>(
            view(params.d_k_at, params.d_k, pair, u.seq_kv, u.head_dim, params.wide_kv & 1u),
            key - own, out_tile, own, sum, scaled);
      }
    }
  }
  wait<0>();
  if constexpr (S::SUMS)
    if (stores && params.sliced) {
      WholeWork again;
      find_whole(params, true, &again);
      const BiasRows rows = bias_rows(again.slice, again.first.head);
#pragma unroll
      for (int n = 0; n < S::BLOCKS; ++n)
#pragma unroll
        for (int x = 0; x < 4; x += 2)
          rows.put(scores.spot.i(n, x), scores.spot.j(n, x), d_bias[0][n][x], d_bias[0][n][x + 1]);
    }
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
