// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_sum_splits: adds the parts of the splits, in order; an invocation has an element. Twin of
// shaders/scalar/bwd_sum_splits.comp.
#include "../kernels.h"
#include "../parts/tensor.cuh"

namespace tandem {
namespace cuda {

__global__ void __launch_bounds__(kLineGroup)
    bwd_sum_splits(const __grid_constant__ BwdSumSplitsFull params) {
  const BwdSumSplitsBlock& u = params.block;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index >= u.total) return;
  const int64_t n = int64_t(index) * kLineGroup + threadIdx.x;
  if (n >= u.part) return;
  const int64_t col = n % u.cols;
  int64_t rest = n / u.cols;
  const float* parts = reinterpret_cast<const float*>(params.push.parts) + rest * u.pitch + col;
  const int64_t step = int64_t(u.part) / u.cols * u.pitch;
  float sum = 0.f;
  for (int split = 0; split < u.splits; ++split) sum += __ldg(parts + split * step);
  const int64_t row = rest % u.rows;
  rest /= u.rows;
  const int64_t at =
      rest / u.heads * u.to.b + rest % u.heads * u.to.h + row * u.to.s + col * u.to.d;
  with_type(params.spec.DTYPE, [&](auto type) {
    using T = decltype(type);
    reinterpret_cast<typename T::Element*>(params.push.to)[at] = T::from_float(sum);
  });
}

Kernel<BwdSumSplitsFull> bwd_sum_splits_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return bwd_sum_splits;
}

}  // namespace cuda
}  // namespace tandem
