// SPDX-License-Identifier: MIT OR Apache-2.0
// make_plan(problem, caps) is a pure function: no GPU call, no global, the same answer on every
// machine.
#ifndef TANDEM_SRC_PLAN_PLAN_H
#define TANDEM_SRC_PLAN_PLAN_H
#include <cstdint>
#include <memory>
#include <variant>

#include "caps.h"
#include "launch.h"
#include "scratch.h"

namespace tandem {

struct Refusal {
  String candidate;  // "vulkan.scalar", "vulkan.scalar t64k32"
  String reason;
};

struct Plan;

// Lazy zero-initialisation of the dQ accumulator on cuda.sm90. The accumulator has `bytes` in all
// and consists of `slices` equal parts. bwd_dot zeroes the beginning of each part, eager_bytes in
// all, and bwd_dkv_dq the rest (Sm90Launch::eager_zero_heads). bytes = 0: bwd_dot zeroes all.
struct LazyZero {
  uint64_t eager_bytes = 0, bytes = 0, slices = 1;
};

struct Sm90Plan {
  LazyZero lazy_zero;
  // Plan used when an input is not 16-byte aligned; needs no more workspace than this one. Null:
  // unaligned inputs are refused.
  std::shared_ptr<const Plan> unaligned;
};

struct Plan {
  Problem problem;
  Backend backend = Backend::cpu;
  const char* path = "";
  Vec<Launch> launches;  // in order; each may read what an earlier one wrote
  // Bytes of the workspace, and its arrays.
  uint64_t workspace_size = 0;
  ScratchLayout scratch;
  // Range of the workspace that the first kernel zeroes at each execute, in bytes: all arrays with
  // Zeroed::first_kernel.
  uint64_t zeroed_offset = 0, zeroed_size = 0;
  int64_t slope_parts = 0;  // parts of d_slope a head: Sq, or those that bwd_dkv_dq leaves
  // Of the chosen path, where it has more than the above.
  std::variant<std::monostate, Sm90Plan> of_path;
  template <typename Path>
  const Path& of() const {  // its defaults, if another path was chosen
    static const Path kNone{};
    const Path* own = std::get_if<Path>(&of_path);
    return own ? *own : kNone;
  }
  Vec<Refusal> refusals;  // candidates that were tried and not taken
  // With a limit of the workspace: the least that a plan which was tried needs, and its path.
  uint64_t least_workspace = UINT64_MAX;
  String least_path;
  String name() const;
  // A tile of its tiled kernels, if possible one with matrices; br = bc = 0: there is none.
  Tile tile() const;
  const Launch* find(Stem stem) const;  // nullptr: not in this plan
  // The bwd_sum_splits of a gradient.
  const Launch* find_sum(uint32_t gradient) const;
  bool sums_dist() const;  // some launch leaves d_dist_bias, or parts of it
  bool stores_d_bias() const;
  // Whether all kernels form the bits of a far row's scores by the same f32 operations.
  bool sums_scores_exactly() const;
  uint32_t unordered() const;  // TANDEM_GRAD_* that are summed in no fixed order
  int wide_elements() const;   // of the loads and stores of its tiled kernels: 4, or 8
};

constexpr uint64_t kWorkspaceAlignment = 256;
// Name in TANDEM_DISABLE of dS in the workspace (trait::ds).
constexpr const char* kDsWord = "shared_ds";
// The same of partial sums of d_k and d_v (trait::parts).
constexpr const char* kPartsWord = "dkv_parts";
// The same of operands made of an accumulator's elements (MatrixShape::copies).
constexpr const char* kCopiesWord = "matrix_copies";
// Names in TANDEM_DISABLE of what a Vulkan device does when it makes pipelines: those for tensors
// at any address, beside those for addresses that are multiples of 16; specialise().
constexpr const char* kUnalignedWord = "unaligned";
constexpr const char* kSpecialiseWord = "specialise";

// The plan's launches as they are dispatched. Launches that alternate chunk by chunk are split.
struct Piece {
  Launch launch;
  size_t stamp;  // number of the plan's launch that ends with it, from 1; 0: none
};
Vec<Piece> pieces_of(const Plan& plan);

// UNSUPPORTED with every refusal in the message when no path is left; *plan then holds the
// refusals. WORKSPACE where paths are left, but none within the problem's limit of the workspace;
// *plan then holds the least that is possible.
Status make_plan(const Problem& problem, const Caps& caps, Plan* plan);

// The smallest workspace of a plan for the problem, whatever its limit: a plan within this one
// exists, and none within less.
Status find_least_workspace(const Problem& problem, const Caps& caps, uint64_t* bytes);

// The text of tandem_explain().
String explain(const Problem& problem, const Caps& caps);

}  // namespace tandem
#endif
