// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels' interface files as C++ structs. Each stem has a Spec (specialisation constants), a
// Block (strides and parameters, constant for a plan) and a Push (addresses, for each execute).
// GLSL and CUDA include the same .inc files. CUDA's kernels include this header.
#ifndef TANDEM_SRC_KERNELS_KERNEL_PARAMS_H
#define TANDEM_SRC_KERNELS_KERNEL_PARAMS_H
#include <cstddef>
#include <cstdint>

#include "plan/workgroups.h"
#include "problem/problem_types.h"
#include "tandem/tandem.h"

namespace tandem {

using uint = uint32_t;

#define TANDEM_INTERFACE(Name) struct Name##Spec {
#define TANDEM_SPEC(name, fallback) uint32_t name = fallback;
#include "kernels/abi/all.inc"
#define TANDEM_INTERFACE(Name) struct Name##Block {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "kernels/abi/all.inc"
#define TANDEM_INTERFACE(Name) struct Name##Push {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "kernels/abi/all.inc"

// Of all tiled kernels: which optional inputs there are, and their parameters.
struct Features {
#define TANDEM_SPEC(name, fallback) uint32_t name = fallback;
#include "kernels/abi/features.inc"
#undef TANDEM_SPEC
};
struct ExtraBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "kernels/abi/extra.inc"
};

#define TANDEM_STEM(Name, name)                                                  \
  static_assert(sizeof(Name##Push) <= 128,                                       \
                "128 bytes of push constants are what every Vulkan device has"); \
  static_assert(sizeof(Name##Block) <= 256,                                      \
                "256 bytes of an inline uniform block are what every Vulkan device has");
#define TANDEM_FUSED(Name, name)  // Vulkan does not have these.
#include "stems.inc"
static_assert(sizeof(ExtraBlock) <= 256, "likewise");

// Addresses of optional inputs that fit into the push block of every tiled kernel.
constexpr int kExtraAddresses = TANDEM_EXTRA_ADDRESSES;

}  // namespace tandem
#endif
