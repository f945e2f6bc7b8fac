// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of the path sm80 as the host sees them. Parameters are those of cuda/kernels.h, or of
// src/kernels/abi/sm80.
// of.row and the tensors' type choose a kernel; nullptr: not built.
#ifndef TANDEM_CUDA_SM80_KERNELS_H
#define TANDEM_CUDA_SM80_KERNELS_H
#include "../kernels.h"

namespace tandem {
namespace cuda {
namespace sm80 {

#define TANDEM_INTERFACE(Name) struct Name {
#define TANDEM_EXTENSION(Name, Base) struct Name : Base {
#define TANDEM_MEMBER(type, name) type name;
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_PUSH(type, name) type name;
#include "kernels/abi/sm80/all.inc"

#define TANDEM_AMPERE_KERNEL(name, kernel, stem, kind, Params) \
  Kernel<Params> name##_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide);
#include "instances.inc"

Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype dtype);

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
