// SPDX-License-Identifier: MIT OR Apache-2.0
// The parameters of the kernels for Hopper (src/kernels/abi/sm90) as structs.
#ifndef TANDEM_CUDA_SM90_PARAMS_H
#define TANDEM_CUDA_SM90_PARAMS_H
#include <cuda.h>

#include "../kernels.h"
#include "plan/sm90/bwd_cluster_schedule.h"
#include "plan/sm90/bwd_parts.h"
#include "plan/sm90/fwd_stream_k.h"
#include "plan/sm90/tiles.h"

namespace tandem {
namespace cuda {
namespace sm90 {

#define TANDEM_INTERFACE(Name) struct Name {
#define TANDEM_EXTENSION(Name, Base) struct Name : Base {
#define TANDEM_TENSOR_MAP(name) CUtensorMap name;
#define TANDEM_MEMBER(type, name) type name;
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "kernels/abi/sm90/all.inc"

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
