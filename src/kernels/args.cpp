// SPDX-License-Identifier: MIT OR Apache-2.0
#include "args.h"

namespace tandem {

uint64_t dtype_size(tandem_dtype dtype) {
  return dtype == TANDEM_BOOL8 ? 1 : dtype == TANDEM_F64 ? 8 : dtype == TANDEM_F32 ? 4 : 2;
}

std::array<ArgUse, kArgCount> arg_uses(const Plan& plan) {
  const Problem& p = plan.problem;
  const bool queries = p.batch * p.heads_q * p.seq_q > 0,
             keys = p.batch * p.heads_kv * p.seq_kv > 0;
  const bool pairs = queries && keys, heads = p.heads_q > 0, backward = p.backward;
  const bool dot = plan.find(Stem::bwd_dot) != nullptr;
  const auto element = uint64_t(p.element_size()), side = uint64_t(p.side_size());
  enum Arg {
#define TANDEM_ARG(name) name,
#include "args.inc"
  };
  std::array<ArgUse, kArgCount> uses{{
#define TANDEM_ARG(name) {#name, &tandem_args::name, &Addresses::name, false, false, 4},
#include "args.inc"
  }};
  // Indexed by Arg, as each execute calls this.
  const auto is = [&](Arg arg, bool needed, uint64_t alignment) {
    uses[arg].needed = needed;
    uses[arg].alignment = alignment;
  };
  if (p.parts) {
    const auto part = uint64_t(p.parts.element_size());
    is(o, queries && !backward, element);
    is(lse, queries && p.parts.into, side);
    is(d_o, queries && backward, element);
    is(d_lse, queries && p.d_lse, side);
    is(part_o, queries, part);
    is(part_lse, queries, side);
    is(d_part_o, queries && backward, part);
    is(d_part_lse, queries && backward, side);
    uses[lse].optional = !backward && !p.parts.into;
    return uses;
  }
  is(q, queries, element);
  is(k, keys, element);
  is(v, keys, element);
  is(o, backward ? dot : queries, element);
  is(lse, queries && backward, side);
  is(d_o, queries && backward, element);
  is(d_q, queries && p.wants(TANDEM_GRAD_Q), element);
  is(d_k, keys && p.wants(TANDEM_GRAD_K), element);
  is(d_v, keys && p.wants(TANDEM_GRAD_V), element);
  is(workspace, plan.workspace_size > 0, kWorkspaceAlignment);
  const bool dense = !p.expands_table();
  is(bias, pairs && p.bias && dense, dtype_size(p.bias.dtype));
  is(keep, pairs && p.keep && !p.blocks, 1);
  is(spans, pairs && p.spans, 4);
  is(blocks, pairs && p.blocks, 4);
  is(block_bits, pairs && p.blocks.bits > 0, 4);
  is(bias_table, pairs && p.table, side);
  is(bias_index, pairs && p.table, uint64_t(p.table.index_bytes()));
  is(dist_bias, pairs && p.dist_window > 0, side);
  is(slope, pairs && p.alibi, side);
  is(tau, pairs && p.normalizer == Normalizer::elastic, side);
  is(sink, queries && p.sink, side);
  is(lengths_q, p.batch > 0 && p.lengths_q != Lengths::full, 4);
  is(lengths_kv, p.batch > 0 && p.lengths_kv != Lengths::full, 4);
  is(offsets_q, p.batch > 0 && p.lengths_q == Lengths::gapped, 4);
  is(offsets_kv, p.batch > 0 && p.lengths_kv == Lengths::gapped, 4);
  is(d_bias, dense && p.seq_kv > 0 && plan.stores_d_bias(), dtype_size(p.d_bias_dtype));
  is(d_dist_bias, plan.sums_dist(), side);
  is(d_slope, heads && p.wants(TANDEM_GRAD_SLOPE), side);
  is(d_tau, heads && p.wants(TANDEM_GRAD_TAU), side);
  is(d_sink, heads && p.wants(TANDEM_GRAD_SINK), side);
  is(d_bias_table, heads && p.wants(TANDEM_GRAD_BIAS_TABLE), side);
  is(d_lse, queries && p.d_lse, side);
  is(max_logit, queries && p.max_logit_batch > 0, 4);
  uses[lse].optional = !backward;
  return uses;
}

}  // namespace tandem
