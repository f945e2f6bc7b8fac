// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row of entmax on Hopper: delta of the rows, sum u dp / sum u, and which tiles of keys hold support of which rows, a bit
// each, so that bwd_dkv_dq leaves out the others. A workgroup keeps Q and dO of 64 rows for each of its warpgroups and takes
// the keys once; S and dP are all that it multiplies.
#include "../mask.cuh"
#include "../zeros.cuh"
#include "bwd.h"
#include "bwd_far.cuh"
#include "entmax.cuh"
#include "fwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <int ROW>
struct RowShared {
  static constexpr SupportShape S = kSupportShapes[ROW];
  static constexpr int kPanels = S.d / 64, kQPanel = S.groups * 64 * kPanelBytes,
                       kKPanel = S.bc * kPanelBytes;
  static constexpr int kAtK = support_at_k(S), kAtWords = support_at_words(S),
                       kAtBarriers = support_at_barriers(S);
  static constexpr int kHelping = S.groups == 3 ? 32 : 40, kMultiplying = S.groups == 3 ? 160 : 232;
  uint base;
  TANDEM_DEVICE uint q() const { return base; }
  TANDEM_DEVICE uint d_o() const { return base + kPanels * kQPanel; }
  TANDEM_DEVICE uint k(int stage) const { return base + kAtK + stage * (kPanels * kKPanel); }
  TANDEM_DEVICE uint v(int stage) const { return k(S.stages + stage); }
  TANDEM_DEVICE uint words(int group) const {
    return base + kAtWords + group * (kSupportWords * 4);
  }
  // Q and dO; then per stage K full, V full, K empty, V empty.
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

template <int STAGES>
struct Turn {
  int stage = 0, parity = 0;
  TANDEM_DEVICE void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

template <int ROW>
TANDEM_DEVICE void load_keys(const BwdRowParams& params, const Rows& at,
                             const RowShared<ROW>& shared) {
  constexpr SupportShape S = kSupportShapes[ROW];
  constexpr int kPanels = RowShared<ROW>::kPanels;
  const int head_kv = at.head / params.block.group;
  copy_tile<kPanels>(shared.q(), &params.q, shared.rows_full(), 64 * S.groups, at.row0, at.head,
                     at.batch);
  copy_tile<kPanels>(shared.d_o(), &params.d_o, shared.rows_full(), 64 * S.groups, at.row0, at.head,
                     at.batch);
  Turn<S.stages> turn;
#pragma unroll 1
  for (int t = at.span.begin; t < at.span.end; ++t, turn.next()) {
    barrier_wait(shared.k_empty(turn.stage), turn.parity ^ 1);
    copy_tile<kPanels>(shared.k(turn.stage), &params.k, shared.k_full(turn.stage), S.bc, t * S.bc,
                       head_kv, at.batch);
    barrier_wait(shared.v_empty(turn.stage), turn.parity ^ 1);
    copy_tile<kPanels>(shared.v(turn.stage), &params.v, shared.v_full(turn.stage), S.bc, t * S.bc,
                       head_kv, at.batch);
  }
}

template <typename T, int ROW, bool FAST>
TANDEM_DEVICE void sum_rows(const BwdRowParams& params, const Rows& at,
                            const RowShared<ROW>& shared) {
  constexpr SupportShape S = kSupportShapes[ROW];
  using M = RowShared<ROW>;
  constexpr int N = S.bc, D = S.d;
  const BwdRowBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const int lane = int(threadIdx.x) % 32;
  const uint own = uint(group) * 64 * kPanelBytes;
  const float scale = u.scale * params.extra.entmax_scale;
  const int64_t rows0 = (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q;
  const int row = at.row0 + fresh_row();  // and the one 8 further

  float origin[2], dot[2] = {}, sum[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + 8 * r;
    const float t = i < u.seq_q ? __ldg(reinterpret_cast<const float*>(params.push.lse) + rows0 + i)
                                : -INFINITY;
    origin[r] = t == -INFINITY ? INFINITY : tandem_is_far(t) ? kFarLse : t;
  }
  if (threadIdx.x % 128 < kSupportWords) put_shared(shared.words(group) + threadIdx.x % 128 * 4, 0);
  named_sync(4 + group, 128);

  const auto release = [&](uint barrier) {
    if (threadIdx.x % 128 == 0) barrier_arrive(barrier);
  };
  barrier_wait(shared.rows_full(), 0);
  Turn<S.stages> turn;
#pragma unroll 1
  for (int t = at.span.begin; t < at.span.end; ++t, turn.next()) {
    float s[N / 2], dp[N / 2];
    const auto product = [&](float(&to)[N / 2], uint rows, uint keys) {
      fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Product<T, N>::template from_shared<0, 0>(
            to, along(rows + own + k / 4 * M::kQPanel + k % 4 * 32),
            along(keys + k / 4 * M::kKPanel + k % 4 * 32), k > 0);
      commit();
    };
    barrier_wait(shared.k_full(turn.stage), turn.parity);
    product(s, shared.q(), shared.k(turn.stage));
    barrier_wait(shared.v_full(turn.stage), turn.parity);
    product(dp, shared.d_o(), shared.v(turn.stage));
    wait<1>();
    release(shared.k_empty(turn.stage));
    if (t < at.span.full_begin || t >= at.span.full_end)
      mask_tile<N>(s, at.band, row, t * N + fresh_col(), u.seq_kv,
                   scale < 0.f ? INFINITY : -INFINITY);
    float here[2][2] = {};
    const auto add = [&](int i, float x) {
      s[i] = FAST ? x : entmax_power(params, x);
      here[i / 2 % 2][i % 2] += s[i];
    };
    if (__any_sync(kAllLanes, (origin[0] == kFarLse) | (origin[1] == kFarLse))) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const FarRows rows(params.push, rows0 + row + 8 * r, u.seq_q - (row + 8 * r));
        const FarRow far = rows[0];
        const float threshold = origin[r] == kFarLse ? rows.relative(0) : origin[r];
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
          if (i / 2 % 2 == r) {
            const float z = __fmul_rn(params.extra.entmax_scale, __fmul_rn(u.scale, s[i]));
            add(i, fmaxf(__fsub_rn(far.from_origin(z), threshold), 0.f));
          }
      }
    } else {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) add(i, fmaxf(fmaf(s[i], scale, -origin[i / 2 % 2]), 0.f));
    }
    settle(s);  // and not behind the wait
    const float x0 = here[0][0] + here[0][1], x1 = here[1][0] + here[1][1];
    if (__any_sync(kAllLanes, x0 > 0.f || x1 > 0.f) && lane == 0 && t < kSupportTiles)
      or_shared(shared.words(group) + uint(t / 32 * 4), 1u << (t % 32));
    sum[0] += x0, sum[1] += x1;
    wait<0>();
    release(shared.v_empty(turn.stage));
    float two[2][2] = {};
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      two[i / 2 % 2][i % 2] = fmaf(s[i], dp[i], two[i / 2 % 2][i % 2]);
#pragma unroll
    for (int r = 0; r < 2; ++r) dot[r] += two[r][0] + two[r][1];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = quad_sum(sum[r]), delta = quad_sum(dot[r]);
    if (lane % 4 == 0 && row + 8 * r < u.seq_q)
      reinterpret_cast<float*>(params.push.delta)[rows0 + row + 8 * r] =
          all > 0.f ? __fdiv_rn(delta, all) : 0.f;
  }
  named_sync(4 + group, 128);
  const int block = at.row0 / 64 + group, blocks = (u.seq_q + 63) / 64, n = int(threadIdx.x) % 128;
  if (params.support && block < blocks && n < params.support_words) {
    const uint x = shared_word(shared.words(group) + n * 4);
    const int64_t head = int64_t(at.batch) * u.heads_q + at.head;
    reinterpret_cast<uint*>(params.support)[(head * blocks + block) * params.support_words + n] = x;
  }
}

template <typename T, int ROW, bool FAST>
__global__ void __launch_bounds__(kSupportShapes[ROW].threads(), 1)
    bwd_row(const __grid_constant__ BwdRowParams params) {
  constexpr SupportShape S = kSupportShapes[ROW];
  using M = RowShared<ROW>;
  const BwdRowBlock& u = params.block;
  Place place;
  if (!find_place(u.tiles, u.total, u.heads_q, &place)) return;
  Rows at;
  at.batch = place.batch, at.head = place.head, at.row0 = place.tile * (64 * S.groups);
  at.band = mask_band(u);
  at.span = tandem_key_tiles(at.band, at.row0, 64 * S.groups, S.bc, u.seq_q, u.seq_kv);
  const M shared{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    barrier_init(shared.rows_full(), 2);
    for (int stage = 0; stage < S.stages; ++stage) {
      barrier_init(shared.k_full(stage), 1);
      barrier_init(shared.v_full(stage), 1);
      barrier_init(shared.k_empty(stage), S.groups);
      barrier_init(shared.v_empty(stage), S.groups);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<M::kHelping>();
    if (threadIdx.x == 0) load_keys(params, at, shared);
    if (threadIdx.x >= 32)
      put_zeros(params.zeroed, params.zeroed_end,
                uint64_t(blockIdx.y * gridDim.x + blockIdx.x) * 96 + threadIdx.x - 32,
                uint64_t(u.total) * 96);
  } else {
    take_registers<M::kMultiplying>();
    sum_rows<T, ROW, FAST>(params, at, shared);
  }
}

template <typename T>
Kernel<BwdRowParams> select(int row, bool fast) {
  if (row == 0 && fast) return bwd_row<T, 0, true>;
  if (row == 1) return fast ? bwd_row<T, 1, true> : bwd_row<T, 1, false>;
  return nullptr;
}

}  // namespace

Kernel<BwdRowParams> bwd_row_kernel(tandem_dtype dtype, int row, bool fast) {
  if (dtype == TANDEM_F16) return select<Half>(row, fast);
  return dtype == TANDEM_BF16 ? select<Bfloat>(row, fast) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
