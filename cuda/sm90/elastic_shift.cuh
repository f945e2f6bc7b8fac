// SPDX-License-Identifier: MIT OR Apache-2.0
// The part of elastic softmax's weights that all keys of a row have in common.
#ifndef TANDEM_CUDA_SM90_ELASTIC_SHIFT_CUH
#define TANDEM_CUDA_SM90_ELASTIC_SHIFT_CUH
#include "ptx/base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// tau / n of a row that sees n keys by their position; 0 where it sees none. A row's only key has
// p = 1, but 2^(score - lse) may be next to it. So where tau takes all of that p, as at its usual
// start of -1, the shift is as far below as no rounding comes.
TANDEM_DEVICE float elastic_shift(float tau, int n) {
  if (n == 1) return tau <= -1.f ? fminf(tau, -2.f) : tau;
  return n > 0 ? __fdiv_rn(tau, float(n)) : 0.f;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
