// SPDX-License-Identifier: MIT OR Apache-2.0
// What the consumer warpgroups of both sides do (two_sides.cuh): products, adds to the dQ
// accumulator, and the store of d_k or d_v.
#ifndef TANDEM_CUDA_SM90_BWD_TWO_SIDED_CONSUMER_CUH
#define TANDEM_CUDA_SM90_BWD_TWO_SIDED_CONSUMER_CUH
#include "dq_semaphore.cuh"
#include "epilogue.cuh"
#include "softmax.cuh"
#include "two_sides.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// A query tile, as the adds to its dQ need it.
struct DqTile {
  uint block;  // of 64 rows, over all heads of the batch
  int t;       // within the head
};

// A consumer warpgroup. The arrays are variables of the main loop.
template <typename T, typename S>
struct TwoSidedConsumer {
  using Stages = PipelineState<S::STAGES>;
  static constexpr int kGradient = S::HALF * kPanel, kDq = S::DQ_WIDTH * kPanel;  // columns
  const BwdDkvDqPartsParams& params;
  const BwdWorkTile& work;
  const SideStorage<S>& shared;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  float (&s)[16];                    // scores, weights or dP of 64 queries and 32 keys
  float (&gradient)[kGradient / 2];  // of d_k or d_v, with `odd`
  float (&odd)[16], (&dq)[kDq / 2], (&dq_odd)[16];
  Stages scores, products;  // the first stage of a tile for S or dP, and for d_k or d_v

  TANDEM_DEVICE TwoSidedConsumer(const BwdDkvDqPartsParams& of, const BwdWorkTile& tile,
                                 const SideStorage<S>& at, float (&elements)[16],
                                 float (&sums)[kGradient / 2], float (&sums_odd)[16],
                                 float (&queries)[kDq / 2], float (&queries_odd)[16])
      : params(of),
        work(tile),
        shared(at),
        s(elements),
        gradient(sums),
        odd(sums_odd),
        dq(queries),
        dq_odd(queries_odd) {
    clear(gradient);
    if constexpr (S::ODD) clear(odd);
  }

  TANDEM_DEVICE static int thread() { return read_tid_x() % 128; }
  // The first of the thread's two rows of queries.
  TANDEM_DEVICE static int row() { return thread() / 32 * 16 + thread() % 32 / 4; }
  TANDEM_DEVICE static Stages further(Stages from, int count) {
    from.next_few(count);
    return from;
  }
  TANDEM_DEVICE int head(const QSteps& step) const {
    return work.head_kv * params.block.group + step.n;
  }
  // Index of the first row of a query head in lse and delta.
  TANDEM_DEVICE int64_t first_row(const QSteps& step) const {
    return (int64_t(work.batch) * params.block.heads_q + head(step)) * params.block.seq_q;
  }
  TANDEM_DEVICE DqTile dq_tile(const QSteps& step) const {
    const BwdDkvDqBlock& u = params.block;
    const int t = work.q_tile(step.at);
    return {uint(work.batch * u.heads_q + head(step)) * (uint(u.seq_q + 63) / 64) + uint(t), t};
  }
  // The other side sends so many bytes in a step.
  TANDEM_DEVICE void expect(int bytes) const {
    if (read_tid_x() == 128) mbarrier_arrive_expect_tx(shared.received(), bytes);
  }

  // Issues panels FROM to TO of S = Q K^T or dP = dO V^T, of this warpgroup's keys.
  template <int FROM, int TO>
  TANDEM_DEVICE void product_s() {
#pragma unroll
    for (int p = FROM; p < TO; ++p, scores.next()) {
      mbarrier_wait(shared.full(scores.stage()), scores.phase());
      const uint64_t a = k_major(opaque(shared.stage(scores.stage()))),
                     b = k_major(opaque(shared.own() + warpgroup * (S::PANEL_BYTES / 2)) +
                                 p * S::PANEL_BYTES);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kPanel / 16; ++k)
        Wgmma<T, 32>::template ss<0, 0>(s, advance(a, k * 32), advance(b, k * 32), p + k > 0);
    }
    wgmma_commit_group();
  }
  // Issues dK += dS^T Q or dV += P^T dO. left: dS or P, [query][key].
  TANDEM_DEVICE void product_gradient(uint left) {
    const Stages own = further(products, warpgroup * S::HALF);
    const uint64_t a = mn_major(opaque(left), S::PANEL_BYTES),
                   b = mn_major(opaque(shared.stage(own.stage())), S::PANEL_BYTES);
    uint64_t b_odd = 0;
    if constexpr (S::ODD)
      b_odd =
          mn_major(opaque(shared.stage(further(products, 2 * S::HALF).stage())) + warpgroup * 64,
                   S::PANEL_BYTES);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::ROWS / 16; ++k) {
      Wgmma<T, kGradient>::template ss<1, 1>(gradient, advance(a, k * 16 * kPanelBytes),
                                             advance(b, k * 16 * kPanelBytes), 1);
      if constexpr (S::ODD)
        Wgmma<T, 32>::template ss<1, 1>(odd, advance(a, k * 16 * kPanelBytes),
                                        advance(b_odd, k * 16 * kPanelBytes), 1);
    }
    wgmma_commit_group();
  }
  // Issues the n-th product of dQ = dS K; the last one has the shared panel, too.
  template <int n>
  TANDEM_DEVICE void product_dq() {
    constexpr bool kOdd = S::DQ_ODD && n == S::DQ_PRODUCTS - 1;
    const uint64_t a = k_major(opaque(shared.ds())),
                   b = mn_major(opaque(shared.dq_k() +
                                       (warpgroup * S::DQ_HALF + n * S::DQ_WIDTH) * S::PANEL_BYTES),
                                S::PANEL_BYTES);
    uint64_t b_odd = 0;
    if constexpr (kOdd)
      b_odd = mn_major(opaque(shared.dq_k() + 2 * S::DQ_HALF * S::PANEL_BYTES + warpgroup * 64),
                       S::PANEL_BYTES);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::ROWS / 16; ++k) {
      Wgmma<T, kDq>::template ss<0, 1>(dq, advance(a, k * 32), advance(b, k * 16 * kPanelBytes),
                                       k > 0);
      if constexpr (kOdd)
        Wgmma<T, 32>::template ss<0, 1>(dq_odd, advance(a, k * 32),
                                        advance(b_odd, k * 16 * kPanelBytes), k > 0);
    }
    wgmma_commit_group();
  }
  // This warpgroup reads the stages of a tile no more.
  TANDEM_DEVICE void release() {
    if (thread() < S::PANELS) mbarrier_arrive(shared.empty(further(products, thread()).stage()));
    __syncwarp();
    products.next_few(S::PANELS);
  }

  // ---- dQ ---------------------------------------------------------------------------------------

  TANDEM_DEVICE uint* semaphore(const DqTile& tile) const {
    return reinterpret_cast<uint*>(params.push.dq_semaphores) + tile.block;
  }
  // Adds columns of x to the accumulator, 8 at a time. column8: the first column of x, over 8.
  template <int FROM, int TO, int N>
  TANDEM_DEVICE void add(const float (&x)[N], const DqTile& tile, int column8) const {
    const uint64_t to = params.push.d_q_accum +
                        (uint64_t(tile.block) * S::DQ_ALL_PANELS * 8 + uint(column8)) * 2048 +
                        16 * uint(thread());
#pragma unroll
    for (int i = FROM; i < TO; ++i)
      red_add_v4_f32(to + 2048 * i,
                     make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]));
  }
  // Adds thirds FROM to TO of the n-th product of dQ. Adds are slow, and what reads shared memory
  // waits behind them, so they are spread over the time that products take.
  template <int n, int FROM, int TO>
  TANDEM_DEVICE void add_thirds(const DqTile& tile) const {
    if (params.push.d_q_accum == 0) return;  // d_q is not wanted
    constexpr int kPieces = kDq / 8;
    add<kPieces * FROM / 3, kPieces * TO / 3>(
        dq, tile, 8 * (S::DQ_FIRST + warpgroup * S::DQ_HALF + n * S::DQ_WIDTH));
    if constexpr (TO == 3 && S::DQ_ODD && n == S::DQ_PRODUCTS - 1)
      add<0, 4>(dq_odd, tile, 8 * (S::DQ_FIRST + 2 * S::DQ_HALF) + 4 * warpgroup);
  }
  // Before and after the adds of a tile. In a deterministic order, four warpgroups of each earlier
  // tile of keys have added theirs before.
  TANDEM_DEVICE bool adds_in_order() const {
    return params.block.deterministic && params.push.d_q_accum;
  }
  TANDEM_DEVICE void begin_adds(const DqTile& tile) const {
    if (!adds_in_order()) return;
    if (thread() == 0)
      semaphore_wait(semaphore(tile), 4 * dq_order<S::TILE>(params.block, work, tile.t));
    named_barrier_sync(kWarpgroup + warpgroup, 128);
  }
  TANDEM_DEVICE void end_adds(const DqTile& tile) const {
    if (!adds_in_order()) return;
    __threadfence();
    named_barrier_sync(kWarpgroup + warpgroup, 128);
    if (thread() == 0) semaphore_release(semaphore(tile));
  }

  // ---- d_k or d_v -------------------------------------------------------------------------------

  // Sums d_k or d_v over the workgroups that share the tile of keys, in the order of the parts.
  // Returns false in all but the last one.
  TANDEM_DEVICE bool gather() {
    constexpr int kOwn = kGradient / 8, kFours = kOwn + (S::ODD ? 4 : 0);  // float4 of a thread
    const int place = 4 * work.shared + (S::KEYS ? 0 : 2) + warpgroup;
    float4* const all = reinterpret_cast<float4*>(params.dkv_partials) +
                        int64_t(place) * params.most_parts * S::PARTIAL_FOURS + thread();
    float4* mine = all + work.part * (kFours * 128);
    const auto put = [&](const auto& x, int first) {
#pragma unroll
      for (int i = 0; i < int(sizeof x / 16); ++i)
        mine[(first + i) * 128] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    };
    put(gradient, 0);
    if constexpr (S::ODD) put(odd, kOwn);
    __threadfence();
    named_barrier_sync(kWarpgroup + warpgroup, 128);
    if (thread() == 0)
      st_shared(shared.word(warpgroup),
                atomicAdd(reinterpret_cast<int*>(params.dkv_partial_counts) + place, 1));
    named_barrier_sync(kWarpgroup + warpgroup, 128);
    if (ld_shared_s32(shared.word(warpgroup)) != work.parts - 1) return false;
    __threadfence();
    clear(gradient);
    if constexpr (S::ODD) clear(odd);
    const float4* from = all;
    const auto sum = [&](auto& x, int first) {
#pragma unroll
      for (int i = 0; i < int(sizeof x / 16); ++i) {
        const float4 y = __ldcg(from + (first + i) * 128);
        x[4 * i] += y.x, x[4 * i + 1] += y.y, x[4 * i + 2] += y.z, x[4 * i + 3] += y.w;
      }
    };
#pragma unroll 1
    for (int part = 0; part < work.parts; ++part, from += kFours * 128) {
      sum(gradient, 0);
      if constexpr (S::ODD) sum(odd, kOwn);
    }
    return true;
  }
  // Stores d_k, times the scale, or d_v, by way of K's or V's shared memory.
  TANDEM_DEVICE void store() {
    const BwdDkvDqBlock& u = params.block;
    const uint64_t to = S::KEYS ? params.push.d_k : params.push.d_v;
    named_barrier_sync<kDsRead>(256);  // no warpgroup reads K or V any more
    if (work.parts > 1 && !gather()) return;
    if (to == 0) return;
    const uint stage = shared.own() + warpgroup * S::HALF * S::PANEL_BYTES;
    const Strides& strides = S::KEYS ? u.d_k : u.d_v;
    const float scale = S::KEYS ? u.scale : 1.f;
    const int width = S::KEYS ? u.head_dim : u.head_dim_v;
    store_rows<T, kGradient>(stage, S::PANEL_BYTES, gradient, scale, to, strides, work, work.col0,
                             u.seq_kv, warpgroup * kGradient, width);
    if constexpr (S::ODD)
      store_rows<T, 32>(stage, S::PANEL_BYTES, odd, scale, to, strides, work, work.col0, u.seq_kv,
                        2 * kGradient + 32 * warpgroup, width);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
