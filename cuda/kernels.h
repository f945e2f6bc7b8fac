// SPDX-License-Identifier: MIT OR Apache-2.0
// The CUDA kernels as the host sees them: parameter structs, and look-ups of the instantiation that
// serves a launch, which return nullptr where it is not built (cuda/simt/select.cuh).
#ifndef TANDEM_CUDA_KERNELS_H
#define TANDEM_CUDA_KERNELS_H
#include "kernels/kernel_params.h"

namespace tandem {
namespace cuda {

// What chooses an instantiation of a kernel, beside the element type and whether all inputs are
// wide.
struct KernelChoice {
  const char* tile = nullptr;       // simt: name of a tile of tiles.inc
  int d_blocks = 0, dv_blocks = 0;  // simt: accumulator blocks that cover D, Dv
  int row = 0;                      // sm80: of plan/sm80/tiles.inc
  bool tf32 = false;                // f32 operands are rounded to TF32
};

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
  Kernel<Name##Full> name##_full_kernel(const KernelChoice& of, bool wide);
#define TANDEM_FUSED(Name, name)                                      \
  using Name##Full = FullParams<Name##Spec, Name##Block, Name##Push>; \
  Kernel<Name##Full> name##_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide);
#define TANDEM_HOPPER(Name, name)  // sm90/kernels.h
#include "kernels/stems.inc"

// For rows with trait::fixed: the set of optional inputs and the element type are known
// at compile time.
Kernel<FwdFull> fwd_elastic_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide);

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide);
Kernel<BwdDotParams> bwd_dot_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide);
Kernel<BwdDkvParams> bwd_dkv_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide);
Kernel<BwdDqParams> bwd_dq_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide);

}  // namespace cuda
}  // namespace tandem
#endif
