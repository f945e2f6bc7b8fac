// SPDX-License-Identifier: MIT OR Apache-2.0
// What merge and bwd_merge share: views of parts, and the weights of a row's parts. Twin of
// shaders/parts/merge.glsl.
#ifndef TANDEM_CUDA_PARTS_MERGE_CUH
#define TANDEM_CUDA_PARTS_MERGE_CUH
#include "tensor.cuh"

namespace tandem {
namespace cuda {

// Four features of a row as floats.
template <typename T>
TANDEM_DEVICE float4 load_quad(const View<T>& m, int row, int col) {
  typename T::Raw raw;
  load_words<T, false, 1, 1>(&raw, m, 0, row, 0, col);
  return T::to_floats(raw);
}

// The same of a tensor that the kernel writes later on: not by the read-only cache.
template <typename T>
TANDEM_DEVICE float4 load_own_quad(const View<T>& m, int row, int col) {
  const typename T::Element* at = m.base + row * m.s + col * m.d;
  if (m.wide && col + 4 <= m.width)
    return T::to_floats(*reinterpret_cast<const typename T::Raw*>(at));
  float x[4] = {};
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (col + c < m.width) x[c] = T::to_float(at[c * m.d]);
  return make_float4(x[0], x[1], x[2], x[3]);
}

// The largest lse of a row's parts, of how many parts it is, and the sum of their weights relative
// to it. A part with lse of minus infinity saw no key.
struct PartSums {
  float origin = 0.f, sum = 0.f;
  int seen = 0;
  TANDEM_DEVICE void add_origin(float lse) {
    if (lse == -INFINITY) return;
    if (seen == 0 || lse > origin) origin = lse;
    ++seen;
  }
  // The largest part has a weight of exactly 1.
  TANDEM_DEVICE float raw_weight(float lse) const {
    return lse == -INFINITY ? 0.f : lse == origin ? 1.f : expf(lse - origin);
  }
  TANDEM_DEVICE float weight(float lse) const { return __fdiv_rn(raw_weight(lse), sum); }
};

}  // namespace cuda
}  // namespace tandem
#endif
