// SPDX-License-Identifier: MIT OR Apache-2.0
// Deterministic dQ semaphores: tiles of keys add to the dQ accumulator in a fixed order.
#ifndef TANDEM_CUDA_SM90_BWD_DQ_SEMAPHORE_CUH
#define TANDEM_CUDA_SM90_BWD_DQ_SEMAPHORE_CUH
#include "../ptx/global_memory.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

TANDEM_DEVICE uint semaphore_load(const uint* at) { return ld_acquire(at); }
TANDEM_DEVICE void semaphore_release(uint* at) { red_add_release(at, 1); }

// Waits until `before` tiles of keys have added. Not !=, which would wait for ever where batch
// entries that share rows count in one word.
TANDEM_DEVICE void semaphore_wait(const uint* at, uint before) {
  while (semaphore_load(at) < before) {
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
