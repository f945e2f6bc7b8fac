// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq of plain softmax where workgroups share tiles of keys, head sizes up to 128.
#include "dkv_dq.cuh"
#include "variant_parts.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, int ROW = 0>
Kernel<BwdDkvDqPartsParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1>(row);
    if constexpr (!kBwdShapes[ROW].wide) return bwd_dkv_dq<T, ROW, Parts, true, true>;
  }
  return nullptr;
}

}  // namespace

Kernel<BwdDkvDqPartsParams> bwd_dkv_dq_parts_kernel(tandem_dtype dtype, int row) {
  if (dtype == TANDEM_F16) return select<Half>(row);
  return dtype == TANDEM_BF16 ? select<Bfloat>(row) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
