// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_ddist: what one query head adds to its d_dist_bias, diagonal by diagonal.
#include "ref_gradient.h"

namespace tandem {
namespace {

template <typename Real>
void bwd_ddist(const Problem& p, const RefHead& head, double* d_dist_bias, double* floor,
               double* slack) {
  GradientRows<Real> gradient(p, head, 1, true, floor != nullptr);
  const ScoreRows<Real>& row = gradient.row;
  const auto add = [&](int64_t to, size_t j) {
    d_dist_bias[to] = double(Real(d_dist_bias[to]) + gradient.ds[j]);
    if constexpr (sizeof(Real) == sizeof(double)) {
      if (floor) floor[to] += gradient.e[j];
      if (slack && row.slack) slack[to] += gradient.dds[j];
    }
  };
  for (int64_t i = 0; i < p.seq_q; ++i) {
    if (!gradient.weigh(i)) continue;
    gradient.make_dp();
    gradient.make_ds(Real(head.delta[i]));
    for (int64_t j = row.lo; j < row.hi; ++j)
      if (const int64_t t = row.distance(j); t >= 0 && t < p.dist_window) add(t, size_t(j));
  }
}

}  // namespace

void bwd_ddist_ref(const Problem& problem, Precision precision, const RefHead& head,
                   double* d_dist_bias, double* floor, double* slack) {
  with_precision(precision, [&](auto real) {
    bwd_ddist<decltype(real)>(problem, head, d_dist_bias, floor, slack);
  });
}

}  // namespace tandem
