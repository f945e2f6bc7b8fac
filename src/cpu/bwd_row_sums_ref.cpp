// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_row_sums: delta and the rows' parts of d_tau and d_slope, of one query head.
#include "ref_gradient.h"

namespace tandem {
namespace {

template <typename Real>
void bwd_row_sums(const Problem& p, const RefHead& head, const RefRows& out) {
  const bool floors = out.delta_floor || out.tau_floor || out.slope_floor;
  GradientRows<Real> gradient(p, head, 1, true, floors);
  const ScoreRows<Real>& row = gradient.row;
  const auto put = [](double* to, int64_t i, auto x) {
    if (to) to[i] = double(x);
  };
  for (int64_t i = 0; i < p.seq_q; ++i) {
    Real delta = 0, tau = 0, slope = 0;
    double bound = 0, d_delta = 0, tau_floor = 0, tau_slack = 0, slope_floor = 0, slope_slack = 0;
    if (gradient.weigh(i)) {
      gradient.make_dp();
      delta = gradient.delta();
      gradient.make_ds(delta);
      bound = gradient.bound;
      d_delta = gradient.d_delta;
      for (int64_t j = row.lo; j < row.hi; ++j) {
        if (row.hidden(j)) continue;
        const auto n = size_t(j);
        const Real t = Real(std::abs(row.distance(j)));
        if (row.pass(j)) tau += gradient.dp[n] / Real(row.positions());
        slope += t * gradient.ds[n];
        if constexpr (sizeof(Real) == sizeof(double)) {
          const double share = std::fabs(gradient.dp[n]) / row.positions();
          if (floors) {
            if (row.pass(j)) tau_floor += gradient.dp_size(j) / row.positions();
            slope_floor += t * gradient.e[n];
          }
          if (row.slack) tau_slack += row.dm[n] * share;
          if (row.slack || gradient.rounds) slope_slack += t * gradient.dds[n];
        }
      }
    }
    put(out.delta, i, delta);
    put(out.delta_floor, i, bound);
    put(out.delta_slack, i, d_delta);
    put(out.tau, i, tau);
    put(out.tau_floor, i, tau_floor);
    put(out.tau_slack, i, tau_slack);
    put(out.slope, i, slope);
    put(out.slope_floor, i, slope_floor);
    put(out.slope_slack, i, slope_slack);
  }
}

}  // namespace

void bwd_row_sums_ref(const Problem& problem, Precision precision, const RefHead& head,
                      const RefRows& rows) {
  with_precision(problem, precision,
                 [&](auto real) { bwd_row_sums<decltype(real)>(problem, head, rows); });
}

}  // namespace tandem
