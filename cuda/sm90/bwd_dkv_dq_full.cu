// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with lengths, softcap and ALiBi, head sizes up to 128.
#include "bwd_full.cuh"
#include "bwd_narrow.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, typename Set, int ROW = 0>
Kernel<BwdDkvDqFullParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, Set, ROW + 1>(row);
    if constexpr (Set::has_kernel(kBwdShapes[ROW])) return bwd_dkv_dq<T, ROW, Set, true, true>;
  }
  return nullptr;
}
template <typename Set>
Kernel<BwdDkvDqFullParams> select(tandem_dtype dtype, int row) {
  if (dtype == TANDEM_F16) return select<Half, Set>(row);
  return dtype == TANDEM_BF16 ? select<Bfloat, Set>(row) : nullptr;
}

}  // namespace

Kernel<BwdDkvDqFullParams> bwd_dkv_dq_lengths_kernel(tandem_dtype dtype, int row) {
  return select<WithLengths>(dtype, row);
}
Kernel<BwdDkvDqFullParams> bwd_dkv_dq_full_kernel(tandem_dtype dtype, int row) {
  return select<Full>(dtype, row);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
