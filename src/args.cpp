// SPDX-License-Identifier: MIT OR Apache-2.0
#include "args.h"

namespace tandem {
namespace {

uint64_t dtype_size(tandem_dtype dtype) {
  return dtype == TANDEM_BOOL8 ? 1 : dtype == TANDEM_F32 ? 4 : 2;
}

}  // namespace

std::array<ArgUse, kArgCount> arg_uses(const Plan& plan) {
  const Problem& p = plan.problem;
  const bool queries = p.batch * p.heads_q * p.seq_q > 0,
             keys = p.batch * p.heads_kv * p.seq_kv > 0;
  const bool pairs = queries && keys, heads = p.heads_q > 0, backward = p.backward;
  const bool dot = plan.find(Stem::bwd_dot) != nullptr;
  const auto element = uint64_t(p.element_size());
  std::array<ArgUse, kArgCount> uses{};
  int n = 0;
  const auto use = [&](const char* name, tandem_buffer tandem_args::*buffer,
                       uint64_t Addresses::*address) {
    ArgUse u{name, buffer, address, false, false, 4};
    const auto is = [&](uint64_t Addresses::*which, bool needed, uint64_t alignment) {
      if (address != which) return;
      u.needed = needed;
      u.alignment = alignment;
    };
    is(&Addresses::q, queries, element);
    is(&Addresses::k, keys, element);
    is(&Addresses::v, keys, element);
    is(&Addresses::o, backward ? dot : queries, element);
    is(&Addresses::lse, queries && backward, 4);
    is(&Addresses::d_o, queries && backward, element);
    is(&Addresses::d_q, queries && p.wants(TANDEM_GRAD_Q), element);
    is(&Addresses::d_k, keys && p.wants(TANDEM_GRAD_K), element);
    is(&Addresses::d_v, keys && p.wants(TANDEM_GRAD_V), element);
    is(&Addresses::workspace, plan.workspace_size > 0, kWorkspaceAlignment);
    is(&Addresses::bias, pairs && p.bias, dtype_size(p.bias.dtype));
    is(&Addresses::keep, pairs && p.keep, 1);
    is(&Addresses::dist_bias, pairs && p.dist_window > 0, 4);
    is(&Addresses::slope, pairs && p.alibi, 4);
    is(&Addresses::tau, pairs && p.normalizer == Normalizer::elastic, 4);
    is(&Addresses::sink, queries && p.sink, 4);
    is(&Addresses::lengths_q, p.batch > 0 && p.lengths_q != Lengths::full, 4);
    is(&Addresses::lengths_kv, p.batch > 0 && p.lengths_kv != Lengths::full, 4);
    is(&Addresses::d_bias, plan.stores_d_bias(), dtype_size(p.d_bias_dtype));
    is(&Addresses::d_dist_bias, plan.sums_dist(), 4);
    is(&Addresses::d_slope, heads && p.wants(TANDEM_GRAD_SLOPE), 4);
    is(&Addresses::d_tau, heads && p.wants(TANDEM_GRAD_TAU), 4);
    is(&Addresses::d_sink, heads && p.wants(TANDEM_GRAD_SINK), 4);
    u.optional = address == &Addresses::lse && !backward;
    uses[size_t(n++)] = u;
  };
#define TANDEM_ARG(name) use(#name, &tandem_args::name, &Addresses::name);
#include "args.inc"
  return uses;
}

}  // namespace tandem
