// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_head: d_slope, d_tau and d_sink of one query head, from the parts of its rows.
#include "ref_row.h"

namespace tandem {

void bwd_head_ref(const Problem& p, Precision precision, int64_t h, const RefHeadParts& parts,
                  double* d_slope, double* d_tau, double* d_sink) {
  with_precision(precision, [&](auto real) {
    using Real = decltype(real);
    Real slope = 0, tau = 0, sink = 0;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t i = 0; i < p.seq_q; ++i) {
        const int64_t n = (b * p.heads_q + h) * p.seq_q + i;
        if (d_slope) slope -= Real(parts.slope[n]);
        if (d_tau) tau += Real(parts.tau[n]);
        const Real lse = d_sink ? Real(parts.lse[n]) : Real(0);
        if (d_sink && lse != -std::numeric_limits<Real>::infinity())
          sink -= std::exp(Real(parts.sink) - lse) * Real(parts.delta[n]);
      }
    if (d_slope) *d_slope = double(slope);
    if (d_tau) *d_tau = double(tau);
    if (d_sink) *d_sink = double(sink);
  });
}

}  // namespace tandem
