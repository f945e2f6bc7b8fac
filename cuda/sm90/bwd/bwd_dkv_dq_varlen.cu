// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with lengths, and softcap and ALiBi or a bias of one row beside them, head sizes up to
// 128.
#include "dkv_dq.cuh"
#include "select.cuh"
#include "variant_row_bias.cuh"
#include "variant_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Variant>
struct VarlenKernels {
  using Params = BwdDkvDqOptionalParams;
  template <typename T, int ROW>
  static Kernel<Params> kernel() {
    if constexpr (Variant::has_kernel(kBwdShapes[ROW]))
      return bwd_dkv_dq<T, ROW, Variant, true, true>;
    return nullptr;
  }
};

struct RowBiasKernels {
  using Params = BwdDkvDqOptionalParams;
  template <typename T, int ROW>
  static Kernel<Params> kernel(bool persistent) {
    if constexpr (RowBias::has_kernel(kBwdShapes[ROW]))
      return persistent ? bwd_dkv_dq_persistent<T, ROW, PersistentRowBias>
                        : bwd_dkv_dq<T, ROW, RowBias, true, true>;
    return nullptr;
  }
};

}  // namespace

Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_varlen_kernel(tandem_dtype dtype, int row) {
  return select_kernel<VarlenKernels<Varlen>>(dtype, row);
}
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_row_bias_kernel(tandem_dtype dtype, int row,
                                                          bool persistent) {
  return select_kernel<RowBiasKernels>(dtype, row, persistent);
}
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_softcap_alibi_kernel(tandem_dtype dtype, int row) {
  return select_kernel<VarlenKernels<SoftcapAlibi>>(dtype, row);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
