// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels' interface files as C++ structs: per stem a Spec (specialisation constants), a Block
// (strides and parameters, constant for a plan) and a Push (addresses, per execute). Vulkan and CUDA
// fill them from a plan by the one function below each; GLSL and CUDA include the same .inc files.
#ifndef TANDEM_SRC_PARAMS_H
#define TANDEM_SRC_PARAMS_H
#include <cstddef>
#include <cstdint>
#include <string>

#include "plan.h"

namespace tandem {

using uint = uint32_t;

struct FwdSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/fwd.inc"
};
struct FwdBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/fwd.inc"
};
struct FwdPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_PUSH(type, name) type name;
#include "interface/fwd.inc"
};
struct BwdDotSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/bwd_dot.inc"
};
struct BwdDotBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/bwd_dot.inc"
};
struct BwdDotPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_dot.inc"
};
struct BwdDkvSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/bwd_dkv.inc"
};
struct BwdDkvBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/bwd_dkv.inc"
};
struct BwdDkvPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_dkv.inc"
};
struct BwdDqSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/bwd_dq.inc"
};
struct BwdDqBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/bwd_dq.inc"
};
struct BwdDqPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_dq.inc"
};

static_assert(sizeof(FwdPush) <= 128 && sizeof(BwdDkvPush) <= 128 && sizeof(BwdDqPush) <= 128 &&
                  sizeof(BwdDotPush) <= 128,
              "128 bytes of push constants are what every Vulkan device has");
static_assert(sizeof(FwdBlock) <= 256 && sizeof(BwdDkvBlock) <= 256 && sizeof(BwdDqBlock) <= 256 &&
                  sizeof(BwdDotBlock) <= 256,
              "256 bytes of an inline uniform block are what every Vulkan device has");

// What of a problem keeps the tiled GPU kernels from 4-element loads, whatever the addresses will be: names
// of inputs (their strides) and of head sizes. Empty: nothing does.
std::string narrow_inputs(const Problem& problem);

// Filled from a plan's launch of the stem.
FwdSpec fwd_spec(const Plan& plan, const Launch& launch);
FwdBlock fwd_block(const Plan& plan, const Launch& launch);
BwdDotSpec bwd_dot_spec(const Plan& plan, const Launch& launch);
BwdDotBlock bwd_dot_block(const Plan& plan, const Launch& launch);
BwdDkvSpec bwd_dkv_spec(const Plan& plan, const Launch& launch);
BwdDkvBlock bwd_dkv_block(const Plan& plan, const Launch& launch);
BwdDqSpec bwd_dq_spec(const Plan& plan, const Launch& launch);
BwdDqBlock bwd_dq_block(const Plan& plan, const Launch& launch);

// The addresses of an execute, in whatever space the backend resolves tandem_buffers to.
struct Addresses {
  uint64_t q, k, v, o, lse, d_o, d_q, d_k, d_v, delta;
};
FwdPush fwd_push(const Plan& plan, const Addresses& a);
BwdDotPush bwd_dot_push(const Plan& plan, const Addresses& a);
BwdDkvPush bwd_dkv_push(const Plan& plan, const Addresses& a);
BwdDqPush bwd_dq_push(const Plan& plan, const Addresses& a);

}  // namespace tandem
#endif
