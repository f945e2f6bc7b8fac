// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with masks, dropout and a distance bias beside the inputs of bwd_dkv_dq_varlen.cu,
// head sizes up to 128.
#include "dkv_dq.cuh"
#include "variant_masked.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, int ROW = 0>
Kernel<BwdDkvDqOptionalParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1>(row);
    if constexpr (has_masked_kernel(kBwdShapes[ROW]))
      return bwd_dkv_dq<T, ROW, Masked<has_masked_scores(kBwdShapes[ROW])>, true, true>;
  }
  return nullptr;
}

}  // namespace

Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_masked_kernel(tandem_dtype dtype, int row) {
  if (dtype == TANDEM_F16) return select<Half>(row);
  return dtype == TANDEM_BF16 ? select<Bfloat>(row) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
