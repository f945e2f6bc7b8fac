// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv and bwd_dq (dq.cuh) for head sizes of 129 to 256, in one launch. The workgroups of
// bwd_dkv come first, and those of bwd_dq fill the SMs that the last of them leave idle. Those of
// bwd_head_sums may follow.
//
// bwd_dkv: the accumulators of d_k and d_v of 64 keys fill the registers of two warpgroups. So a
// tile has 64 keys and 128 queries, and each warpgroup forms S^T and dP^T of 64 queries. P and dS
// pass through shared memory, as [query][key]: they are MN-major A operands of dV = P^T dO and dK =
// dS^T Q. Each warpgroup has half of the columns of both. 192 features are an odd number of panels:
// there one warpgroup has d_v and the other d_k.
//
// With softcap the weights in P are those of capped scores, and dS has its derivative besides.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_CUH
#include "../../parts/bwd_head_sums.cuh"
#include "../softcap.cuh"
#include "dq.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

// The part of a variant (variant_plain.cuh) that load_tiles() needs.
struct WideHeads : BwdVariant {
  using Params = BwdDkvWithDqParams;
  static constexpr int bytes(const BwdShape&) { return 0; }
  static constexpr float kLse = kLog2e;
  template <int TILE>
  using QTiles = AllQTiles<TILE>;
  template <int TILE>
  struct Loader {
    TANDEM_DEVICE Loader(const Params&, const BwdWorkTile&,
                         const BwdSharedStorage<TILE, WideHeads>&) {}
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int, int) {}
  };
};

template <typename T, int TILE, bool SOFTCAP>
TANDEM_DEVICE void main_loop(const BwdDkvWithDqParams& params, const BwdWorkTile& work,
                             const BwdSharedStorage<TILE, WideHeads>& memory) {
  constexpr BwdShape S = kBwdShapes[TILE];
  constexpr int BR = S.br, BC = S.bc, D = S.d, DV = BwdSharedStorage<TILE, WideHeads>::kDv;
  constexpr int kKPanel = BC * 128, kQPanel = BR * 128;
  constexpr bool kApart = D == 192;  // one warpgroup has d_v, the other d_k
  // Columns of a product: of both d_k and d_v, or with kApart of either. Where d_k is wider than
  // d_v, each warpgroup has half of its last columns besides.
  constexpr int N = kApart ? DV : D / 2, kRest = kApart ? (D - DV) / 2 : 0;
  static_assert(BR == 128 && BC == 64 && S.ds_stages == 1, "what is written below");
  // V is the A operand of dP in registers, and S and dP of the next query tile are issued behind
  // the products of this one.
  constexpr bool kHoldsV = BwdSharedStorage<TILE, WideHeads>::kHoldsV,
                 kAhead = S.q_stages == 2 && S.do_stages == 2;
  static_assert(!kAhead || kApart, "as it is written");
  const BwdDkvBlock& u = params.block;
  const Barriers<TILE> barriers(memory.barriers());
  const int warpgroup = int(threadIdx.x) / 128 - 1, warp = int(threadIdx.x) / 32 % 4;
  const int lane = int(threadIdx.x) % 32;
  const uint own = uint(warpgroup) * 64 * 128;  // this warpgroup's queries in a panel
  const float scale2 = u.scale * kLog2e;
  const uint p_tile = memory.ds(0), ds_tile = memory.ds(1);

  // d_k and d_v; with kApart, first is one of them, and rest is of d_k.
  float first[N / 2], second[kApart ? 2 : N / 2], rest[kRest > 0 ? kRest / 2 : 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) first[i] = 0.f;
#pragma unroll
  for (int i = 0; i < (kApart ? 2 : N / 2); ++i) second[i] = 0.f;
#pragma unroll
  for (int i = 0; i < (kRest > 0 ? kRest / 2 : 2); ++i) rest[i] = 0.f;
  const int key = work.col0 + warp * 16 + lane / 4;

  mbarrier_wait(barriers.kv, 0);
  [[maybe_unused]] uint v[kHoldsV ? DV / 16 : 1][4];
  if constexpr (kHoldsV) {
#pragma unroll
    for (int k = 0; k < DV / 16; ++k)
      ldmatrix_x4(v[k], memory.v() + uint(k / 4 * kKPanel) +
                            swizzle_128b(16 * warp + lane % 16, k % 4 * 2 + lane / 16));
  }
  PipelineState<S.q_stages> q_pipe;
  PipelineState<S.do_stages> do_pipe;
  float s[32], dp[32];
  // Issues S and dP of the query tile at the states of the pipelines.
  const auto products = [&] {
    const uint q = memory.q(q_pipe.stage()), d_o = memory.d_o(do_pipe.stage());
    mbarrier_wait(barriers.q_full(q_pipe.stage()), q_pipe.phase());
    const uint64_t k_tile = k_major(opaque(memory.k())), q_tile = k_major(opaque(q + own));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      Wgmma<T, 64>::template ss<0, 0>(s, advance(k_tile, k / 4 * kKPanel + k % 4 * 32),
                                      advance(q_tile, k / 4 * kQPanel + k % 4 * 32), k > 0);
    wgmma_commit_group();
    mbarrier_wait(barriers.do_full(do_pipe.stage()), do_pipe.phase());
    const uint64_t v_tile = k_major(opaque(memory.v())), do_tile = k_major(opaque(d_o + own));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DV / 16; ++k) {
      const uint64_t right = advance(do_tile, k / 4 * kQPanel + k % 4 * 32);
      if constexpr (kHoldsV)
        Wgmma<T, 64>::template rs<0>(dp, v[k][0], v[k][1], v[k][2], v[k][3], right, k > 0);
      else
        Wgmma<T, 64>::template ss<0, 0>(dp, advance(v_tile, k / 4 * kKPanel + k % 4 * 32), right,
                                        k > 0);
    }
    wgmma_commit_group();
  };
  const auto release = [&](uint barrier) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier);
  };
  // Only d_k needs Q, and only d_v needs dO.
  const auto release_q = [&](int stage) {
    if (!kApart || kRest > 0 || warpgroup == 1) release(barriers.q_empty(stage));
  };
  const auto release_do = [&](int stage) {
    if (!kApart || warpgroup == 0) release(barriers.do_empty(stage));
  };
  // From S and dP of query tile t, P and dS in shared memory, for both warpgroups.
  const auto weigh_tile = [&](int t) {
    // All warps have read P and dS of the query tile before, and V.
    named_barrier_sync<kDsRead>(256);
    const bool far = has_far(memory, q_pipe.stage());
    wgmma_wait_group<1>();
    const uint lse = memory.lse(q_pipe.stage()) + 256 * warpgroup + 8 * (lane % 4);
    [[maybe_unused]] SoftcapDerivatives<SOFTCAP ? 32 : 2> capped;
    if (far) {
      const float inverse = SOFTCAP ? __fdividef(1.f, params.softcap) : 0.f;
      weigh_far<64>(s, lse,
                    FarTile<BwdDkvPush>{params.push, memory.far(q_pipe.stage()), 64 * warpgroup},
                    [&](int j, uint zero) {
                      // As in variant_varlen.cuh: without zero, more of them are live at a time.
                      const float scale =
                          SOFTCAP ? __uint_as_float(uint(__float_as_int(u.scale)) + zero) : u.scale;
#pragma unroll
                      for (int i = 4 * j; i < 4 * j + 4; i += 2) {
                        if constexpr (SOFTCAP)
                          capped.cap_far(s, i, scale, params.softcap, inverse);
                        else
                          s[i] = __fmul_rn(scale, s[i]), s[i + 1] = __fmul_rn(scale, s[i + 1]);
                      }
                    });
    } else {
      if constexpr (SOFTCAP) capped.cap(s, u.scale, params.softcap);
      weigh<64>(s, SOFTCAP ? 1.f : scale2, lse);
    }
    if (on_edge(work, t, BC, u.seq_kv))
      hide<64>(s, work.band, key, u.seq_kv, t * BR + 64 * warpgroup + 2 * (lane % 4), 0.f);
    uint pairs[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) pairs[i] = T::pack(s[2 * i], s[2 * i + 1]);
    store_transposed<64>(p_tile + own, pairs, warp, lane);
    if constexpr (SOFTCAP) capped.multiply(s);
    wgmma_wait_group<0>();
    differentiate<T, 64>(pairs, s, dp,
                         memory.delta(do_pipe.stage()) + 256 * warpgroup + 8 * (lane % 4));
    store_transposed<64>(ds_tile + own, pairs, warp, lane);
    fence_proxy_async_shared();
    named_barrier_sync<kDsWritten>(256);
  };
  // Issues the products of d_k and d_v; those of kApart in one group.
  const auto gradients = [&](uint q, uint d_o) {
    wgmma_fence();
    if constexpr (kApart) {
      const uint64_t left = mn_major(opaque(warpgroup == 0 ? p_tile : ds_tile), kQPanel),
                     right = mn_major(opaque(warpgroup == 0 ? d_o : q), kQPanel);
#pragma unroll
      for (int k = 0; k < BR / 16; ++k)
        Wgmma<T, N>::template ss<1, 1>(first, advance(left, k * 2048), advance(right, k * 2048), 1);
      if constexpr (kRest > 0) {
        static_assert(kRest == 32, "half of a panel");
        const uint64_t all = mn_major(opaque(ds_tile), kQPanel),
                       last = mn_major(opaque(q + N / 64 * kQPanel + uint(warpgroup) * 2 * kRest),
                                       kQPanel);
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Wgmma<T, kRest>::template ss<1, 1>(rest, advance(all, k * 2048), advance(last, k * 2048),
                                             1);
      }
      wgmma_commit_group();
    } else {
      const uint half = warpgroup * (N / 64) * kQPanel;
#pragma unroll
      for (int k = 0; k < BR / 16; ++k)
        Wgmma<T, N>::template ss<1, 1>(first, mn_major(ds_tile + k * 2048, kQPanel),
                                       mn_major(q + half + k * 2048, kQPanel), 1);
      wgmma_commit_group();
#pragma unroll
      for (int k = 0; k < BR / 16; ++k)
        Wgmma<T, N>::template ss<1, 1>(second, mn_major(p_tile + k * 2048, kQPanel),
                                       mn_major(d_o + half + k * 2048, kQPanel), 1);
      wgmma_commit_group();
    }
  };
  const int tiles = max(work.span.end - work.span.begin, 0);
  if constexpr (kAhead) {
    const int count = u.group * tiles;
    if (count > 0) {
      products();
      wgmma_wait_group<1>();
      weigh_tile(work.q_tile(work.span.begin));
      int at = work.span.begin;
#pragma unroll 1
      for (int n = 1; n < count; ++n) {
        const int before_q = q_pipe.stage(), before_do = do_pipe.stage();
        gradients(memory.q(before_q), memory.d_o(before_do));
        q_pipe.next(), do_pipe.next();
        products();
        wgmma_wait_group<1>();
        release_q(before_q);
        release_do(before_do);
        if (++at == work.span.end) at = work.span.begin;
        weigh_tile(work.q_tile(at));
      }
      gradients(memory.q(q_pipe.stage()), memory.d_o(do_pipe.stage()));
      wgmma_wait_group<0>();
    }
  } else {
    for (int n = 0; n < u.group; ++n) {
#pragma unroll 1
      for (int at = work.span.begin; at < work.span.end; ++at, q_pipe.next(), do_pipe.next()) {
        products();
        weigh_tile(work.q_tile(at));
        gradients(memory.q(q_pipe.stage()), memory.d_o(do_pipe.stage()));
        if constexpr (!kApart) {
          wgmma_wait_group<1>();
          release_q(q_pipe.stage());
        }
        wgmma_wait_group<0>();
        if constexpr (kApart) release_q(q_pipe.stage());
        release_do(do_pipe.stage());
      }
    }
  }
  // K and V are free when both warpgroups are done.
  named_barrier_sync<kDsRead>(256);
  const uint stage = (warpgroup == 0) != kApart ? memory.k() : memory.v();
  const auto store = [&](const auto& x, bool is_k, int column) {
    constexpr int kColumns = 2 * int(sizeof(x) / sizeof(float));
    const uint64_t to = is_k ? params.push.d_k : params.push.d_v;
    if (to)
      store_rows<T, kColumns>(stage, kKPanel, x, is_k ? u.scale : 1.f, to, is_k ? u.d_k : u.d_v,
                              work, work.col0, u.seq_kv, column, is_k ? u.head_dim : u.head_dim_v);
  };
  if constexpr (kApart) {
    store(first, warpgroup == 1, 0);
    if constexpr (kRest > 0) store(rest, true, N + warpgroup * kRest);
  } else {
    store(first, true, warpgroup * N);
    store(second, false, warpgroup * N);
  }
}

template <typename T, int TILE, int DQ_ROW, bool SOFTCAP>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv(const __grid_constant__ BwdDkvWithDqParams params) {
  const uint index = params.first_group + workgroup_index();
  if (index < params.block.total) {
    constexpr BwdShape S = kBwdShapes[TILE];
    const BwdDkvBlock& u = params.block;
    BwdWorkTile work;
    find_work_tile(u, S, 1, 0, index, &work);
    work.reversed = reverses_q_loop(u);
    const BwdSharedStorage<TILE, WideHeads> memory{shared_address(aligned_shared_memory())};
    if (threadIdx.x == 0) Barriers<TILE>(memory.barriers()).init();
    __syncthreads();
    if (threadIdx.x < 128) {
      warpgroup_reg_dealloc<Plain::Registers::kProducer>();
      if (threadIdx.x < 32) load_tiles(params, work, memory);
    } else {
      warpgroup_reg_alloc<Plain::Registers::kConsumer>();
      main_loop<T, TILE, SOFTCAP>(params, work, memory);
    }
  } else {
    DqWorkTile work;
    if (!find_dq_work_tile<DQ_ROW>(params.dq.block, index - params.block.total, &work)) {
      const uint head = index - params.block.total - params.dq.block.total;
      if (head < params.head.block.total)
        sum_head(params.head, int(head), reinterpret_cast<float*>(aligned_shared_memory()));
      return;
    }
    const DqSharedStorage<DQ_ROW> memory{shared_address(aligned_shared_memory())};
    if (threadIdx.x == 0) memory.init();
    __syncthreads();
    if (threadIdx.x < 128) {
      warpgroup_reg_dealloc<Registers<24>::kProducer>();
      if (threadIdx.x == 0 && work.span.begin < work.span.end)
        load_dq<DQ_ROW>(params, work, memory);
    } else {
      warpgroup_reg_alloc<Registers<24>::kConsumer>();
      main_loop_dq<T, DQ_ROW, SOFTCAP>(params, work, memory);
    }
  }
}

// The row of kBwdShapes of the same tile, which serves bwd_dq alone as well.
constexpr int dkv_row(int dq) {
  int n = 0;
  while (!kBwdShapes[n].wide || dq_row(kBwdShapes[n]) != dq) ++n;
  return n;
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  constexpr bool ALONE = Row::stem == Stem::bwd_dq;
  constexpr int DKV = ALONE ? dkv_row(TILE) : TILE, DQ = ALONE ? TILE : dq_row(kBwdShapes[DKV]);
  return bwd_dkv<T, DKV, DQ, (Row::inputs & kHasSoftcap) != 0>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
