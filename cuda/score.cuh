// SPDX-License-Identifier: MIT OR Apache-2.0
// From the raw product to the score. Twin of shaders/score.glsl.
#ifndef TANDEM_CUDA_SCORE_CUH
#define TANDEM_CUDA_SCORE_CUH
#include "tile.cuh"

namespace tandem {
namespace cuda {

// The product is rounded before anything is subtracted from it: contracted into fma(s, scale, -m) the
// weight of a row's only key would not be exactly 1.
template <typename S>
TANDEM_DEVICE void score_tile(float (&s)[S::RM][4], float scale) {
#pragma unroll
  for (int i = 0; i < S::RM; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[i][c] = __fmul_rn(s[i][c], scale);
}

}  // namespace cuda
}  // namespace tandem
#endif
