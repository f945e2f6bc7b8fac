// SPDX-License-Identifier: MIT OR Apache-2.0
// The CUDA kernels as the host sees them: parameter structs, and a look-up of the instantiation that
// serves a launch. nullptr: not built (cuda/select.cuh says what is).
#ifndef TANDEM_CUDA_KERNELS_H
#define TANDEM_CUDA_KERNELS_H
#include "params.h"

namespace tandem {
namespace cuda {

// Plain kernels know no optional inputs; a problem without any runs these alone.
template <typename Block, typename Push>
struct Params {
  Block block;
  Push push;
};
// Full kernels know all of them, and the element type, by run-time values.
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

// Of the rows of src/fixed.inc: a set of optional inputs and the element type are known to the compiler.
Kernel<FwdFull> fwd_elastic_kernel(tandem_dtype dtype, const Launch& launch, bool wide);

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDotParams> bwd_dot_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDkvParams> bwd_dkv_kernel(tandem_dtype dtype, const Launch& launch, bool wide);
Kernel<BwdDqParams> bwd_dq_kernel(tandem_dtype dtype, const Launch& launch, bool wide);

}  // namespace cuda
}  // namespace tandem
#endif
