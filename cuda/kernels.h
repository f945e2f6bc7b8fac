// SPDX-License-Identifier: MIT OR Apache-2.0
// The CUDA kernels as the host sees them: parameter structs, and look-ups of the instantiation that
// serves a launch, which return nullptr where it is not built (cuda/select.cuh).
#ifndef TANDEM_CUDA_KERNELS_H
#define TANDEM_CUDA_KERNELS_H
#include "params.h"

namespace tandem {
namespace cuda {

// Plain kernels take no optional inputs; a problem without any runs only these.
template <typename Block, typename Push>
struct Params {
  Block block;
  Push push;
};
// Full kernels take all of them, and the element type, as run-time values.
template <typename Spec, typename Block, typename Push>
struct FullParams {
  Block block;
  Push push;
  ExtraBlock extra;
  Features features;
  Spec spec;
};

template <typename P>
using Kernel = void (*)(P);

#define TANDEM_STEM(Name, name)                                       \
  using Name##Params = Params<Name##Block, Name##Push>;               \
  using Name##Full = FullParams<Name##Spec, Name##Block, Name##Push>; \
  Kernel<Name##Full> name##_full_kernel(const Launch& launch, bool wide);
#define TANDEM_FUSED(Name, name)                                      \
  using Name##Full = FullParams<Name##Spec, Name##Block, Name##Push>; \
  Kernel<Name##Full> name##_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
#define TANDEM_HOPPER(Name, name)  // sm90/kernels.h
#include "stems.inc"

// For the rows of src/fixed.inc: the set of optional inputs and the element type are known at
// compile time.
Kernel<FwdFull> fwd_elastic_kernel(tandem_dtype dtype, const Launch& launch, bool wide);

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDotParams> bwd_dot_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDkvParams> bwd_dkv_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDqParams> bwd_dq_kernel(tandem_dtype dtype, const Launch& launch, bool wide);

}  // namespace cuda
}  // namespace tandem
#endif
