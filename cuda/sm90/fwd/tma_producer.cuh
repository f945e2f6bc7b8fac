// SPDX-License-Identifier: MIT OR Apache-2.0
// The producer thread of the forward kernels: it loads Q, K, V and a dense bias by TMA.
#ifndef TANDEM_CUDA_SM90_FWD_TMA_PRODUCER_CUH
#define TANDEM_CUDA_SM90_FWD_TMA_PRODUCER_CUH
#include "../pipeline.cuh"
#include "../tile_scheduler/fwd_static.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Loads `rows` rows of each panel, by one TMA box a panel. A panel has `of` rows in shared memory.
template <int PANELS>
TANDEM_DEVICE void tma_load_rows(uint to, const CUtensorMap* map, uint barrier, int rows, int of,
                                 int row, int head, int batch) {
  mbarrier_arrive_expect_tx(barrier, PANELS * rows * kPanelBytes);
#pragma unroll
  for (int p = 0; p < PANELS; ++p)
    tma_load(to + uint(p * of * kPanelBytes), map, barrier, p * kPanel, row, head, batch);
}
template <int PANELS>
TANDEM_DEVICE void tma_load_tile(uint to, const CUtensorMap* map, uint barrier, int rows, int row,
                                 int head, int batch) {
  tma_load_rows<PANELS>(to, map, barrier, rows, rows, row, head, batch);
}

// Which mask there is beside the bias, if any: of one row for all queries, or of a row for each.
// Variants with lengths, or of a bias of f32, may have none.
template <typename S, typename Params>
TANDEM_DEVICE bool has_mask(const Params& params) {
  return !(S::ENDS || S::F32_BIAS) || params.features.KEEP;
}
template <typename S, typename Params>
TANDEM_DEVICE bool has_hidden_columns(const Params& params) {
  return has_mask<S>(params) && params.extra.keep.s == 0;
}
template <typename S, typename Params>
TANDEM_DEVICE bool has_hidden_rows(const Params& params) {
  return has_mask<S>(params) && params.extra.keep.s != 0;
}

// The producer side of the pipelines of Q, K, V and a dense bias. It fills stages in the order in
// which the consumers read them. kv() and last_v() load V one step behind K, as S of the next keys
// is computed before P V of the present ones.
template <typename S, typename Params>
struct TmaProducer {
  const Params& params;
  const FwdSharedStorage<S>& shared;
  PipelineState<S::Q_STAGES, kCounted> q_pipe;
  PipelineState<S::STAGES, kCounted> k_pipe, v_pipe;
  PipelineState<S::BIAS ? S::BIAS_STAGES : 1, kCounted> bias_pipe;
  int v_tile = -1, v_head = 0, v_batch = 0;  // V that kv() has yet to load; v_tile < 0: none
  bool v_ends = false;                       // whether a warp zeroes rows of it (v_landed())
  TANDEM_DEVICE TmaProducer(const Params& p, const FwdSharedStorage<S>& s) : params(p), shared(s) {}
  TANDEM_DEVICE void q(int row0, int head, int batch) {
    mbarrier_wait(shared.q_empty(q_pipe.stage()), q_pipe.phase() ^ 1);
    tma_load_tile<S::D_PANELS>(shared.q(q_pipe.stage()), &params.q, shared.q_full(q_pipe.stage()),
                               S::M, row0, head, batch);
    q_pipe.next();
  }
  TANDEM_DEVICE void wait_k() const {
    mbarrier_wait(shared.k_empty(k_pipe.stage()), k_pipe.phase() ^ 1);
  }
  TANDEM_DEVICE void k(int t, int head, int batch) {
    wait_k();
    tma_load_tile<S::D_PANELS>(shared.k(k_pipe.stage()), &params.k, shared.k_full(k_pipe.stage()),
                               S::N, t * S::N, head, batch);
    k_pipe.next();
  }
  TANDEM_DEVICE void v(int t, int head, int batch) {
    mbarrier_wait(shared.v_empty(v_pipe.stage()), v_pipe.phase() ^ 1);
    uint landed = shared.v_full(v_pipe.stage());
    if constexpr (S::ENDS)
      if (v_ends) landed = shared.v_landed(v_pipe.stage());
    tma_load_tile<S::DV_PANELS>(shared.v(v_pipe.stage()), &params.v, landed, S::N, t * S::N, head,
                                batch);
    v_pipe.next();
  }
  // K of tile t, then V of the tile before it.
  TANDEM_DEVICE void kv(int t, int head, int batch, bool ends = false) {
    k(t, head, batch);
    if (v_tile >= 0) v(v_tile, v_head, v_batch);
    v_tile = t, v_head = head, v_batch = batch, v_ends = ends;
  }
  TANDEM_DEVICE void last_v() {
    if (v_tile >= 0) v(v_tile, v_head, v_batch);
    v_tile = -1;
  }
  // A tile of the bias for each of the first `warpgroups` warpgroups.
  TANDEM_DEVICE void bias(int t, int row0, int head, int batch, int warpgroups) {
    const int stage = bias_pipe.stage(), phase = bias_pipe.phase();
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      mbarrier_wait(shared.bias_empty(warpgroup, stage), phase ^ 1);
      bias_rows(warpgroup, stage, t, row0 + 64 * warpgroup, head, batch);
    }
    bias_pipe.next();
  }
  TANDEM_DEVICE void bias_rows(int warpgroup, int stage, int t, int row0, int head, int batch) {
    uint landed = shared.bias_full(warpgroup, stage);
    if constexpr (S::KEEP)
      if (has_hidden_columns<S>(params)) landed = shared.bias_landed(warpgroup, stage);
    mbarrier_arrive_expect_tx(landed, S::BIAS_BYTES);
    const int row = row0 * params.bias_row_step;
#pragma unroll
    for (int p = 0; p < S::N / S::BIAS_PANEL_KEYS; ++p)
      tma_load(shared.bias(warpgroup, stage) + uint(p * 64 * kPanelBytes), &params.bias, landed,
               t * S::N + p * S::BIAS_PANEL_KEYS, row, head, batch);
  }
};

// The producer thread of work tiles whose warpgroups visit all keys.
template <typename S, typename Params>
TANDEM_DEVICE void produce(const Params& params, const FwdSharedStorage<S>& shared) {
  StaticTileScheduler<S> scheduler(params);
  TmaProducer<S, Params> producer(params, shared);
  FwdWorkTile at;
  while (next_visible_tile(scheduler, &at)) {
    const int kv_head = head_of(params.block, at) / params.block.group;
    const int batch = batch_of(params.block, at);
    producer.q(at.row0, head_of(params.block, at), batch);
    for (int t = at.span.end - 1; t >= at.span.begin; --t) producer.kv(t, kv_head, batch);
  }
  producer.last_v();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
