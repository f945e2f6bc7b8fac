// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias, its gradient and a keep mask, head sizes up to 128.
#include "variant_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, BiasForm FORM, int ROW = 0>
Kernel<BwdDkvDqBiasParams> select(int row) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, FORM, ROW + 1>(row);
    if constexpr (!kBwdShapes[ROW].wide) return bwd_dkv_dq_bias<T, ROW, FORM>;
  }
  return nullptr;
}
template <typename T>
Kernel<BwdDkvDqBiasParams> select(int row, BiasForm form) {
  if (form == BiasForm::keep) return select<T, BiasForm::keep>(row);
  return form == BiasForm::keep_slices ? select<T, BiasForm::keep_slices>(row) : nullptr;
}

}  // namespace

Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_bias_keep_kernel(tandem_dtype dtype, int row, BiasForm form) {
  if (dtype == TANDEM_F16) return select<Half>(row, form);
  return dtype == TANDEM_BF16 ? select<Bfloat>(row, form) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
