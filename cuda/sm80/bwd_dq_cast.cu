// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bwd_dq_cast.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype dtype) {
  if (dtype == TANDEM_F16) return bwd_dq_cast<F16>;
  return dtype == TANDEM_BF16 ? bwd_dq_cast<BF16> : bwd_dq_cast<F32>;
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
