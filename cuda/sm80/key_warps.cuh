// SPDX-License-Identifier: MIT OR Apache-2.0
// Key warps: the warps of a workgroup of fwd have the same query rows, and each its own tiles of
// keys, with stages of its own. So they wait for nothing but their own copies. At the end what they
// have of a row is added up.
#ifndef TANDEM_CUDA_SM80_KEY_WARPS_CUH
#define TANDEM_CUDA_SM80_KEY_WARPS_CUH
#include "tile.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Row reductions of rows whose sums are there already.
struct WholeRows {
  template <int MT>
  TANDEM_DEVICE void join_sum(float (&)[MT][2]) const {}
};

// Adds up o and the sums of weights of WARPS warps, in their order, relative to the largest of
// their origins. Afterwards all warps have the origin and the sum of each row, and each has o of
// its part of the features, in `part`. numbers: shared memory for 2 WARPS f32 numbers of each of
// the 16 MT rows; parts: for WARPS o of FEATURES + 8 f32 numbers a row. Barriers of the workgroup.
template <int WARPS, int FEATURES, typename Softmax, int MT, int N>
TANDEM_DEVICE void add_key_warps(float (&part)[MT][N / WARPS][4], Softmax& softmax,
                                 const float (&o)[MT][N][4], float c, uint numbers, uint parts) {
  constexpr int ROWS = 16 * MT, PITCH = 4 * (FEATURES + 8);  // no conflict of the banks
  const Lane me;
  const auto number = [&](int which, int warp, int r, int h) {
    return numbers + 4u * uint((which * WARPS + warp) * ROWS + 16 * r + 8 * h + me.g);
  };
#pragma unroll
  for (int r = 0; r < MT; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float l = quad_sum(softmax.l[r][h]);
      if (me.t != 0) continue;
      put_number(number(0, me.warp, r, h), softmax.m[r][h]);
      put_number(number(1, me.warp, r, h), l);
    }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < MT; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m[WARPS], top = minus_infinity(), l = 0.f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        m[w] = __uint_as_float(get_word(number(0, w, r, h)));
        top = fmaxf(top, m[w]);
      }
#pragma unroll
      for (int w = 0; w < WARPS; ++w)
        l = fmaf(__uint_as_float(get_word(number(1, w, r, h))), Softmax::moved(m[w], top, c), l);
      const float factor = Softmax::moved(softmax.m[r][h], top, c);
      softmax.m[r][h] = top, softmax.l[r][h] = l;
      const uint row = parts + uint((me.warp * ROWS + 16 * r + 8 * h + me.g) * PITCH + 8 * me.t);
#pragma unroll
      for (int n = 0; n < N; ++n)
        put_pair(row + 32u * uint(n), __float_as_uint(o[r][n][2 * h] * factor),
                 __float_as_uint(o[r][n][2 * h + 1] * factor));
    }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < MT; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = 0; n < N / WARPS; ++n) {
        const uint at = parts + uint((16 * r + 8 * h + me.g) * PITCH + 8 * me.t +
                                     32 * (me.warp * (N / WARPS) + n));
        float sum[2] = {0.f, 0.f};
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
          float x[2];
          get_numbers(x, at + uint(w * ROWS * PITCH));
          sum[0] += x[0], sum[1] += x[1];
        }
        part[r][n][2 * h] = sum[0], part[r][n][2 * h + 1] = sum[1];
      }
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
