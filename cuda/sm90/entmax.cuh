// SPDX-License-Identifier: MIT OR Apache-2.0
// Entmax functions that the forward and the backward kernels share.
#ifndef TANDEM_CUDA_SM90_ENTMAX_CUH
#define TANDEM_CUDA_SM90_ENTMAX_CUH
#include "ptx/base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The function u of x = [z - t]_+, for any alpha. The weight y is x u. With alpha = 2, u is 1 on
// the support.
template <typename Params>
TANDEM_DEVICE float entmax_power(const Params& params, float x) {
  return x > 0.f ? exp2_fast(__log2f(x) * (params.extra.entmax_exponent - 1.f)) : 0.f;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
