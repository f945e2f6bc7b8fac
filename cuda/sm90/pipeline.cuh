// SPDX-License-Identifier: MIT OR Apache-2.0
// Position of a warp in a pipeline of shared-memory stages, each of which has a full and an empty
// mbarrier (ptx/mbarrier.cuh): the stage, and the phase of its mbarriers. A consumer waits for the
// full mbarrier with `phase`, a producer for the empty one with `phase ^ 1`.
#ifndef TANDEM_CUDA_SM90_PIPELINE_CUH
#define TANDEM_CUDA_SM90_PIPELINE_CUH
#include "ptx/base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Position as stage and phase. It takes two registers and needs no division.
template <int STAGES>
struct PipelineState {
  int stage = 0, phase = 0;
  TANDEM_DEVICE PipelineState() {}
  // The position after `before` steps.
  TANDEM_DEVICE explicit PipelineState(uint before)
      : stage(before % STAGES), phase(before / STAGES % 2) {}
  TANDEM_DEVICE void next() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  TANDEM_DEVICE void next(int count) {
    stage += count;
    while (stage >= STAGES) stage -= STAGES, phase ^= 1;
  }
};

// Position as the number of steps so far, over all work tiles. It takes one register, and the
// number of stages is a power of two.
template <int STAGES>
struct PipelineCounter {
  static_assert((STAGES & (STAGES - 1)) == 0, "bits of a counter");
  uint n = 0;
  TANDEM_DEVICE int stage() const { return int(n % STAGES); }
  TANDEM_DEVICE int phase() const { return int(n / STAGES % 2); }
  TANDEM_DEVICE void next() { ++n; }
};

// Stage and phase of either.
template <int STAGES>
TANDEM_DEVICE int stage_of(const PipelineState<STAGES>& at) {
  return at.stage;
}
template <int STAGES>
TANDEM_DEVICE int phase_of(const PipelineState<STAGES>& at) {
  return at.phase;
}
template <int STAGES>
TANDEM_DEVICE int stage_of(const PipelineCounter<STAGES>& at) {
  return at.stage();
}
template <int STAGES>
TANDEM_DEVICE int phase_of(const PipelineCounter<STAGES>& at) {
  return at.phase();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
