// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums_dq of elastic softmax on Hopper: delta, d_q and the rows' parts of d_tau in one KV
// loop.
// ds = p M dp - delta p is linear in delta, which is known only at the end: d_q = sum p M dp k -
// delta sum p k. A workgroup keeps Q and dO of 128 queries, 64 for each of two warpgroups, and
// takes K and V tile by tile. p and p M dp are A operands as they lie in registers.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_ROW_SUMS_DQ_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_ROW_SUMS_DQ_CUH
#include "variant_elastic.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

struct RowWorkTile {
  int batch, head, row0;
  TandemBand band;
  TandemTiles span;
};

template <int TILE>
struct RowDqSharedStorage {
  static constexpr RowShape S = kRowShapes[TILE];
  static constexpr int kPanels = S.d / 64, kQPanel = S.br * 128, kKPanel = S.bc * 128;
  static constexpr int kAtK = row_at_k(S), kAtDist = row_at_dist(S),
                       kAtBarriers = row_at_barriers(S);
  uint base;
  TANDEM_DEVICE uint q() const { return base; }
  TANDEM_DEVICE uint d_o() const { return base + kPanels * kQPanel; }
  TANDEM_DEVICE uint k(int stage) const { return base + kAtK + stage * (kPanels * kKPanel); }
  TANDEM_DEVICE uint v(int stage) const { return k(S.stages + stage); }
  TANDEM_DEVICE uint dist(int stage) const { return base + kAtDist + stage * ((S.br + S.bc) * 4); }
  // mbarriers: Q and dO full; then K full, V full, K empty and V empty, each for all stages.
  TANDEM_DEVICE uint rows_full() const { return base + kAtBarriers; }
  TANDEM_DEVICE uint k_full(int stage) const { return base + kAtBarriers + 8 + 8 * stage; }
  TANDEM_DEVICE uint v_full(int stage) const { return k_full(S.stages + stage); }
  TANDEM_DEVICE uint k_empty(int stage) const { return k_full(2 * S.stages + stage); }
  TANDEM_DEVICE uint v_empty(int stage) const { return k_full(3 * S.stages + stage); }
};

// Window of the distance bias; 0: there is none.
TANDEM_DEVICE int dist_window(const BwdRowSumsDqParams& params) { return params.extra.dist_window; }

template <int TILE>
TANDEM_DEVICE void load_keys(const BwdRowSumsDqParams& params, const RowWorkTile& work,
                             const RowDqSharedStorage<TILE>& memory) {
  constexpr RowShape S = kRowShapes[TILE];
  using M = RowDqSharedStorage<TILE>;
  const BwdRowSumsDqBlock& u = params.block;
  const int lane = int(threadIdx.x) % 32, head_kv = work.head / u.group;
  const int window = dist_window(params);
  const float* dist =
      window ? reinterpret_cast<const float*>(params.push.extra[params.features.AT_DIST]) +
                   int64_t(work.head) * window
             : nullptr;
  if (lane == 0) {
    mbarrier_arrive_expect_tx(memory.rows_full(), 2 * M::kPanels * M::kQPanel);
    for (int c = 0; c < M::kPanels; ++c) {
      tma_load(memory.q() + c * M::kQPanel, &params.q, memory.rows_full(), 64 * c, work.row0,
               work.head, work.batch);
      tma_load(memory.d_o() + c * M::kQPanel, &params.d_o, memory.rows_full(), 64 * c, work.row0,
               work.head, work.batch);
    }
  }
  PipelineState<S.stages> pipe;
#pragma unroll 1
  for (int t = work.span.begin; t < work.span.end; ++t, pipe.next()) {
    const int col0 = t * S.bc;
    mbarrier_wait(memory.k_empty(pipe.stage()), pipe.phase() ^ 1);
    if (lane == 0) {
      mbarrier_arrive_expect_tx(memory.k_full(pipe.stage()), M::kPanels * M::kKPanel);
      for (int c = 0; c < M::kPanels; ++c)
        tma_load(memory.k(pipe.stage()) + c * M::kKPanel, &params.k, memory.k_full(pipe.stage()),
                 64 * c, col0, head_kv, work.batch);
    }
    if (has_dist(window, work.band.off, work.row0, S.br, col0, S.bc))
      put_dist<S.br, S.bc>(memory.dist(pipe.stage()), dist, window,
                           work.row0 + work.band.off - col0);
    __syncwarp();
    if (lane == 0) {
      mbarrier_arrive(memory.k_full(pipe.stage()));
      mbarrier_wait(memory.v_empty(pipe.stage()), pipe.phase() ^ 1);
      mbarrier_arrive_expect_tx(memory.v_full(pipe.stage()), M::kPanels * M::kKPanel);
      for (int c = 0; c < M::kPanels; ++c)
        tma_load(memory.v(pipe.stage()) + c * M::kKPanel, &params.v, memory.v_full(pipe.stage()),
                 64 * c, col0, head_kv, work.batch);
    }
    __syncwarp();
  }
}

template <typename T, int TILE>
TANDEM_DEVICE void main_loop_rows(const BwdRowSumsDqParams& params, const RowWorkTile& work,
                                  const RowDqSharedStorage<TILE>& memory) {
  constexpr RowShape S = kRowShapes[TILE];
  using M = RowDqSharedStorage<TILE>;
  constexpr int BC = S.bc, D = S.d, kQPanel = M::kQPanel, kKPanel = M::kKPanel;
  const BwdRowSumsDqBlock& u = params.block;
  const int warpgroup = int(threadIdx.x) / 128 - 1, warp = int(threadIdx.x) / 32 % 4;
  const int lane = int(threadIdx.x) % 32;
  const uint own = uint(warpgroup) * 64 * 128;
  const float scale2 = u.scale * kLog2e;
  const int row = work.row0 + 64 * warpgroup + 16 * warp + lane / 4;  // and row + 8
  const int64_t rows0 = (int64_t(work.batch) * u.heads_q + work.head) * u.seq_q;

  float lse[2], level[2], delta[2] = {}, dps[2] = {};
  const float tau =
      __ldg(reinterpret_cast<const float*>(params.push.extra[params.features.AT_TAU]) + work.head);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + 8 * r;
    const float x = i < u.seq_q ? __ldg(reinterpret_cast<const float*>(params.push.lse) + rows0 + i)
                                : minus_infinity();
    lse[r] = x == minus_infinity() ? -x : tandem_is_far(x) ? kFarLse : x * kLog2e;
    const int count = tandem_key_count(work.band, i, u.seq_q, u.seq_kv);
    level[r] = threshold(elastic_shift(tau, count));
  }
  float d_q[D / 2], p_k[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) d_q[i] = p_k[i] = 0.f;

  const auto release = [&](uint barrier) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier);
  };
  mbarrier_wait(memory.rows_full(), 0);
  PipelineState<S.stages> pipe;
#pragma unroll 1
  for (int t = work.span.begin; t < work.span.end; ++t, pipe.next()) {
    const int col0 = t * BC;
    const uint k_tile = memory.k(pipe.stage()), v_tile = memory.v(pipe.stage());
    float s[BC / 2], dp[BC / 2];
    mbarrier_wait(memory.k_full(pipe.stage()), pipe.phase());
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      Wgmma<T, BC>::template ss<0, 0>(s, k_major(memory.q() + own + k / 4 * kQPanel + k % 4 * 32),
                                      k_major(k_tile + k / 4 * kKPanel + k % 4 * 32), k > 0);
    wgmma_commit_group();
    mbarrier_wait(memory.v_full(pipe.stage()), pipe.phase());
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      Wgmma<T, BC>::template ss<0, 0>(dp,
                                      k_major(memory.d_o() + own + k / 4 * kQPanel + k % 4 * 32),
                                      k_major(v_tile + k / 4 * kKPanel + k % 4 * 32), k > 0);
    wgmma_commit_group();
    wgmma_wait_group<1>();
    const bool near = has_dist(dist_window(params), u.band_off, work.row0, S.br, col0, BC);
    if (__any_sync(kAllLanes, (lse[0] == kFarLse) | (lse[1] == kFarLse))) {
      const int window = dist_window(params);
      const float* dist =
          near ? reinterpret_cast<const float*>(params.push.extra[params.features.AT_DIST]) +
                     int64_t(work.head) * window
               : nullptr;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = row + 8 * r, first = i + u.band_off - col0 - 2 * (lane % 4);
        const FarRows rows(params.push, rows0 + i, u.seq_q - i);
        const FarRow far = rows[0];
        const float l = lse[r] == kFarLse ? rows.relative(0) * kLog2e : lse[r];
#pragma unroll
        for (int j = 0; j < BC / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[4 * j + 2 * r + e];
            const int at = first - (8 * j + e);
            x = __fmul_rn(u.scale, x);
            if (near && at >= 0 && at < window) x = __fadd_rn(x, __ldg(dist + at));
            x = exp2_fast(fmaf(far.from_origin(x), kLog2e, -l));
          }
      }
    } else if (near) {
      // Element (row r, key c) has number r - c + BC - 1. The second row's numbers are those of the
      // first row 8 keys before.
      const uint from = memory.dist(pipe.stage()) +
                        4 * (64 * warpgroup + 16 * warp + lane / 4 - 2 * (lane % 4) + BC - 1);
      float x = ld_shared_f32(from + 32), y = ld_shared_f32(from + 28);
#pragma unroll
      for (int j = 0; j < BC / 8; ++j) {
        s[4 * j + 2] = exp2_fast(fmaf(s[4 * j + 2], scale2, x - lse[1]));
        s[4 * j + 3] = exp2_fast(fmaf(s[4 * j + 3], scale2, y - lse[1]));
        x = ld_shared_f32(from - 32 * j), y = ld_shared_f32(from - 32 * j - 4);
        s[4 * j] = exp2_fast(fmaf(s[4 * j], scale2, x - lse[0]));
        s[4 * j + 1] = exp2_fast(fmaf(s[4 * j + 1], scale2, y - lse[0]));
      }
    } else {
#pragma unroll
      for (int j = 0; j < BC / 8; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          s[4 * j + 2 * r] = exp2_fast(fmaf(s[4 * j + 2 * r], scale2, -lse[r]));
          s[4 * j + 2 * r + 1] = exp2_fast(fmaf(s[4 * j + 2 * r + 1], scale2, -lse[r]));
        }
    }
    if (t < work.span.full_begin || t >= work.span.full_end || work.row0 + S.br > u.seq_q) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = row + 8 * r, first = col0 + 2 * (lane % 4);
        // The first and the last key that row i sees, relative to `first`.
        const int low = i < u.seq_q ? i + work.band.off - work.band.left - first : TANDEM_BAND_OPEN;
        const int high = tandem_min(i + work.band.off + work.band.right, u.seq_kv - 1) - first;
#pragma unroll
        for (int j = 0; j < BC / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if ((8 * j + e < low) | (8 * j + e > high)) s[4 * j + 2 * r + e] = kUnseen;
      }
    }
    wgmma_wait_group<0>();
    release(memory.v_empty(pipe.stage()));
    uint p[BC / 4], g[BC / 4];
#pragma unroll
    for (int j = 0; j < BC / 4; ++j) {
      const int r = j % 2;
      float a[2], b[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = s[2 * j + e] > level[r] ? dp[2 * j + e] : 0.f;
        a[e] = fmaxf(s[2 * j + e], 0.f);
        b[e] = a[e] * x;
        dps[r] += x;
        delta[r] += b[e];
      }
      p[j] = T::pack(a[0], a[1]);
      g[j] = T::pack(b[0], b[1]);
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
      Wgmma<T, D>::template rs<1>(d_q, g[4 * k], g[4 * k + 1], g[4 * k + 2], g[4 * k + 3],
                                  mn_major(k_tile + k * 2048, kKPanel), 1);
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
      Wgmma<T, D>::template rs<1>(p_k, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3],
                                  mn_major(k_tile + k * 2048, kKPanel), 1);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    release(memory.k_empty(pipe.stage()));
  }

  // Rows that see one key: both parts of ds are the same, but for their roundings.
  bool alone[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    delta[r] = quad_sum(delta[r]), dps[r] = quad_sum(dps[r]);
    const int i = row + 8 * r;
    const int count = tandem_key_count(work.band, i, u.seq_q, u.seq_kv);
    alone[r] = count == 1;
    if (lane % 4 != 0 || i >= u.seq_q) continue;
    reinterpret_cast<float*>(params.push.delta)[rows0 + i] = delta[r];
    if (params.spec.ROW_TAU)
      reinterpret_cast<float*>(params.push.tau_rows)[rows0 + i] =
          count > 0 ? __fdiv_rn(dps[r], float(count)) : 0.f;
  }
#pragma unroll
  for (int j = 0; j < D / 4; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e)
      d_q[2 * j + e] = alone[j % 2] ? 0.f : fmaf(-delta[j % 2], p_k[2 * j + e], d_q[2 * j + e]);
  // d_q passes through this warpgroup's rows of Q.
  named_barrier_sync(kWarpgroup + warpgroup, 128);
  BwdWorkTile to{};
  to.batch = work.batch, to.head_kv = work.head;
  store_rows<T, D>(memory.q() + own, kQPanel, d_q, u.scale, params.push.d_q, u.d_q, to,
                   work.row0 + 64 * warpgroup, u.seq_q, 0, u.head_dim);
}

template <typename T, int TILE, typename Row>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_row_sums_dq(const __grid_constant__ BwdRowSumsDqParams params) {
  constexpr RowShape S = kRowShapes[TILE];
  const BwdRowSumsDqBlock& u = params.block;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at)) return;
  RowWorkTile work;
  work.batch = at.batch, work.head = at.head, work.row0 = at.tile * S.br;
  work.band = mask_band(u);
  work.span = tandem_key_tiles(work.band, work.row0, S.br, S.bc, u.seq_q, u.seq_kv);
  const RowDqSharedStorage<TILE> memory{shared_address(aligned_shared_memory())};
  if (threadIdx.x == 0) {
    mbarrier_init(memory.rows_full(), 1);
    for (int stage = 0; stage < S.stages; ++stage) {
      mbarrier_init(memory.k_full(stage), 2);  // the TMA boxes, and the distance bias
      mbarrier_init(memory.v_full(stage), 1);
      mbarrier_init(memory.k_empty(stage), 8);
      mbarrier_init(memory.v_empty(stage), 8);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<Plain::Registers::kProducer>();
    if (threadIdx.x < 32)
      load_keys(params, work, memory);
    else if (blockIdx.x == 0 && blockIdx.y == 0)
      for (int n = int(threadIdx.x) - 32; n < params.zeroed_count; n += 96)
        reinterpret_cast<uint*>(params.zeroed)[n] = 0;
  } else {
    warpgroup_reg_alloc<Plain::Registers::kConsumer>();
    main_loop_rows<T, TILE>(params, work, memory);
  }
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return bwd_row_sums_dq<T, TILE, Row>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
