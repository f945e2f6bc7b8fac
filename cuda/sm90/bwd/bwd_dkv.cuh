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
  constexpr int BR = S.br, BC = S.bc, D = S.d;
  constexpr int kKPanel = BC * 128, kQPanel = BR * 128;
  constexpr bool kApart = D == 192;  // one warpgroup has d_v, the other d_k
  constexpr int N = kApart ? D : D / 2;
  static_assert(BR == 128 && BC == 64 && S.ds_stages == 1, "what is written below");
  const BwdDkvBlock& u = params.block;
  const Barriers<TILE> barriers(memory.barriers());
  const int warpgroup = int(threadIdx.x) / 128 - 1, warp = int(threadIdx.x) / 32 % 4;
  const int lane = int(threadIdx.x) % 32;
  const uint own = uint(warpgroup) * 64 * 128;  // this warpgroup's queries in a panel
  const float scale2 = u.scale * kLog2e;
  const uint p_tile = memory.ds(0), ds_tile = memory.ds(1);

  // d_k and d_v; with kApart, first is one of them.
  float first[N / 2], second[kApart ? 2 : N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) first[i] = 0.f;
#pragma unroll
  for (int i = 0; i < (kApart ? 2 : N / 2); ++i) second[i] = 0.f;
  const int key = work.col0 + warp * 16 + lane / 4;

  mbarrier_wait(barriers.kv, 0);
  PipelineState<S.q_stages> q_pipe;
  PipelineState<S.do_stages> do_pipe;
  for (int n = 0; n < u.group; ++n) {
#pragma unroll 1
    for (int at = work.span.begin; at < work.span.end; ++at, q_pipe.next(), do_pipe.next()) {
      const int t = work.q_tile(at);
      const uint q = memory.q(q_pipe.stage()), d_o = memory.d_o(do_pipe.stage());
      float s[32], dp[32];
      mbarrier_wait(barriers.q_full(q_pipe.stage()), q_pipe.phase());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Wgmma<T, 64>::template ss<0, 0>(s, k_major(memory.k() + k / 4 * kKPanel + k % 4 * 32),
                                        k_major(q + own + k / 4 * kQPanel + k % 4 * 32), k > 0);
      wgmma_commit_group();
      mbarrier_wait(barriers.do_full(do_pipe.stage()), do_pipe.phase());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Wgmma<T, 64>::template ss<0, 0>(dp, k_major(memory.v() + k / 4 * kKPanel + k % 4 * 32),
                                        k_major(d_o + own + k / 4 * kQPanel + k % 4 * 32), k > 0);
      wgmma_commit_group();
      // All warps have read P and dS of the query tile before.
      named_barrier_sync<kDsRead>(256);
      const bool far = has_far(memory, q_pipe.stage());
      wgmma_wait_group<1>();
      const uint lse = memory.lse(q_pipe.stage()) + 256 * warpgroup + 8 * (lane % 4);
      [[maybe_unused]] SoftcapDerivatives<SOFTCAP ? 32 : 2> capped;
      if (far) {
        const float inverse = SOFTCAP ? __fdividef(1.f, params.softcap) : 0.f;
        weigh_far<64>(
            s, lse, FarTile<BwdDkvPush>{params.push, memory.far(q_pipe.stage()), 64 * warpgroup},
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
      wgmma_fence();
      // Only d_k needs Q, and only d_v needs dO.
      const auto release = [&](uint barrier) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(barrier);
      };
      if constexpr (kApart) {
        const uint left = warpgroup == 0 ? p_tile : ds_tile, right = warpgroup == 0 ? d_o : q;
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Wgmma<T, N>::template ss<1, 1>(first, mn_major(left + k * 2048, kQPanel),
                                         mn_major(right + k * 2048, kQPanel), 1);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        release(warpgroup == 0 ? barriers.do_empty(do_pipe.stage())
                               : barriers.q_empty(q_pipe.stage()));
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
        wgmma_wait_group<1>();
        release(barriers.q_empty(q_pipe.stage()));
        wgmma_wait_group<0>();
        release(barriers.do_empty(do_pipe.stage()));
      }
    }
  }
  // K and V are free when both warpgroups are done.
  named_barrier_sync<kDsRead>(256);
  const uint stage = memory.k() + warpgroup * BwdSharedStorage<TILE, WideHeads>::kKBytes;
  const auto store = [&](const auto& x, bool is_k, int column) {
    const uint64_t to = is_k ? params.push.d_k : params.push.d_v;
    if (to)
      store_rows<T, N>(stage, kKPanel, x, is_k ? u.scale : 1.f, to, is_k ? u.d_k : u.d_v, work,
                       work.col0, u.seq_kv, column, is_k ? u.head_dim : u.head_dim_v);
  };
  if constexpr (kApart) {
    store(first, warpgroup == 1, 0);
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

// The row of kDqShapes with the same head sizes and TMA boxes.
constexpr int dq_row(int row) {
  for (int n = 0; n < kDqShapeCount; ++n)
    if (kDqShapes[n].d == kBwdShapes[row].d && kDqShapes[n].br == kBwdShapes[row].br &&
        kDqShapes[n].bc == kBwdShapes[row].bc)
      return n;
  return -1;
}

// The row of kBwdShapes of the same tile, which serves bwd_dq alone as well.
constexpr int dkv_row(int dq) {
  int n = 0;
  while (dq_row(n) != dq) ++n;
  return n;
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  constexpr bool ALONE = Row::stem == Stem::bwd_dq;
  constexpr int DKV = ALONE ? dkv_row(TILE) : TILE, DQ = ALONE ? TILE : dq_row(TILE);
  return bwd_dkv<T, DKV, DQ, (Row::inputs & kHasSoftcap) != 0>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
