// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias and its gradient, head sizes up to 128.
#include "bwd_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, int ROW, bool PASSES>
Kernel<BwdDkvDqBiasParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1, PASSES>(row);
    if constexpr (!kBwdShapes[ROW].wide) return bwd_dkv_dq_bias<T, ROW, PASSES>;
  }
  return nullptr;
}

}  // namespace

Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_bias_kernel(tandem_dtype dtype, int row, bool passes) {
  if (dtype == TANDEM_F16) return passes ? select<Half, 0, true>(row) : select<Half, 0, false>(row);
  if (dtype != TANDEM_BF16) return nullptr;
  return passes ? select<Bfloat, 0, true>(row) : select<Bfloat, 0, false>(row);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
