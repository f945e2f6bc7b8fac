// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: o and lse of one query head.
#include "ref_row.h"

namespace tandem {
namespace {

struct Outputs {
  double *o, *lse, *floor, *slack, *max_logit;
};

template <typename Real>
void fwd(const Problem& p, const RefHead& head, const Outputs& out) {
  const int64_t D = p.head_dim, Dv = p.head_dim_v;
  const auto q = operands<Real>(head.q, p.seq_q * D, p);
  const auto k = operands<Real>(head.k, p.seq_kv * D, p);
  const auto v = operands<Real>(head.v, p.seq_kv * Dv, p);
  ScoreRows<Real> row(p, head, k);
  Vec<Real> sum(static_cast<size_t>(Dv));

  for (int64_t i = 0; i < p.seq_q; ++i) {
    std::fill(sum.begin(), sum.end(), Real(0));
    for (double* x : {out.floor, out.slack})
      if (x) std::fill_n(x + i * Dv, Dv, 0.0);
    Real origin = 0;
    const bool sees = row.compute(&q[size_t(i * D)], 0, i);
    for (int64_t j = row.lo; sees && out.max_logit && j < row.hi; ++j)
      *out.max_logit = std::max(*out.max_logit, double(row.s[size_t(j)]));
    const bool weighs = sees && row.normalise(&origin);
    if (!weighs) origin = -std::numeric_limits<Real>::infinity();
    for (int64_t j = row.lo; weighs && j < row.hi; ++j) {
      if (row.hidden(j)) continue;
      const Real w = row.weight(j);
      add_scaled(sum.data(), w, &v[size_t(j * Dv)], Dv);
      if constexpr (sizeof(Real) == sizeof(double)) {
        if (out.floor) add_scaled_abs(out.floor + i * Dv, std::fabs(w), &v[size_t(j * Dv)], Dv);
        if (out.slack && row.slack)
          add_scaled_abs(out.slack + i * Dv, row.drop(j) * row.dy[size_t(j)], &v[size_t(j * Dv)],
                         Dv);
      }
    }
    for (int64_t c = 0; c < Dv; ++c) out.o[i * Dv + c] = double(stored(sum[size_t(c)], p.dtype));
    if (out.lse) out.lse[i] = double(origin);
  }
}

}  // namespace

void fwd_ref(const Problem& problem, Precision precision, const RefHead& head, double* o,
             double* lse, double* o_floor, double* o_slack, double* max_logit) {
  const Outputs out{o, lse, o_floor, o_slack, max_logit};
  with_precision(problem, precision, [&](auto real) { fwd<decltype(real)>(problem, head, out); });
}

}  // namespace tandem
