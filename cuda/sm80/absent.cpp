// SPDX-License-Identifier: MIT OR Apache-2.0
// In builds for no GPU of compute capability 8.0 or later.
#include "kernels.h"

namespace tandem {
namespace cuda {
namespace sm80 {

#define TANDEM_AMPERE_KERNEL(name, kernel, stem, kind, Params) \
  Kernel<Params> name##_kernel(tandem_dtype, const KernelChoice&, bool) { return nullptr; }
#include "instances.inc"
Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype) { return nullptr; }

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
