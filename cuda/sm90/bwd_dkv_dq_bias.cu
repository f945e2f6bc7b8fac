// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias and its gradient, head sizes up to 128.
#include "bwd_narrow.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, int ROW>
Kernel<BwdDkvDqBiasParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1>(row);
    if constexpr (!kBwdShapes[ROW].wide) return bwd_dkv_dq<T, ROW, Bias, true, true>;
  }
  return nullptr;
}

}  // namespace

Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_bias_kernel(tandem_dtype dtype, int row) {
  if (dtype == TANDEM_F16) return select<Half, 0>(row);
  return dtype == TANDEM_BF16 ? select<Bfloat, 0>(row) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
