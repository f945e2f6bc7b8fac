// SPDX-License-Identifier: MIT OR Apache-2.0
// The warp of bwd_dkv_dq and bwd_dkv that loads K, V, Q, dO and the statistics of the rows.
#ifndef TANDEM_CUDA_SM90_BWD_TMA_PRODUCER_CUH
#define TANDEM_CUDA_SM90_BWD_TMA_PRODUCER_CUH
#include "../panels.cuh"
#include "far_rows.cuh"
#include "shared_storage.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The mbarrier of the TMA boxes of a tile that has to be zeroed in part.
template <int TILE, typename Variant>
TANDEM_DEVICE uint raw_barrier(const BwdSharedStorage<TILE, Variant>& memory) {
  return Variant::kHasEnds ? memory.base + memory.kAtBiasRaw : memory.variant_barriers();
}

// The producer warp: loads K and V once, then Q and dO tile by tile, with lse (times Variant::kLse)
// and delta of their rows. TMA also loads what lies behind the end of a batch entry (anything, or
// another sequence). The warp zeroes that before it signals the full mbarrier. Returns how many
// query tiles it has loaded; of variants with a mask bitmap, at most so many.
template <int TILE, typename Variant>
TANDEM_DEVICE uint load_tiles(const typename Variant::Params& params, const BwdWorkTile& work,
                              const BwdSharedStorage<TILE, Variant>& memory) {
  constexpr BwdShape S = kBwdShapes[TILE];
  using M = BwdSharedStorage<TILE, Variant>;
  const auto& u = params.block;
  const Barriers<TILE> barriers(memory.barriers());
  const int lane = int(threadIdx.x) % 32;
  // Lengths beside a bias: tiles behind an end are not loaded, but a cluster visits them.
  constexpr bool ENDS = Variant::kHasEnds;
  // The TMA boxes of a tile that has to be zeroed in part arrive at an mbarrier of their own. With
  // ENDS an arrival puts it back into an even phase: no work tile knows of those before.
  const uint raw = raw_barrier(memory);
  [[maybe_unused]] PipelineState<1, kCounted> boxes;
  const auto wait_boxes = [&] {
    if constexpr (ENDS) {
      mbarrier_wait(raw, 0);
      __syncwarp();
      if (lane == 0) {
        mbarrier_arrive(raw);
        mbarrier_wait(raw, 1);  // it is over; synccheck misses a wait otherwise
      }
    } else {
      mbarrier_wait(raw, boxes.take());
    }
  };
  const auto cleared = [&](uint barrier) {
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier);
  };
  const bool short_q = Variant::kIsVarlen || (ENDS && work.seq_q < u.seq_q),
             short_kv = Variant::kIsVarlen || (ENDS && work.seq_kv < u.seq_kv);

  if constexpr (Variant::kIsVarlen || ENDS) {
    if (work.span.begin >= work.span.end) {  // no warp would read the tiles
      if (lane == 0) mbarrier_arrive(barriers.kv);
      return 0;
    }
  }
  const bool last_keys = short_kv && work.seq_kv - work.col0 < S.bc,
             no_keys = ENDS && last_keys && work.seq_kv <= work.col0;
  if (lane == 0 && !no_keys) {
    const uint barrier = last_keys ? raw : barriers.kv;
    mbarrier_arrive_expect_tx(barrier, M::kKBytes + M::kVBytes);
    for (int c = 0; c < M::kPanels; ++c) {
      tma_load(memory.k() + c * S.bc * 128, &params.k, barrier, 64 * c, work.first_kv + work.col0,
               work.head_kv, work.map_kv);
      if (c < M::kVPanels)
        tma_load(memory.v() + c * S.bc * 128, &params.v, barrier, 64 * c, work.first_kv + work.col0,
                 work.head_kv, work.map_kv);
    }
  }
  if (last_keys) {
    if (!no_keys) wait_boxes();
    clear_rows<M::kPanels, S.bc>(memory.k(), work.seq_kv - work.col0);
    clear_rows<M::kVPanels, S.bc>(memory.v(), work.seq_kv - work.col0);
    cleared(barriers.kv);
  }
  auto q = first_pipeline_state<Variant, S.q_stages>(work);
  auto d_o = first_pipeline_state<Variant, S.do_stages>(work);
  typename Variant::template Loader<TILE> variant(params, work, memory);
  typename Variant::template QTiles<TILE> tiles(params, work);
  if constexpr (Variant::kHasMaskBitmap)
    tiles.waits = !Variant::has_one_q_tile(u.group, work.span.begin, work.span.end);
  [[maybe_unused]] uint visited = 0;
  const QLoop<Variant, decltype(tiles)> loop{tiles, work, u.group};
#pragma unroll 1
  for (int outer = loop.begin(), outer_end = loop.end(); outer < outer_end; ++outer) {
#pragma unroll 1
    for (int inner = loop.first(outer), end = loop.last(outer); inner < end;
         inner = loop.next(outer, inner), q.next(), d_o.next()) {
      const int t = loop.tile(outer, inner), row0 = t * S.br,
                head = work.head_kv * u.group + loop.head(outer, inner);
      const int64_t rows0 = (int64_t(work.batch) * u.heads_q + head) * u.seq_q;
      const float* lse = reinterpret_cast<const float*>(params.push.lse) + rows0;
      const float* delta = reinterpret_cast<const float*>(params.push.delta) + rows0;
      const bool last_rows = short_q && work.seq_q - row0 < S.br,
                 no_rows = ENDS && last_rows && work.seq_q <= row0;
      mbarrier_wait(barriers.q_empty(q.stage()), q.phase() ^ 1);
      if (lane == 0 && !no_rows) {
        const uint barrier = last_rows ? raw : barriers.q_full(q.stage());
        mbarrier_arrive_expect_tx(barrier, M::kQBytes);
        for (int c = 0; c < M::kPanels; ++c)
          tma_load(memory.q(q.stage()) + c * S.br * 128, &params.q, barrier, 64 * c,
                   work.first_q + row0, head, work.map_q);
      }
      bool far = false;
#pragma unroll
      for (int r = lane; r < S.br; r += 32) {
        const float x = row0 + r < work.seq_q ? __ldg(lse + row0 + r) : minus_infinity();
        st_shared(memory.lse(q.stage()) + 4 * r, x == minus_infinity() ? -x : x * Variant::kLse);
        far |= tandem_is_far(x);
      }
      far = __any_sync(kAllLanes, far);
      if (lane == 0) put_far(memory.far(q.stage()), far ? work.seq_q - row0 : 0, lse + row0);
      variant.rows(t, head, q.stage());
      if (last_rows) {
        if (!no_rows) wait_boxes();
        clear_rows<M::kPanels, S.br>(memory.q(q.stage()), work.seq_q - row0);
        cleared(barriers.q_full(q.stage()));
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(barriers.q_full(q.stage()));

      variant.load(row0, head);
      mbarrier_wait(barriers.do_empty(d_o.stage()), d_o.phase() ^ 1);
      if (lane == 0 && !no_rows) {
        const uint barrier = last_rows ? raw : barriers.do_full(d_o.stage());
        mbarrier_arrive_expect_tx(barrier, M::kDoBytes);
        for (int c = 0; c < M::kVPanels; ++c)
          tma_load(memory.d_o(d_o.stage()) + c * S.br * 128, &params.d_o, barrier, 64 * c,
                   work.first_q + row0, head, work.map_q);
      }
#pragma unroll
      for (int r = lane; r < S.br; r += 32)
        st_shared(memory.delta(d_o.stage()) + 4 * r,
                  row0 + r < work.seq_q ? __ldg(delta + row0 + r) : 0.f);
      if (last_rows) {
        if (!no_rows) wait_boxes();
        clear_rows<M::kVPanels, S.br>(memory.d_o(d_o.stage()), work.seq_q - row0);
        cleared(barriers.do_full(d_o.stage()));
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(barriers.do_full(d_o.stage()));
      if constexpr (Variant::kHasKeep) ++visited;
    }
  }
  if constexpr (Variant::kHasKeep) return visited;
  return uint(u.group * max(work.span.end - work.span.begin, 0));
}

// Whether any row of the query tile in a stage is far; the same for all warps. It costs least while
// products are in flight.
template <int TILE, typename Variant>
TANDEM_DEVICE bool has_far(const BwdSharedStorage<TILE, Variant>& memory, int stage) {
  return __any_sync(kAllLanes, ld_shared_u32(memory.far(stage)) != 0u);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
