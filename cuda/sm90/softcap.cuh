// SPDX-License-Identifier: MIT OR Apache-2.0
// Softcap on products in registers, where src/problem/tanh.h would take too long: c tanh(x / c) in
// powers of two, off by at most 4e-7 c log2 e. Where all next elements of a warp are within half of
// c, it is a polynomial, which needs no exp2: x (1 + z P(z)), z = x^2. P has the least maximum of
// the relative error over [0, 1/2], 6.4e-7. Elsewhere it is c - 2 c / (1 + exp(2 x / c)).
#ifndef TANDEM_CUDA_SM90_SOFTCAP_CUH
#define TANDEM_CUDA_SM90_SOFTCAP_CUH
#include "numerics.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Applies softcap to products in place. Calls each(first, count) for every piece of `count`
// elements when they are done.
template <int COUNT, typename Each>
TANDEM_DEVICE void soft_cap(float (&s)[COUNT], float scale, float softcap, const Each& each) {
  constexpr int kPiece = 16;  // registers do not suffice for larger pieces
  // The quotient is clamped: if it overflowed, or it times 2 log2 e did, a product of 0 would give
  // NaN.
  const float cap = softcap * kLog2e, in = fminf(fmaxf(__fdividef(scale, softcap), -1e38f), 1e38f),
              square = in * in;
  // Beyond 1e5 the coefficients would overflow, so the polynomial is not used.
  const float limit = fabsf(in) < 1e5f ? 0.5f : -1.f;
  const float a = scale * kLog2e, b = -0.333281593f * square * a,
              c = 0.132053597f * square * square * a,
              d = -0.0447506447f * square * square * square * a;
#pragma unroll
  for (int first = 0; first < COUNT; first += kPiece) {
    float top = 0.f;
#pragma unroll
    for (int i = first; i < first + kPiece; ++i) top = fmaxf(top, fabsf(s[i]));
    if (__any_sync(kAllLanes, top * fabsf(in) > limit)) {
#pragma unroll
      for (int i = first; i < first + kPiece; ++i)
        s[i] = fmaf(reciprocal(1.f + exp2_fast(s[i] * (2.f * kLog2e * in))), -2.f * cap, cap);
    } else {
#pragma unroll
      for (int i = first; i < first + kPiece; ++i) {
        const float z = s[i] * s[i];
        s[i] *= fmaf(fmaf(fmaf(d, z, c), z, b), z, a);
      }
    }
    each(first, kPiece);
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
