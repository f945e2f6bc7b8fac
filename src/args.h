// SPDX-License-Identifier: MIT OR Apache-2.0
// The buffers of an execute: their names, which of them a plan touches, and how they become the addresses
// that kernels get.
#ifndef TANDEM_SRC_ARGS_H
#define TANDEM_SRC_ARGS_H
#include <array>
#include <cstdint>

#include "plan.h"

namespace tandem {

// In whatever space the backend resolves tandem_buffers to; 0: not given, or not for this plan.
struct Addresses {
#define TANDEM_ARG(name) uint64_t name = 0;
#include "args.inc"
  // In the workspace.
  uint64_t delta = 0, tau_rows = 0, slope_rows = 0, bias_parts = 0, dist_parts = 0, o_parts = 0,
           lse_parts = 0, d_q_sums = 0, turns = 0, tail = 0, tail_counts = 0, pass_sums = 0,
           ahead_words = 0, support = 0, sum_counts = 0, d_q_counts = 0, head_counts = 0, next = 0;
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

// All of them, in the order of args.inc.
std::array<ArgUse, kArgCount> arg_uses(const Plan& plan);

// Addresses from args, by at(use, buffer, &address), a Status, for each buffer that the plan uses.
// uses: arg_uses(plan), or those of them that are needed or optional.
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
    a.d_q_sums = a.workspace + plan.d_q_sums_offset;
    a.turns = a.workspace + plan.turns_offset;
    a.ahead_words = a.workspace + plan.ahead.words_offset;
    a.next = plan.next_offset ? a.workspace + plan.next_offset : 0;
    a.d_q_counts = a.workspace + plan.d_q_counts_offset;
    a.head_counts = a.workspace + plan.head_counts_offset;
    a.sum_counts = a.workspace + plan.sum_counts_offset;
    a.tail = a.workspace + plan.tail_offset;
    a.tail_counts = a.workspace + plan.tail_counts_offset;
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
