// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias and its gradient, head sizes up to 128.
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
  switch (form) {
    case BiasForm::passes:
      return select<T, BiasForm::passes>(row);
    case BiasForm::postprocess:
      return select<T, BiasForm::postprocess>(row);
    case BiasForm::slices:
      return select<T, BiasForm::slices>(row);
    case BiasForm::keep:
    case BiasForm::keep_slices:
      return nullptr;  // bwd_dkv_dq_bias_keep.cu
    case BiasForm::f32:
    case BiasForm::f32_slices:
      return nullptr;  // bwd_dkv_dq_bias_f32.cu
    case BiasForm::whole:
      break;
  }
  return select<T, BiasForm::whole>(row);
}

}  // namespace

Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_bias_kernel(tandem_dtype dtype, int row, BiasForm form) {
  if (dtype == TANDEM_F16) return select<Half>(row, form);
  return dtype == TANDEM_BF16 ? select<Bfloat>(row, form) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
