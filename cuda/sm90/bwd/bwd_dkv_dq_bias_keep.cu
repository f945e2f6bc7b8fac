// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias, its gradient and a keep mask, head sizes up to 128.
#include "variant_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_bias_keep_kernel(tandem_dtype dtype, int row, BiasForm form) {
  using Kernels = BiasKernels<BiasForm::keep, BiasForm::keep_slices, BiasForm::lengths,
                              BiasForm::lengths_slices>;
  return select_kernel<Kernels>(dtype, row, form);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
