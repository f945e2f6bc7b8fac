// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_head_sums: d_slope, d_tau and d_sink of one query head, from the parts of its rows.
#include <memory>

#include "ref_row.h"

namespace tandem {

void sink_weights_ref(const Problem& p, Precision precision, const RefHead& head, double* to) {
  with_precision(p, precision, [&](auto real) {
    using Real = decltype(real);
    Vec<Real> q;
    std::unique_ptr<ScoreRows<Real>> row;  // only far rows need their scores
    for (int64_t i = 0; i < p.seq_q; ++i) {
      const Real lse = Real(head.lse[i]);
      to[i] = 0;
      if (lse == -std::numeric_limits<Real>::infinity()) continue;
      if (!ScoreRows<Real>::is_far(lse)) {
        to[i] = double(std::exp(Real(*head.sink) - lse));
        continue;
      }
      if (!row) {
        q = operands<Real>(head.q, p.seq_q * p.head_dim, p);
        row = std::make_unique<ScoreRows<Real>>(p, head,
                                                operands<Real>(head.k, p.seq_kv * p.head_dim, p));
      }
      if (row->compute(&q[size_t(i * p.head_dim)], 0, i) && row->weigh(lse, head.stored_lse))
        to[i] = double(row->sink_weight());
      else if (p.part_of_keys)  // which sees none of the row's keys
        to[i] = double(std::exp(std::min(Real(*head.sink) - lse, Real(0))));
    }
  });
}

void bwd_head_sums_ref(const Problem& p, Precision precision, int64_t h, int64_t first, int64_t end,
                       const RefHeadParts& parts, double* d_slope, double* d_tau, double* d_sink) {
  with_precision(p, precision, [&](auto real) {
    using Real = decltype(real);
    Real slope = 0, tau = 0, sink = 0;
    for (int64_t b = first; b < end; ++b)
      for (int64_t i = 0; i < p.seq_q; ++i) {
        const int64_t n = (b * p.heads_q + h) * p.seq_q + i;
        if (d_slope) slope -= Real(parts.slope[n]);
        if (d_tau) tau += Real(parts.tau[n]);
        if (d_sink) sink -= Real(parts.sink[n]) * Real(parts.delta[n]);
      }
    if (d_slope) *d_slope = double(slope);
    if (d_tau) *d_tau = double(tau);
    if (d_sink) *d_sink = double(sink);
  });
}

}  // namespace tandem
