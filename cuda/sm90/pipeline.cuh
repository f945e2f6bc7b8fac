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

// A position that begins at step 0, or after `before` steps. It is kept as stage and phase, which
// takes two registers and no division, so that there may be any number of stages.
template <int STAGES, bool COUNTED = false>
struct PipelineState {
  TANDEM_DEVICE PipelineState() {}
  TANDEM_DEVICE explicit PipelineState(uint before)
      : at(before % STAGES), parity(before / STAGES % 2) {}
  TANDEM_DEVICE int stage() const { return at; }
  TANDEM_DEVICE int phase() const { return parity; }
  TANDEM_DEVICE void next() {
    if (++at == STAGES) at = 0, parity ^= 1;
  }
  TANDEM_DEVICE void next(int count) {
    at += count;
    while (at >= STAGES) at -= STAGES, parity ^= 1;
  }
  // The same without a loop, for up to STAGES steps.
  TANDEM_DEVICE void next_few(int count) {
    at += count;
    if (at >= STAGES) at -= STAGES, parity ^= 1;
  }

 private:
  int at = 0, parity = 0;
};

// With kCounted it is kept as the number of steps so far, over all work tiles. This takes one
// register, and numbers what lies in the stages, such as work tiles.
constexpr bool kCounted = true;
template <int STAGES>
struct PipelineState<STAGES, kCounted> {
  static_assert((STAGES & (STAGES - 1)) == 0, "bits of a counter");
  uint n = 0;
  TANDEM_DEVICE int stage() const { return int(n % STAGES); }
  TANDEM_DEVICE int phase() const { return int(n / STAGES % 2); }
  TANDEM_DEVICE void next() { ++n; }
  // next(), which returns the phase before.
  TANDEM_DEVICE int take() { return int(n++ / STAGES % 2); }
  TANDEM_DEVICE void next(int count) { n += uint(count); }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
