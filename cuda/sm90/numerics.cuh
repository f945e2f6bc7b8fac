// SPDX-License-Identifier: MIT OR Apache-2.0
// Arithmetic on accumulators that the forward and the backward kernels share. A row of an
// accumulator belongs to the four lanes of a quad.
#ifndef TANDEM_CUDA_SM90_NUMERICS_CUH
#define TANDEM_CUDA_SM90_NUMERICS_CUH
#include "kernels/traits.h"
#include "ptx/base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Whether the entmax kernel of a row has alpha 1.5, whose power is a square. Row: of
// src/kernels/kernels.inc, as a type.
template <typename Row>
struct FastAlpha {
  static constexpr bool kFast = !Row::has(trait::any_alpha);
};

constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

template <int N>
TANDEM_DEVICE void clear(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = 0.f;
}
// Multiplies the thread's two rows of an accumulator by their factors.
template <int N>
TANDEM_DEVICE void rescale_rows(float (&x)[N], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] *= factor[i / 2 % 2];
}

// Maximum and sum over the four lanes of a quad.
TANDEM_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
TANDEM_DEVICE int quad_max(int x) {
  x = max(x, __shfl_xor_sync(kAllLanes, x, 1));
  return max(x, __shfl_xor_sync(kAllLanes, x, 2));
}
TANDEM_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// The function u of x = [z - t]_+ in entmax, for any alpha. The weight y is x u. With alpha = 2, u
// is 1 on the support.
template <typename Params>
TANDEM_DEVICE float entmax_power(const Params& params, float x) {
  return x > 0.f ? exp2_fast(__log2f(x) * (params.extra.entmax_exponent - 1.f)) : 0.f;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
