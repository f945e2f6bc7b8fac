// SPDX-License-Identifier: MIT OR Apache-2.0
// The backward kernels of the sm90 path as the host sees them.
#ifndef TANDEM_CUDA_SM90_BWD_H
#define TANDEM_CUDA_SM90_BWD_H
#include <cuda.h>

#include "../kernels.h"
#include "hopper_tiles.h"

namespace tandem {
namespace cuda {
namespace sm90 {

struct BwdDkvDqParams {
  CUtensorMap q, k, v, d_o;
  BwdDkvDqBlock block;
  BwdDkvDqPush push;
};
struct BwdDqCastParams {
  BwdDqCastBlock block;
  BwdDqCastPush push;
};

// row: of kBwdShapes. grad_q, grad_kv: which gradients are wanted, one at least. kBwdThreads threads,
// bwd_shared_bytes() of shared memory.
Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, int row, bool grad_q, bool grad_kv);
Kernel<BwdDkvDqParams> bwd_dkv_dq_wide_kernel(tandem_dtype dtype, int row, bool grad_q,
                                              bool grad_kv);
// 128 threads.
Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype dtype);

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
