// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq of entmax where dQ may be summed in any order: its query tiles are of the rows that
// have support in the workgroup's keys. Random scores leave hardly a tile of 64 x 128 without
// support, but each row has a few keys in it: of S 16384 it is in a third of its tiles of keys, and
// with scores of four times the size in a seventeenth. bwd_dq_cast does the dQ postprocess.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_ROWS_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_ROWS_CUH
#include "gathered_rows.cuh"
#include "variant_entmax.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <bool FAST>
struct EntmaxRows : Entmax<FAST> {
  static constexpr bool kGathers = true;
  using Params = BwdDkvDqEntmaxParams;
  using Registers = sm90::Registers<FAST ? 56 : 40>;
  static constexpr int bytes(const BwdShape&) { return 0; }
  template <int TILE>
  using QTiles = GatheredQTiles<TILE, Params>;
  template <typename T, int TILE>
  struct Consumer : Entmax<FAST>::template Consumer<T, TILE> {
    using Base = typename Entmax<FAST>::template Consumer<T, TILE>;
    using M = BwdSharedStorage<TILE, EntmaxRows>;
    static constexpr int BR = kBwdShapes[TILE].br;
    using Base::params;
    const BwdWorkTile& work;
    const M& memory;
    TANDEM_DEVICE Consumer(const Params& params, const BwdWorkTile& work, const M& memory)
        : Base(params, work, memory), work(work), memory(memory) {}
    TANDEM_DEVICE GatheredStorage<TILE, EntmaxRows> storage() const { return {memory.base}; }
    TANDEM_DEVICE uint rows(int stage) const { return storage().rows(stage); }
    TANDEM_DEVICE bool has_far(int stage) const {
      return __any_sync(kAllLanes, (storage().of_rows(stage) & kFarRows) != 0);
    }

    TANDEM_DEVICE void hide(float (&s)[BR / 2], int key, int stage) const {
      if (!__any_sync(kAllLanes, (storage().of_rows(stage) & kEdgeRows) != 0)) return;
      const uint own = rows(stage) + 8 * (read_tid_x() % 4);
      int low[2], high[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int j = key + 8 * r;
        low[r] = j < work.seq_kv ? j - work.band.off - work.band.right : TANDEM_BAND_OPEN;
        high[r] = j - work.band.off + work.band.left;
      }
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        const uint2 row = ld_shared_v2_u32(own + 32 * j);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = int(i % 2 ? row.y : row.x);
          if ((at < low[i / 2]) | (at > high[i / 2])) s[4 * j + i] = 0.f;
        }
      }
    }

    // As weigh_far() of far_rows.cuh, with rows that are no neighbours.
    template <typename Push>
    TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint lse, int, int head,
                                 const FarTile<Push>& tile) {
      const float more = params.extra.entmax_scale;
      const FarRows far(tile.push, (int64_t(work.batch) * params.block.heads_q + head) * work.seq_q,
                        work.seq_q);
      const uint own = lse + uint(GatheredStorage<TILE, EntmaxRows>::kAtRows - M::kAtStats);
      uint zero = 0;
#pragma unroll
      for (int j = 0; j < BR / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = ld_shared_s32(own + 32 * j + 4 * e + zero), row = max(at, 0);
          const FarRow origin = far[row];
          const float t = at >= 0 && origin.origin != 0.f ? far.relative(row)
                                                          : ld_shared_f32(lse + 32 * j + 4 * e);
#pragma unroll
          for (int i = 4 * j + e; i < 4 * j + 4; i += 2) {
            const float z = __fmul_rn(more, __fmul_rn(scale, s[i]));
            s[i] = fmaxf(__fsub_rn(origin.from_origin(z), t), 0.f);
          }
          zero = zero_of<false>(s[4 * j + 2 + e]);
        }
    }

    // Adds the warpgroup's part of a dQ tile: 64 rows, or its panel of features. In a row's sums
    // those of a thread come together (bwd_dq_cast.cuh): reductions of four sums to 64 bytes of
    // each of 8 rows take half of the cycles of those of two sums.
    template <int COUNT>
    TANDEM_DEVICE void add_dq(const float (&dq)[COUNT], int head, int warpgroup, int thread,
                              int stage) const {
      static_assert(COUNT == 32, "64 features");
      constexpr BwdShape S = kBwdShapes[TILE];
      const BwdDkvDqBlock& u = params.block;
      const int panel = S.d == 64 ? 0 : warpgroup;
      const int first = (S.d == 64 ? 64 * warpgroup : 0) + thread / 32 * 16 + thread % 32 / 4;
      const int64_t blocks = (u.seq_q + BR - 1) / BR * (BR / 64);
      const uint64_t sums = params.push.d_q_accum + (int64_t(work.batch) * u.heads_q + head) *
                                                        blocks * (M::kPanels * kDqAccumBlock * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = ld_shared_s32(rows(stage) + 4 * uint(first + 8 * r));
        if (row < 0) continue;
        const uint64_t to = sums +
                            uint64_t(uint(row / 64 * M::kPanels + panel)) * (kDqAccumBlock * 4) +
                            uint(row % 64 * 256 + thread % 4 * 16);
#pragma unroll
        for (int i = 0; i < 8; i += 2)
          if (S.d == 64 || 64 * panel + 8 * i < u.head_dim)
            red_add_v4_f32(to + 32 * i, make_float4(dq[4 * i + 2 * r], dq[4 * i + 2 * r + 1],
                                                    dq[4 * i + 4 + 2 * r], dq[4 * i + 5 + 2 * r]));
      }
    }
  };
};

template <typename T, int TILE, typename Row, typename Variant>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq_rows(const __grid_constant__ typename Variant::Params params) {
  BwdWorkTile work;
  if (!BwdStaticTileScheduler<TILE, Variant>(params).next(&work)) return;
  const BwdSharedStorage<TILE, Variant> memory{shared_address(aligned_shared_memory())};
  if (threadIdx.x == 0) Barriers<TILE>(memory.barriers()).init(kProducerWarps);
  __syncthreads();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<Variant::Registers::kProducer>();
    RowGatherer<TILE, Variant>{params, work, memory}.run();
  } else {
    warpgroup_reg_alloc<Variant::Registers::kConsumer>();
    main_loop<T, TILE, Variant, true, true>(params, work, memory);
  }
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return bwd_dkv_dq_rows<T, TILE, Row, EntmaxRows<!Row::has(trait::any_alpha)>>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
