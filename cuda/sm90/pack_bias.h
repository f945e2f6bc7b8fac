// SPDX-License-Identifier: MIT OR Apache-2.0
// pack_bias, which runs before fwd and before bwd_dkv_dq, as the host sees it.
#ifndef TANDEM_CUDA_SM90_PACK_BIAS_H
#define TANDEM_CUDA_SM90_PACK_BIAS_H
#include "params.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// For a bias of 16 bits, whose bits it copies, or of f32. The copy begins at a multiple of 16
// bytes; the bias may lie anywhere, in any strides.
Kernel<PackBiasParams> pack_bias_kernel(bool f32);

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
