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
  using S = MmaShape<ROW>;
  constexpr int W = S::WIDTH, R = kWholeRows, TILE = R * 2 * W;
  static_assert(S::BR == R && S::BC == R && S::THREADS == kWholeThreads && S::STAGES == 2,
                "as it is written");
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  WholeWork work;
  if (!find_whole(u, params.batch, &work)) return;
  const int head = work.head, kv_head = head / u.group;
  const Lane me;
  const uint tiles = shared_start();
  const int own = 16 * me.warp;
  const auto fetch = [&](int entry, int stage) {
    const uint to = tiles + uint(stage * 3 * TILE);
    load_rows<W, R, S::THREADS>(
        to, make_view<T>(push.q, u.q, entry, head, u.seq_q, u.head_dim, push.wide & 1u), 0);
    load_rows<W, R, S::THREADS>(
        to + TILE, make_view<T>(push.k, u.k, entry, kv_head, u.seq_kv, u.head_dim, push.wide & 2u),
        0);
    load_rows<W, R, S::THREADS>(
        to + 2 * TILE,
        make_view<T>(push.v, u.v, entry, kv_head, u.seq_kv, u.head_dim_v, push.wide & 4u), 0);
  };
  if (work.begin < work.end) fetch(work.begin, 0);
  commit();
  WholeScores scores(params, head, work.begin, tiles + 6 * TILE);
  int stage = 0;
#pragma unroll 1
  for (int entry = work.begin; entry < work.end; ++entry, stage ^= 1) {
    wait<0>();
    __syncthreads();  // all rows are there, and no warp reads the other stage any more
    if (entry + 1 < work.end) fetch(entry + 1, 1 - stage);
    commit();
    scores.begin(params, head, entry);
    const uint q = tiles + uint(stage * 3 * TILE);
    WholeBlock s;
    product_nt<W, T>(s, SharedLeft<W, 1>(q, own), Reach<W>(q + TILE, false), 0);
    float m[2], l[2];
    scores.weigh(s, u.scale, params.features.BIAS != 0, m, l);
    uint p[1][kWholeBlocks / 2][4];
    pack_rows<T>(p, s);
    float o[1][W / 8][4];
    clear(o);
    product_nn<W, T>(o, p, Reach<W>(q + 2 * TILE, true), 0);
    if (push.lse && me.t == 0) {
      float* lse = reinterpret_cast<float*>(push.lse) +
                   (int64_t(entry) * u.heads_q + head) * u.seq_q + own + me.g;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (own + me.g + 8 * h < u.seq_q)
          lse[8 * h] = l[h] > 0.f ? joined_lse(nullptr, m[h], l[h]) : minus_infinity();
    }
    const auto of_row = [&](float x, int, int h) { return l[h] > 0.f ? __fdiv_rn(x, l[h]) : 0.f; };
    // Through Q's rows, which this warp alone has read.
    store_averages<W>(make_view<T>(push.o, u.o, entry, head, u.seq_q, u.head_dim_v, push.wide & 8u),
                      0, q, own, o, of_row);
  }
  wait<0>();
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
