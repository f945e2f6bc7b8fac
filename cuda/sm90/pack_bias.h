// SPDX-License-Identifier: MIT OR Apache-2.0
// pack_bias, which runs before fwd and before bwd_dkv_dq, as the host sees it.
#ifndef TANDEM_CUDA_SM90_PACK_BIAS_H
#define TANDEM_CUDA_SM90_PACK_BIAS_H
#include "params.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// For f16 and bf16, whose bits it copies. The copy begins at a multiple of 16 bytes; the bias may
// lie anywhere, in any strides.
Kernel<PackBiasParams> pack_bias_kernel();

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
