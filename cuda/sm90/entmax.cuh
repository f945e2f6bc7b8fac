// SPDX-License-Identifier: MIT OR Apache-2.0
// What the kernels of entmax share.
#ifndef TANDEM_CUDA_SM90_ENTMAX_CUH
#define TANDEM_CUDA_SM90_ENTMAX_CUH
#include "ptx.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// u of x = [z - t]_+, for any alpha, 1 on the support of alpha = 2; y is x u.
template <typename Params>
TANDEM_DEVICE float entmax_power(const Params& params, float x) {
  return x > 0.f ? exp2_fast(__log2f(x) * (params.extra.entmax_exponent - 1.f)) : 0.f;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
