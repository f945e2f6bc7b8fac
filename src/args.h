// SPDX-License-Identifier: MIT OR Apache-2.0
// The buffers of an execute: their names, which of them a plan accesses, and how they become the
// addresses that kernels get.
#ifndef TANDEM_SRC_ARGS_H
#define TANDEM_SRC_ARGS_H
#include <array>
#include <cstdint>

#include "plan.h"

namespace tandem {

// Addresses in the space to which the backend resolves tandem_buffers. 0: not given, or not in this
// plan.
struct Addresses {
#define TANDEM_ARG(name) uint64_t name = 0;
#include "args.inc"
  // Arrays in the workspace.
  uint64_t delta = 0, tau_rows = 0, slope_rows = 0, bias_parts = 0, dist_parts = 0, o_parts = 0,
           lse_parts = 0, d_q_accum = 0, dq_semaphores = 0, partials = 0, partial_flags = 0,
           pass_sums = 0, lazy_zero_counters = 0, support = 0, sum_counts = 0, d_q_counts = 0,
           head_counts = 0, tile_counter = 0;
  uint64_t dropout_seed = 0;
  uint32_t dropout_offset = 0;
};

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
    a.delta = a.workspace + plan.delta_offset;
    a.tau_rows = a.workspace + plan.tau_rows_offset;
    a.slope_rows = a.workspace + plan.slope_rows_offset;
    a.bias_parts = a.workspace + plan.bias_parts_offset;
    a.dist_parts = a.workspace + plan.dist_parts_offset;
    a.o_parts = a.workspace + plan.o_parts_offset;
    a.lse_parts = a.workspace + plan.lse_parts_offset;
    a.d_q_accum = a.workspace + plan.d_q_accum_offset;
    a.dq_semaphores = a.workspace + plan.dq_semaphores_offset;
    a.lazy_zero_counters = a.workspace + plan.lazy_zero.counters_offset;
    a.tile_counter = plan.tile_counter_offset ? a.workspace + plan.tile_counter_offset : 0;
    a.d_q_counts = a.workspace + plan.d_q_counts_offset;
    a.head_counts = a.workspace + plan.head_counts_offset;
    a.sum_counts = a.workspace + plan.sum_counts_offset;
    a.partials = a.workspace + plan.partials_offset;
    a.partial_flags = a.workspace + plan.partial_flags_offset;
    a.pass_sums = a.workspace + plan.pass_sums_offset;
    a.support = plan.support_offset ? a.workspace + plan.support_offset : 0;
  }
  a.dropout_seed = args.dropout_seed;
  a.dropout_offset = args.dropout_offset;
  *addresses = a;
  return Status();
}

}  // namespace tandem
#endif
