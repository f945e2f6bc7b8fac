// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias: what one query head adds to the d_bias that it reads.
#include "ref_gradient.h"

namespace tandem {
namespace {

template <typename Real>
void bwd_dbias(const Problem& p, const RefHead& head, double* d_bias, double* floor,
               double* slack) {
  GradientRows<Real> gradient(p, head, 1, true, floor != nullptr);
  const ScoreRows<Real>& row = gradient.row;
  const auto add = [&](int64_t to, size_t j) {
    d_bias[to] = double(Real(d_bias[to]) + gradient.ds[j]);
    if constexpr (sizeof(Real) == sizeof(double)) {
      if (floor) floor[to] += gradient.e[j];
      if (slack && row.slack) slack[to] += gradient.dds[j];
    }
  };
  for (int64_t i = 0; i < p.seq_q; ++i) {
    if (!gradient.weigh(i)) continue;
    gradient.make_dp();
    gradient.make_ds(Real(head.delta[i]));
    const int64_t first = p.bias.rows == 1 ? 0 : i * p.seq_kv;
    for (int64_t j = row.lo; j < row.hi; ++j) add(first + j, size_t(j));
  }
}

}  // namespace

void bwd_dbias_ref(const Problem& problem, Precision precision, const RefHead& head, double* d_bias,
                   double* floor, double* slack) {
  with_precision(precision, [&](auto real) {
    bwd_dbias<decltype(real)>(problem, head, d_bias, floor, slack);
  });
}

}  // namespace tandem
