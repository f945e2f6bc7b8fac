// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq for head sizes of 129 to 256: d_q = dS K over all keys of a row. S and dP are formed here
// a second time. For wide heads that takes less time than a dQ accumulator, summed over the tiles
// of keys, would take in device memory. A workgroup keeps Q and dO of 128 queries, 64 for each of
// two warpgroups, and takes K and V tile by tile. dS is the A operand of dS K as it lies in
// registers. While a warpgroup computes weights, dS K of its keys before and the products of the
// other warpgroup are in flight.
#ifndef TANDEM_CUDA_SM90_BWD_DQ_CUH
#define TANDEM_CUDA_SM90_BWD_DQ_CUH
#include <type_traits>

#include "../../parts/tensor.cuh"
#include "../softcap.cuh"
#include "variant_plain.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

struct DqWorkTile {
  int batch, head, row0;
  TandemBand band;
  TandemTiles span;
};

template <int TILE>
struct DqSharedStorage {
  static constexpr DqShape S = kDqShapes[TILE];
  static constexpr int kPanels = S.d / 64, kVPanels = S.dv / 64, kQPanel = S.br * 128,
                       kKPanel = S.bc * 128;
  static constexpr int kAtK = dq_at_k(S), kAtV = dq_at_v(S), kAtBarriers = dq_at_barriers(S);
  uint base;
  TANDEM_DEVICE uint q() const { return base; }
  TANDEM_DEVICE uint d_o() const { return base + kPanels * kQPanel; }
  TANDEM_DEVICE uint k(int stage) const { return base + kAtK + stage * kPanels * kKPanel; }
  TANDEM_DEVICE uint v(int stage) const { return base + kAtV + stage * kVPanels * kKPanel; }
  // mbarriers: Q full and dO full; then K full, K empty, V full and V empty, each for all stages.
  TANDEM_DEVICE uint barrier(int n) const { return base + kAtBarriers + 8 * n; }
  TANDEM_DEVICE uint q_full() const { return barrier(0); }
  TANDEM_DEVICE uint do_full() const { return barrier(1); }
  TANDEM_DEVICE uint k_full(int stage) const { return barrier(2 + stage); }
  TANDEM_DEVICE uint k_empty(int stage) const { return barrier(2 + S.k_stages + stage); }
  TANDEM_DEVICE uint v_full(int stage) const { return barrier(2 + 2 * S.k_stages + stage); }
  TANDEM_DEVICE uint v_empty(int stage) const {
    return barrier(2 + 2 * S.k_stages + S.v_stages + stage);
  }
  TANDEM_DEVICE void init() const {
    mbarrier_init(q_full(), 1);
    mbarrier_init(do_full(), 1);
    for (int stage = 0; stage < S.k_stages; ++stage) {
      mbarrier_init(k_full(stage), 1);
      mbarrier_init(k_empty(stage), 8);
    }
    for (int stage = 0; stage < S.v_stages; ++stage) {
      mbarrier_init(v_full(stage), 1);
      mbarrier_init(v_empty(stage), 8);
    }
    fence_mbarrier_init();
  }
};

// Loads Q and dO, then K and V tile by tile, by one thread.
template <int TILE>
TANDEM_DEVICE void load_dq(const BwdDkvWithDqParams& params, const DqWorkTile& work,
                           const DqSharedStorage<TILE>& memory) {
  constexpr DqShape S = kDqShapes[TILE];
  using M = DqSharedStorage<TILE>;
  const int head_kv = work.head / params.dq.block.group;
  const auto copy = [&](auto panels, uint to, int panel, const CUtensorMap* map, uint full, int row,
                        int head) {
    constexpr int kCount = decltype(panels)::value;
    mbarrier_arrive_expect_tx(full, kCount * panel);
    for (int c = 0; c < kCount; ++c)
      tma_load(to + c * panel, map, full, 64 * c, row, head, work.batch);
  };
  const std::integral_constant<int, M::kPanels> of_k;
  const std::integral_constant<int, M::kVPanels> of_v;
  copy(of_k, memory.q(), M::kQPanel, &params.q, memory.q_full(), work.row0, work.head);
  PipelineState<S.k_stages> k;
  PipelineState<S.v_stages> v;
#pragma unroll 1
  for (int t = work.span.begin; t < work.span.end; ++t, k.next(), v.next()) {
    mbarrier_wait(memory.k_empty(k.stage()), k.phase() ^ 1);
    copy(of_k, memory.k(k.stage()), M::kKPanel, &params.k, memory.k_full(k.stage()), t * S.bc,
         head_kv);
    if (t == work.span.begin)
      copy(of_v, memory.d_o(), M::kQPanel, &params.d_o, memory.do_full(), work.row0, work.head);
    mbarrier_wait(memory.v_empty(v.stage()), v.phase() ^ 1);
    copy(of_v, memory.v(v.stage()), M::kKPanel, &params.v, memory.v_full(v.stage()), t * S.bc,
         head_kv);
  }
}

template <typename T, int TILE, bool SOFTCAP>
TANDEM_DEVICE void main_loop_dq(const BwdDkvWithDqParams& params, const DqWorkTile& work,
                                const DqSharedStorage<TILE>& memory) {
  constexpr DqShape S = kDqShapes[TILE];
  using M = DqSharedStorage<TILE>;
  constexpr int BC = S.bc, D = S.d, DV = S.dv;
  const BwdDqBlock& u = params.dq.block;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const uint own = uint(warpgroup) * 64 * 128;  // this warpgroup's queries in a panel
  const float scale2 = u.scale * kLog2e;
  // The first of the thread's two rows, computed again for each use, as registers are short.
  const auto row = [&] {
    const int thread = read_tid_x() - 128;
    return work.row0 + thread / 32 * 16 + thread % 32 / 4;
  };
  const int64_t rows0 = (int64_t(work.batch) * u.heads_q + work.head) * u.seq_q;

  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row() + 8 * r;
    const float x = i < u.seq_q
                        ? __ldg(reinterpret_cast<const float*>(params.dq.push.lse) + rows0 + i)
                        : minus_infinity();
    lse[r] = x == minus_infinity() ? -x : tandem_is_far(x) ? kFarLse : x * kLog2e;
    delta[r] =
        i < u.seq_q ? __ldg(reinterpret_cast<const float*>(params.dq.push.delta) + rows0 + i) : 0.f;
  }
  float d_q[D / 2], s[BC / 2], dp[BC / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) d_q[i] = 0.f;

  const auto release = [&](uint barrier) {
    __syncwarp();
    if (read_tid_x() % 32 == 0) mbarrier_arrive(barrier);
  };
  // n: number of tiles before.
  const auto product_s = [&](int n) {
    mbarrier_wait(memory.k_full(n % S.k_stages), n / S.k_stages % 2);
    const uint64_t q = k_major(opaque(memory.q() + own)),
                   k_tile = k_major(opaque(memory.k(n % S.k_stages)));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      Wgmma<T, BC>::template ss<0, 0>(s, advance(q, k / 4 * M::kQPanel + k % 4 * 32),
                                      advance(k_tile, k / 4 * M::kKPanel + k % 4 * 32), k > 0);
    wgmma_commit_group();
  };
  // dO of heads of values up to 128 is the A operand in registers: shared memory then reads half as
  // much for a product.
  constexpr bool kHoldsDo = DV <= 128;
  [[maybe_unused]] uint d_o_rows[kHoldsDo ? DV / 16 : 1][4];
  const auto product_dp = [&](int n) {
    mbarrier_wait(memory.v_full(n % S.v_stages), n / S.v_stages % 2);
    if constexpr (kHoldsDo) {
      const uint64_t v_tile = k_major(opaque(memory.v(n % S.v_stages)));
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < DV / 16; ++k)
        Wgmma<T, BC>::template rs<0>(dp, d_o_rows[k][0], d_o_rows[k][1], d_o_rows[k][2],
                                     d_o_rows[k][3],
                                     advance(v_tile, k / 4 * M::kKPanel + k % 4 * 32), k > 0);
      wgmma_commit_group();
      return;
    }
    const uint64_t d_o = k_major(opaque(memory.d_o() + own)),
                   v_tile = k_major(opaque(memory.v(n % S.v_stages)));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DV / 16; ++k)
      Wgmma<T, BC>::template ss<0, 0>(dp, advance(d_o, k / 4 * M::kQPanel + k % 4 * 32),
                                      advance(v_tile, k / 4 * M::kKPanel + k % 4 * 32), k > 0);
    wgmma_commit_group();
  };
  const auto weigh = [&](int t) {
    [[maybe_unused]] SoftcapDerivatives<SOFTCAP ? BC / 2 : 2> left;
    if (__any_sync(kAllLanes, (lse[0] == kFarLse) | (lse[1] == kFarLse))) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const FarRows rows(params.dq.push, rows0 + row() + 8 * r, u.seq_q - (row() + 8 * r));
        const FarRow far = rows[0];
        const float l = lse[r] == kFarLse ? rows.relative(0) * kLog2e : lse[r];
        const float inverse = SOFTCAP ? __fdividef(1.f, params.softcap) : 0.f;
#pragma unroll
        for (int i = 2 * r; i < BC / 2; i += 4) {
          if constexpr (SOFTCAP)
            left.cap_far(s, i, u.scale, params.softcap, inverse);
          else
            s[i] = __fmul_rn(u.scale, s[i]), s[i + 1] = __fmul_rn(u.scale, s[i + 1]);
#pragma unroll
          for (int e = i; e < i + 2; ++e) s[e] = exp2_fast(fmaf(far.from_origin(s[e]), kLog2e, -l));
        }
      }
    } else {
      if constexpr (SOFTCAP) left.cap(s, u.scale, params.softcap);
#pragma unroll
      for (int i = 0; i < BC / 2; ++i)
        s[i] = exp2_fast(fmaf(s[i], SOFTCAP ? 1.f : scale2, -lse[i / 2 % 2]));
    }
    if constexpr (SOFTCAP) left.multiply(s);
    if (t < work.span.full_begin || t >= work.span.full_end) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // The first and the last key that the row sees, relative to the thread's first key.
        const int i = row() + 8 * r + u.band_off, key = t * BC + 2 * (read_tid_x() % 4);
        const int low = i - u.band_left - key;
        const int high = min(i + u.band_right, u.seq_kv - 1) - key;
#pragma unroll
        for (int j = 0; j < BC / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if ((8 * j + e < low) | (8 * j + e > high)) s[4 * j + 2 * r + e] = 0.f;
      }
    }
    optimization_barrier(s);
  };
  uint ds[BC / 4];
  const auto differentiate = [&] {
#pragma unroll
    for (int i = 0; i < BC / 4; ++i)
      ds[i] = T::pack(s[2 * i] * (dp[2 * i] - delta[i % 2]),
                      s[2 * i + 1] * (dp[2 * i + 1] - delta[i % 2]));
  };
  const auto product_dq = [&](int n) {
    const uint64_t k_tile = mn_major(opaque(memory.k(n % S.k_stages)), M::kKPanel);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
      Wgmma<T, D>::template rs<1>(d_q, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3],
                                  advance(k_tile, k * 2048), 1);
    wgmma_commit_group();
  };

  const int tiles = work.span.end - work.span.begin;
  if (tiles > 0) {
    mbarrier_wait(memory.q_full(), 0);
    product_s(0);
    mbarrier_wait(memory.do_full(), 0);
    if constexpr (kHoldsDo) {
      const int thread = read_tid_x() % 128;
#pragma unroll
      for (int k = 0; k < DV / 16; ++k)
        ldmatrix_x4(d_o_rows[k],
                    memory.d_o() + own + uint(k / 4 * M::kQPanel) +
                        swizzle_128b(thread / 32 * 16 + thread % 16, k % 4 * 2 + thread % 32 / 16));
    }
    product_dp(0);
    wgmma_wait_group<1>();
    weigh(work.span.begin);
    wgmma_wait_group<0>();
    release(memory.v_empty(0));
    differentiate();
#pragma unroll 1
    for (int n = 1; n < tiles; ++n) {
      product_dq(n - 1);
      product_s(n);
      product_dp(n);
      wgmma_wait_group<2>();
      release(memory.k_empty((n - 1) % S.k_stages));
      wgmma_wait_group<1>();
      weigh(work.span.begin + n);
      // Behind a branch, as in fwd/main_loop.cuh. There are always keys.
      if (u.seq_kv > 0) {
        wgmma_wait_group<0>();
      } else {
        wgmma_wait_group<0>();
#pragma unroll
        for (int i = 0; i < BC / 2; ++i) dp[i] = 0.f;
      }
      release(memory.v_empty(n % S.v_stages));
      differentiate();
    }
    product_dq(tiles - 1);
    wgmma_wait_group<0>();
  }
  // d_q passes through this warpgroup's rows of Q.
  named_barrier_sync(kWarpgroup + warpgroup, 128);
  BwdWorkTile to{};
  to.batch = work.batch, to.head_kv = work.head;
  store_rows<T, D>(memory.q() + own, M::kQPanel, d_q, u.scale, params.dq.push.d_q, u.d_q, to,
                   work.row0 + 64 * warpgroup, u.seq_q, 0, u.head_dim);
}

// The work tile number `index` of bwd_dq; false if there is none.
template <int TILE>
TANDEM_DEVICE bool find_dq_work_tile(const BwdDqBlock& u, uint index, DqWorkTile* work) {
  constexpr DqShape S = kDqShapes[TILE];
  if (index >= u.total) return false;
  const uint head = index / u.tiles;
  work->batch = int(head / uint(u.heads_q)), work->head = int(head % uint(u.heads_q));
  work->row0 = int(u.tiles - 1 - index % u.tiles) * S.br;
  work->band = mask_band(u);
  work->span = tandem_key_tiles(work->band, work->row0, S.br, S.bc, u.seq_q, u.seq_kv);
  return true;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
