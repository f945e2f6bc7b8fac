// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of whole heads (whole_head.cuh).
#ifndef TANDEM_CUDA_SM80_FWD_WHOLE_CUH
#define TANDEM_CUDA_SM80_FWD_WHOLE_CUH
#include "whole_head.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    fwd_whole(const __grid_constant__ FwdWholeFull params) {
  using S = WholeShape<ROW>;
  constexpr int W = S::WIDTH;
  static_assert(S::STAGES == 2, "as it is written");
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  WholeWork work;
  if (!find_whole(params, params.sliced, &work)) return;
  const Lane me;
  const uint tiles = shared_start();
  const int own = 16 * me.warp;
  WholeScores<S> scores(params, tiles + S::shared.end);
  const auto fetch = [&](WholePair pair, int stage) {
    const int head = pair.head, entry = pair.entry, kv_head = head / u.group;
    const uint to = tiles + uint(stage * S::shared.stage);
    load_whole<S, S::BR>(
        to, make_view<T>(push.q, u.q, entry, head, u.seq_q, u.head_dim, push.wide & 1u));
    load_whole<S, S::BC>(to + S::shared.k, make_view<T>(push.k, u.k, entry, kv_head, u.seq_kv,
                                                        u.head_dim, push.wide & 2u));
    load_whole<S, S::BC>(to + S::shared.v, make_view<T>(push.v, u.v, entry, kv_head, u.seq_kv,
                                                        u.head_dim_v, push.wide & 4u));
    scores.fetch(params, pair, stage);
  };
  WholePair pair = work.first;
  fetch(pair, 0);
  commit();
  int stage = 0;
#pragma unroll 1
  for (int left = work.count; left > 0; --left, stage ^= 1) {
    wait<0>();
    __syncthreads();  // all rows are there, and no warp reads the other stage any more
    const WholePair after = pair.next(params.batch);
    if (left > 1) fetch(after, 1 - stage);
    commit();
    scores.begin(params, pair, stage);
    const uint q = tiles + uint(stage * S::shared.stage), k = q + S::shared.k, v = q + S::shared.v;
    typename WholeScores<S>::Block s;
    product_nt<W, T>(s, SharedLeft<W, 1>(q, own), Reach<W>(k, false), 0);
    float m[2], l[2];
    scores.template weigh<true>(s, u.scale, stage, m, l);
    uint p[1][S::BLOCKS / 2][4];
    pack_rows<T>(p, s);
    float o[1][W / 8][4];
    clear(o);
    product_nn<W, T>(o, p, Reach<W>(v, true), 0);
    const int head = pair.head, entry = pair.entry;
    if (push.lse && me.t == 0) {
      float* lse = reinterpret_cast<float*>(push.lse) +
                   (int64_t(entry) * u.heads_q + head) * u.seq_q + own + me.g;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (own + me.g + 8 * h < u.seq_q)
          lse[8 * h] = l[h] > 0.f ? joined_lse(nullptr, m[h], l[h]) : minus_infinity();
    }
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) inverse[h] = l[h] > 0.f ? __fdiv_rn(1.f, l[h]) : 0.f;
    const auto of_row = [&](float x, int, int h) { return __fmul_rn(x, inverse[h]); };
    // Through Q's rows, which this warp alone has read.
    store_averages<W>(make_view<T>(push.o, u.o, entry, head, u.seq_q, u.head_dim_v, push.wide & 8u),
                      0, q, own, o, of_row);
    pair = after;
  }
  wait<0>();
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
