// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: o and lse from q, k, v. One workgroup computes Br query rows of one head. Twin of
// shaders/scalar/fwd.comp.
#include "../parts/mask.cuh"
#include "../parts/max_logit.cuh"
#include "../parts/score.cuh"
#include "../parts/softmax.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <typename T, int ROW, int BLOCKS, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG,
                                  Shape<ROW>::groups(BLOCKS* Shape<ROW>::RM * 4, WIDE))
    fwd(const __grid_constant__ FwdParams params) {
  using S = Shape<ROW>;
  constexpr int SIDE = S::RM >= 8 ? S::template SIDE<BLOCKS> : 1;
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int features = take_part<S, BLOCKS>(&at, u.seq_q);
  const int part = at.batch;  // over batch and splits
  at.batch = part / u.splits;
  const int kv_head = at.head / u.group;
  const int row0 = at.tile * S::M;
  const View<T> q =
      make_view<T>(push.q, u.q, at.batch, at.head, u.seq_q, u.head_dim, push.wide & 1u);
  const View<T> k =
      make_view<T>(push.k, u.k, at.batch, kv_head, u.seq_kv, u.head_dim, push.wide & 2u);
  const View<T> v = own_features(
      make_view<T>(push.v, u.v, at.batch, kv_head, u.seq_kv, u.head_dim_v, push.wide & 4u),
      features);
  const TandemBand band = mask_band(u);
  const TandemTiles span = tandem_split_tiles(
      tandem_key_tiles(band, row0, S::M, S::N, u.seq_q, u.seq_kv), part % u.splits, u.splits);

  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  Stage<T, S, WIDE> stage;
  OnlineSoftmax<S> softmax;
  float o[BLOCKS][S::RM][4] = {};

  if (span.begin < span.end) stage.fetch_nt(q, row0, k, span.begin * S::N, 0);
  for (int t = span.begin; t < span.end; ++t) {
    const int col0 = t * S::N;
    float s[S::RM][4] = {};
    product_nt(s, stage, pool, q, row0, k, col0, u.head_dim,
               [&] { stage.template fetch_nn<SIDE>(v, col0, 0); });
    score_tile<S>(s, u.scale);
    if (t < span.full_begin || t >= span.full_end)
      mask_tile<S>(s, band, row0, col0, u.seq_q, u.seq_kv);
    float factor[S::RM];
    softmax.step(s, factor);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < S::RM; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[block][i][c] *= factor[i];
    put_ptile<S>(ptile, s);
    product_nn<SIDE>(o, stage, pool, ptile, v, col0, [&] {
      if (t + 1 < span.end) stage.fetch_nt(q, row0, k, col0 + S::N, 0);
    });
  }

  const Invocation<S> me;
  const View<T> out =
      make_view<T>(push.o, u.o, at.batch, at.head, u.seq_q, u.head_dim_v, push.wide & 8u);
  const View<F32> out_part = part_view(push.o, u.o, part, at.head, u.seq_q);
  float* lse = reinterpret_cast<float*>(push.lse);
  const int64_t lse0 = (int64_t(part) * u.heads_q + at.head) * u.seq_q;
  float largest = minus_infinity();
#pragma unroll
  for (int i = 0; i < S::RM; ++i)
    if (row0 + me.row(i) < u.seq_q) largest = fmaxf(largest, softmax.m[i]);
  raise_max_logit(u, push, at.batch, at.head, largest);
#pragma unroll
  for (int i = 0; i < S::RM; ++i) {
    const int row = row0 + me.row(i);
    const float l = row_sum<S>(softmax.l[i]);
    if (lse && me.tc == 0 && row < u.seq_q) {
      if (u.splits > 1 && l > 0.f)
        put_part_lse(lse, lse0 + row, softmax.m[i], logf(l));
      else
        lse[lse0 + row] = l > 0.f ? softmax.m[i] + logf(l) : minus_infinity();
    }
    // o is 0 where no key is visible. It is divided, as a reciprocal would round a second time.
    const float divisor = l > 0.f ? l : 1.f;
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
      float x[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = __fdiv_rn(o[block][i][c], divisor);
      if (u.splits > 1)
        store_words(out_part, row, features + block * S::COLS + me.col(0), x);
      else
        store_words(out, row, features + block * S::COLS + me.col(0), x);
    }
  }
}

struct Fwd {
  using Pointer = Kernel<FwdParams>;
  template <typename T, int ROW, int BLOCKS, bool WIDE>
  static Pointer get() {
    return fwd<T, ROW, BLOCKS, WIDE>;
  }
};

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide) {
  return select_kernel<Fwd>(dtype, wide, of.tile, of.dv_blocks);
}

}  // namespace cuda
}  // namespace tandem
