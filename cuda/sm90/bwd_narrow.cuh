// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq: the five products of the backward in one kernel, for head sizes up to 128. A workgroup keeps K and V of a tile of keys and walks
// over the query heads of its kv head and their tiles of queries. Transposed, S^T = K Q^T and dP^T = V dO^T, so that P^T
// and dS^T are the left operands of dV += P^T dO and dK += dS^T Q as they lie in registers: each of the two
// multiplying warpgroups owns 64 keys. dS goes through shared memory, where both read all of it for dQ = dS K.
// dQ is summed over the key tiles in the workspace, f32, by bulk adds; the last workgroup of a head rounds the sums (bwd_round.cuh).
//
// Of the helping warpgroup, warp 0 loads, and warp 1 adds dQ; or warps 1 and 2 in turn, each from a place of its own: in a fixed
// order of sums it takes about as long as a tile's products until a sum is seen to be there, and the next turn. Rows past the end and rows that see nothing have lse = +inf
// in shared memory: their p is 0, and no product needs a mask for them.
//
// Set says which optional inputs there are (bwd_sets.cuh).
#ifndef TANDEM_CUDA_SM90_BWD_NARROW_CUH
#define TANDEM_CUDA_SM90_BWD_NARROW_CUH
#include <type_traits>

#include "bwd_goes_on.cuh"
#include "bwd_round.cuh"
#include "bwd_sets.cuh"
#include "bwd_zeros.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The warp that has added: whether the workgroup is the last one of its head, or there when that one comes. Nobody reads lse any more.
template <int ROW, typename Set>
TANDEM_DEVICE void tell_last(const typename Set::Params& params, const Walk& walk,
                             const Memory<ROW, Set>& memory) {
  if (threadIdx.x % 32 == 0) {
    bool rounds = is_last<Set>(params, walk);
    if constexpr (!kDense<Set>)
      if (!rounds && params.d_q.claims) rounds = await_last<Set>(params, walk);
    put_shared(memory.lse(0), rounds ? 1.f : 0.f);
  }
  __syncwarp();
  named_arrive<kSummed>(288);
}
// The multiplying ones.
template <int ROW, typename Set>
TANDEM_DEVICE bool hear_last(const Memory<ROW, Set>& memory) {
  named_sync<kSummed>(288);
  return shared_float2(memory.lse(0)).x != 0.f;
}

// What the multiplying warpgroups leave of dQ is added to the sums in the workspace; adder: 0, or 1 for every second tile.
// packed_tiles: that a head has of packed queries (bwd_packed_tiles()), else 0. COPIES: it zeroes sums ahead, too (ZeroCopies).
// ON: the workgroup goes on to further tiles of keys.
template <bool COPIES = false, bool ON = false, int ROW, typename Set>
TANDEM_DEVICE void add_sums(const typename Set::Params& params, const Walk& walk,
                            const Memory<ROW, Set>& memory, int packed_tiles, int adder) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr int kPanels = Memory<ROW, Set>::kPanels;
  const BwdDkvDqBlock& u = params.block;
  const int full = kDqFull + kSecond * adder, empty = kDqEmpty + kSecond * adder;
  int turn = 0;  // whose tile it is
  const bool one = int(threadIdx.x) % 32 == 0;
  named_arrive(empty, 160);
  named_arrive(empty + 1, 160);
  if constexpr (kZeroesAhead<Set>) await_zeros(params, walk);
  [[maybe_unused]] ZeroCopies zeros{memory.base + ZeroCopies::kAt<ROW>};
  if constexpr (COPIES) zeros.begin(params, walk, one);
  typename Set::template Tiles<ROW> visited(params, walk);
  for (int n = 0; n < u.group; ++n) {
    const int64_t first = first_tile<ROW, Set>(u, walk, walk.head_kv * u.group + n, packed_tiles);
    float* sums =
        reinterpret_cast<float*>(params.push.d_q_sums) + first * (S.br / 64 * kPanels * kSumsBlock);
    uint* turns = reinterpret_cast<uint*>(params.push.turns) + first * (S.br / 64);
#pragma unroll 1
    for (int at = visited.next(n, walk.span.begin); at < walk.span.end;
         at = visited.next(n, at + 1)) {
      const bool mine = turn == adder;
      if (++turn == Set::kAdders) turn = 0;
      if (!mine) continue;
      const int t = walk.turned(at);
      float* to = sums + int64_t(t) * (S.br / 64 * kPanels * kSumsBlock);
      if (u.in_turn && one) wait_turn(turns + t * (S.br / 64), visited.before(u, walk, n, t));
      __syncwarp();
      named_sync(full, 160);
      if (one) {
        add_flat(to, memory.dq(0, adder), 16384);
        bulk_commit();
      }
      named_sync(full + 1, 160);
      if (one) {
        // Of 96 features the second panel has half.
        add_flat(to + kSumsBlock, memory.dq(1, adder), S.d == 96 ? 8192 : 16384);
        bulk_commit();
        bulk_wait_read<1>();
      }
      __syncwarp();
      named_arrive(empty, 160);
      if (one) bulk_wait_read<0>();
      __syncwarp();
      named_arrive(empty + 1, 160);
      if constexpr (COPIES) zeros.copy(params, ZeroCopies::kEach, one);
      if (u.in_turn && one) {
        bulk_wait<0>();
        take_turn(turns + t * (S.br / 64));
      }
    }
  }
  if constexpr (COPIES) zeros.finish(params, one);
  if (one) bulk_wait<0>();
  if constexpr (Set::kAdders == 2) {
    __syncwarp();
    named_sync<kAdded>(64);
    if (adder == 1) return;
  }
  if constexpr (kDense<Set>) return;
  if constexpr (ON) {
    if (one) tell_cast(params, walk);
  } else {
    tell_last(params, walk, memory);
  }
}

// An operand in shared memory: along(), or across() panels that are panel_stride apart; and some bytes, its descriptor there. KEPT: that
// is formed once and moved on, else formed anew for each product: more instructions, but faster without a bias ("Backward with a
// bias: what a tile of queries costs" in docs/hopper-measured.md).
template <bool KEPT>
struct Operand {
  uint at;
  int panel_stride = 0;
  TANDEM_DEVICE uint64_t descriptor(uint from) const {
    return panel_stride > 0 ? across(from, panel_stride) : along(from);
  }
  TANDEM_DEVICE uint64_t operator+(int bytes) const {
    return KEPT ? further(descriptor(at), bytes) : descriptor(at + uint(bytes));
  }
};

template <typename T, int ROW, typename Set, bool GRAD_Q, bool GRAD_KV, bool ON = kDense<Set>>
TANDEM_DEVICE void multiply(const typename Set::Params& params, const Walk& walk,
                            const Memory<ROW, Set>& memory) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr int BR = S.br, BC = S.bc, D = S.d;
  constexpr int kKPanel = BC * 128, kQPanel = BR * 128;
  const auto& u = params.block;
  const Barriers<ROW> barriers(memory.barriers());
  int group = int(threadIdx.x) / 128 - 1, thread = int(threadIdx.x) % 128;
  if constexpr (ON) {
    // It comes here again and again: the compiler keeps descriptors in a warp's registers only if this number is there, and is
    // not to keep others from one time to the next.
    group = __shfl_sync(~0u, fresh_thread() / 128 - 1, 0);
    thread = fresh_thread() % 128;
  }
  const int warp = thread / 32, lane = thread % 32;
  const uint own = uint(group) * 64 * 128;  // this warpgroup's keys in a panel
  const float scale2 = u.scale * kLog2e;
  using In = Operand<kDense<Set>>;

  float d_k[D / 2], d_v[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) d_k[i] = d_v[i] = 0.f;

  const int key = walk.col0 + group * 64 + warp * 16 + lane / 4;

  if constexpr (!ON) barrier_wait(barriers.kv, 0);
  auto turn = first_turn<Set, S.q_stages>(walk);
  Turn<S.ds_stages> ds_turn;
  typename Set::template Consumer<T, ROW> set(params, walk, memory);
  typename Set::template Tiles<ROW> tiles(params, walk);
  for (int n = 0; n < u.group; ++n) {
    if constexpr (kHasLengths<Set>) set.begin_head(walk.head_kv * u.group + n);
#pragma unroll 1
    for (int at = tiles.next(n, walk.span.begin); at < walk.span.end;
         at = tiles.next(n, at + 1), turn.next(), ds_turn.next()) {
      const int t = walk.turned(at);
      if constexpr (kHasPlaces<Set>) set.n = tiles.n;
      const uint q = memory.q(turn.stage), d_o = memory.d_o(turn.stage);
      const In k_rows{memory.k() + own}, v_rows{memory.v() + own},
          k_columns{memory.k() + (D == 64 ? 0 : group * kKPanel), kKPanel};
      const In q_rows{q}, q_columns{q, kQPanel}, do_rows{d_o}, do_columns{d_o, kQPanel};
      float s[BR / 2], dp[BR / 2];
      barrier_wait(barriers.q_full(turn.stage), turn.parity);
      fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Product<T, BR>::template from_shared<0, 0>(s, k_rows + (k / 4 * kKPanel + k % 4 * 32),
                                                   q_rows + (k / 4 * kQPanel + k % 4 * 32), k > 0);
      commit();
      barrier_wait(barriers.do_full(turn.stage), turn.parity);
      fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Product<T, BR>::template from_shared<0, 0>(dp, v_rows + (k / 4 * kKPanel + k % 4 * 32),
                                                   do_rows + (k / 4 * kQPanel + k % 4 * 32), k > 0);
      commit();

      if constexpr (kDense<Set>) set.begin_tile();
      const bool far = has_far(memory, turn.stage);
      wait<1>();
      if constexpr (kFarBefore<Set>) {
        if (far)
          set.weigh_far(s, u.scale, memory.lse(turn.stage) + 8 * (lane % 4), t,
                        walk.head_kv * u.group + n,
                        FarTile<decltype(params.push)>{params.push, memory.far(turn.stage), 0});
        set.weigh(s, scale2, memory.lse(turn.stage) + 8 * (lane % 4), t, turn.stage);
      } else if (far)
        set.weigh_far(s, u.scale, memory.lse(turn.stage) + 8 * (lane % 4), t,
                      walk.head_kv * u.group + n,
                      FarTile<decltype(params.push)>{params.push, memory.far(turn.stage), 0});
      else
        set.weigh(s, scale2, memory.lse(turn.stage) + 8 * (lane % 4), t, turn.stage);
      if constexpr (kHasPlaces<Set>)
        set.hide_edge(s);
      else if (on_edge(walk, t, BC, walk.seq_kv))
        hide<BR>(s, walk.band, key, walk.seq_kv, t * BR + 2 * (lane % 4), Set::kHidden);
      uint p[BR / 4];
      set.pack(p, s);
      wait<0>();
      uint ds[BR / 4];
      set.differentiate(p, ds, s, dp, memory.delta(turn.stage) + 8 * (lane % 4), turn.stage);
      uint ds_tile;
      if constexpr (kDense<Set>)
        ds_tile = set.ds_tile();
      else
        ds_tile = memory.ds(ds_turn.stage);
      set.wait_ds();
      if constexpr (GRAD_Q) {
        // As [query][key]. With two places the readers of this one were done before the last barrier.
        if constexpr (S.ds_stages == 1) named_sync<kDsWritten>(256);
        store_transposed<BR>(ds_tile + group * kQPanel, ds, warp, lane);
      }
      if constexpr (!GRAD_Q) set.keep_ds(ds, t);
      if constexpr (GRAD_KV) {
        fence();
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Product<T, D>::template from_registers<1>(d_v, p[4 * k], p[4 * k + 1], p[4 * k + 2],
                                                    p[4 * k + 3], do_columns + k * 2048, 1);
        commit();
      }
      float dq[32];
      if constexpr (GRAD_Q) {
        fence_async();
        named_sync<kDsWritten>(256);
        set.tell_ds();
        fence();
        // With 64 features 64 rows for each warpgroup; with more, its panel of features.
        const In ds_rows{D == 64 ? ds_tile + own : ds_tile};
#pragma unroll
        for (int k = 0; k < BC / 16; ++k)
          Product<T, 64>::template from_shared<0, 1>(dq, ds_rows + (k / 4 * kQPanel + k % 4 * 32),
                                                     k_columns + k * 2048, k > 0);
        commit();
      }
      if constexpr (GRAD_KV) {
        if constexpr (GRAD_Q)
          wait<1>();
        else
          wait<0>();
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.do_empty(turn.stage));
      if constexpr (GRAD_KV) {
        fence();
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Product<T, D>::template from_registers<1>(d_k, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2],
                                                    ds[4 * k + 3], q_columns + k * 2048, 1);
        commit();
      }
      if constexpr (GRAD_Q) {
        if constexpr (GRAD_KV)
          wait<1>();
        else
          wait<0>();
        static_assert(Set::kAdders == 1 || S.ds_stages == 2, "two places in turn, as those of dS");
        const int place = Set::kAdders == 2 ? ds_turn.stage : 0;
        named_sync(kDqEmpty + kSecond * place + group, 160);
        const uint to = memory.dq(group, place) + 16 * thread;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          put_shared(to + 2048 * i, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
        fence_async();
        named_arrive(kDqFull + kSecond * place + group, 160);
      }
      if constexpr (GRAD_KV) wait<0>();
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.q_empty(turn.stage));
    }
    if constexpr (kHasLengths<Set>) set.end_head(walk, walk.head_kv * u.group + n);
  }
  if constexpr (GRAD_KV) {
    // By way of shared memory that nobody reads any more: this warpgroup's part of V; or, as the next V is already asked for, the place of
    // dQ, which the warps that add have let go of once more than they were asked for.
    constexpr int kPanel = ON ? 64 * 128 : kKPanel;
    uint stage = memory.v() + own;
    if constexpr (ON) {
      named_sync(kDqEmpty + group, 160);
      if constexpr (Set::kAdders == 2) named_sync(kDqEmpty + kSecond + group, 160);
      if (fresh_thread() % 32 == 0) barrier_arrive(now_of(memory).heard());
      stage = memory.dq(group, 0);
    } else {
      named_sync(kGroup + group, 128);
    }
    const int first_key = walk.col0 + 64 * group;
    if constexpr (kDense<Set>)
      if (walk.parts > 1 && !set.gather(walk, stage, d_k, d_v)) return;
    if (params.push.d_v)
      store_rows<T, D>(stage, kPanel, d_v, 1.f, params.push.d_v, u.d_v, walk, first_key, walk.keys,
                       0, u.head_dim_v);
    if (params.push.d_k)
      store_rows<T, D>(stage, kPanel, d_k, u.scale, params.push.d_k, u.d_k, walk, first_key,
                       walk.keys, 0, u.head_dim);
  }
}

template <typename T, int ROW, typename Set, bool GRAD_Q, bool GRAD_KV>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq(const __grid_constant__ typename Set::Params params) {
  constexpr BwdShape S = kBwdShapes[ROW];
  // bwd_dq_cast may begin on multiprocessors that are left.
  if constexpr (GRAD_Q) launch_dependents();
  Walk walk;
  if (!find_walk(params.block, S, Set::order(params), Set::in_turn(params), own_index(), &walk))
    return;
  if constexpr (kHasLengths<Set>) Set::template refine<ROW>(params, &walk);
  // Two conditions, not one of both: what follows of it then stays in uniform registers, 3 % of the time at D 64.
  if constexpr (Set::kAnyOrder)
    if (params.block.in_turn == 0) walk.down = best_down(params.block);
  const Memory<ROW, Set> memory{shared_address(panel_memory())};
  if (threadIdx.x == 0) {
    Set::template init<ROW>(memory);
    Barriers<ROW>(memory.barriers()).init();
  }
  Set::sync();
  int packed_tiles = 0;
  if constexpr (kHasLengths<Set>) packed_tiles = params.packed_tiles;
  if (threadIdx.x < 128) {
    give_registers<Set::Registers::kHelping>();
    const int warp = int(threadIdx.x) / 32;
    if (warp == 0) {
      load_tiles(params, walk, memory);
    } else if (warp > Set::kAdders) {
      if constexpr (GRAD_Q && kZeroesAhead<Set>) zero_ahead(params, walk);
      Set::template help<T>(params, walk, memory);
    } else if constexpr (GRAD_Q) {
      add_sums(params, walk, memory, packed_tiles, Set::kAdders == 1 ? 0 : warp - 1);
    }
  } else {
    take_registers<Set::Registers::kMultiplying>();
    multiply<T, ROW, Set, GRAD_Q, GRAD_KV>(params, walk, memory);
    if constexpr (GRAD_Q) {
      if (hear_last(memory)) round_sums<T, ROW, Set>(params, walk, packed_tiles);
    }
    if constexpr (std::is_base_of<BwdDkvDqParams, typename Set::Params>::value)
      sum_heads<Set>(params, walk, memory.q(0));
  }
  Set::leave();
}

// Tiles of keys in the order of a counter in the workspace, from the first one on: who waits for a turn waits for workgroups that
// have begun.
template <int ROW, typename Set>
struct OwnWay {
  static constexpr bool kOnce = false, kPasses = false;
  using Params = typename Set::Params;
  static TANDEM_DEVICE uint passes(const Params&) { return 1; }
  static TANDEM_DEVICE bool find(const Params& params, uint item, uint, Walk* walk) {
    constexpr BwdShape S = kBwdShapes[ROW];
    if (!find_walk(params.block, S, 1, Set::in_turn(params), item, walk)) return false;
    if (params.block.in_turn == 0) walk->down = best_down(params.block);
    return true;
  }
  static TANDEM_DEVICE uint fetch(const Params& params) {
    uint item = 0;
    if (fresh_thread() == 0) item = atomicAdd(reinterpret_cast<uint*>(params.next), 1u);
    return __reduce_or_sync(kAllLanes, item);
  }
  static TANDEM_DEVICE uint first(const Params& params, const Memory<ROW, Set>&) {
    return fetch(params);
  }
  static TANDEM_DEVICE uint next(const Params& params, const Memory<ROW, Set>&, uint) {
    return fetch(params);
  }
};
// bwd_dkv_dq by workgroups that are as many as the device has at a time, and go on to further tiles. All gradients; sums are left to bwd_dq_cast.
template <typename T, int ROW, typename Set>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq_on(const __grid_constant__ typename Set::Params params) {
  using Way = OwnWay<ROW, Set>;
  using M = Memory<ROW, Set>;
  launch_dependents();  // as there
  if (threadIdx.x == 0) {
    const M memory{shared_address(panel_memory())};
    Set::template init<ROW>(memory);
    Barriers<ROW>(memory.barriers()).init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<Set::Registers::kHelping>();
    const int warp = __shfl_sync(~0u, fresh_thread() / 32, 0);
    if (warp == 0)
      load_rounds<ROW, Set, Way>(params);
    else if (warp > Set::kAdders)
      in_rounds<ROW, Set, Way, true>(params, [&](const M&, const Walk& walk) {
        if constexpr (kZeroesAhead<Set>) zero_ahead(params, walk);
      });
    else
      in_rounds<ROW, Set, Way, true>(params, [&](const M& here, const Walk& walk) {
        add_sums<false, true>(params, walk, here, 0, Set::kAdders == 1 ? 0 : warp - 1);
      });
  } else {
    take_registers<Set::Registers::kMultiplying>();
    in_rounds<ROW, Set, Way, false>(params, [&](const M& here, const Walk& walk) {
      multiply<T, ROW, Set, true, true, true>(params, walk, here);
    });
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
