// SPDX-License-Identifier: MIT OR Apache-2.0
// The CUDA kernels as the host sees them: one parameter struct each, and a look-up of the instantiation
// that serves a launch. nullptr: not built (cuda/select.cuh says what is).
#ifndef TANDEM_CUDA_KERNELS_H
#define TANDEM_CUDA_KERNELS_H
#include "params.h"

namespace tandem {
namespace cuda {

template <typename Block, typename Push>
struct Params {
  Block block;
  Push push;
};
using FwdParams = Params<FwdBlock, FwdPush>;
using BwdDotParams = Params<BwdDotBlock, BwdDotPush>;
using BwdDkvParams = Params<BwdDkvBlock, BwdDkvPush>;
using BwdDqParams = Params<BwdDqBlock, BwdDqPush>;

template <typename P>
using Kernel = void (*)(P);

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDotParams> bwd_dot_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDkvParams> bwd_dkv_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDqParams> bwd_dq_kernel(tandem_dtype dtype, const Launch& launch, bool wide);

}  // namespace cuda
}  // namespace tandem
#endif
