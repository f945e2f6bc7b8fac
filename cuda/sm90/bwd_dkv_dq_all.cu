// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with masks, dropout, a distance bias and what bwd_dkv_dq_full.cu has, head sizes up to 128.
#include "bwd_all.cuh"
#include "bwd_narrow.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, int ROW = 0>
Kernel<BwdDkvDqFullParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1>(row);
    if constexpr (has_all_kernel(kBwdShapes[ROW]))
      return bwd_dkv_dq<T, ROW, All<has_all_scores(kBwdShapes[ROW])>, true, true>;
  }
  return nullptr;
}

}  // namespace

Kernel<BwdDkvDqFullParams> bwd_dkv_dq_all_kernel(tandem_dtype dtype, int row) {
  if (dtype == TANDEM_F16) return select<Half>(row);
  return dtype == TANDEM_BF16 ? select<Bfloat>(row) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
