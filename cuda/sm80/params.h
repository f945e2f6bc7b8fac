// SPDX-License-Identifier: MIT OR Apache-2.0
// Parameters of the kernels of the path sm80 that differ from those of cuda/kernels.h
// (src/kernels/abi/sm80).
#ifndef TANDEM_CUDA_SM80_PARAMS_H
#define TANDEM_CUDA_SM80_PARAMS_H
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

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
