// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of plain f32 with 8 x 8 elements a thread: o and lse of 128 query rows of one head. Q stays.
// While S is formed, V is copied, and while O is, the next K.
#include "../parts/max_logit.cuh"
#include "f32.cuh"

namespace tandem {
namespace cuda {
namespace outer {

template <bool WIDE>
__global__ void __launch_bounds__(kThreads, 2) fwd_f32(const __grid_constant__ FwdParams params) {
  constexpr int KEYS = kOuterFwdKeys, KEYS_PITCH = KEYS + 4;
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int kv_head = at.head / u.group, row0 = at.tile * kRows;
  const View<F32> q =
      make_view<F32>(push.q, u.q, at.batch, at.head, u.seq_q, u.head_dim, push.wide & 1u);
  const View<F32> k =
      make_view<F32>(push.k, u.k, at.batch, kv_head, u.seq_kv, u.head_dim, push.wide & 2u);
  const View<F32> v =
      make_view<F32>(push.v, u.v, at.batch, kv_head, u.seq_kv, u.head_dim_v, push.wide & 4u);
  const TandemBand band = mask_band(u);
  const TandemTiles span = tandem_key_tiles(band, row0, kRows, KEYS, u.seq_q, u.seq_kv);
  const int depth = depth_of(u.head_dim);

  const Invocation me;
  float* const q_rows = reinterpret_cast<float*>(shared_memory());
  float* const k_rows = q_rows + kWidth * kRowsPitch;
  float* const v_rows = k_rows + kWidth * KEYS_PITCH;
  float* const ptile = v_rows + KEYS * kPitch + me.warp * KEYS * kWarpRows;
  float m[8], l[8], o[8][8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) m[i] = minus_infinity(), l[i] = 0.f;

  if (span.begin < span.end) {
    copy_transposed<kRows, kRowsPitch, WIDE>(q_rows, q, row0);
    copy_transposed<KEYS, KEYS_PITCH, WIDE>(k_rows, k, span.begin * KEYS);
  }
  commit_copies();
  for (int t = span.begin; t < span.end; ++t) {
    const int col0 = t * KEYS;
    wait_copies<0>();
    __syncthreads();  // K is there, and V has been read
    copy_rows<KEYS, WIDE>(v_rows, v, col0);
    commit_copies();
    float s[8][8] = {};
    product_nt<KEYS_PITCH>(s, q_rows, k_rows, depth);
    scale_scores(s, u.scale);
    if (t < span.full_begin || t >= span.full_end)
      mask_scores(
          s, band, u.seq_q, u.seq_kv, [&](int i, int) { return row0 + me.row(i); },
          [&](int, int j) { return col0 + me.feature(j); });
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float top = m[i];
#pragma unroll
      for (int j = 0; j < 8; ++j) top = fmaxf(top, s[i][j]);
      top = row_max(top);
      // Any finite base gives weights of 0 while no key is visible.
      const float base = top == minus_infinity() ? 0.f : top, factor = exp_of(m[i] - base);
      m[i] = top;
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < 8; ++j) s[i][j] = exp_of(s[i][j] - base), sum += s[i][j];
      l[i] = fmaf(l[i], factor, sum);
#pragma unroll
      for (int j = 0; j < 8; ++j) o[i][j] *= factor;
    }
    put_ptile(ptile, s);
    wait_copies<0>();
    __syncthreads();  // V is there, and K has been read
    if (t + 1 < span.end) copy_transposed<KEYS, KEYS_PITCH, WIDE>(k_rows, k, col0 + KEYS);
    commit_copies();
    product_nn<KEYS>(o, ptile, v_rows);
  }
  wait_copies<0>();

  float largest = minus_infinity();
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (row0 + me.row(i) < u.seq_q) largest = fmaxf(largest, m[i]);
  raise_max_logit(u, push, at.batch, at.head, largest);
  const View<F32> out =
      make_view<F32>(push.o, u.o, at.batch, at.head, u.seq_q, u.head_dim_v, push.wide & 8u);
  float* lse = reinterpret_cast<float*>(push.lse);
  const int64_t lse0 = (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = row0 + me.row(i);
    const float sum = row_sum(l[i]);
    if (lse && me.cg == 0 && row < u.seq_q)
      lse[lse0 + row] = sum > 0.f ? m[i] + logf(sum) : minus_infinity();
    // o is 0 where no key is visible. It is divided, as a reciprocal would round a second time.
    const float divisor = sum > 0.f ? sum : 1.f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = __fdiv_rn(o[i][4 * h + c], divisor);
      store_words(out, row, me.feature(4 * h), x);
    }
  }
}

}  // namespace outer

Kernel<FwdParams> fwd_f32_kernel(tandem_dtype, const KernelChoice&, bool wide) {
  return wide ? outer::fwd_f32<true> : outer::fwd_f32<false>;
}

}  // namespace cuda
}  // namespace tandem
