// SPDX-License-Identifier: MIT OR Apache-2.0
// Softcap on products in registers, where src/problem/tanh.h would take too long: c tanh(x / c) in
// powers of two, off by at most 4e-7 c log2 e. Where all next elements of a warp are within half of
// c, it is a polynomial, which needs no exp2: x (1 + z P(z)), z = x^2. P has the least maximum of
// the relative error over [0, 1/2], 6.4e-7. Elsewhere it is c - 2 c / (1 + exp(2 x / c)).
#ifndef TANDEM_CUDA_SM90_SOFTCAP_CUH
#define TANDEM_CUDA_SM90_SOFTCAP_CUH
#include "numerics.cuh"
#include "ptx/wgmma.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Derivatives of softcap, 1 - tanh^2, are kept as pairs of f16, times this: a derivative of 4e-9 is
// then no subnormal number, and 1 is finite.
constexpr float kDerivativeUnit = 16384.f;

// Applies softcap to products in place. Calls each(i, x, y) with the derivatives of elements i and
// i + 1, times kDerivativeUnit. Near the cap they come from the exponential: 1 - tanh^2 would have
// an error of 4e-7, however small it is.
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
    const int end = first + kPiece < COUNT ? first + kPiece : COUNT;  // 80 keys are 40 elements
    float top = 0.f;
#pragma unroll
    for (int i = first; i < end; ++i) top = fmaxf(top, fabsf(s[i]));
    if (__any_sync(kAllLanes, top * fabsf(in) > limit)) {
#pragma unroll
      for (int i = first; i < end; i += 2) {
        float left[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          // Beyond 2^60, 1 - tanh is 0 in any case, and infinity times 0 would be NaN.
          const float e = fminf(exp2_fast(s[i + n] * (2.f * kLog2e * in)), 1152921504606846976.f),
                      r = reciprocal(1.f + e);
          s[i + n] = fmaf(r, -2.f * cap, cap);
          left[n] = e * (4.f * kDerivativeUnit) * r * r;
        }
        each(i, left[0], left[1]);
      }
    } else {
      const float inverse = __fdividef(1.f, cap);
#pragma unroll
      for (int i = first; i < end; i += 2) {
        float left[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float z = s[i + n] * s[i + n];
          s[i + n] *= fmaf(fmaf(fmaf(d, z, c), z, b), z, a);
          const float x = s[i + n] * inverse;
          left[n] = fmaf(-x, x * kDerivativeUnit, kDerivativeUnit);
        }
        each(i, left[0], left[1]);
      }
    }
  }
}

// The capped score, in natural units, without a branch or a call. The formulas are those of
// src/problem/tanh.h, with divisions that are off by two units in the last place. left: the factor
// by which softcap scales the gradient, 1 - tanh^2.
TANDEM_DEVICE float far_cap(float score, float softcap, float inverse, float* left) {
  const float x = __fmul_rn(score, inverse), a = fabsf(x), z = x * x;
  const float p =
      fmaf(fmaf(fmaf(fmaf(-0.0058951583f, z, 0.020795971f), z, -0.05378383f), z, 0.13331924f), z,
           -0.333333f);
  const float near = fmaf(x * z, p, x);
  const float rest = __fdividef(2.f, expf(2.f * fminf(a, 40.f)) + 1.f);
  *left = a < 0.6f ? fmaf(-near, near, 1.f) : rest * (2.f - rest);
  return __fmul_rn(softcap, a < 0.6f ? near : copysignf(1.f - rest, x));
}

// Multiplies two numbers by a pair of derivatives.
TANDEM_DEVICE void multiply_capped(float& x, float& y, uint pair) {
  x *= Half::low(pair) * (1.f / kDerivativeUnit);
  y *= Half::high(pair) * (1.f / kDerivativeUnit);
}

// Derivatives of softcap of COUNT scores.
template <int COUNT>
struct SoftcapDerivatives {
  uint pairs[COUNT / 2];
  // Applies softcap to products in place, and keeps the derivatives.
  TANDEM_DEVICE void cap(float (&s)[COUNT], float scale, float softcap) {
    soft_cap(s, scale, softcap, [&](int i, float x, float y) { pairs[i / 2] = Half::pack(x, y); });
  }
  // The same of products s[i] and s[i + 1], which become capped scores in natural units.
  TANDEM_DEVICE void cap_far(float (&s)[COUNT], int i, float scale, float softcap, float inverse) {
    float x, y;
    s[i] = far_cap(__fmul_rn(scale, s[i]), softcap, inverse, &x);
    s[i + 1] = far_cap(__fmul_rn(scale, s[i + 1]), softcap, inverse, &y);
    pairs[i / 2] = Half::pack(x * kDerivativeUnit, y * kDerivativeUnit);
  }
  TANDEM_DEVICE void multiply(float (&x)[COUNT]) const {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) multiply_capped(x[i], x[i + 1], pairs[i / 2]);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
