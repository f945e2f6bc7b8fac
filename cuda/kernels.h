// SPDX-License-Identifier: MIT OR Apache-2.0
// Parameters of the CUDA kernels. Their look-ups are declared in src/cuda/look_ups.h.
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
  uint first_group;  // number of the launch's first workgroup: not 0 in slices of an execute
};
// Full kernels take all of them, and the element type, as run-time values.
template <typename Spec, typename Block, typename Push>
struct FullParams {
  Block block;
  Push push;
  ExtraBlock extra;
  Features features;
  Spec spec;
  uint first_group;  // as in Params
};

template <typename P>
using Kernel = void (*)(P);

#define TANDEM_STEM(Name, name)                         \
  using Name##Params = Params<Name##Block, Name##Push>; \
  using Name##Full = FullParams<Name##Spec, Name##Block, Name##Push>;
#define TANDEM_HOPPER(Name, name)  // sm90/params.h
#include "kernels/stems.inc"

}  // namespace cuda
}  // namespace tandem
#endif
