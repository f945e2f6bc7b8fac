// SPDX-License-Identifier: MIT OR Apache-2.0
// Rounding to TF32 without matrix hardware.
#ifndef TANDEM_CUDA_PARTS_TF32_CUH
#define TANDEM_CUDA_PARTS_TF32_CUH
#include "simt.cuh"

namespace tandem {
namespace cuda {

// x, rounded to the 11 bits that a product takes with TANDEM_FLAG_TF32 (cuda/sm80/f32.cuh). NaN
// stays NaN.
TANDEM_DEVICE float tf32_operand(float x) {
  return x == x ? __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u) : x;
}

}  // namespace cuda
}  // namespace tandem
#endif
