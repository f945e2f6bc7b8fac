// SPDX-License-Identifier: MIT OR Apache-2.0
// The hyperbolic tangent of softcap, one formula for all backends. The accuracy of exp alone would
// not suffice for small arguments, and some GPUs' own tanh is a quotient of exponentials. It is
// written in the common subset of C++, CUDA and GLSL, as src/problem/tile_range.h. Every step is an
// fma, or is rounded whatever a compiler contracts, so a score has the same bits wherever it is
// formed. The error is at most 1.4 ulp with an exp of libm.
#ifndef TANDEM_SRC_PROBLEM_TANH_H
#define TANDEM_SRC_PROBLEM_TANH_H

#if defined(__cplusplus)
#include <math.h>
#if defined(__CUDACC__)
#define TANDEM_TANH_FN __host__ __device__ inline
#else
#define TANDEM_TANH_FN inline
#endif
#define TANDEM_TANH_FMA fmaf
#define TANDEM_TANH_EXP expf
#define TANDEM_TANH_EXACT
#else
#define TANDEM_TANH_FN
#define TANDEM_TANH_FMA fma
#define TANDEM_TANH_EXP exp
#define TANDEM_TANH_EXACT precise
#endif

TANDEM_TANH_FN float tandem_tanh(float x) {
  const float a = x < 0.f ? -x : x;
  TANDEM_TANH_EXACT float r;
  if (a < 0.6f) {
    // x + x^3 P(x^2). P has the least maximum of the relative error over [0, 0.6]: 3e-9, with
    // rounding 0.8 ulp.
    TANDEM_TANH_EXACT const float z = x * x;
    TANDEM_TANH_EXACT float p = -0.0058951583f;
    p = TANDEM_TANH_FMA(p, z, 0.020795971f);
    p = TANDEM_TANH_FMA(p, z, -0.05378383f);
    p = TANDEM_TANH_FMA(p, z, 0.13331924f);
    p = TANDEM_TANH_FMA(p, z, -0.333333f);
    TANDEM_TANH_EXACT const float cube = x * z;
    r = TANDEM_TANH_FMA(cube, p, x);
  } else {
    // exp must not overflow. The comparison lets NaN stay NaN.
    TANDEM_TANH_EXACT const float e = TANDEM_TANH_EXP(2.f * (a > 40.f ? 40.f : a));
    TANDEM_TANH_EXACT const float rest = 2.f / (e + 1.f);
    r = 1.f - rest;
    r = x < 0.f ? -r : r;
  }
  return r;
}

// Its derivative at x, given t = tandem_tanh(x): 1 - t^2, but relatively accurate if t is close to
// 1.
TANDEM_TANH_FN float tandem_tanh_slope(float x, float t) {
  const float a = x < 0.f ? -x : x;
  if (a < 0.6f) return TANDEM_TANH_FMA(-t, t, 1.f);
  const float e = TANDEM_TANH_EXP(2.f * (a > 40.f ? 40.f : a));
  const float rest = 2.f / (e + 1.f);
  return rest * (2.f - rest);
}

#endif
