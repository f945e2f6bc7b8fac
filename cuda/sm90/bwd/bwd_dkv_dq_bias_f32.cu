// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias of f32, its gradient and, if there is one, a keep mask. Heads up to
// 128.
#include "variant_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, BiasForm FORM, int ROW = kBwdShapeCount>
Kernel<BwdDkvDqBiasParams> select(int row) {
  if constexpr (ROW < kAllBwdShapeCount)
    return row == ROW ? bwd_dkv_dq_bias<T, ROW, FORM> : select<T, FORM, ROW + 1>(row);
  return nullptr;
}
template <typename T>
Kernel<BwdDkvDqBiasParams> select(int row, BiasForm form) {
  if (form == BiasForm::f32) return select<T, BiasForm::f32>(row);
  return form == BiasForm::f32_slices ? select<T, BiasForm::f32_slices>(row) : nullptr;
}

}  // namespace

Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_f32_bias_kernel(tandem_dtype dtype, int row, BiasForm form) {
  if (dtype == TANDEM_F16) return select<Half>(row, form);
  return dtype == TANDEM_BF16 ? select<Bfloat>(row, form) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
