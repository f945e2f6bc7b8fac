// SPDX-License-Identifier: MIT OR Apache-2.0
// Zeroes parts of the workspace by threads of a kernel that does something else, too, without a
// launch or memset of its own.
#ifndef TANDEM_CUDA_PARTS_ZEROS_CUH
#define TANDEM_CUDA_PARTS_ZEROS_CUH
#include "simt.cuh"

namespace tandem {
namespace cuda {

// Zeroes from a multiple of 16 to a multiple of 4. Each of `threads` threads stores 16 bytes at a
// time; a thread that reaches the end stores the words before it.
TANDEM_DEVICE void put_zeros(uint64_t to, uint64_t end, uint64_t thread, uint64_t threads) {
  to += 16 * thread;
  for (; to + 16 <= end; to += 16 * threads)
    *reinterpret_cast<float4*>(to) = make_float4(0.f, 0.f, 0.f, 0.f);
  for (; to < end; to += 4) *reinterpret_cast<float*>(to) = 0.f;
}

}  // namespace cuda
}  // namespace tandem
#endif
