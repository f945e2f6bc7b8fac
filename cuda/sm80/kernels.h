// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of the path sm80 as the host sees them. Parameters are those of cuda/kernels.h.
// launch.ampere and the tensors' type choose a kernel; nullptr: not built.
#ifndef TANDEM_CUDA_SM80_KERNELS_H
#define TANDEM_CUDA_SM80_KERNELS_H
#include "../kernels.h"

namespace tandem {
namespace cuda {
namespace sm80 {

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDkvParams> bwd_dkv_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDqParams> bwd_dq_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<FwdFull> fwd_full_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdRowFull> bwd_row_full_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
// bwd_dkv with optional inputs. The kernel before it leaves what bwd_dq reads and bwd_head sums, so
// the workgroups of bwd_dq and of bwd_head may follow those of bwd_dkv. Each total may be 0.
struct BwdDkvHeadFull : BwdDkvFull {
  BwdDqFull dq;
  BwdHeadFull head;
};
Kernel<BwdDkvHeadFull> bwd_dkv_full_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<BwdDqFull> bwd_dq_full_kernel(tandem_dtype dtype, const Launch& launch, bool wide);

// d_q_accum: [B Hq][blocks of 64 rows][panels of 64 features][64 x 64 in accumulator order], f32.
// bwd_dq_cast reads it.
struct BwdDkvDqParams {
  BwdDkvDqBlock block;
  BwdDkvDqPush push;
  uint64_t q, k, v, d_o;
  uint wide;  // as in bwd_dkv.inc
  // f32: whether the last workgroup of a kv head converts the dQ accumulator itself, in place of
  // bwd_dq_cast.
  struct {
    uint wide;
    Strides strides;
    uint64_t address;  // 0: it does not
    uint64_t counts;   // [B, Hk], zeroed before: how many tiles of keys have added to the sums
  } d_q;
};

struct BwdDqCastParams {
  BwdDqCastBlock block;
  BwdDqCastPush push;
  uint wide;  // of d_q
};

Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype dtype);

// Some kernel of this build, to find out whether its code loads; nullptr: it has none.
const void* any_kernel();

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
