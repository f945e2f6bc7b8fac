// SPDX-License-Identifier: MIT OR Apache-2.0
// What the main loops of the forward kernels share: ping-pong scheduling, the consumer side of the
// K and V pipeline, and the matrix products.
#ifndef TANDEM_CUDA_SM90_FWD_MAIN_LOOP_CUH
#define TANDEM_CUDA_SM90_FWD_MAIN_LOOP_CUH
#include "../named_barriers.cuh"
#include "softmax.cuh"
#include "tma_producer.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Ping-pong scheduling: consumer warpgroups issue their products one after the other, and one
// computes softmax while another multiplies. Named barrier kPingPongBarrier + n belongs to
// warpgroup n; the warpgroup before it arrives there.
template <typename S>
TANDEM_DEVICE void ping_pong_wait(int warpgroup) {
  if constexpr (S::PING_PONG) named_barrier_sync(kPingPongBarrier + warpgroup, 256);
}
template <typename S>
TANDEM_DEVICE void ping_pong_pass(int warpgroup) {
  if constexpr (S::PING_PONG)
    named_barrier_arrive(kPingPongBarrier + (warpgroup + 1 == S::WARPGROUPS ? 0 : warpgroup + 1),
                         256);
}

// The consumer side of the pipelines of K and V. One elected thread of a warpgroup releases its
// stages.
template <typename S>
struct KvPipeline {
  const FwdSharedStorage<S>& shared;
  const bool elected = threadIdx.x % 128 == 0;  // arrives for its warpgroup
  PipelineState<S::STAGES, kCounted> v, k;
  TANDEM_DEVICE explicit KvPipeline(const FwdSharedStorage<S>& s) : shared(s) {}
  TANDEM_DEVICE void wait_k() const { mbarrier_wait(shared.k_full(k.stage()), k.phase()); }
  TANDEM_DEVICE void wait_v() const { mbarrier_wait(shared.v_full(v.stage()), v.phase()); }
  TANDEM_DEVICE void release_k() {
    if (elected) mbarrier_arrive(shared.k_empty(k.stage()));
    k.next();
  }
  TANDEM_DEVICE void release_v() {
    if (elected) mbarrier_arrive(shared.v_empty(v.stage()));
    v.next();
  }
};

// Waits for the products into o. The wait is inside a branch; otherwise ptxas would move it up,
// before arithmetic that overlaps the products. The whole warpgroup takes the same branch, as its
// warps have to wait at the same instruction. There are always keys.
template <int N>
TANDEM_DEVICE void wait_products(const FwdBlock& u, float (&o)[N]) {
  if (u.seq_kv > 0) {
    wgmma_wait_group<0>();
  } else {
    wgmma_wait_group<0>();
    clear(o);
  }
}

// S = Q K^T and O += P V. q and k: descriptors by k_major(); v: by mn_major().
template <typename T, typename S>
TANDEM_DEVICE void gemm_qk(float (&s)[S::N / 2], uint64_t q, uint64_t k) {
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < S::D / 16; ++n)
    Wgmma<T, S::N>::template ss<0, 0>(s, advance(q, n / 4 * S::Q_PANEL + n % 4 * 32),
                                      advance(k, n / 4 * S::K_PANEL + n % 4 * 32), n > 0);
  wgmma_commit_group();
}
template <typename T, typename S>
TANDEM_DEVICE void gemm_pv(float (&o)[S::DV / 2], const uint (&p)[S::N / 4], uint64_t v) {
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < S::N / 16; ++n)
    Wgmma<T, S::DV>::template rs<1>(o, p[4 * n], p[4 * n + 1], p[4 * n + 2], p[4 * n + 3],
                                    advance(v, n * 16 * kPanelBytes), 1);
  wgmma_commit_group();
}

// Loads Q of the warpgroup's rows to registers, as A operands of wgmma.
template <typename S>
TANDEM_DEVICE void load_q(uint (&q)[S::D / 16][4], uint at) {
  const int lane = read_tid_x() % 32, row = read_tid_x() / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int n = 0; n < S::D / 16; ++n)
    ldmatrix_x4(q[n], at + uint(n / 4 * S::Q_PANEL) + swizzle_128b(row, n % 4 * 2 + lane / 16));
}

// Packs weights into the A operand of P V. POSITIVE: negative weights become 0.
template <typename T, int N, bool POSITIVE = false>
TANDEM_DEVICE void pack_tile(uint (&p)[N / 4], const float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i)
    p[i] = POSITIVE ? T::pack_relu(s[2 * i], s[2 * i + 1]) : T::pack(s[2 * i], s[2 * i + 1]);
}

// A consumer warpgroup, which has 64 query rows of a work tile: its side of the pipelines, and its
// accumulators and weights. These arrays are variables of the main loop: members, they would keep
// the other members in memory until late in the compiler's passes, and the code is worse.
template <typename T, typename S>
struct FwdConsumer {
  static constexpr int N = S::N;
  const FwdSharedStorage<S>& shared;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  // Descriptors of the first stages; Q: of its own 64 rows.
  const uint64_t q_at, k_at, v_at;
  float (&s)[N / 2], (&o)[S::DV / 2];
  uint (&p)[N / 4];  // A operand of P V
  Softmax<N>& softmax;
  PipelineState<S::Q_STAGES, kCounted> q_pipe;
  KvPipeline<S> kv;

  TANDEM_DEVICE FwdConsumer(const FwdSharedStorage<S>& at, float (&scores)[N / 2],
                            float (&out)[S::DV / 2], uint (&weights)[N / 4], Softmax<N>& rows)
      : shared(at),
        q_at(k_major(at.q(0) + uint(warpgroup * 64 * kPanelBytes))),
        k_at(k_major(at.k(0))),
        v_at(mn_major(at.v(0), S::K_PANEL)),
        s(scores),
        o(out),
        p(weights),
        softmax(rows),
        kv(at) {}

  TANDEM_DEVICE void wait_q() const {
    mbarrier_wait(shared.q_full(q_pipe.stage()), q_pipe.phase());
  }
  TANDEM_DEVICE void release_q() {
    if (kv.elected) mbarrier_arrive(shared.q_empty(q_pipe.stage()));
    q_pipe.next();
  }
  // Issues S of the keys at kv.k, and P V of those at kv.v.
  TANDEM_DEVICE void product_s() {
    gemm_qk<T, S>(s, advance(q_at, q_pipe.stage() * S::Q_BYTES),
                  advance(k_at, kv.k.stage() * S::K_BYTES));
  }
  TANDEM_DEVICE void product_o() {
    kv.wait_v();
    gemm_pv<T, S>(o, p, advance(v_at, kv.v.stage() * S::V_BYTES));
  }
  TANDEM_DEVICE void pack_weights() { pack_tile<T, N>(p, s); }
};

// A score policy turns products of the consumer warpgroup c into scores; it also finds work tiles
// and steps of the KV loop, and stores o and lse. This is what most policies have in common. Each
// policy has besides
//   Tile            what its functions get to know of a work tile
//   scale           the factor of scores in Softmax::step()
//   score(tile, t)  turns products of step t into scores of visible keys
//   rows_left(tile) how many rows of the tile there are from the thread's first one on
//   raise_max(tile) after the last step of a tile, raises its head's largest logit, if wanted
//   store(tile)     stores o and lse of a tile whose products are done
// and, for main_loop_ping_pong(),
//   next(&tile)          the next work tile, whose Q is at c.q_pipe; false: there is none
//   first_step(tile)     the number of its first step; later ones count down
//   begin_tile(tile)     waits for Q of the tile and for the keys of its first step
//   begin_step(tile, t)  waits for the keys of a later step; false: there is no such step
template <typename T, typename S>
struct ScorePolicy {
  // Registers that the policy keeps from step to step, for the reason at FwdConsumer.
  struct Held {};
  FwdConsumer<T, S>& c;
  TANDEM_DEVICE explicit ScorePolicy(FwdConsumer<T, S>& consumer) : c(consumer) {}
  TANDEM_DEVICE void ping_pong_wait() const { sm90::ping_pong_wait<S>(c.warpgroup); }
  TANDEM_DEVICE void ping_pong_pass() const { sm90::ping_pong_pass<S>(c.warpgroup); }
  // Issues S.
  TANDEM_DEVICE void product_s() { c.product_s(); }
  // Is called after the products of a step are issued.
  TANDEM_DEVICE void issued() {}
  // Waits for S; P V stays in flight.
  TANDEM_DEVICE void wait_s() { wgmma_wait_group<1>(); }
  // Is called when the weights of a step are computed and the P V before is done.
  TANDEM_DEVICE void weighted() {}
  // Is called after the last step of a tile, before Q is released.
  TANDEM_DEVICE void end_tile() {}
  // Is called after the last tile.
  TANDEM_DEVICE void drain() {}
};

// A step of the KV loop, whose keys have arrived. S of these keys and P V of those before are in
// flight together, and P V while the weights are computed.
template <typename T, typename S, typename Score, typename Tile>
TANDEM_DEVICE void kv_step(const FwdBlock& u, FwdConsumer<T, S>& c, Score& policy, const Tile& at,
                           int t) {
  float factor[2];
  policy.ping_pong_wait();
  policy.product_s();
  c.product_o();
  policy.ping_pong_pass();
  policy.issued();
  policy.wait_s();
  c.kv.release_k();
  policy.score(at, t);
  const bool rescale =
      c.softmax.step(c.s, policy.scale, u.slack, factor, [&] { return policy.rows_left(at); });
  optimization_barrier(c.s);
  wait_products(u, c.o);
  if (rescale) rescale_rows(c.o, factor);
  c.kv.release_v();
  policy.weighted();
  c.pack_weights();
}

// Prologue of a kernel: initialises the mbarriers and returns where shared memory begins.
// init(shared): initialises what the kernel has in shared memory besides, by one thread.
template <typename S, typename Params, typename Init>
TANDEM_DEVICE FwdSharedStorage<S> begin_kernel(const Params& params, const Init& init) {
  const FwdSharedStorage<S> shared{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&params.q);
    prefetch_tensor_map(&params.k);
    prefetch_tensor_map(&params.v);
    shared.init();
    init(shared);
    fence_mbarrier_init();
  }
  __syncthreads();
  return shared;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
