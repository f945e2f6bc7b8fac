// SPDX-License-Identifier: MIT OR Apache-2.0
// The online row state of fwd, and p from lse in the backward. Twin of shaders/softmax.glsl.
#ifndef TANDEM_CUDA_SOFTMAX_CUH
#define TANDEM_CUDA_SOFTMAX_CUH
#include "mask.cuh"
#include "tile.cuh"

namespace tandem {
namespace cuda {

// A row's TC invocations are neighbours inside a warp.
template <typename S>
TANDEM_DEVICE float row_max(float x) {
#pragma unroll
  for (int lane = S::TC / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lane));
  return x;
}
template <typename S>
TANDEM_DEVICE float row_sum(float x) {
#pragma unroll
  for (int lane = S::TC / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}

template <typename S>
struct OnlineSoftmax {
  float m[S::RM];  // the row's running maximum, the same in all its invocations
  float l[S::RM];  // this invocation's part of the row's sum

  TANDEM_DEVICE OnlineSoftmax() {
#pragma unroll
    for (int i = 0; i < S::RM; ++i) m[i] = minus_infinity(), l[i] = 0.f;
  }

  // s becomes p; factor is what earlier results of the row are multiplied by.
  TANDEM_DEVICE void step(float (&s)[S::RM][4], float (&factor)[S::RM]) {
#pragma unroll
    for (int i = 0; i < S::RM; ++i) {
      const float top =
          row_max<S>(fmaxf(fmaxf(m[i], fmaxf(s[i][0], s[i][1])), fmaxf(s[i][2], s[i][3])));
      // Nothing visible yet: -inf - -inf would be NaN. Any finite number gives p = 0 and factor 0,
      // and what is multiplied by it is still 0.
      const float base = top == minus_infinity() ? 0.f : top;
      factor[i] = expf(m[i] - base);
      m[i] = top;
      float sum = 0.f;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        s[i][c] = expf(s[i][c] - base);
        sum += s[i][c];
      }
      l[i] = fmaf(l[i], factor[i], sum);
    }
  }
};

// Backward: p = exp(s - lse). A row that saw nothing has lse = -inf and weights 0.
TANDEM_DEVICE float weight(float s, float lse) {
  return lse == minus_infinity() ? 0.f : expf(s - lse);
}

// ---- with optional inputs -------------------------------------------------------------------------

// lse of a row with maximum m and sum l > 0, which sink joins as one more score.
TANDEM_DEVICE float joined_lse(const float* sink, float m, float l) {
  if (!sink) return m + logf(l);
  const float s = __ldg(sink), top = fmaxf(m, s);
  return top + logf(fmaf(l, expf(m - top), expf(s - top)));
}

}  // namespace cuda
}  // namespace tandem
#endif
