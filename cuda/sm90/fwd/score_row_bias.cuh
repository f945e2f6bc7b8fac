// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with a bias of one row for all queries, beside lengths and a sink: the ring of pieces of the
// row in shared memory, the warp that fills it, and the score policy.
#ifndef TANDEM_CUDA_SM90_FWD_SCORE_ROW_BIAS_CUH
#define TANDEM_CUDA_SM90_FWD_SCORE_ROW_BIAS_CUH
#include "../row_bias.cuh"
#include "score_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Behind the work-tile descriptors: full and empty mbarriers of the stages, then the stages. A
// stage has the row's numbers of the keys of a step, as f32.
template <typename S>
struct RowBiasStages {
  uint at;
  TANDEM_DEVICE explicit RowBiasStages(const FwdSharedStorage<S>& shared)
      : at(shared.variant_at(2) + kFwdDescriptors * kFwdDescriptorBytes) {}
  TANDEM_DEVICE uint full(int stage) const { return at + uint(16 * stage); }
  TANDEM_DEVICE uint empty(int stage) const { return full(stage) + 8; }
  TANDEM_DEVICE uint row(int stage) const {
    return at + uint(kRowBiasStages * 16 + stage * S::N * 4);
  }
  TANDEM_DEVICE void init() const {
    for (int stage = 0; stage < kRowBiasStages; ++stage) {
      mbarrier_init(full(stage), 1);
      mbarrier_init(empty(stage), 4 * S::WARPGROUPS);  // the warps that read it
    }
  }
};

// A warp fills the stages, in the order of the steps. It finds the work tiles itself, as the warp
// that loads does. It loads the keys of a step before it waits for an empty stage. Keys behind the
// end of the entry are not loaded, as anything may be there.
template <typename S>
TANDEM_DEVICE void produce_row_bias(const FwdOptionalParams& params,
                                    const FwdSharedStorage<S>& shared) {
  constexpr int kEach = (S::N + 31) / 32;  // keys of a lane
  const RowBiasStages<S> stages(shared);
  const int lane = int(threadIdx.x) % 32;
  VarlenTileScheduler<S> scheduler(params);
  PipelineState<kRowBiasStages, kCounted> pipe;
  FwdVarlenTile at;
  while (scheduler.next(&at)) {
    const int head = int(at.index - uint(at.batch) * uint(params.block.heads_q));
    const BiasRow row(params.extra, params.features, params.push.extra, at.batch, head);
    for (int t = at.span.end - 1; t >= at.span.begin; --t, pipe.next()) {
      uint x[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int n = lane + 32 * i, key = t * S::N + n;
        x[i] = (S::N % 32 == 0 || n < S::N) && key < at.entry.seq_kv ? row.load(key) : 0;
      }
      mbarrier_wait(stages.empty(pipe.stage()), pipe.phase() ^ 1);
      const uint to = stages.row(pipe.stage()) + 4 * uint(lane);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (S::N % 32 == 0 || lane + 32 * i < S::N) st_shared(to + 128 * uint(i), row.number(x[i]));
      __syncwarp();
      if (lane == 0) mbarrier_arrive(stages.full(pipe.stage()));
    }
  }
}

// Score policy. Scores are in natural units: products times the scale, plus the bias, rounded once,
// as numbers at the limits of f32 would not fit over the scale nor times log2 e. So any scale and
// any bias will do, and keys that all have the type's lowest number have equal weights.
template <typename T, typename S, typename Params>
struct RowBiasScore : VarlenScore<T, S, Params> {
  using Base = VarlenScore<T, S, Params>;
  using Base::c;
  using Base::params;
  using Tile = typename Base::Tile;
  TANDEM_DEVICE RowBiasScore(const Params& p, FwdConsumer<T, S>& consumer,
                             const typename Base::Held& held)
      : Base(p, consumer, held) {}

  // Steps of K have the numbers of the row's stages.
  TANDEM_DEVICE void issued() {
    const PipelineState<kRowBiasStages, kCounted> pipe{c.kv.k.n};
    mbarrier_wait(RowBiasStages<S>(c.shared).full(pipe.stage()), pipe.phase());
  }
  TANDEM_DEVICE void score(const Tile&, int t) {
    const PipelineState<kRowBiasStages, kCounted> pipe{c.kv.k.n - 1};  // K has been released
    const float scale = params.block.scale;
    const uint from = RowBiasStages<S>(c.shared).row(pipe.stage()) + uint(accumulator_col()) * 4;
#pragma unroll
    for (int j = 0; j < S::N / 8; ++j) {
      const float2 bias = ld_shared_v2_f32(from + uint(32 * j));
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i) c.s[i] = fmaf(c.s[i], scale, i % 2 ? bias.y : bias.x);
    }
    this->hide(t);
  }
  // Releases the stage. Weights are computed from all that the warp has loaded.
  TANDEM_DEVICE void weighted() {
    const PipelineState<kRowBiasStages, kCounted> pipe{c.kv.k.n - 1};
    __syncwarp();
    if (read_tid_x() % 32 == 0) mbarrier_arrive(RowBiasStages<S>(c.shared).empty(pipe.stage()));
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
