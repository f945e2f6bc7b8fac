// SPDX-License-Identifier: MIT OR Apache-2.0
// Indices of a table of biases.
#ifndef TANDEM_CUDA_PARTS_TABLE_CUH
#define TANDEM_CUDA_PARTS_TABLE_CUH
#include "problem/table.h"
#include "tensor.cuh"

namespace tandem {
namespace cuda {

// Index n, of 1, 2 or 4 bytes. What is negative is no entry, as a large number is none.
TANDEM_DEVICE uint load_index(uint64_t indices, uint bytes, int64_t n) {
  if (bytes == 1) return __ldg(reinterpret_cast<const uint8_t*>(indices) + n);
  if (bytes == 2) return __ldg(reinterpret_cast<const uint16_t*>(indices) + n);
  return __ldg(reinterpret_cast<const uint32_t*>(indices) + n);
}

}  // namespace cuda
}  // namespace tandem
#endif
