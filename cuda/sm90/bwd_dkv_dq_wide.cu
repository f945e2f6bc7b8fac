// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq for head sizes of 129 to 256. The accumulators of d_k and d_v of 64 keys fill the registers of two
// warpgroups, so a tile has 64 keys and 128 queries, and each warpgroup forms S^T and dP^T of 64 queries. Both of P and dS
// then go through shared memory, as [query][key]: of the products that follow, dV = P^T dO and dK = dS^T Q have their left
// operand across. Each warpgroup has half of the columns of both; of 192 features, which is an odd number of panels, one
// has d_v and the other d_k. dQ of its 64 queries a warpgroup adds to the workspace panel by panel, from registers.
#include "bwd_sets.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

TANDEM_DEVICE void add_global(float* at, float x, float y, float z, float w) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(x),
               "f"(y), "f"(z), "f"(w)
               : "memory");
}

// A multiplying warpgroup and the helping warp that waits for its turns and ends them: neither the wait nor the fence behind
// the adds, whose ends take a while to be seen, keeps it from its products.
enum : int { kMyTurn = kDqFull, kAdded = kDqEmpty };
template <int ROW>
TANDEM_DEVICE void take_turns(const BwdDkvDqParams& params, const Walk& walk, int group) {
  constexpr BwdShape S = kBwdShapes[ROW];
  const BwdDkvDqBlock& u = params.block;
  const bool one = int(threadIdx.x) % 32 == 0;
  for (int n = 0; n < u.group; ++n) {
    const int64_t head = int64_t(walk.batch) * u.heads_q + walk.head_kv * u.group + n;
    uint* turns = reinterpret_cast<uint*>(params.push.turns) +
                  head * ((u.seq_q + S.br - 1) / S.br * (S.br / 64)) + group;
#pragma unroll 1
    for (int at = walk.span.begin; at < walk.span.end; ++at) {
      const int t = walk.turned(at);
      if (one) wait_turn(turns + 2 * t, turns_before<ROW>(u, walk, t));
      __syncwarp();
      named_arrive(kMyTurn + group, 160);
      named_sync(kAdded + group, 160);
      if (one) {
        __threadfence();  // of all that came before the barrier
        take_turn(turns + 2 * t);
      }
    }
  }
}

template <typename T, int ROW, bool GRAD_Q, bool GRAD_KV>
TANDEM_DEVICE void multiply(const BwdDkvDqParams& params, const Walk& walk,
                            const Memory<ROW, Plain>& memory) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr int BR = S.br, BC = S.bc, D = S.d;
  constexpr int kKPanel = BC * 128, kQPanel = BR * 128, kPanels = D / 64;
  constexpr bool kApart = D == 192;  // d_v and d_k in a warpgroup each
  constexpr int N = kApart ? D : D / 2;
  static_assert(BR == 128 && BC == 64 && S.ds_stages == 1, "what is written below");
  const BwdDkvDqBlock& u = params.block;
  const Barriers<ROW> barriers(memory.barriers());
  const int group = int(threadIdx.x) / 128 - 1, thread = int(threadIdx.x) % 128;
  const int warp = thread / 32, lane = thread % 32;
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
    const int64_t head = int64_t(walk.batch) * u.heads_q + walk.head_kv * u.group + n;
    const int64_t blocks = (u.seq_q + BR - 1) / BR * (BR / 64);
    float* sums = reinterpret_cast<float*>(params.push.d_q_sums) +
                  (head * blocks + group) * (kPanels * kSumsBlock) + 4 * thread;
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
      wait<1>();
      weigh<64>(s, scale2, memory.lse(q_turn.stage) + 256 * group + 8 * (lane % 4));
      if (on_edge(walk, t, BC, u.seq_kv))
        hide<64>(s, walk.band, key, u.seq_kv, t * BR + 64 * group + 2 * (lane % 4), 0.f);
      uint pairs[16];
      if constexpr (GRAD_KV) {
#pragma unroll
        for (int i = 0; i < 16; ++i) pairs[i] = T::pack(s[2 * i], s[2 * i + 1]);
        store_transposed<64>(p_tile + own, pairs, warp, lane);
      }
      wait<0>();
      differentiate<T, 64>(pairs, s, dp,
                           memory.delta(do_turn.stage) + 256 * group + 8 * (lane % 4));
      store_transposed<64>(ds_tile + own, pairs, warp, lane);
      fence_async();
      named_sync<kDsWritten>(256);
      fence();
      if constexpr (GRAD_KV && kApart) {
        const uint left = group == 0 ? p_tile : ds_tile, right = group == 0 ? d_o : q;
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Product<T, N>::template from_shared<1, 1>(first, across(left + k * 2048, kQPanel),
                                                    across(right + k * 2048, kQPanel), 1);
        commit();
      } else if constexpr (GRAD_KV) {
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
      }
      // q is needed by d_k alone, and d_o by d_v.
      const auto release = [&](uint barrier) {
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier);
      };
      const auto release_apart = [&] {
        release(group == 0 ? barriers.do_empty(do_turn.stage) : barriers.q_empty(q_turn.stage));
      };
      if constexpr (GRAD_KV && !kApart) {
        wait<1>();
        release(barriers.q_empty(q_turn.stage));
      }
      if constexpr (GRAD_Q) {
        float dq[2][32];
        const auto issue = [&](float(&x)[32], int panel) {
          fence();
#pragma unroll
          for (int k = 0; k < BC / 16; ++k)
            Product<T, 64>::template from_shared<0, 1>(
                x, along(ds_tile + own + k * 32),
                across(memory.k() + panel * kKPanel + k * 2048, kKPanel), k > 0);
          commit();
        };
        float* to = sums + int64_t(t) * (2 * kPanels * kSumsBlock);
        const auto add = [&](const float(&x)[32], int panel) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            add_global(to + panel * kSumsBlock + 512 * i, x[4 * i], x[4 * i + 1], x[4 * i + 2],
                       x[4 * i + 3]);
        };
        issue(dq[0], 0);
        if constexpr (GRAD_KV) wait<1>();
        if constexpr (kApart)
          release_apart();
        else
          release(barriers.do_empty(do_turn.stage));
        if constexpr (!GRAD_KV && !kApart) release(barriers.q_empty(q_turn.stage));
        if (u.in_turn) named_sync(kMyTurn + group, 160);
        issue(dq[1], 1);
        wait<1>();
        add(dq[0], 0);
        issue(dq[0], 2);
        wait<1>();
        add(dq[1], 1);
        if constexpr (kPanels == 4) {
          issue(dq[1], 3);
          wait<1>();
          add(dq[0], 2);
          wait<0>();
          add(dq[1], 3);
        } else {
          wait<0>();
          add(dq[0], 2);
        }
        if (u.in_turn) named_arrive(kAdded + group, 160);
      } else {
        wait<0>();
        if constexpr (kApart)
          release_apart();
        else
          release(barriers.do_empty(do_turn.stage));
      }
    }
  }
  if constexpr (GRAD_KV) {
    // K and V are free when both are through.
    named_sync<kDsRead>(256);
    const uint stage = memory.k() + group * Memory<ROW, Plain>::kKBytes;
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
}

template <typename T, int ROW, bool GRAD_Q, bool GRAD_KV>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq_wide(const __grid_constant__ BwdDkvDqParams params) {
  constexpr BwdShape S = kBwdShapes[ROW];
  Walk walk;
  if (!find_walk(params.block, S, 1, params.block.in_turn != 0, &walk)) return;
  walk.down = best_down(params.block);
  const Memory<ROW, Plain> memory{shared_address(bwd_memory)};
  if (threadIdx.x == 0) Barriers<ROW>(memory.barriers()).init();
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<Plain::Registers::kHelping>();
    const int warp = int(threadIdx.x) / 32;
    if (warp == 0)
      load_tiles(params, walk, memory);
    else if (GRAD_Q && warp >= 2 && params.block.in_turn)
      take_turns<ROW>(params, walk, warp - 2);
  } else {
    take_registers<Plain::Registers::kMultiplying>();
    multiply<T, ROW, GRAD_Q, GRAD_KV>(params, walk, memory);
  }
}

template <typename T, int ROW>
Kernel<BwdDkvDqParams> select(int row, bool grad_q, bool grad_kv) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1>(row, grad_q, grad_kv);
    if constexpr (kBwdShapes[ROW].wide) {
      if (grad_q)
        return grad_kv ? bwd_dkv_dq_wide<T, ROW, true, true> : bwd_dkv_dq_wide<T, ROW, true, false>;
      if (grad_kv) return bwd_dkv_dq_wide<T, ROW, false, true>;
    }
  }
  return nullptr;
}

}  // namespace

Kernel<BwdDkvDqParams> bwd_dkv_dq_wide_kernel(tandem_dtype dtype, int row, bool grad_q,
                                              bool grad_kv) {
  if (dtype == TANDEM_F16) return select<Half, 0>(row, grad_q, grad_kv);
  return dtype == TANDEM_BF16 ? select<Bfloat, 0>(row, grad_q, grad_kv) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
