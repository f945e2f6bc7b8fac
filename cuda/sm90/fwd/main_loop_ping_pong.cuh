// SPDX-License-Identifier: MIT OR Apache-2.0
// Main loop with ping-pong scheduling: S of the next keys is in flight while the weights of the
// present ones are computed, also from one work tile to the next. All warpgroups visit all keys of
// a work tile.
#ifndef TANDEM_CUDA_SM90_FWD_MAIN_LOOP_PING_PONG_CUH
#define TANDEM_CUDA_SM90_FWD_MAIN_LOOP_PING_PONG_CUH
#include "main_loop.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Score: the score policy (ScorePolicy).
template <typename Score, typename T, typename S, typename Params>
TANDEM_DEVICE void main_loop_ping_pong(const Params& params, const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  float s[S::N / 2], o[S::DV / 2];
  uint p[S::N / 4];
  Softmax<S::N> softmax(wants_largest(params.push));
  FwdConsumer<T, S> c(shared, s, o, p, softmax);
  typename Score::Held held;
  Score policy(params, c, held);
  typename Score::Tile at, to;
  if (!policy.next(&at)) return;
  if (S::PING_PONG && c.warpgroup == S::WARPGROUPS - 1) ping_pong_pass<S>(c.warpgroup);
  float factor[2];
  clear(o);
  policy.begin_tile(at);
  policy.product_s();
  policy.issued();
  wgmma_wait_group<0>();
  c.kv.release_k();
  policy.score(at, policy.first_step(at));
  softmax.step(s, policy.scale, u.slack, factor, [&] { return policy.rows_left(at); });
  policy.weighted();
  c.pack_weights();
  for (;;) {
#pragma unroll 1
    for (int t = policy.first_step(at) - 1; policy.begin_step(at, t); --t) {
      kv_step(u, c, policy, at, t);
    }
    // S of the first keys of the next tile overlaps P V of the last keys of this one.
    policy.end_tile();
    policy.raise_max(at);
    c.release_q();
    const bool more = policy.next(&to);
    Softmax<S::N> next_softmax(wants_largest(params.push));
    if (more) {
      if constexpr (S::Q_STAGES > 1) {
        policy.begin_tile(to);
        ping_pong_wait<S>(c.warpgroup);
        policy.product_s();
        c.product_o();
        ping_pong_pass<S>(c.warpgroup);
        policy.issued();
        policy.wait_s();
      } else {  // Q of the next tile takes a while to arrive
        ping_pong_wait<S>(c.warpgroup);
        c.product_o();
        policy.begin_tile(to);
        policy.product_s();
        ping_pong_pass<S>(c.warpgroup);
        policy.issued();
        wgmma_wait_group<0>();
      }
      c.kv.release_k();
      policy.score(to, policy.first_step(to));
      next_softmax.step(s, policy.scale, u.slack, factor, [&] { return policy.rows_left(to); });
      optimization_barrier(s);
    } else {
      c.product_o();
    }
    wgmma_wait_group<0>();
    c.kv.release_v();
    policy.store(at);
    if (!more) break;
    clear(o);
    softmax = next_softmax;
    at = to;
    policy.weighted();
    c.pack_weights();
  }
  policy.drain();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
