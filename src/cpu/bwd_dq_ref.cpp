// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq: d_q of one query head.
#include <algorithm>

#include "ref_row.h"

namespace tandem {
namespace {

template <typename Real>
void bwd_dq(const Problem& p, const RefHead& head, double* d_q, double* floor) {
  const int64_t D = p.head_dim, Dv = p.head_dim_v;
  const auto q = stored_array<Real>(head.q, p.seq_q * D, p.dtype);
  const auto k = stored_array<Real>(head.k, p.seq_kv * D, p.dtype);
  const auto v = stored_array<Real>(head.v, p.seq_kv * Dv, p.dtype);
  const auto d_o = stored_array<Real>(head.d_o, p.seq_q * Dv, p.dtype);
  const auto vt = transposed(v, p.seq_kv, Dv);
  ScoreRows<Real> row(p, k);
  std::vector<Real> dp(static_cast<size_t>(p.seq_kv)), sum(static_cast<size_t>(D));

  for (int64_t i = 0; i < p.seq_q; ++i) {
    std::fill(sum.begin(), sum.end(), Real(0));
    if (floor) std::fill_n(floor + i * D, D, 0.0);
    const Real lse = Real(head.lse[i]), delta = Real(head.delta[i]);
    if (row.compute(&q[size_t(i * D)], i) && lse != -std::numeric_limits<Real>::infinity()) {
      row.weigh(lse, head.stored_lse);
      dots(&d_o[size_t(i * Dv)], vt.data(), Dv, p.seq_kv, row.lo, row.hi, dp.data());
      const double base = floor ? abs_dot(head.d_o + i * Dv, head.o + i * Dv, Dv) : 0;
      for (int64_t j = row.lo; j < row.hi; ++j) {
        const Real ds =
            score_gradient(row.s[size_t(j)], dp[size_t(j)], delta, head.stored_delta, p.dtype);
        add_scaled(sum.data(), ds, &k[size_t(j * D)], D);
        if constexpr (sizeof(Real) == sizeof(double))
          if (floor)
            add_scaled_abs(
                floor + i * D,
                std::fabs(p.scale) * row.s[size_t(j)] * (std::fabs(dp[size_t(j)]) + base),
                &k[size_t(j * D)], D);
      }
    }
    for (int64_t c = 0; c < D; ++c)
      d_q[i * D + c] = double(stored(Real(p.scale) * sum[size_t(c)], p.dtype));
  }
}

}  // namespace

void bwd_dq_ref(const Problem& problem, Precision precision, const RefHead& head, double* d_q,
                double* d_q_floor) {
  with_precision(precision,
                 [&](auto real) { bwd_dq<decltype(real)>(problem, head, d_q, d_q_floor); });
}

}  // namespace tandem
