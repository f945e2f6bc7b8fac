// SPDX-License-Identifier: MIT OR Apache-2.0
// How Vulkan and CUDA fill the structs of kernel_params.h from a plan.
#ifndef TANDEM_SRC_KERNELS_PARAMS_H
#define TANDEM_SRC_KERNELS_PARAMS_H
#include <algorithm>
#include <cstdint>

#include "args.h"
#include "kernel_params.h"
#include "plan/plan.h"

namespace tandem {

// std140 rounds a block up to 16 bytes, the C++ structs to 8.
constexpr uint32_t round16(size_t bytes) { return uint32_t((bytes + 15) / 16 * 16); }

// Bytes of inline uniform blocks in the pipeline layout of a kernel on Vulkan: its own block, and
// that of the optional inputs.
template <typename Block>
constexpr uint32_t uniform_bytes(Stem stem) {
  return round16(sizeof(Block)) + (has_extra(stem) ? round16(sizeof(ExtraBlock)) : 0);
}
constexpr uint32_t kMostUniformBytes = std::max<uint32_t>({
#define TANDEM_STEM(Name, name) uniform_bytes<Name##Block>(Stem::name),
#define TANDEM_FUSED(Name, name)  // Vulkan does not have these.
#include "stems.inc"
});

// Addresses of optional inputs that a problem has. The seed of dropout counts as one.
int extra_addresses(const Problem& problem);

// Names of the inputs (for their strides) and head sizes that keep the tiled GPU kernels from loads
// of so many elements (4; 8 on the matrix paths) at any addresses. Empty: none does.
String narrow_inputs(const Problem& problem, int elements);

// Whether strides let a tensor of bias's shape have rows of 16-byte chunks, of 8 elements each.
bool is_chunked(const Problem& problem, const Strides& strides);

// Matrix paths: whether bias, and d_bias if the launch stores it, are at addresses that allow
// accesses of 16 bytes. Their strides have to allow them, too.
bool takes_chunks(const Plan& plan, const Launch& launch, const Addresses& a);

// BIAS_WIDE of launch l: 1 if bias is_chunked(); 2 if blocks of matrices are whole, too, that is as
// many rows, or one for all, and, for 16-bit elements, twice as many keys; else 0. Dropout draws
// words for four consecutive keys, which pairs of blocks would split.
uint32_t bias_code(const Problem& p, const Launch& l);
// Whether all rows of every streamed tile of a kernel with matrices exist: keys, or in bwd_dkv
// query rows.
bool tiles_exist(const Problem& p, const Launch& l);
// Whether hidden scores, about -1e34, stay finite and far below all others when the scale is folded
// into that of exp2.
bool is_folded(const Problem& p);

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
