// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums of entmax on Hopper: delta of the rows, sum u dp / sum u, and the support bitmap
// (plan/sm90/tiles.h): a bit for each row, or each block of 64 rows, and each tile of keys, so that
// bwd_dkv_dq skips what has no support. A
// workgroup keeps Q and dO of 64 rows for each of its consumer warpgroups and visits the keys once.
// S and dP are its only products.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_ROW_SUMS_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_ROW_SUMS_CUH
#include "../../parts/mask.cuh"
#include "../../parts/zeros.cuh"
#include "../fwd/main_loop.cuh"
#include "../numerics.cuh"
#include "../params.h"
#include "far_rows.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <int TILE>
struct RowSharedStorage {
  static constexpr SupportShape S = kSupportShapes[TILE];
  static constexpr int D = S.d,
                       Q_PANEL = S.warpgroups * 64 * kPanelBytes;  // as load_q() wants them
  static constexpr int kPanels = S.d / 64, kQPanel = S.warpgroups * 64 * kPanelBytes,
                       kKPanel = S.bc * kPanelBytes;
  static constexpr int kAtK = support_at_k(S), kAtWords = support_at_words(S),
                       kAtBarriers = support_at_barriers(S);
  static constexpr int kProducer = S.warpgroups == 3 ? 32 : 40,
                       kConsumer = S.warpgroups == 3 ? 160 : 232;
  uint base;
  TANDEM_DEVICE uint q() const { return base; }
  TANDEM_DEVICE uint d_o() const { return base + kPanels * kQPanel; }
  TANDEM_DEVICE uint k(int stage) const { return base + kAtK + stage * (kPanels * kKPanel); }
  TANDEM_DEVICE uint v(int stage) const { return k(S.stages + stage); }
  TANDEM_DEVICE uint words(int warpgroup) const {
    return base + kAtWords + warpgroup * (kSupportWords * 4);
  }
  // mbarriers: Q and dO full; then K full, V full, K empty and V empty, each for all stages.
  TANDEM_DEVICE uint rows_full() const { return base + kAtBarriers; }
  TANDEM_DEVICE uint k_full(int stage) const { return base + kAtBarriers + 8 + 8 * stage; }
  TANDEM_DEVICE uint v_full(int stage) const { return k_full(S.stages + stage); }
  TANDEM_DEVICE uint k_empty(int stage) const { return k_full(2 * S.stages + stage); }
  TANDEM_DEVICE uint v_empty(int stage) const { return k_full(3 * S.stages + stage); }
};

struct Rows {
  int batch, head, row0;
  TandemBand band;
  TandemTiles span;
};

template <int TILE>
TANDEM_DEVICE void load_keys(const BwdRowSumsParams& params, const Rows& at,
                             const RowSharedStorage<TILE>& shared) {
  constexpr SupportShape S = kSupportShapes[TILE];
  constexpr int kPanels = RowSharedStorage<TILE>::kPanels;
  const int head_kv = at.head / params.block.group;
  tma_load_tile<kPanels>(shared.q(), &params.q, shared.rows_full(), 64 * S.warpgroups, at.row0,
                         at.head, at.batch);
  tma_load_tile<kPanels>(shared.d_o(), &params.d_o, shared.rows_full(), 64 * S.warpgroups, at.row0,
                         at.head, at.batch);
  PipelineState<S.stages> pipe;
#pragma unroll 1
  for (int t = at.span.begin; t < at.span.end; ++t, pipe.next()) {
    mbarrier_wait(shared.k_empty(pipe.stage()), pipe.phase() ^ 1);
    tma_load_tile<kPanels>(shared.k(pipe.stage()), &params.k, shared.k_full(pipe.stage()), S.bc,
                           t * S.bc, head_kv, at.batch);
    mbarrier_wait(shared.v_empty(pipe.stage()), pipe.phase() ^ 1);
    tma_load_tile<kPanels>(shared.v(pipe.stage()), &params.v, shared.v_full(pipe.stage()), S.bc,
                           t * S.bc, head_kv, at.batch);
  }
}

// Where the support has a bit for each row: the 16 bits of a warp's rows and a tile of keys.
TANDEM_DEVICE ushort* row_support(const BwdRowSumsParams& params, const Rows& at, int warpgroup,
                                  int tile) {
  const BwdRowSumsBlock& u = params.block;
  const int blocks = (u.seq_q + 63) / 64;
  const int tiles = min((u.seq_kv + kSupportKeys - 1) / kSupportKeys, kSupportTiles);
  const int64_t head = int64_t(at.batch) * u.heads_q + at.head;
  return reinterpret_cast<ushort*>(params.support) +
         ((head * tiles + tile) * blocks + at.row0 / 64 + warpgroup) * 4 + read_tid_x() % 128 / 32;
}

template <typename T, int TILE, bool FAST>
TANDEM_DEVICE void reduce_rows(const BwdRowSumsParams& params, const Rows& at,
                               const RowSharedStorage<TILE>& shared) {
  constexpr SupportShape S = kSupportShapes[TILE];
  using M = RowSharedStorage<TILE>;
  constexpr int N = S.bc, D = S.d;
  const BwdRowSumsBlock& u = params.block;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const int lane = int(threadIdx.x) % 32;
  const uint own = uint(warpgroup) * 64 * kPanelBytes;
  const float scale = u.scale * params.extra.entmax_scale;
  const int64_t rows0 = (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q;
  const int row = at.row0 + accumulator_row();  // and row + 8

  float origin[2], dot[2] = {}, sum[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + 8 * r;
    const float t = i < u.seq_q ? __ldg(reinterpret_cast<const float*>(params.push.lse) + rows0 + i)
                                : -INFINITY;
    origin[r] = t == -INFINITY ? INFINITY : tandem_is_far(t) ? kFarLse : t;
  }
  const bool by_rows = params.support_rows && params.support && at.row0 + 64 * warpgroup < u.seq_q;
  if (by_rows)  // tiles that none of the rows sees
    for (int t = lane; t < min((u.seq_kv + N - 1) / N, kSupportTiles); t += 32)
      if (t < at.span.begin || t >= at.span.end) *row_support(params, at, warpgroup, t) = 0;
  if (threadIdx.x % 128 < kSupportWords)
    st_shared(shared.words(warpgroup) + threadIdx.x % 128 * 4, 0);
  named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);

  const auto release = [&](uint barrier) {
    if (threadIdx.x % 128 == 0) mbarrier_arrive(barrier);
  };
  mbarrier_wait(shared.rows_full(), 0);
  // Tiles come by halves of their keys: while a thread takes one half, S of the next is in flight.
  // Q and dO are in registers: from shared memory, products with so few keys at a time would take
  // all of its bandwidth.
  uint q[D / 16][4], d_o[D / 16][4];
  load_q<M>(q, shared.q() + own);
  load_q<M>(d_o, shared.d_o() + own);
  PipelineState<S.stages> pipe;
  float first[N / 4], second[N / 4], dp[N / 4];
  const auto multiply = [&](float(&to)[N / 4], const uint(&rows)[D / 16][4], uint keys, int half) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      Wgmma<T, N / 2>::template rs<0>(
          to, rows[k][0], rows[k][1], rows[k][2], rows[k][3],
          k_major(keys + uint(half * (N / 2) * kPanelBytes + k / 4 * M::kKPanel + k % 4 * 32)),
          k > 0);
    wgmma_commit_group();
  };
  float of_tile[2];  // sums of u of the tile at hand
  const auto take = [&](float(&s)[N / 4], int t, int half) {
    if (t < at.span.full_begin || t >= at.span.full_end)
      mask_tile<N / 2>(s, at.band, row, t * N + half * (N / 2) + accumulator_col(), u.seq_kv,
                       scale < 0.f ? INFINITY : -INFINITY);
    float here[2][2] = {}, two[2][2] = {};
    const auto add = [&](int i, float x) {
      const float y = FAST ? x : entmax_power(params, x);
      here[i / 2 % 2][i % 2] += y;
      two[i / 2 % 2][i % 2] = fmaf(y, dp[i], two[i / 2 % 2][i % 2]);
    };
    if (__any_sync(kAllLanes, (origin[0] == kFarLse) | (origin[1] == kFarLse))) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const FarRows rows(params.push, rows0 + row + 8 * r, u.seq_q - (row + 8 * r));
        const FarRow far = rows[0];
        const float threshold = origin[r] == kFarLse ? rows.relative(0) : origin[r];
#pragma unroll
        for (int i = 0; i < N / 4; ++i)
          if (i / 2 % 2 == r) {
            const float z = __fmul_rn(params.extra.entmax_scale, __fmul_rn(u.scale, s[i]));
            add(i, fmaxf(__fsub_rn(far.from_origin(z), threshold), 0.f));
          }
      }
    } else {
#pragma unroll
      for (int i = 0; i < N / 4; ++i) add(i, fmaxf(fmaf(s[i], scale, -origin[i / 2 % 2]), 0.f));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = here[r][0] + here[r][1];
      of_tile[r] = half == 0 ? x : of_tile[r] + x;
      sum[r] += x;
      dot[r] += two[r][0] + two[r][1];
    }
    optimization_barrier(dot);  // keeps the arithmetic before what follows
  };
  if (at.span.begin < at.span.end) {
    mbarrier_wait(shared.k_full(0), 0);
    multiply(first, q, shared.k(0), 0);
    mbarrier_wait(shared.v_full(0), 0);
    multiply(dp, d_o, shared.v(0), 0);
    wgmma_wait_group<0>();
  }
#pragma unroll 1
  for (int t = at.span.begin; t < at.span.end; ++t) {
    const int stage = pipe.stage();
    multiply(second, q, shared.k(stage), 1);
    take(first, t, 0);
    multiply(dp, d_o, shared.v(stage), 1);
    wgmma_wait_group<0>();
    release(shared.k_empty(stage));
    release(shared.v_empty(stage));
    pipe.next();
    // Behind the last tile these products are in vain, of whatever the stage has.
    const bool more = t + 1 < at.span.end;
    if (more) mbarrier_wait(shared.k_full(pipe.stage()), pipe.phase());
    multiply(first, q, shared.k(pipe.stage()), 0);
    take(second, t, 1);
    if (more) mbarrier_wait(shared.v_full(pipe.stage()), pipe.phase());
    multiply(dp, d_o, shared.v(pipe.stage()), 0);
    if (by_rows) {
      const uint live = __reduce_or_sync(kAllLanes, (of_tile[0] > 0.f ? 1u << lane / 4 : 0u) |
                                                        (of_tile[1] > 0.f ? 256u << lane / 4 : 0u));
      if (lane == 0 && t < kSupportTiles)
        *row_support(params, at, opaque(warpgroup), t) = ushort(live);
    } else if (__any_sync(kAllLanes, of_tile[0] > 0.f || of_tile[1] > 0.f) && lane == 0 &&
               t < kSupportTiles) {
      red_shared_or(shared.words(warpgroup) + uint(t / 32 * 4), 1u << (t % 32));
    }
    wgmma_wait_group<0>();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = quad_sum(sum[r]), delta = quad_sum(dot[r]);
    if (lane % 4 == 0 && row + 8 * r < u.seq_q)
      reinterpret_cast<float*>(params.push.delta)[rows0 + row + 8 * r] =
          all > 0.f ? __fdiv_rn(delta, all) : 0.f;
  }
  named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);
  const int block = at.row0 / 64 + warpgroup, blocks = (u.seq_q + 63) / 64,
            n = int(threadIdx.x) % 128;
  if (params.support && !params.support_rows && block < blocks && n < params.support_words) {
    const uint x = ld_shared_u32(shared.words(warpgroup) + n * 4);
    const int64_t head = int64_t(at.batch) * u.heads_q + at.head;
    reinterpret_cast<uint*>(params.support)[(head * blocks + block) * params.support_words + n] = x;
  }
}

template <typename T, int TILE, typename Row>
__global__ void __launch_bounds__(kSupportShapes[TILE].threads(), 1)
    bwd_row_sums(const __grid_constant__ BwdRowSumsParams params) {
  constexpr bool FAST = FastAlpha<Row>::kFast;
  constexpr SupportShape S = kSupportShapes[TILE];
  using M = RowSharedStorage<TILE>;
  const BwdRowSumsBlock& u = params.block;
  Place place;
  if (!find_place(u.tiles, u.total, u.heads_q, &place)) return;
  Rows at;
  at.batch = place.batch, at.head = place.head, at.row0 = place.tile * (64 * S.warpgroups);
  at.band = mask_band(u);
  at.span = tandem_key_tiles(at.band, at.row0, 64 * S.warpgroups, S.bc, u.seq_q, u.seq_kv);
  const M shared{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    mbarrier_init(shared.rows_full(), 2);
    for (int stage = 0; stage < S.stages; ++stage) {
      mbarrier_init(shared.k_full(stage), 1);
      mbarrier_init(shared.v_full(stage), 1);
      mbarrier_init(shared.k_empty(stage), S.warpgroups);
      mbarrier_init(shared.v_empty(stage), S.warpgroups);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<M::kProducer>();
    if (threadIdx.x == 0) load_keys(params, at, shared);
    if (threadIdx.x >= 32)
      put_zeros(params.zeroed, params.zeroed_end,
                uint64_t(blockIdx.y * gridDim.x + blockIdx.x) * 96 + threadIdx.x - 32,
                uint64_t(u.total) * 96);
  } else {
    warpgroup_reg_alloc<M::kConsumer>();
    reduce_rows<T, TILE, FAST>(params, at, shared);
  }
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return bwd_row_sums<T, TILE, Row>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
