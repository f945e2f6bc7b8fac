// SPDX-License-Identifier: MIT OR Apache-2.0
// What the main loops of the forward kernels share: ping-pong scheduling, the consumer side of the
// K and V pipeline, and the matrix products.
#ifndef TANDEM_CUDA_SM90_FWD_MAIN_LOOP_CUH
#define TANDEM_CUDA_SM90_FWD_MAIN_LOOP_CUH
#include "../ptx/named_barrier.cuh"
#include "softmax.cuh"
#include "tma_producer.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Ping-pong scheduling: consumer warpgroups issue their products one after the other, and one
// computes softmax while another multiplies. Named barrier 1 + n belongs to warpgroup n; the
// warpgroup before it arrives there.
template <typename S>
TANDEM_DEVICE void ping_pong_wait(int warpgroup) {
  if constexpr (S::PING_PONG) named_barrier_sync(1 + warpgroup, 256);
}
template <typename S>
TANDEM_DEVICE void ping_pong_pass(int warpgroup) {
  if constexpr (S::PING_PONG)
    named_barrier_arrive(1 + (warpgroup + 1 == S::WARPGROUPS ? 0 : warpgroup + 1), 256);
}

// The consumer side of the pipelines of K and V. One elected thread of a warpgroup releases its
// stages.
template <typename S>
struct KvPipeline {
  const FwdSharedStorage<S>& shared;
  const bool elected = threadIdx.x % 128 == 0;  // arrives for its warpgroup
  PipelineCounter<S::STAGES> v, k;
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
template <int N>
TANDEM_DEVICE void rescale_rows(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < N; ++i) o[i] *= factor[i / 2 % 2];
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

// Packs weights into the A operand of P V. POSITIVE: negative weights become 0.
template <typename T, int N, bool POSITIVE = false>
TANDEM_DEVICE void pack_tile(uint (&p)[N / 4], const float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i)
    p[i] = POSITIVE ? T::pack_relu(s[2 * i], s[2 * i + 1]) : T::pack(s[2 * i], s[2 * i + 1]);
}

// Prologue of a kernel: initialises the mbarriers and returns where shared memory begins.
template <typename S, typename Params>
TANDEM_DEVICE FwdSharedStorage<S> begin_kernel(const Params& params) {
  const FwdSharedStorage<S> shared{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&params.q);
    prefetch_tensor_map(&params.k);
    prefetch_tensor_map(&params.v);
    shared.init();
    fence_mbarrier_init();
  }
  __syncthreads();
  return shared;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
