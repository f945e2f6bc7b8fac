// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq: d_q of one query head.
#include "ref_gradient.h"

namespace tandem {
namespace {

template <typename Real>
void bwd_dq(const Problem& p, const RefHead& head, double* d_q, double* floor, double* slack) {
  const int64_t D = p.head_dim;
  GradientRows<Real> gradient(p, head, 1, true, floor != nullptr);
  const ScoreRows<Real>& row = gradient.row;
  Vec<Real> sum(static_cast<size_t>(D));

  for (int64_t i = 0; i < p.seq_q; ++i) {
    std::fill(sum.begin(), sum.end(), Real(0));
    for (double* x : {floor, slack})
      if (x) std::fill_n(x + i * D, D, 0.0);
    if (gradient.weigh(i)) {
      gradient.make_dp();
      gradient.make_ds(Real(head.delta[i]));
      for (int64_t j = row.lo; j < row.hi; ++j) {
        if (row.hidden(j)) continue;
        add_scaled(sum.data(), gradient.inner(j), gradient.k_row(j), D);
        if constexpr (sizeof(Real) == sizeof(double)) {
          if (floor)
            add_scaled_abs(floor + i * D, gradient.inner(gradient.e, j), gradient.k_row(j), D);
          if (slack && row.slack)
            add_scaled_abs(slack + i * D, gradient.inner(gradient.dds, j), gradient.k_row(j), D);
          if (slack && gradient.rounds)
            add_scaled(slack + i * D, gradient.inner(gradient.dds, j), gradient.k_row(j), D);
        }
      }
    }
    if (slack && gradient.rounds)
      for (int64_t c = 0; c < D; ++c) slack[i * D + c] = std::fabs(slack[i * D + c]);
    for (int64_t c = 0; c < D; ++c)
      d_q[i * D + c] = double(stored(Real(p.exact_scale()) * sum[size_t(c)], p.dtype));
  }
}

}  // namespace

void bwd_dq_ref(const Problem& problem, Precision precision, const RefHead& head, double* d_q,
                double* d_q_floor, double* d_q_slack) {
  with_precision(problem, precision, [&](auto real) {
    bwd_dq<decltype(real)>(problem, head, d_q, d_q_floor, d_q_slack);
  });
}

}  // namespace tandem
