// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels' interface files as C++ structs. Each stem has a Spec (specialisation constants), a
// Block (strides and parameters, constant for a plan) and a Push (addresses, for each execute).
// Vulkan and CUDA fill them from a plan by the functions below. GLSL and CUDA include the same .inc
// files.
#ifndef TANDEM_SRC_PARAMS_H
#define TANDEM_SRC_PARAMS_H
#include <cstddef>
#include <cstdint>

#include "args.h"
#include "plan.h"

namespace tandem {

using uint = uint32_t;

#define TANDEM_INTERFACE(Name) struct Name##Spec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/all.inc"
#define TANDEM_INTERFACE(Name) struct Name##Block {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/all.inc"
#define TANDEM_INTERFACE(Name) struct Name##Push {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/all.inc"

// Of all tiled kernels: which optional inputs there are, and their parameters.
struct Features {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/features.inc"
#undef TANDEM_SPEC
};
struct ExtraBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/extra.inc"
};

#define TANDEM_STEM(Name, name)                                                  \
  static_assert(sizeof(Name##Push) <= 128,                                       \
                "128 bytes of push constants are what every Vulkan device has"); \
  static_assert(sizeof(Name##Block) <= 256,                                      \
                "256 bytes of an inline uniform block are what every Vulkan device has");
#define TANDEM_FUSED(Name, name)  // Vulkan does not have these.
#include "stems.inc"
static_assert(sizeof(ExtraBlock) <= 256, "likewise");

// kExtraAddresses: addresses of optional inputs that fit into the push block of every tiled kernel.
// extra_addresses(): those that a problem has. The seed of dropout counts as one.
constexpr int kExtraAddresses = TANDEM_EXTRA_ADDRESSES;
int extra_addresses(const Problem& problem);

// Names of the inputs (for their strides) and head sizes that keep the tiled GPU kernels from loads
// of so many elements (4; 8 on the matrix paths) at any addresses. Empty: none does.
String narrow_inputs(const Problem& problem, int elements);

// Whether strides let a tensor of bias's shape have rows of 16-byte chunks, of 8 elements each.
bool is_chunked(const Problem& problem, const Strides& strides);

// Matrix paths: whether bias, and d_bias if the launch stores it, are at addresses that allow
// accesses of 16 bytes. Their strides have to allow them, too.
bool takes_chunks(const Plan& plan, const Launch& launch, const Addresses& a);

Features features_of(const Problem& problem);
ExtraBlock extra_block(const Problem& problem);

// fwd_spec() and so on are filled from a plan's launch of the stem, and fwd_push() for an execute.
// fwd_push_and_wide() also sets *wide: whether all tensors that a tiled launch accesses are wide,
// and its head sizes, too. Operations that only the paths sm90 and sm80 have are without
// specialisation constants.
#define TANDEM_HOPPER(Name, name)                                                             \
  Name##Block name##_block(const Plan& plan, const Launch& launch);                           \
  Name##Push name##_push(const Plan& plan, const Launch& launch, const Addresses& a);         \
  Name##Push name##_push_and_wide(const Plan& plan, const Launch& launch, const Addresses& a, \
                                  bool* wide);
#define TANDEM_STEM(Name, name)                                   \
  Name##Spec name##_spec(const Plan& plan, const Launch& launch); \
  TANDEM_HOPPER(Name, name)
#include "stems.inc"

}  // namespace tandem
#endif
