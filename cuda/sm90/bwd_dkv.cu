// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv and bwd_dq (bwd_dq.cuh) for head sizes of 129 to 256, in one launch: the workgroups of bwd_dkv come first, and those of
// bwd_dq fill what multiprocessors the last of them leave idle; then there may be those of bwd_head. bwd_dkv: the accumulators of d_k and d_v of 64 keys fill the registers of two
// warpgroups, so a tile has 64 keys and 128 queries, and each warpgroup forms S^T and dP^T of 64 queries. Both of P and dS
// then go through shared memory, as [query][key]: of the products that follow, dV = P^T dO and dK = dS^T Q have their left
// operand across. Each warpgroup has half of the columns of both; of 192 features, which is an odd number of panels, one
// has d_v and the other d_k.
#include "../bwd_head.cuh"
#include "bwd_dq.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

// What load_tiles() asks of a set (bwd_sets.cuh).
struct Wide {
  using Params = BwdDkvWithDqParams;
  static constexpr int bytes(const BwdShape&) { return 0; }
  static constexpr float kLse = kLog2e;
  template <int ROW>
  using Tiles = EveryTile<ROW>;
  template <int ROW>
  struct Loader {
    TANDEM_DEVICE Loader(const Params&, const Walk&, const Memory<ROW, Wide>&) {}
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int, int) {}
  };
};

template <typename T, int ROW>
TANDEM_DEVICE void multiply(const BwdDkvWithDqParams& params, const Walk& walk,
                            const Memory<ROW, Wide>& memory) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr int BR = S.br, BC = S.bc, D = S.d;
  constexpr int kKPanel = BC * 128, kQPanel = BR * 128;
  constexpr bool kApart = D == 192;  // d_v and d_k in a warpgroup each
  constexpr int N = kApart ? D : D / 2;
  static_assert(BR == 128 && BC == 64 && S.ds_stages == 1, "what is written below");
  const BwdDkvBlock& u = params.block;
  const Barriers<ROW> barriers(memory.barriers());
  const int group = int(threadIdx.x) / 128 - 1, warp = int(threadIdx.x) / 32 % 4;
  const int lane = int(threadIdx.x) % 32;
  const uint own = uint(group) * 64 * 128;  // this warpgroup's queries in a panel
  const float scale2 = u.scale * kLog2e;
  const uint p_tile = memory.ds(0), ds_tile = memory.ds(1);

  float first[N / 2], second[kApart ? 2 : N / 2];  // d_k and d_v; apart: one of them
#pragma unroll
  for (int i = 0; i < N / 2; ++i) first[i] = 0.f;
#pragma unroll
  for (int i = 0; i < (kApart ? 2 : N / 2); ++i) second[i] = 0.f;
  const int key = walk.col0 + warp * 16 + lane / 4;

  barrier_wait(barriers.kv, 0);
  Turn<S.q_stages> q_turn;
  Turn<S.do_stages> do_turn;
  for (int n = 0; n < u.group; ++n) {
#pragma unroll 1
    for (int at = walk.span.begin; at < walk.span.end; ++at, q_turn.next(), do_turn.next()) {
      const int t = walk.turned(at);
      const uint q = memory.q(q_turn.stage), d_o = memory.d_o(do_turn.stage);
      float s[32], dp[32];
      barrier_wait(barriers.q_full(q_turn.stage), q_turn.parity);
      fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Product<T, 64>::template from_shared<0, 0>(
            s, along(memory.k() + k / 4 * kKPanel + k % 4 * 32),
            along(q + own + k / 4 * kQPanel + k % 4 * 32), k > 0);
      commit();
      barrier_wait(barriers.do_full(do_turn.stage), do_turn.parity);
      fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Product<T, 64>::template from_shared<0, 0>(
            dp, along(memory.v() + k / 4 * kKPanel + k % 4 * 32),
            along(d_o + own + k / 4 * kQPanel + k % 4 * 32), k > 0);
      commit();
      // Whoever reads P and dS of the step before is done with them.
      named_sync<kDsRead>(256);
      const bool far = has_far(memory, q_turn.stage);
      wait<1>();
      const uint lse = memory.lse(q_turn.stage) + 256 * group + 8 * (lane % 4);
      if (far)
        weigh_far<64>(s, lse,
                      FarTile<BwdDkvPush>{params.push, memory.far(q_turn.stage), 64 * group},
                      [&](int j, uint) {
#pragma unroll
                        for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] = __fmul_rn(u.scale, s[i]);
                      });
      else
        weigh<64>(s, scale2, lse);
      if (on_edge(walk, t, BC, u.seq_kv))
        hide<64>(s, walk.band, key, u.seq_kv, t * BR + 64 * group + 2 * (lane % 4), 0.f);
      uint pairs[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) pairs[i] = T::pack(s[2 * i], s[2 * i + 1]);
      store_transposed<64>(p_tile + own, pairs, warp, lane);
      wait<0>();
      differentiate<T, 64>(pairs, s, dp,
                           memory.delta(do_turn.stage) + 256 * group + 8 * (lane % 4));
      store_transposed<64>(ds_tile + own, pairs, warp, lane);
      fence_async();
      named_sync<kDsWritten>(256);
      fence();
      // q is needed by d_k alone, and d_o by d_v.
      const auto release = [&](uint barrier) {
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier);
      };
      if constexpr (kApart) {
        const uint left = group == 0 ? p_tile : ds_tile, right = group == 0 ? d_o : q;
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Product<T, N>::template from_shared<1, 1>(first, across(left + k * 2048, kQPanel),
                                                    across(right + k * 2048, kQPanel), 1);
        commit();
        wait<0>();
        release(group == 0 ? barriers.do_empty(do_turn.stage) : barriers.q_empty(q_turn.stage));
      } else {
        const uint half = group * (N / 64) * kQPanel;
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Product<T, N>::template from_shared<1, 1>(first, across(ds_tile + k * 2048, kQPanel),
                                                    across(q + half + k * 2048, kQPanel), 1);
        commit();
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Product<T, N>::template from_shared<1, 1>(second, across(p_tile + k * 2048, kQPanel),
                                                    across(d_o + half + k * 2048, kQPanel), 1);
        commit();
        wait<1>();
        release(barriers.q_empty(q_turn.stage));
        wait<0>();
        release(barriers.do_empty(do_turn.stage));
      }
    }
  }
  // K and V are free when both are through.
  named_sync<kDsRead>(256);
  const uint stage = memory.k() + group * Memory<ROW, Wide>::kKBytes;
  const auto store = [&](const auto& x, bool is_k, int column) {
    const uint64_t to = is_k ? params.push.d_k : params.push.d_v;
    if (to)
      store_rows<T, N>(stage, kKPanel, x, is_k ? u.scale : 1.f, to, is_k ? u.d_k : u.d_v, walk,
                       walk.col0, u.seq_kv, column, is_k ? u.head_dim : u.head_dim_v);
  };
  if constexpr (kApart) {
    store(first, group == 1, 0);
  } else {
    store(first, true, group * N);
    store(second, false, group * N);
  }
}

template <typename T, int ROW, int DQ_ROW>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv(const __grid_constant__ BwdDkvWithDqParams params) {
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index < params.block.total) {
    constexpr BwdShape S = kBwdShapes[ROW];
    const BwdDkvBlock& u = params.block;
    Walk walk;
    find_walk(u, S, 1, 0, own_index(), &walk);
    walk.down = best_down(u);
    const Memory<ROW, Wide> memory{shared_address(panel_memory())};
    if (threadIdx.x == 0) Barriers<ROW>(memory.barriers()).init();
    __syncthreads();
    if (threadIdx.x < 128) {
      give_registers<Plain::Registers::kHelping>();
      if (threadIdx.x < 32) load_tiles(params, walk, memory);
    } else {
      take_registers<Plain::Registers::kMultiplying>();
      multiply<T, ROW>(params, walk, memory);
    }
  } else {
    DqWalk walk;
    if (!find_dq_walk<DQ_ROW>(params.dq.block, index - params.block.total, &walk)) {
      const uint head = index - params.block.total - params.dq.block.total;
      if (head < params.head.block.total)
        sum_head(params.head, int(head), reinterpret_cast<float*>(panel_memory()));
      return;
    }
    const DqMemory<DQ_ROW> memory{shared_address(panel_memory())};
    if (threadIdx.x == 0) memory.init();
    __syncthreads();
    if (threadIdx.x < 128) {
      give_registers<Registers<24>::kHelping>();
      if (threadIdx.x == 0 && walk.span.begin < walk.span.end)
        load_dq<DQ_ROW>(params, walk, memory);
    } else {
      take_registers<Registers<24>::kMultiplying>();
      multiply_dq<T, DQ_ROW>(params, walk, memory);
    }
  }
}

// The row of kDqShapes with the same head sizes, and boxes.
constexpr int dq_row(int row) {
  for (int n = 0; n < kDqShapeCount; ++n)
    if (kDqShapes[n].d == kBwdShapes[row].d && kDqShapes[n].br == kBwdShapes[row].br &&
        kDqShapes[n].bc == kBwdShapes[row].bc)
      return n;
  return -1;
}

template <typename T, int ROW = 0>
Kernel<BwdDkvWithDqParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1>(row);
    if constexpr (kBwdShapes[ROW].wide) return bwd_dkv<T, ROW, dq_row(ROW)>;
  }
  return nullptr;
}

}  // namespace

Kernel<BwdDkvWithDqParams> bwd_dkv_kernel(tandem_dtype dtype, int row) {
  if (dtype == TANDEM_F16) return select<Half>(row);
  return dtype == TANDEM_BF16 ? select<Bfloat>(row) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
