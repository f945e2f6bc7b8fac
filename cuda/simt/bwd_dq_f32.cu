// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq of plain f32 with 8 x 8 sums a thread: d_q of 128 query rows of one head. Q and dO stay, K
// is in two stages, V in one.
#include "f32.cuh"

namespace tandem {
namespace cuda {
namespace outer {

template <bool WIDE>
__global__ void __launch_bounds__(kThreads, 2)
    bwd_dq_f32(const __grid_constant__ BwdDqParams params) {
  constexpr int KEYS = kOuterBwdRows, STAGE = KEYS * kPitch;
  const BwdDqBlock& u = params.block;
  const BwdDqPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int kv_head = at.head / u.group, row0 = at.tile * kRows;
  const View<F32> q =
      make_view<F32>(push.q, u.q, at.batch, at.head, u.seq_q, u.head_dim, push.wide & 1u);
  const View<F32> k =
      make_view<F32>(push.k, u.k, at.batch, kv_head, u.seq_kv, u.head_dim, push.wide & 2u);
  const View<F32> v =
      make_view<F32>(push.v, u.v, at.batch, kv_head, u.seq_kv, u.head_dim_v, push.wide & 4u);
  const View<F32> d_o =
      make_view<F32>(push.d_o, u.d_o, at.batch, at.head, u.seq_q, u.head_dim_v, push.wide & 8u);
  const TandemBand band = mask_band(u);
  const TandemTiles span = tandem_key_tiles(band, row0, kRows, KEYS, u.seq_q, u.seq_kv);
  const int depth = depth_of(u.head_dim), depth_v = depth_of(u.head_dim_v);

  const Invocation me;
  float* const q_rows = reinterpret_cast<float*>(shared_memory());
  float* const d_o_rows = q_rows + kWidth * kRowsPitch;
  float* const k_rows = d_o_rows + kWidth * kRowsPitch;  // two stages
  float* const v_rows = k_rows + 2 * STAGE;
  float* const ptile = v_rows + STAGE + me.warp * KEYS * kWarpRows;
  float lse[8], delta[8], d_q[8][8] = {};
  bool some_far = false;
  const int64_t rows0 = (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = row0 + me.row(i);
    lse[i] = INFINITY, delta[i] = 0.f;  // all weights are 0
    if (row < u.seq_q) {
      lse[i] = seen_lse(__ldg(reinterpret_cast<const float*>(push.lse) + rows0 + row));
      delta[i] = __ldg(reinterpret_cast<const float*>(push.delta) + rows0 + row);
      if (tandem_is_far(lse[i]))
        lse[i] = far_row(push.delta, rows0 + row).relative, some_far = true;
    }
  }

  if (span.begin < span.end) {
    copy_transposed<kRows, kRowsPitch, WIDE>(q_rows, q, row0);
    copy_transposed<kRows, kRowsPitch, WIDE>(d_o_rows, d_o, row0);
    copy_rows<KEYS, WIDE>(k_rows, k, span.begin * KEYS);
  }
  commit_copies();
  if (span.begin < span.end) copy_rows<KEYS, WIDE>(v_rows, v, span.begin * KEYS);
  commit_copies();
  for (int t = span.begin, stage = 0; t < span.end; ++t, stage ^= 1) {
    const int col0 = t * KEYS;
    const float* const now = k_rows + stage * STAGE;
    wait_copies<1>();
    __syncthreads();  // K is there, and its other stage has been read
    if (t + 1 < span.end) copy_rows<KEYS, WIDE>(k_rows + (stage ^ 1) * STAGE, k, col0 + KEYS);
    commit_copies();
    float s[8][4] = {}, dp[8][4] = {};
    product_nt(s, q_rows, now, depth);
    scale_scores(s, u.scale);
    if (t < span.full_begin || t >= span.full_end)
      mask_scores(
          s, band, u.seq_q, u.seq_kv, [&](int i, int) { return row0 + me.row(i); },
          [&](int, int j) { return col0 + me.cg + 8 * j; });
    if (some_far) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = row0 + me.row(i);
        if (row >= u.seq_q ||
            !tandem_is_far(__ldg(reinterpret_cast<const float*>(push.lse) + rows0 + row)))
          continue;
        const float origin = far_row(push.delta, rows0 + row).origin;
#pragma unroll
        for (int j = 0; j < 4; ++j) s[i][j] = from_origin(s[i][j], origin);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = exp_of(s[i][j] - lse[i]);
    wait_copies<1>();
    __syncthreads();  // V is there
    product_nt(dp, d_o_rows, v_rows, depth_v);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] *= dp[i][j] - delta[i];
    put_ptile(ptile, s);
    __syncthreads();  // V has been read
    if (t + 1 < span.end) copy_rows<KEYS, WIDE>(v_rows, v, col0 + KEYS);
    commit_copies();
    product_nn<KEYS>(d_q, ptile, now);
  }
  wait_copies<0>();
  store_sums(
      make_view<F32>(push.d_q, u.d_q, at.batch, at.head, u.seq_q, u.head_dim, push.wide & 16u),
      row0, d_q, u.scale);
}

}  // namespace outer

Kernel<BwdDqParams> bwd_dq_f32_kernel(tandem_dtype, const KernelChoice&, bool wide) {
  return wide ? outer::bwd_dq_f32<true> : outer::bwd_dq_f32<false>;
}

}  // namespace cuda
}  // namespace tandem
