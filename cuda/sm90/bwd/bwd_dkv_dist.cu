// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dist of elastic softmax on Hopper, head sizes up to 128: bwd_dkv_dq without d_q, which
// bwd_row_sums_dq has formed.
#include "dkv_dq.cuh"
#include "variant_elastic.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, int ROW>
Kernel<BwdDkvDistParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1>(row);
    if constexpr (!kBwdShapes[ROW].wide) return bwd_dkv_dq<T, ROW, Elastic, false, true>;
  }
  return nullptr;
}

}  // namespace

Kernel<BwdDkvDistParams> bwd_dkv_dist_kernel(tandem_dtype dtype, int row) {
  if (dtype == TANDEM_F16) return select<Half, 0>(row);
  return dtype == TANDEM_BF16 ? select<Bfloat, 0>(row) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
