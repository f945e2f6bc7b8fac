// SPDX-License-Identifier: MIT OR Apache-2.0
// The 16 named barriers of a workgroup, and what each kernel on Hopper has them for.
#ifndef TANDEM_CUDA_SM90_NAMED_BARRIERS_CUH
#define TANDEM_CUDA_SM90_NAMED_BARRIERS_CUH
#include "ptx/named_barrier.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// "Each warpgroup": the name is the barrier of the first consumer warpgroup, and those of the
// others follow. Kernels of different groups use the same numbers.
enum NamedBarrier : int {
  // 0 is __syncthreads(), in all kernels.

  // Forward with ping-pong scheduling: 1 to 8, for up to four warpgroups
  kPingPongBarrier = 1,  // each warpgroup: its turn to issue products, which the one before passes
  // ...                    then each warpgroup: its 128 threads (warpgroup_barrier())

  // Forward without ping-pong scheduling, and bwd_row_sums of entmax: 4 to 7
  kWarpgroupBarrier = 4,  // each warpgroup: its 128 threads

  // Forward of two warpgroups with the same rows: 1 to 4, each for both, and 5 and 6
  kOriginVote = 1,      // whether any row needs another origin
  kRowsShared = 2,      // a number of each row is in shared memory
  kWeightsWritten = 3,  // the weights of a step are in shared memory
  kBlockArrived = 4,    // warpgroup 0 has its part of V of the first keys
  kKeysCleared = 5,     // each warpgroup: rows of V behind the last key are zeros

  // Forward with a mask, beside those of ping-pong scheduling for two warpgroups
  kMaskProducersBarrier = 8,  // the warps that produce the mask bitmap

  // Backward, with two consumer warpgroups: 1 to 14
  kDsWritten = 1,       // both have written dS, or read it where it has one stage (bwd_dkv_dq);
                        // also between steps of the dQ postprocess
  kDqFull = 2,          // each warpgroup: its part of dQ is in shared memory, for a dQ warp to add
  kDqEmpty = 4,         // each warpgroup: its part of dQ has been read
  kWarpgroup = 6,       // each warpgroup: its 128 threads
  kDsRead = 8,          // both have read dS, which may be overwritten
  kLastKnown = 9,       // whether the workgroup takes part in the dQ postprocess is known
  kMaskBarrier = 9,     // the warps that produce the mask bitmap: they end before kLastKnown
  kSecondDqFull = 10,   // kDqFull of the second dQ stage
  kSecondDqEmpty = 12,  // kDqEmpty of the second dQ stage
  kDqStored = 14,       // both dQ warps have added their last tiles
  kRowsListed = 2       // bwd_dkv_dq that gathers rows: the producer warps have listed rows

  // 15 is free.
};

// From kDqFull and kDqEmpty of the first dQ stage to those of the second.
constexpr int kSecondDqStage = kSecondDqFull - kDqFull;
static_assert(kSecondDqEmpty - kDqEmpty == kSecondDqStage, "both have the same distance");

// The barrier of the 128 threads of a warpgroup, in main loops with ping-pong scheduling.
template <typename S>
TANDEM_DEVICE int warpgroup_barrier(int warpgroup) {
  return kPingPongBarrier + S::WARPGROUPS + warpgroup;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
