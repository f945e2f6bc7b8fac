// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias of f32, its gradient and, if there is one, a keep mask. Heads up to
// 128.
#include "variant_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_f32_bias_kernel(tandem_dtype dtype, int row, BiasForm form) {
  using Kernels = BiasKernels<BiasForm::f32, BiasForm::f32_slices>;
  return select_kernel<Kernels, kBwdShapeCount, kAllBwdShapeCount>(dtype, row, form);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
