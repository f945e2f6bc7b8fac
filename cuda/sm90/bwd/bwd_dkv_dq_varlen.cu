// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with lengths, softcap and ALiBi, head sizes up to 128.
#include "dkv_dq.cuh"
#include "variant_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, typename Variant, int ROW = 0>
Kernel<BwdDkvDqOptionalParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, Variant, ROW + 1>(row);
    if constexpr (Variant::has_kernel(kBwdShapes[ROW]))
      return bwd_dkv_dq<T, ROW, Variant, true, true>;
  }
  return nullptr;
}
template <typename Variant>
Kernel<BwdDkvDqOptionalParams> select(tandem_dtype dtype, int row) {
  if (dtype == TANDEM_F16) return select<Half, Variant>(row);
  return dtype == TANDEM_BF16 ? select<Bfloat, Variant>(row) : nullptr;
}

}  // namespace

Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_varlen_kernel(tandem_dtype dtype, int row) {
  return select<Varlen>(dtype, row);
}
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_softcap_alibi_kernel(tandem_dtype dtype, int row) {
  return select<SoftcapAlibi>(dtype, row);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
