// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq on Hopper, heads over 256 without optional inputs: the two sides of a cluster
// (two_sides.cuh), and their main loops.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_TWO_SIDED_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_TWO_SIDED_CUH
#include "two_sided_consumer.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

// lse of the thread's two rows, times log2 e. Infinite where a row does not exist or sees nothing.
template <typename Consumer>
TANDEM_DEVICE void load_lse(const Consumer& c, const QSteps& step, float (&lse)[2]) {
  const int row = c.work.q_tile(step.at) * 64 + c.row();
  const float* at = reinterpret_cast<const float*>(c.params.push.lse) + c.first_row(step) + row;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float x = row + 8 * r < c.params.block.seq_q ? __ldg(at + 8 * r) : minus_infinity();
    lse[r] = x == minus_infinity() ? -x : tandem_is_far(x) ? kFarLse : x * kLog2e;
  }
}
// Turns scores of a tile into weights.
template <typename Consumer>
TANDEM_DEVICE void weigh_queries(const Consumer& c, const QSteps& step, const float (&lse)[2]) {
  const BwdDkvDqBlock& u = c.params.block;
  auto& s = c.s;
  const int t = c.work.q_tile(step.at);
  if (__any_sync(kAllLanes, (lse[0] == kFarLse) | (lse[1] == kFarLse))) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = t * 64 + c.row() + 8 * r;
      const FarRows rows(c.params.push, c.first_row(step) + row, u.seq_q - row);
      const FarRow far = rows[0];
      const float l = lse[r] == kFarLse ? rows.relative(0) * kLog2e : lse[r];
#pragma unroll
      for (int i = 2 * r; i < 16; i += 4)
#pragma unroll
        for (int e = i; e < i + 2; ++e)
          s[e] = exp2_fast(fmaf(far.from_origin(__fmul_rn(u.scale, s[e])), kLog2e, -l));
    }
  } else {
    const float scale2 = u.scale * kLog2e;
#pragma unroll
    for (int i = 0; i < 16; ++i) s[i] = exp2_fast(fmaf(s[i], scale2, -lse[i / 2 % 2]));
  }
  if (on_edge(c.work, t, 64, u.seq_kv)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // The first and the last key that the row sees, relative to the thread's first key.
      const int i = t * 64 + c.row() + 8 * r + u.band_off,
                key = c.work.col0 + 32 * c.warpgroup + 2 * (read_tid_x() % 4);
      const int low = i - u.band_left - key, high = min(i + u.band_right, u.seq_kv - 1) - key;
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if ((8 * j + e < low) | (8 * j + e > high)) s[4 * j + 2 * r + e] = 0.f;
    }
  }
}

// The side of keys: d_k, and the first panels of dQ.
template <typename T, typename S, typename Values>
TANDEM_DEVICE void keys_main_loop(const BwdDkvDqPartsParams& params, const BwdWorkTile& work,
                                  QSteps step, const SideStorage<S>& shared) {
  using Consumer = TwoSidedConsumer<T, S>;
  float s[16], d_k[Consumer::kGradient / 2], odd[16], dq[Consumer::kDq / 2], dq_odd[16];
  Consumer c(params, work, shared, s, d_k, odd, dq, dq_odd);
  const SideStorage<Values> values{shared.base};
  float lse[2];
  uint n = 0;  // steps whose weights have been sent
  // Sends the weights of a step. The other side has read those of the step before.
  const auto send = [&] {
    mbarrier_wait(shared.sent(), int(n & 1) ^ 1);
    const uint to = cluster_address(values.weights(c.warpgroup, c.thread()), S::OTHER),
               barrier = cluster_address(values.received(), S::OTHER);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      st_async_cluster(to + i * values.kWeightsStep, s[4 * i], s[4 * i + 1], s[4 * i + 2],
                       s[4 * i + 3], barrier);
    ++n;
  };
  // Waits for dS of the last step whose weights were sent, and issues its products.
  const auto products = [&](uint of) {
    mbarrier_wait(shared.received(), int(of & 1));
    c.expect(S::PANEL_BYTES);
    c.template product_dq<0>();
    c.product_gradient(shared.ds());
  };
  // This side reads Q and dS of the step no more.
  const auto release = [&] {
    c.release();
    if (c.thread() == 0) mbarrier_arrive_remote(cluster_address(values.sent(), S::OTHER));
    __syncwarp();
  };
  // Adds of dQ of a tile: those before d_k is there, and the others. A second product is issued
  // with the first, as it reads dS.
  const auto add_first = [&](const DqTile& tile) {
    if constexpr (S::DQ_PRODUCTS == 1) {
      c.template add_thirds<0, 0, 1>(tile);
    } else {
      c.template add_thirds<0, 0, 3>(tile);
      c.template product_dq<1>();
    }
  };
  const auto add_rest = [&](const DqTile& tile) {
    c.template add_thirds<S::DQ_PRODUCTS - 1, S::DQ_PRODUCTS == 1 ? 1 : 0, 3>(tile);
  };
  if (step.left > 0) {
    c.expect(S::PANEL_BYTES);
    mbarrier_wait(shared.own_full(), 0);
    load_lse(c, step, lse);
    c.template product_s<0, S::PANELS>();
    wgmma_wait_group<0>();
    optimization_barrier(s);
    weigh_queries(c, step, lse);
    send();
    DqTile tile = c.dq_tile(step);
    // The last adds of a step come behind the next S that is issued, and so overlap with it. In a
    // deterministic order others wait for them, and they come at once.
    DqTile before = tile;
    bool adds = false;
#pragma unroll 1
    for (step.next(work); step.left > 0; step.next(work)) {
      load_lse(c, step, lse);
      c.template product_s<0, S::PANELS>();
      if (adds) add_rest(before);
      products(n - 1);
      wgmma_wait_group<2>();
      optimization_barrier(s);
      weigh_queries(c, step, lse);
      send();
      wgmma_wait_group<1>();
      c.begin_adds(tile);
      add_first(tile);
      wgmma_wait_group<0>();
      release();
      adds = !c.adds_in_order();
      if (!adds) {
        add_rest(tile);
        c.end_adds(tile);
      }
      before = tile, tile = c.dq_tile(step);
    }
    if (adds) add_rest(before);
    products(n - 1);
    wgmma_wait_group<1>();
    c.begin_adds(tile);
    add_first(tile);
    wgmma_wait_group<0>();
    release();
    add_rest(tile);
    c.end_adds(tile);
  }
  c.store();
}

// The side of values: dS, d_v, and the other panels of dQ.
template <typename T, typename S, typename Keys>
TANDEM_DEVICE void values_main_loop(const BwdDkvDqPartsParams& params, const BwdWorkTile& work,
                                    QSteps step, const SideStorage<S>& shared) {
  using Consumer = TwoSidedConsumer<T, S>;
  constexpr int AHEAD = S::AHEAD, PANELS = S::PANELS;
  float dp[16], d_v[Consumer::kGradient / 2], odd[16], dq[Consumer::kDq / 2], dq_odd[16];
  Consumer c(params, work, shared, dp, d_v, odd, dq, dq_odd);
  const SideStorage<Keys> keys{shared.base};
  const int lane = int(threadIdx.x) % 32;
  float delta[2];
  uint n = 0;  // steps whose dS has been sent
  const auto load_delta = [&] {
    const int row = work.q_tile(step.at) * 64 + c.row();
    const float* at = reinterpret_cast<const float*>(params.push.delta) + c.first_row(step) + row;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      delta[r] = row + 8 * r < params.block.seq_q ? __ldg(at + 8 * r) : 0.f;
  };
  // Stores weights and dS of a step, rounded, when its weights have come, and sends dS.
  const auto differentiate = [&] {
    mbarrier_wait(shared.received(), int(n & 1));
    c.expect(kSideWeightBytes);
    uint p[8], ds[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 w =
          ld_shared_v4_u32(shared.weights(c.warpgroup, c.thread()) + i * shared.kWeightsStep);
      const float x[4] = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
                          __uint_as_float(w.w)};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        p[2 * i + r] = T::pack(x[2 * r], x[2 * r + 1]);
        ds[2 * i + r] = T::pack(x[2 * r] * (dp[4 * i + 2 * r] - delta[r]),
                                x[2 * r + 1] * (dp[4 * i + 2 * r + 1] - delta[r]));
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive_remote(cluster_address(keys.sent(), S::OTHER));
    // The products of this side, and the other side, have read dS of the step before.
    named_barrier_sync<kDsRead>(256);
    mbarrier_wait(shared.sent(), int(n & 1) ^ 1);
    const int row = c.thread() / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint at = swizzle_128b(row, 4 * c.warpgroup + 2 * k + lane / 16);
      const uint a[4] = {p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3]},
                 b[4] = {ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]};
      stmatrix_x4(shared.ds() + at, b);
      stmatrix_x4(shared.p() + at, a);
    }
    fence_proxy_async_shared();
    named_barrier_sync<kDsWritten>(256);
    if (read_tid_x() == 128)
      bulk_copy_cluster(cluster_address(keys.ds(), S::OTHER), shared.ds(), S::PANEL_BYTES,
                        cluster_address(keys.received(), S::OTHER));
    __syncwarp();
    ++n;
  };
  if (step.left > 0) {
    c.expect(kSideWeightBytes);
    mbarrier_wait(shared.own_full(), 0);
    load_delta();
    c.template product_s<0, PANELS>();
    wgmma_wait_group<0>();
    optimization_barrier(dp);
    differentiate();
    DqTile tile = c.dq_tile(step);
    // The adds of dQ of a tile, but for the first two thirds.
    const auto add_rest = [&] {
      c.template add_thirds<0, 2, 3>(tile);
      if constexpr (S::DQ_PRODUCTS == 2) {
        c.template product_dq<1>();
        wgmma_wait_group<0>();
        c.template add_thirds<1, 0, 3>(tile);
      }
      c.end_adds(tile);
    };
#pragma unroll 1
    for (step.next(work); step.left > 0; step.next(work)) {
      load_delta();
      c.template product_dq<0>();
      c.product_gradient(shared.p());
      if constexpr (AHEAD > 0) c.template product_s<0, AHEAD>();
      wgmma_wait_group<(AHEAD > 0 ? 2 : 1)>();
      c.begin_adds(tile);
      c.template add_thirds<0, 0, 1>(tile);
      wgmma_wait_group<(AHEAD > 0 ? 1 : 0)>();
      c.release();
      c.template add_thirds<0, 1, 2>(tile);
      if constexpr (AHEAD < PANELS) c.template product_s<AHEAD, PANELS>();
      add_rest();
      wgmma_wait_group<0>();
      optimization_barrier(dp);
      differentiate();
      tile = c.dq_tile(step);
    }
    c.template product_dq<0>();
    c.product_gradient(shared.p());
    wgmma_wait_group<1>();
    c.begin_adds(tile);
    c.template add_thirds<0, 0, 2>(tile);
    wgmma_wait_group<0>();
    c.release();
    add_rest();
  }
  c.store();
}

// Row: for the name, by which tests/cuda/sm90/check_ptxas knows a kernel.
template <typename T, int TILE, typename Row>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq_two_sided(const __grid_constant__ BwdDkvDqPartsParams params) {
  using Keys = SideShape<TILE, kKeysSide>;
  using Values = SideShape<TILE, kValuesSide>;
  const bool has_keys = cluster_rank() == kKeysSide;
  BwdWorkTile work;
  // The workgroups of a cluster find the same.
  if (!find_two_sided_tile<TILE>(params, params.first_group + workgroup_index() / kTwoSidedCluster,
                                 &work))
    return;
  work.head_kv = uniform(work.head_kv), work.batch = uniform(work.batch);
  work.tile = uniform(work.tile), work.col0 = work.tile * 64;
  work.span = {uniform(work.span.begin), uniform(work.span.end), uniform(work.span.full_begin),
               uniform(work.span.full_end)};
  const QSteps steps(params.block, work);
  const uint base = shared_address(aligned_shared_memory());
  const SideStorage<Keys> keys{base};
  const SideStorage<Values> values{base};
  if (threadIdx.x == 0) {
    if (has_keys)
      keys.init();
    else
      values.init();
  }
  cluster_sync();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<Registers<24>::kProducer>();
    if (threadIdx.x == 0) {
      if (has_keys)
        produce_side(params, work, steps, keys);
      else
        produce_side(params, work, steps, values);
    }
  } else {
    warpgroup_reg_alloc<Registers<24>::kConsumer>();
    if (has_keys)
      keys_main_loop<T, Keys, Values>(params, work, steps, keys);
    else
      values_main_loop<T, Values, Keys>(params, work, steps, values);
  }
  // Until here each workgroup may read and write the other one's memory.
  cluster_sync();
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return bwd_dkv_dq_two_sided<T, TILE, Row>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
