// SPDX-License-Identifier: MIT OR Apache-2.0
// The look-ups of the CUDA kernels, declared by the rows of kernels.inc, and the parameters of a
// launch by their types. A look-up returns nullptr where a kernel is not built.
//   cuda::SOURCE_kernel(dtype, choice, wide)        of the folder simt; wide: all inputs are
//   cuda::sm80::SOURCE_kernel(dtype, choice, wide)  of the folder sm80
//   cuda::sm90::STEM_VARIANT_kernel(dtype, tile)    of the folder sm90; tile: of the row's table
#ifndef TANDEM_SRC_CUDA_LOOK_UPS_H
#define TANDEM_SRC_CUDA_LOOK_UPS_H
#include "../../cuda/kernels.h"
#include "../../cuda/simt/bwd_dot.h"
#include "../../cuda/sm80/params.h"
#include "kernels/params.h"

// An includer of kernels.inc that has FROM_FOLDER(id, source, params, look_up), for the folders
// that it is interested in, defines TANDEM_KERNEL as this.
#define TANDEM_CUDA_ROW(stem, backend, path, variant, folder, source, params) \
  TANDEM_FROM_##folder(backend##_##path##_##stem##_##variant, source, params, stem##_##variant)
#define TANDEM_FROM_none(id, source, params, row)
#define TANDEM_FROM_cpu(id, source, params, row)
#define TANDEM_FROM_scalar(id, source, params, row)
#define TANDEM_FROM_coopmat(id, source, params, row)

namespace tandem {
namespace cuda {

template <typename P>
using LookUp = Kernel<P> (*)(tandem_dtype, const KernelChoice&, bool wide);

#define TANDEM_KERNEL(stem, backend, path, variant, dtypes, tiles, needs, inputs, traits, folder, \
                      source, params)                                                             \
  TANDEM_CUDA_ROW(stem, backend, path, variant, folder, source, params)
#define TANDEM_FROM_simt(id, source, params, row) \
  Kernel<params> source##_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide);
#define TANDEM_FROM_sm80(id, source, params, row)                                        \
  namespace sm80 {                                                                       \
  Kernel<params> source##_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide); \
  }
#define TANDEM_FROM_sm90(id, source, params, row)
#include "kernels/kernels.inc"
#undef TANDEM_FROM_simt
#undef TANDEM_FROM_sm80
#undef TANDEM_FROM_sm90

}  // namespace cuda

// The block, the push and the specialisation of each stem, for parameters of any kernel.
#define TANDEM_HOPPER(Name, name)                                                  \
  inline void set_block(const Plan& plan, const Launch& launch, Name##Block* to) { \
    *to = name##_block(plan, launch);                                              \
  }                                                                                \
  inline void set_push(const Plan& plan, const Launch& launch, const Addresses& a, \
                       Name##Push* to) {                                           \
    *to = name##_push(plan, launch, a);                                            \
  }
#define TANDEM_STEM(Name, name)                                                  \
  TANDEM_HOPPER(Name, name)                                                      \
  inline void set_spec(const Plan& plan, const Launch& launch, Name##Spec* to) { \
    *to = name##_spec(plan, launch);                                             \
  }
#include "kernels/stems.inc"

}  // namespace tandem
#endif
