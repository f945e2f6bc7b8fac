// SPDX-License-Identifier: MIT OR Apache-2.0
// The buffers of an execute: their names, which of them a plan accesses, and how they become the
// addresses that kernels get.
#ifndef TANDEM_SRC_KERNELS_ARGS_H
#define TANDEM_SRC_KERNELS_ARGS_H
#include <array>
#include <cstdint>

#include "plan/plan.h"

namespace tandem {

// Addresses in the space to which the backend resolves tandem_buffers. 0: not given, or not in this
// plan.
struct Addresses {
#define TANDEM_ARG(name) uint64_t name = 0;
#include "args.inc"
  // Arrays of the workspace, and the range of it that the first kernel zeroes.
#define TANDEM_SCRATCH(name, element, zeroed) uint64_t name = 0;
#include "plan/scratch.inc"
  uint64_t zeroed = 0, zeroed_end = 0;
  uint64_t dropout_seed = 0;
  uint32_t dropout_offset = 0;
};

// Of packed queries: where kernels read the rows of each entry (abi/place_entries.inc).
inline uint64_t places_or_lengths_q(const Addresses& a) {
  return a.places_q ? a.places_q : a.lengths_q;
}

struct ArgUse {
  const char* name;
  tandem_buffer tandem_args::*buffer;
  uint64_t Addresses::*address;
  bool needed;         // the plan reads or writes it
  bool optional;       // it may be left out nevertheless
  uint64_t alignment;  // bytes
};

constexpr int kArgCount = 0
#define TANDEM_ARG(name) +1
#include "args.inc"
    ;

uint64_t dtype_size(tandem_dtype dtype);

// Uses of all buffers, in the order of args.inc.
std::array<ArgUse, kArgCount> arg_uses(const Plan& plan);

// Sets addresses from args, by at(use, buffer, &address), a Status, for each buffer that the plan
// uses. uses: arg_uses(plan), or those of them that are needed or optional.
template <typename Uses, typename At>
Status resolve_args(const Plan& plan, const Uses& uses, const tandem_args& args, At&& at,
                    Addresses* addresses) {
  Addresses a;
  for (const ArgUse& use : uses) {
    const tandem_buffer& buffer = args.*use.buffer;
    if (!use.needed && !use.optional) continue;
    if (buffer.handle != 0 || buffer.offset != 0) TANDEM_TRY(at(use, buffer, &(a.*use.address)));
  }
  if (a.workspace) {
#define TANDEM_SCRATCH(name, element, zeroed) \
  if (plan.scratch[Scratch::name].present)    \
    a.name = a.workspace + plan.scratch[Scratch::name].offset;
#include "plan/scratch.inc"
    if (plan.problem.blocks)
      a.keep = plan.scratch[Scratch::block_keep].present ? a.block_keep : a.packed_keep;
    if (plan.problem.expands_table()) a.bias = a.table_bias, a.d_bias = a.d_table_bias;
    a.zeroed = a.workspace + plan.zeroed_offset;
    a.zeroed_end = a.zeroed + plan.zeroed_size;
  }
  a.dropout_seed = args.dropout_seed;
  a.dropout_offset = args.dropout_offset;
  *addresses = a;
  return Status();
}

}  // namespace tandem
#endif
