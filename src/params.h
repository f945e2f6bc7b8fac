// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels' interface files as C++ structs: per stem a Spec (specialisation constants), a Block
// (strides and parameters, constant for a plan) and a Push (addresses, per execute). Vulkan and CUDA
// fill them from a plan by the one function below each; GLSL and CUDA include the same .inc files.
#ifndef TANDEM_SRC_PARAMS_H
#define TANDEM_SRC_PARAMS_H
#include <cstddef>
#include <cstdint>
#include <string>

#include "args.h"
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
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/fwd.inc"
};
struct FwdJoinSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/fwd_join.inc"
};
struct FwdJoinBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/fwd_join.inc"
};
struct FwdJoinPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/fwd_join.inc"
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
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_dot.inc"
};
struct BwdRowSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/bwd_row.inc"
};
struct BwdRowBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/bwd_row.inc"
};
struct BwdRowPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_row.inc"
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
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
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
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_dq.inc"
};
struct BwdDbiasSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/bwd_dbias.inc"
};
struct BwdDbiasBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/bwd_dbias.inc"
};
struct BwdDbiasPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_dbias.inc"
};
struct BwdDdistSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/bwd_ddist.inc"
};
struct BwdDdistBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/bwd_ddist.inc"
};
struct BwdDdistPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_ddist.inc"
};
struct BwdSumSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/bwd_sum.inc"
};
struct BwdSumBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/bwd_sum.inc"
};
struct BwdSumPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_sum.inc"
};
struct BwdHeadSpec {
#define TANDEM_SPEC(id, name, fallback) uint32_t name = fallback;
#include "interface/bwd_head.inc"
};
struct BwdHeadBlock {
#define TANDEM_STRIDES(name) Strides name;
#define TANDEM_PARAM(type, name) type name;
#include "interface/bwd_head.inc"
};
struct BwdHeadPush {
#define TANDEM_ADDRESS(name) uint64_t name;
#define TANDEM_ADDRESSES(name, count) uint64_t name[count];
#define TANDEM_PUSH(type, name) type name;
#include "interface/bwd_head.inc"
};

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

template <typename... Push>
constexpr bool pushes_fit = ((sizeof(Push) <= 128) && ...);
static_assert(pushes_fit<FwdPush, FwdJoinPush, BwdDotPush, BwdRowPush, BwdDkvPush, BwdDqPush,
                         BwdDbiasPush, BwdDdistPush, BwdSumPush, BwdHeadPush>,
              "128 bytes of push constants are what every Vulkan device has");
template <typename... Block>
constexpr bool blocks_fit = ((sizeof(Block) <= 256) && ...);
static_assert(blocks_fit<FwdBlock, FwdJoinBlock, BwdDotBlock, BwdRowBlock, BwdDkvBlock, BwdDqBlock,
                         BwdDbiasBlock, BwdDdistBlock, BwdSumBlock, BwdHeadBlock, ExtraBlock>,
              "256 bytes of an inline uniform block are what every Vulkan device has");

// How many addresses of optional inputs fit into the push block of every tiled kernel, and how many a
// problem has; the seed of dropout counts as one.
constexpr int kExtraAddresses = TANDEM_EXTRA_ADDRESSES;
int extra_addresses(const Problem& problem);

// What of a problem keeps the tiled GPU kernels from loads of so many elements (4; 8 on the matrix paths), whatever
// the addresses will be: names of inputs (their strides) and of head sizes. Empty: nothing does.
std::string narrow_inputs(const Problem& problem, int elements);

Features features_of(const Problem& problem);
ExtraBlock extra_block(const Problem& problem);

// fwd_spec() and so on, filled from a plan's launch of the stem, and fwd_push(), for an execute.
#define TANDEM_STEM(Name, name)                                     \
  Name##Spec name##_spec(const Plan& plan, const Launch& launch);   \
  Name##Block name##_block(const Plan& plan, const Launch& launch); \
  Name##Push name##_push(const Plan& plan, const Launch& launch, const Addresses& a);
#include "stems.inc"

}  // namespace tandem
#endif
