// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels for Hopper as the host sees them: parameter structs, and a look-up of the instantiation that serves a
// launch. nullptr: not built. Maps are of four dimensions, (feature, row, head, batch) of a tensor's sizes, 16-bit
// elements, boxes of 64 features and hopper_box_rows() rows, SWIZZLE_128B, zeros outside.
#ifndef TANDEM_CUDA_SM90_KERNELS_H
#define TANDEM_CUDA_SM90_KERNELS_H
#include <cuda.h>

#include "../kernels.h"

namespace tandem {
namespace cuda {
namespace sm90 {

struct FwdParams {
  CUtensorMap q, k, v;
  FwdBlock block;
  FwdPush push;
};
struct BwdDkvDqParams {
  CUtensorMap q, k, v, d_o;
  BwdDkvDqBlock block;
  BwdDkvDqPush push;
};
struct BwdDqCastParams {
  BwdDqCastBlock block;
  BwdDqCastPush push;
};

// By launch.hopper (a row of src/hopper_tiles.inc), launch.d_blocks and launch.dv_blocks (panels of 64 features).
Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype dtype, const Launch& launch);

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
