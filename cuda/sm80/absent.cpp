// SPDX-License-Identifier: MIT OR Apache-2.0
// In builds for no GPU of compute capability 8.0 or later.
#include "kernels.h"

namespace tandem {
namespace cuda {
namespace sm80 {

Kernel<FwdParams> fwd_kernel(tandem_dtype, const Launch&, bool) { return nullptr; }
Kernel<BwdDkvParams> bwd_dkv_kernel(tandem_dtype, const Launch&, bool) { return nullptr; }
Kernel<BwdDqParams> bwd_dq_kernel(tandem_dtype, const Launch&, bool) { return nullptr; }
Kernel<FwdFull> fwd_full_kernel(tandem_dtype, const Launch&, bool) { return nullptr; }
Kernel<BwdRowFull> bwd_row_full_kernel(tandem_dtype, const Launch&, bool) { return nullptr; }
Kernel<BwdDkvFull> bwd_dkv_full_kernel(tandem_dtype, const Launch&, bool) { return nullptr; }
Kernel<BwdDqFull> bwd_dq_full_kernel(tandem_dtype, const Launch&, bool) { return nullptr; }
Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype, const Launch&) { return nullptr; }
Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype) { return nullptr; }
const void* any_kernel() { return nullptr; }

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
