// SPDX-License-Identifier: MIT OR Apache-2.0
// The largest logit of a head, raised in place. Twin of shaders/parts/max_logit.glsl.
#ifndef TANDEM_CUDA_PARTS_MAX_LOGIT_CUH
#define TANDEM_CUDA_PARTS_MAX_LOGIT_CUH
#include "kernels/kernel_params.h"
#include "simt.cuh"

namespace tandem {
namespace cuda {

// Where the largest logit of a head of a batch entry stands.
TANDEM_DEVICE float* max_logit_at(const FwdBlock& u, const FwdPush& push, int batch, int head) {
  return reinterpret_cast<float*>(push.max_logit) +
         int64_t(batch / u.max_logit_entries) * u.heads_q + head;
}
// Raises it to x. Integers are ordered as the numbers of their bits are, and negative ones the
// other way round.
TANDEM_DEVICE void raise_to(float* to, float x) {
  const int bits = __float_as_int(x);
  if (x < 0.f)
    atomicMin(reinterpret_cast<uint*>(to), uint(bits));
  else
    atomicMax(reinterpret_cast<int*>(to), max(bits, 0));  // minus 0 as 0
}
// Raises the largest logit of a head of a batch entry to x, the largest score of this lane's rows;
// minus infinity: they see no key. Called by whole warps. max_logit only rises, so an old number
// that is read first costs an atomic at most.
TANDEM_DEVICE void raise_max_logit(const FwdBlock& u, const FwdPush& push, int batch, int head,
                                   float x) {
  if (!push.max_logit) return;
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lane));
  float* const to = max_logit_at(u, push, batch, head);
  if (threadIdx.x % 32 == 0 && x > __ldcg(to)) raise_to(to, x);
}

}  // namespace cuda
}  // namespace tandem
#endif
