// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq for head sizes of 129 to 256: d_q = dS K over all keys of a row. S and dP are formed here once more: for such heads
// that takes less time than what the sums of d_q over the tiles of keys would add to device memory. A workgroup keeps Q and
// dO of 128 queries, 64 for each of two warpgroups, and takes K and V tile by tile; dS is the left operand of dS K as it lies
// in registers. While a warpgroup computes weights, dS K of its keys before, and the other's products, are on their way.
#ifndef TANDEM_CUDA_SM90_BWD_DQ_CUH
#define TANDEM_CUDA_SM90_BWD_DQ_CUH
#include "../tensor.cuh"
#include "bwd_sets.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

struct DqWalk {
  int batch, head, row0;
  TandemBand band;
  TandemTiles span;
};

template <int ROW>
struct DqMemory {
  static constexpr DqShape S = kDqShapes[ROW];
  static constexpr int kPanels = S.d / 64, kQPanel = S.br * 128, kKPanel = S.bc * 128;
  static constexpr int kPlace = kPanels * kKPanel, kAtK = dq_at_k(S),
                       kAtBarriers = dq_at_barriers(S);
  uint base;
  TANDEM_DEVICE uint q() const { return base; }
  TANDEM_DEVICE uint d_o() const { return base + kPanels * kQPanel; }
  TANDEM_DEVICE uint k(int stage) const { return base + kAtK + stage * kPlace; }
  TANDEM_DEVICE uint v(int stage) const { return k(S.k_stages + stage); }
  // Q, dO; then K full, K empty, V full, V empty.
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
    barrier_init(q_full(), 1);
    barrier_init(do_full(), 1);
    for (int stage = 0; stage < S.k_stages; ++stage) {
      barrier_init(k_full(stage), 1);
      barrier_init(k_empty(stage), 8);
    }
    for (int stage = 0; stage < S.v_stages; ++stage) {
      barrier_init(v_full(stage), 1);
      barrier_init(v_empty(stage), 8);
    }
    barrier_init_done();
  }
};

// One thread.
template <int ROW>
TANDEM_DEVICE void load_dq(const BwdDkvWithDqParams& params, const DqWalk& walk,
                           const DqMemory<ROW>& memory) {
  constexpr DqShape S = kDqShapes[ROW];
  using M = DqMemory<ROW>;
  const int head_kv = walk.head / params.dq.block.group;
  const auto copy = [&](uint to, int panel, const CUtensorMap* map, uint full, int row, int head) {
    barrier_expect(full, M::kPanels * panel);
    for (int c = 0; c < M::kPanels; ++c)
      copy_box(to + c * panel, map, full, 64 * c, row, head, walk.batch);
  };
  copy(memory.q(), M::kQPanel, &params.q, memory.q_full(), walk.row0, walk.head);
  Turn<S.k_stages> k;
  Turn<S.v_stages> v;
#pragma unroll 1
  for (int t = walk.span.begin; t < walk.span.end; ++t, k.next(), v.next()) {
    barrier_wait(memory.k_empty(k.stage), k.parity ^ 1);
    copy(memory.k(k.stage), M::kKPanel, &params.k, memory.k_full(k.stage), t * S.bc, head_kv);
    if (t == walk.span.begin)
      copy(memory.d_o(), M::kQPanel, &params.d_o, memory.do_full(), walk.row0, walk.head);
    barrier_wait(memory.v_empty(v.stage), v.parity ^ 1);
    copy(memory.v(v.stage), M::kKPanel, &params.v, memory.v_full(v.stage), t * S.bc, head_kv);
  }
}

template <typename T, int ROW>
TANDEM_DEVICE void multiply_dq(const BwdDkvWithDqParams& params, const DqWalk& walk,
                               const DqMemory<ROW>& memory) {
  constexpr DqShape S = kDqShapes[ROW];
  using M = DqMemory<ROW>;
  constexpr int BC = S.bc, D = S.d;
  const BwdDqBlock& u = params.dq.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const uint own = uint(group) * 64 * 128;  // this warpgroup's queries in a panel
  const float scale2 = u.scale * kLog2e;
  // The first of the thread's two rows. Asked for anew: registers are short.
  const auto row = [&] {
    const int thread = fresh_thread() - 128;
    return walk.row0 + thread / 32 * 16 + thread % 32 / 4;
  };
  const int64_t rows0 = (int64_t(walk.batch) * u.heads_q + walk.head) * u.seq_q;

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
    if (fresh_thread() % 32 == 0) barrier_arrive(barrier);
  };
  // n: how many tiles came before.
  const auto product_s = [&](int n) {
    barrier_wait(memory.k_full(n % S.k_stages), n / S.k_stages % 2);
    const uint64_t q = along(fresh(memory.q() + own)),
                   k_tile = along(fresh(memory.k(n % S.k_stages)));
    fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      Product<T, BC>::template from_shared<0, 0>(s, further(q, k / 4 * M::kQPanel + k % 4 * 32),
                                                 further(k_tile, k / 4 * M::kKPanel + k % 4 * 32),
                                                 k > 0);
    commit();
  };
  const auto product_dp = [&](int n) {
    barrier_wait(memory.v_full(n % S.v_stages), n / S.v_stages % 2);
    const uint64_t d_o = along(fresh(memory.d_o() + own)),
                   v_tile = along(fresh(memory.v(n % S.v_stages)));
    fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      Product<T, BC>::template from_shared<0, 0>(dp, further(d_o, k / 4 * M::kQPanel + k % 4 * 32),
                                                 further(v_tile, k / 4 * M::kKPanel + k % 4 * 32),
                                                 k > 0);
    commit();
  };
  const auto weigh = [&](int t) {
    if (__any_sync(kAllLanes, (lse[0] == kFarLse) | (lse[1] == kFarLse))) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const FarRows rows(params.dq.push, rows0 + row() + 8 * r, u.seq_q - (row() + 8 * r));
        const FarRow far = rows[0];
        const float l = lse[r] == kFarLse ? rows.relative(0) * kLog2e : lse[r];
#pragma unroll
        for (int i = 0; i < BC / 2; ++i)
          if (i / 2 % 2 == r)
            s[i] = exp2_fast(fmaf(far.from_origin(__fmul_rn(u.scale, s[i])), kLog2e, -l));
      }
    } else {
#pragma unroll
      for (int i = 0; i < BC / 2; ++i) s[i] = exp2_fast(fmaf(s[i], scale2, -lse[i / 2 % 2]));
    }
    if (t < walk.span.full_begin || t >= walk.span.full_end) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // Keys that the row sees, from the thread's first one on.
        const int i = row() + 8 * r + u.band_off, key = t * BC + 2 * (fresh_thread() % 4);
        const int low = i - u.band_left - key;
        const int high = min(i + u.band_right, u.seq_kv - 1) - key;
#pragma unroll
        for (int j = 0; j < BC / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if ((8 * j + e < low) | (8 * j + e > high)) s[4 * j + 2 * r + e] = 0.f;
      }
    }
    settle(s);
  };
  uint ds[BC / 4];
  const auto differentiate = [&] {
#pragma unroll
    for (int i = 0; i < BC / 4; ++i)
      ds[i] = T::pack(s[2 * i] * (dp[2 * i] - delta[i % 2]),
                      s[2 * i + 1] * (dp[2 * i + 1] - delta[i % 2]));
  };
  const auto product_dq = [&](int n) {
    const uint64_t k_tile = across(fresh(memory.k(n % S.k_stages)), M::kKPanel);
    fence();
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
      Product<T, D>::template from_registers<1>(d_q, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2],
                                                ds[4 * k + 3], further(k_tile, k * 2048), 1);
    commit();
  };

  const int tiles = walk.span.end - walk.span.begin;
  if (tiles > 0) {
    barrier_wait(memory.q_full(), 0);
    product_s(0);
    barrier_wait(memory.do_full(), 0);
    product_dp(0);
    wait<1>();
    weigh(walk.span.begin);
    wait<0>();
    release(memory.v_empty(0));
    differentiate();
#pragma unroll 1
    for (int n = 1; n < tiles; ++n) {
      product_dq(n - 1);
      product_s(n);
      product_dp(n);
      wait<2>();
      release(memory.k_empty((n - 1) % S.k_stages));
      wait<1>();
      weigh(walk.span.begin + n);
      // Behind a branch, as in fwd.cu: there are always keys.
      if (u.seq_kv > 0) {
        wait<0>();
      } else {
        wait<0>();
#pragma unroll
        for (int i = 0; i < BC / 2; ++i) dp[i] = 0.f;
      }
      release(memory.v_empty(n % S.v_stages));
      differentiate();
    }
    product_dq(tiles - 1);
    wait<0>();
  }
  // Through this warpgroup's rows of Q.
  named_sync(kGroup + group, 128);
  Walk to{};
  to.batch = walk.batch, to.head_kv = walk.head;
  store_rows<T, D>(memory.q() + own, M::kQPanel, d_q, u.scale, params.dq.push.d_q, u.d_q, to,
                   walk.row0 + 64 * group, u.seq_q, 0, u.head_dim);
}

// The workgroup with this number among those of bwd_dq.
template <int ROW>
TANDEM_DEVICE bool find_dq_walk(const BwdDqBlock& u, uint index, DqWalk* walk) {
  constexpr DqShape S = kDqShapes[ROW];
  if (index >= u.total) return false;
  const uint head = index / u.tiles;
  walk->batch = int(head / uint(u.heads_q)), walk->head = int(head % uint(u.heads_q));
  walk->row0 = int(u.tiles - 1 - index % u.tiles) * S.br;
  walk->band = mask_band(u);
  walk->span = tandem_key_tiles(walk->band, walk->row0, S.br, S.bc, u.seq_q, u.seq_kv);
  return true;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
