// SPDX-License-Identifier: MIT OR Apache-2.0
// Zeroing part of the workspace by threads that have something else to do, too: no launch or memset of its own.
#ifndef TANDEM_CUDA_ZEROS_CUH
#define TANDEM_CUDA_ZEROS_CUH
#include "simt.cuh"

namespace tandem {
namespace cuda {

// From a multiple of 16 to a multiple of 4. Each of so many threads takes 16 bytes at a time; whoever comes upon the end takes the
// words before it.
TANDEM_DEVICE void put_zeros(uint64_t to, uint64_t end, uint64_t thread, uint64_t threads) {
  to += 16 * thread;
  for (; to + 16 <= end; to += 16 * threads)
    *reinterpret_cast<float4*>(to) = make_float4(0.f, 0.f, 0.f, 0.f);
  for (; to < end; to += 4) *reinterpret_cast<float*>(to) = 0.f;
}

}  // namespace cuda
}  // namespace tandem
#endif
