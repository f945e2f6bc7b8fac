// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq: the five products of the backward in one kernel, for head sizes up to 128. A
// workgroup keeps K and V of a tile of keys; its Q loop visits the query heads of its kv head and
// their query tiles. S and dP are transposed, S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T
// are the A operands of dV += P^T dO and dK += dS^T Q as they lie in registers: each of the two
// consumer warpgroups owns 64 keys. dS passes through shared memory, where both warpgroups read all
// of it for dQ = dS K. dQ is summed over the tiles of keys in the dQ accumulator (f32, in the
// workspace) by TMA reductions. The last workgroup of a head converts the accumulator
// (dq_postprocess.cuh).
//
// In the producer warpgroup, warp 0 loads, and warp 1 adds dQ. Or warps 1 and 2 add dQ in turn,
// each from a stage of its own: in a deterministic order one turn of the dQ semaphore takes about
// as long as a tile's products. Rows past the end and rows that see nothing have lse = +inf in
// shared memory: their p is 0, and no product needs a mask for them.
//
// Variant says which optional inputs there are (variant_plain.cuh).
#ifndef TANDEM_CUDA_SM90_BWD_DKV_DQ_CUH
#define TANDEM_CUDA_SM90_BWD_DKV_DQ_CUH
#include <type_traits>

#include "../tile_scheduler/bwd_dynamic.cuh"
#include "../tile_scheduler/bwd_static.cuh"
#include "dkv_partials.cuh"
#include "dq_lazy_zero.cuh"
#include "dq_postprocess.cuh"
#include "persistent.cuh"
#include "variant_plain.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The dQ warp, after its adds. Stores for the consumer warps whether the workgroup takes part in
// the dQ postprocess: it is the last one of its head, or still runs when that one arrives. The word
// is one of lse, which no warp reads any more.
template <int TILE, typename Variant>
TANDEM_DEVICE void signal_last(const typename Variant::Params& params, const BwdWorkTile& work,
                               const BwdSharedStorage<TILE, Variant>& memory) {
  if (threadIdx.x % 32 == 0) {
    bool postprocess = is_last<Variant>(params, work);
    if constexpr (!Variant::kHasBias)
      if (!postprocess && params.d_q.claims) postprocess = await_last<Variant>(params, work);
    st_shared(memory.lse(0), postprocess ? 1.f : 0.f);
  }
  __syncwarp();
  named_barrier_arrive<kLastKnown>(288);
}
// The consumer warps: whether the workgroup takes part in the dQ postprocess.
template <int TILE, typename Variant>
TANDEM_DEVICE bool wait_last(const BwdSharedStorage<TILE, Variant>& memory) {
  named_barrier_sync<kLastKnown>(288);
  return ld_shared_v2_f32(memory.lse(0)).x != 0.f;
}

// A dQ warp: adds the dQ tiles of the consumer warpgroups to the dQ accumulator. adder: its index;
// of two dQ warps each adds every second tile. packed_tiles: query tiles of a head of packed
// queries (bwd_packed_tiles()), else 0. COPIES: the warp also zeroes the accumulator ahead
// (LazyZeroCopies). PERSISTENT: the workgroup continues with further work tiles. GHOSTS: it may be
// of no batch entry, and then adds nothing (BwdWorkTile::ghost).
template <bool COPIES = false, bool PERSISTENT = false, bool GHOSTS = false, int TILE,
          typename Variant>
TANDEM_DEVICE void accumulate_dq(const typename Variant::Params& params, const BwdWorkTile& work,
                                 const BwdSharedStorage<TILE, Variant>& memory, int packed_tiles,
                                 int adder) {
  constexpr BwdShape S = kBwdShapes[TILE];
  constexpr int kPanels = BwdSharedStorage<TILE, Variant>::kPanels;
  // Floats of the warpgroups' parts of dQ. With 96 features the second panel is half as large.
  constexpr bool kHalves = BwdSharedStorage<TILE, Variant>::kHalvesDq;
  constexpr int kFirst = kHalves ? kDqAccumBlock / 2 : kDqAccumBlock,
                kSecond = kHalves || S.d == 96 ? kDqAccumBlock / 2 : kDqAccumBlock;
  const BwdDkvDqBlock& u = params.block;
  const int full = kDqFull + kSecondDqStage * adder, empty = kDqEmpty + kSecondDqStage * adder;
  int next_warp = 0;  // the dQ warp that adds the next tile
  const bool one = int(threadIdx.x) % 32 == 0, ghost = GHOSTS && work.ghost;
  named_barrier_arrive(empty, 160);
  named_barrier_arrive(empty + 1, 160);
  if constexpr (Variant::kLazyZero) wait_zeros(params, work);
  [[maybe_unused]] LazyZeroCopies zeros{memory.base + LazyZeroCopies::kAt<TILE>};
  if constexpr (COPIES) zeros.begin(params, work, one);
  typename Variant::template QTiles<TILE> visited(params, work);
  const int rank = rank_of<Variant>(params, work);
  const QLoop<Variant, decltype(visited)> loop{visited, work, u.group};
#pragma unroll 1
  for (int outer = loop.begin(), outer_end = loop.end(); outer < outer_end; ++outer) {
#pragma unroll 1
    for (int inner = loop.first(outer), end = loop.last(outer); inner < end;
         inner = loop.next(outer, inner)) {
      const bool mine = next_warp == adder;
      if (++next_warp == Variant::kDqWarps) next_warp = 0;
      if (!mine) continue;
      const int n = loop.head(outer, inner), t = loop.tile(outer, inner);
      const int64_t first =
          first_tile<TILE, Variant>(u, work, rank, work.head_kv * u.group + n, packed_tiles);
      float* sums = reinterpret_cast<float*>(params.push.d_q_accum) +
                    first * (S.br / 64 * kPanels * kDqAccumBlock);
      uint* semaphores = reinterpret_cast<uint*>(params.push.dq_semaphores) + first * (S.br / 64);
      float* to = sums + int64_t(t) * (S.br / 64 * kPanels * kDqAccumBlock);
      if (u.deterministic && one && !ghost)
        semaphore_wait(semaphores + t * (S.br / 64), visited.before(u, work, n, t));
      __syncwarp();
      named_barrier_sync(full, 160);
      if (one && !ghost) {
        bulk_reduce_add(to, memory.dq(0, adder), 4 * kFirst);
        bulk_commit_group();
      }
      named_barrier_sync(full + 1, 160);
      if (one && !ghost) {
        bulk_reduce_add(to + kFirst, memory.dq(1, adder), 4 * kSecond);
        bulk_commit_group();
        bulk_wait_group_read<1>();
      }
      __syncwarp();
      named_barrier_arrive(empty, 160);
      if (one) bulk_wait_group_read<0>();
      __syncwarp();
      named_barrier_arrive(empty + 1, 160);
      if constexpr (COPIES) zeros.copy(params, LazyZeroCopies::kEach, one);
      if (u.deterministic && one && !ghost) {
        bulk_wait_group<0>();
        semaphore_release(semaphores + t * (S.br / 64));
      }
    }
  }
  if constexpr (COPIES) zeros.finish(params, one);
  if (one) bulk_wait_group<0>();
  if constexpr (Variant::kDqWarps == 2) {
    __syncwarp();
    named_barrier_sync<kDqStored>(64);
    if (adder == 1) return;
  }
  if constexpr (Variant::kHasBias) return;
  if constexpr (PERSISTENT) {
    if (one) signal_postprocess(params, work);
  } else {
    signal_last(params, work, memory);
  }
}

// An operand in shared memory: K-major, or MN-major in panels that are panel_stride bytes apart.
// Operand + bytes is the matrix descriptor of what lies that many bytes further. KEPT: the
// descriptor is formed once and advanced. Otherwise it is formed for each product. That takes more
// instructions, but is faster without a bias ("Backward with a bias: what a tile of queries costs"
// in bench/lab/2026-11.md).
template <bool KEPT>
struct Operand {
  uint at;
  int panel_stride = 0;
  TANDEM_DEVICE uint64_t descriptor(uint from) const {
    return panel_stride > 0 ? mn_major(from, panel_stride) : k_major(from);
  }
  TANDEM_DEVICE uint64_t operator+(int bytes) const {
    return KEPT ? advance(descriptor(at), bytes) : descriptor(at + uint(bytes));
  }
};

template <typename T, int TILE, typename Variant, bool GRAD_Q, bool GRAD_KV,
          bool PERSISTENT = Variant::kHasBias>
TANDEM_DEVICE void main_loop(const typename Variant::Params& params, const BwdWorkTile& work,
                             const BwdSharedStorage<TILE, Variant>& memory) {
  constexpr BwdShape S = kBwdShapes[TILE];
  constexpr int BR = S.br, BC = S.bc, D = S.d;
  constexpr int kKPanel = BC * 128, kQPanel = BR * 128,
                kDsPanel = BwdSharedStorage<TILE, Variant>::kDsPanel;
  constexpr bool kHalves = BwdSharedStorage<TILE, Variant>::kHalvesDq;
  constexpr int kDqFeatures = kHalves ? 32 : 64;  // of a warpgroup
  const auto& u = params.block;
  const Barriers<TILE> barriers(memory.barriers());
  int warpgroup = int(threadIdx.x) / 128 - 1, thread = int(threadIdx.x) % 128;
  if constexpr (PERSISTENT) {
    // The loop runs once for each work tile. The compiler keeps descriptors in uniform registers
    // only if the index of the warpgroup is in one, and it must not keep other values from one work
    // tile to the next.
    warpgroup = __shfl_sync(~0u, read_tid_x() / 128 - 1, 0);
    thread = read_tid_x() % 128;
  }
  const int warp = thread / 32, lane = thread % 32;
  const uint own = uint(warpgroup) * 64 * 128;  // this warpgroup's keys in a panel
  const float scale2 = u.scale * kLog2e;
  using In = Operand<Variant::kHasBias>;

  float d_k[D / 2], d_v[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) d_k[i] = d_v[i] = 0.f;

  const int key = work.col0 + warpgroup * 64 + warp * 16 + lane / 4;

  if constexpr (!PERSISTENT) mbarrier_wait(barriers.kv, 0);
  auto pipe = first_pipeline_state<Variant, S.q_stages>(work);
  PipelineState<S.ds_stages> ds_pipe;
  typename Variant::template Consumer<T, TILE> variant(params, work, memory);
  typename Variant::template QTiles<TILE> tiles(params, work);
  static_assert(!(Variant::kHeadsInside && (Variant::kVisitsHeads || Variant::kHasKeep)),
                "what is of a head is read once for it");
  const QLoop<Variant, decltype(tiles)> loop{tiles, work, u.group};
#pragma unroll 1
  for (int outer = loop.begin(), outer_end = loop.end(); outer < outer_end; ++outer) {
    if constexpr (Variant::kVisitsHeads) variant.begin_head(work.head_kv * u.group + outer);
    if constexpr (Variant::kHasKeep) variant.read_mask_row(work, work.head_kv * u.group + outer);
#pragma unroll 1
    for (int inner = loop.first(outer), end = loop.last(outer); inner < end;
         inner = loop.next(outer, inner), pipe.next(), ds_pipe.next()) {
      const int n = loop.head(outer, inner), t = loop.tile(outer, inner);
      if constexpr (Variant::kHasMaskBitmap) variant.n = tiles.n;
      const uint q = memory.q(pipe.stage()), d_o = memory.d_o(pipe.stage());
      const In k_rows{memory.k() + own}, v_rows{memory.v() + own},
          k_columns{memory.k() + (kHalves   ? warpgroup * 64
                                  : D == 64 ? 0
                                            : warpgroup * kKPanel),
                    kKPanel};
      const In q_rows{q}, q_columns{q, kQPanel}, do_rows{d_o}, do_columns{d_o, kQPanel};
      float s[BR / 2], dp[BR / 2];
      mbarrier_wait(barriers.q_full(pipe.stage()), pipe.phase());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Wgmma<T, BR>::template ss<0, 0>(s, k_rows + (k / 4 * kKPanel + k % 4 * 32),
                                        q_rows + (k / 4 * kQPanel + k % 4 * 32), k > 0);
      wgmma_commit_group();
      mbarrier_wait(barriers.do_full(pipe.stage()), pipe.phase());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Wgmma<T, BR>::template ss<0, 0>(dp, v_rows + (k / 4 * kKPanel + k % 4 * 32),
                                        do_rows + (k / 4 * kQPanel + k % 4 * 32), k > 0);
      wgmma_commit_group();

      if constexpr (Variant::kHasKeep) variant.read_mask_rows(work, work.head_kv * u.group + n, t);
      if constexpr (Variant::kHasBias) variant.begin_tile();
      bool far;
      if constexpr (Variant::kGathers)
        far = variant.has_far(pipe.stage());
      else
        far = has_far(memory, pipe.stage());
      wgmma_wait_group<1>();
      if constexpr (Variant::kFarBefore) {
        if (far)
          variant.weigh_far(
              s, u.scale, memory.lse(pipe.stage()) + 8 * (lane % 4), t, work.head_kv * u.group + n,
              FarTile<decltype(params.push)>{params.push, memory.far(pipe.stage()), 0});
        variant.weigh(s, scale2, memory.lse(pipe.stage()) + 8 * (lane % 4), t, pipe.stage());
      } else if (far)
        variant.weigh_far(s, u.scale, memory.lse(pipe.stage()) + 8 * (lane % 4), t,
                          work.head_kv * u.group + n,
                          FarTile<decltype(params.push)>{params.push, memory.far(pipe.stage()), 0});
      else
        variant.weigh(s, scale2, memory.lse(pipe.stage()) + 8 * (lane % 4), t, pipe.stage());
      if constexpr (Variant::kHasMaskBitmap)
        variant.hide_edge(s);
      else if constexpr (Variant::kGathers)
        variant.hide(s, key, pipe.stage());
      else if (on_edge(work, t, BC, work.seq_kv))
        hide<BR, Variant::kHasEnds>(s, work.band, key, work.seq_kv, t * BR + 2 * (lane % 4),
                                    Variant::kHidden, work.seq_q);
      if constexpr (Variant::kHasKeep) variant.hide_masked(s);
      uint p[BR / 4];
      variant.pack(p, s);
      wgmma_wait_group<0>();
      uint ds[BR / 4];
      variant.differentiate(p, ds, s, dp, memory.delta(pipe.stage()) + 8 * (lane % 4),
                            pipe.stage());
      uint ds_tile;
      if constexpr (Variant::kHasBias)
        ds_tile = variant.ds_tile();
      else
        ds_tile = memory.ds(ds_pipe.stage());
      variant.wait_ds();
      if constexpr (GRAD_Q) {
        // Stores dS as [query][key]. With two stages, the readers of this one were done before the
        // last barrier.
        if constexpr (S.ds_stages == 1) named_barrier_sync<kDsWritten>(256);
        store_transposed<BR>(ds_tile + warpgroup * kDsPanel, ds, warp, lane);
      }
      if constexpr (!GRAD_Q) variant.keep_ds(ds, t);
      if constexpr (GRAD_KV) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Wgmma<T, D>::template rs<1>(d_v, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3],
                                      do_columns + k * 2048, 1);
        wgmma_commit_group();
      }
      float dq[kDqFeatures / 2];
      if constexpr (GRAD_Q) {
        fence_proxy_async_shared();
        named_barrier_sync<kDsWritten>(256);
        variant.signal_ds();
        wgmma_fence();
        // With 64 features each warpgroup forms 64 rows of dQ, or half of the features; with more,
        // its panel of features.
        const In ds_rows{D == 64 && !kHalves ? ds_tile + own : ds_tile};
#pragma unroll
        for (int k = 0; k < BC / 16; ++k)
          Wgmma<T, kDqFeatures>::template ss<0, 1>(dq, ds_rows + (k / 4 * kDsPanel + k % 4 * 32),
                                                   k_columns + k * 2048, k > 0);
        wgmma_commit_group();
      }
      if constexpr (GRAD_KV) {
        if constexpr (GRAD_Q)
          wgmma_wait_group<1>();
        else
          wgmma_wait_group<0>();
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(barriers.do_empty(pipe.stage()));
      if constexpr (GRAD_KV) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Wgmma<T, D>::template rs<1>(d_k, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3],
                                      q_columns + k * 2048, 1);
        wgmma_commit_group();
      }
      if constexpr (GRAD_Q) {
        if constexpr (GRAD_KV)
          wgmma_wait_group<1>();
        else
          wgmma_wait_group<0>();
        if constexpr (Variant::kGathers) {
          variant.add_dq(dq, work.head_kv * u.group + n, warpgroup, thread, pipe.stage());
        } else {
          static_assert(Variant::kDqWarps == 1 || S.ds_stages == 2, "two stages, as those of dS");
          const int stage = Variant::kDqWarps == 2 ? ds_pipe.stage() : 0;
          named_barrier_sync(kDqEmpty + kSecondDqStage * stage + warpgroup, 160);
          const uint to = memory.dq(warpgroup, stage) + 16 * thread;
#pragma unroll
          for (int i = 0; i < kDqFeatures / 8; ++i)
            st_shared(to + 2048 * i, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
          fence_proxy_async_shared();
          named_barrier_arrive(kDqFull + kSecondDqStage * stage + warpgroup, 160);
        }
      }
      if constexpr (GRAD_KV) wgmma_wait_group<0>();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(barriers.q_empty(pipe.stage()));
    }
    if constexpr (Variant::kVisitsHeads) variant.end_head(work, work.head_kv * u.group + outer);
  }
  if constexpr (GRAD_KV) {
    // d_k and d_v pass through shared memory that no warp reads any more: this warpgroup's part of
    // V. In a persistent workgroup the next V may already be loading there, so they pass through
    // the stage of dQ. The dQ warps release it once more than there are tiles.
    constexpr int kPanel = PERSISTENT ? 64 * 128 : kKPanel;
    uint stage = memory.v() + own;
    if constexpr (PERSISTENT) {
      named_barrier_sync(kDqEmpty + warpgroup, 160);
      if constexpr (Variant::kDqWarps == 2)
        named_barrier_sync(kDqEmpty + kSecondDqStage + warpgroup, 160);
      if (read_tid_x() % 32 == 0) mbarrier_arrive(tile_descriptor_of(memory).empty());
      stage = memory.dq(warpgroup, 0);
    } else {
      named_barrier_sync(kWarpgroup + warpgroup, 128);
    }
    const int first_key = work.col0 + 64 * warpgroup;
    if constexpr (Variant::kHasBias || Variant::kHasParts)
      if (work.parts > 1 && !variant.gather(work, stage, d_k, d_v)) return;
    if (params.push.d_v)
      store_rows<T, D>(stage, kPanel, d_v, 1.f, params.push.d_v, u.d_v, work, first_key, work.keys,
                       0, u.head_dim_v);
    if (params.push.d_k)
      store_rows<T, D>(stage, kPanel, d_k, u.scale, params.push.d_k, u.d_k, work, first_key,
                       work.keys, 0, u.head_dim);
  }
}

// Which gradients the kernel of a row stores. Row: of src/kernels/kernels.inc, as a type.
template <typename Row>
struct StoredGradients {
  static constexpr bool kQ = Row::stem == Stem::bwd_dkv_dq && !Row::has(trait::d_kv_alone),
                        kKv = !Row::has(trait::d_q_alone);
};

template <typename T, int TILE, typename Row, typename Variant>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq(const __grid_constant__ typename Variant::Params params) {
  constexpr bool GRAD_Q = StoredGradients<Row>::kQ, GRAD_KV = StoredGradients<Row>::kKv;
  // bwd_dq_cast may start on SMs that are free.
  if constexpr (GRAD_Q) launch_dependent_grids();
  BwdWorkTile work;
  if (!BwdStaticTileScheduler<TILE, Variant>(params).next(&work)) return;
  // With two nested conditions in place of one, what follows from them stays in uniform registers:
  // 3 % of the time at D 64.
  if constexpr (Variant::kAnyOrder)
    if (params.block.deterministic == 0) work.reversed = Variant::reversed(params);
  const BwdSharedStorage<TILE, Variant> memory{shared_address(aligned_shared_memory())};
  if (threadIdx.x == 0) {
    Variant::template init<TILE>(memory);
    Barriers<TILE>(memory.barriers()).init();
  }
  Variant::sync();
  int packed_tiles = 0;
  if constexpr (Variant::kIsVarlen) packed_tiles = params.packed_tiles;
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<Variant::Registers::kProducer>();
    const int warp = int(threadIdx.x) / 32;
    if (warp == 0) {
      load_tiles(params, work, memory);
    } else if (warp > Variant::kDqWarps) {
      if constexpr (GRAD_Q && Variant::kLazyZero) zero_next_head(params, work);
      Variant::template run_auxiliary<T>(params, work, memory);
    } else if constexpr (GRAD_Q) {
      accumulate_dq(params, work, memory, packed_tiles, Variant::kDqWarps == 1 ? 0 : warp - 1);
    }
  } else {
    warpgroup_reg_alloc<Variant::Registers::kConsumer>();
    main_loop<T, TILE, Variant, GRAD_Q, GRAD_KV>(params, work, memory);
    if constexpr (GRAD_Q) {
      if (wait_last(memory)) postprocess_dq<T, TILE, Variant>(params, work, packed_tiles);
    }
    if constexpr (std::is_base_of<BwdDkvDqParams, typename Variant::Params>::value)
      reduce_head_gradients<Variant>(params, work, memory.q(0));
  }
  Variant::leave();
}

// Persistent bwd_dkv_dq: as many workgroups as the device runs at a time, each of which takes one
// tile of keys after the other. All gradients are formed; bwd_dq_cast does the dQ postprocess.
template <typename T, int TILE, typename Row, typename Variant>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq_persistent(const __grid_constant__ typename Variant::Params params) {
  using Scheduler = DynamicTileScheduler<TILE, Variant>;
  using M = BwdSharedStorage<TILE, Variant>;
  launch_dependent_grids();  // as in bwd_dkv_dq
  if (threadIdx.x == 0) {
    const M memory{shared_address(aligned_shared_memory())};
    Variant::template init<TILE>(memory);
    Barriers<TILE>(memory.barriers()).init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<Variant::Registers::kProducer>();
    const int warp = __shfl_sync(~0u, read_tid_x() / 32, 0);
    if (warp == 0)
      load_work_tiles<TILE, Variant, Scheduler>(params);
    else if (warp > Variant::kDqWarps)
      for_each_work_tile<TILE, Variant, Scheduler, true>(params,
                                                         [&](const M&, const BwdWorkTile& work) {
                                                           if constexpr (Variant::kLazyZero)
                                                             zero_next_head(params, work);
                                                         });
    else
      for_each_work_tile<TILE, Variant, Scheduler, true>(params, [&](const M& here,
                                                                     const BwdWorkTile& work) {
        accumulate_dq<false, true>(params, work, here, 0, Variant::kDqWarps == 1 ? 0 : warp - 1);
      });
  } else {
    warpgroup_reg_alloc<Variant::Registers::kConsumer>();
    for_each_work_tile<TILE, Variant, Scheduler, false>(
        params, [&](const M& here, const BwdWorkTile& work) {
          main_loop<T, TILE, Variant, true, true, true>(params, work, here);
        });
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
