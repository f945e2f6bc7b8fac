// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv of plain f32 with 8 x 8 sums a thread: d_k and d_v of 128 keys of one kv head, summed
// over its query heads and over all query tiles in a fixed order. Rows of the tile are keys,
// columns are queries. K and V stay, Q is in two stages, dO in one.
#include "f32.cuh"

namespace tandem {
namespace cuda {
namespace outer {

template <bool WIDE>
__global__ void __launch_bounds__(kThreads, 2)
    bwd_dkv_f32(const __grid_constant__ BwdDkvParams params) {
  constexpr int QUERIES = kOuterBwdRows, STAGE = QUERIES * kPitch;
  const BwdDkvBlock& u = params.block;
  const BwdDkvPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q / u.group, &at, params.first_group)) return;
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = ((u.seq_kv + kRows - 1) / kRows - 1 - at.tile) * kRows;
  const bool grad_k = push.d_k != 0, grad_v = push.d_v != 0;
  const View<F32> k =
      make_view<F32>(push.k, u.k, at.batch, at.head, u.seq_kv, u.head_dim, push.wide & 2u);
  const View<F32> v =
      make_view<F32>(push.v, u.v, at.batch, at.head, u.seq_kv, u.head_dim_v, push.wide & 4u);
  // Rows of the group's first query head. base moves from head to head: that of q one tile ahead.
  View<F32> q =
      make_view<F32>(push.q, u.q, at.batch, at.head * u.group, u.seq_q, u.head_dim, push.wide & 1u);
  View<F32> d_o = make_view<F32>(push.d_o, u.d_o, at.batch, at.head * u.group, u.seq_q,
                                 u.head_dim_v, push.wide & 8u);
  int64_t queries0 = (int64_t(at.batch) * u.heads_q + at.head * u.group) * u.seq_q;
  const TandemBand band = mask_band(u);
  const TandemTiles span = tandem_query_tiles(band, row0, kRows, QUERIES, u.seq_q, u.seq_kv);
  const int depth = depth_of(u.head_dim), depth_v = depth_of(u.head_dim_v);

  const Invocation me;
  float* const k_rows = reinterpret_cast<float*>(shared_memory());
  float* const v_rows = k_rows + kWidth * kRowsPitch;
  float* const q_rows = v_rows + kWidth * kRowsPitch;  // two stages
  float* const d_o_rows = q_rows + 2 * STAGE;
  float* const ptile = d_o_rows + STAGE + me.warp * QUERIES * kWarpRows;
  float d_k[8][8] = {}, d_v[8][8] = {};

  if (span.begin < span.end) {
    copy_transposed<kRows, kRowsPitch, WIDE>(k_rows, k, row0);
    copy_transposed<kRows, kRowsPitch, WIDE>(v_rows, v, row0);
    copy_rows<QUERIES, WIDE>(q_rows, q, span.begin * QUERIES);
  }
  commit_copies();
  if (span.begin < span.end) copy_rows<QUERIES, WIDE>(d_o_rows, d_o, span.begin * QUERIES);
  commit_copies();
  int t = span.begin, stage = 0;
  int heads = span.begin < span.end ? u.group : 0;
  while (heads > 0) {
    const int col0 = t * QUERIES;
    const float* const now = q_rows + stage * STAGE;
    const bool full = t >= span.full_begin && t < span.full_end;
    wait_copies<1>();
    __syncthreads();  // Q is there, and its other stage has been read
    float lse[4], delta[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int col = col0 + me.cg + 8 * j;
      lse[j] = INFINITY, delta[j] = 0.f;  // all weights are 0
      if (col < u.seq_q) {
        lse[j] = seen_lse(__ldg(reinterpret_cast<const float*>(push.lse) + queries0 + col));
        if (grad_k) delta[j] = __ldg(reinterpret_cast<const float*>(push.delta) + queries0 + col);
      }
    }
    const int64_t columns0 = queries0 + col0;
    if (++t == span.end) {
      t = span.begin, --heads;
      q.base += u.q.h, d_o.base += u.d_o.h, queries0 += u.seq_q;
    }
    stage ^= 1;
    if (heads > 0) copy_rows<QUERIES, WIDE>(q_rows + stage * STAGE, q, t * QUERIES);
    commit_copies();
    float s[8][4] = {};
    product_nt(s, k_rows, now, depth);
    scale_scores(s, u.scale);
    if (!full)
      mask_scores(
          s, band, u.seq_q, u.seq_kv, [&](int, int j) { return col0 + me.cg + 8 * j; },
          [&](int i, int) { return row0 + me.row(i); });
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!tandem_is_far(lse[j])) continue;
      const FarRow far = far_row(push.delta, columns0 + me.cg + 8 * j);
      lse[j] = far.relative;
#pragma unroll
      for (int i = 0; i < 8; ++i) s[i][j] = from_origin(s[i][j], far.origin);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = exp_of(s[i][j] - lse[j]);
    __syncwarp();  // the P tile of the step before has been read
    put_ptile(ptile, s);
    wait_copies<1>();
    __syncthreads();  // dO is there
    if (grad_v) product_nn<QUERIES>(d_v, ptile, d_o_rows);
    float dp[8][4] = {};
    if (grad_k) {
      product_nt(dp, v_rows, d_o_rows, depth_v);
      take_ptile(ptile, s);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) s[i][j] *= dp[i][j] - delta[j];
    }
    __syncthreads();  // dO and P have been read
    if (heads > 0) copy_rows<QUERIES, WIDE>(d_o_rows, d_o, t * QUERIES);
    commit_copies();
    if (grad_k) {
      put_ptile(ptile, s);
      __syncwarp();
      product_nn<QUERIES>(d_k, ptile, now);
    }
  }
  wait_copies<0>();
  if (grad_k)
    store_sums(
        make_view<F32>(push.d_k, u.d_k, at.batch, at.head, u.seq_kv, u.head_dim, push.wide & 16u),
        row0, d_k, u.scale);
  if (grad_v)
    store_sums(
        make_view<F32>(push.d_v, u.d_v, at.batch, at.head, u.seq_kv, u.head_dim_v, push.wide & 32u),
        row0, d_v, 1.f);
}

}  // namespace outer

Kernel<BwdDkvParams> bwd_dkv_f32_kernel(tandem_dtype, const KernelChoice&, bool wide) {
  return wide ? outer::bwd_dkv_f32<true> : outer::bwd_dkv_f32<false>;
}

}  // namespace cuda
}  // namespace tandem
