// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: o and lse of one query head.
#include <algorithm>

#include "ref_row.h"

namespace tandem {
namespace {

template <typename Real>
void fwd(const Problem& p, const RefHead& head, double* o, double* lse, double* o_floor) {
  const int64_t D = p.head_dim, Dv = p.head_dim_v;
  const auto q = stored_array<Real>(head.q, p.seq_q * D, p.dtype);
  const auto k = stored_array<Real>(head.k, p.seq_kv * D, p.dtype);
  const auto v = stored_array<Real>(head.v, p.seq_kv * Dv, p.dtype);
  ScoreRows<Real> row(p, k);
  std::vector<Real> sum(static_cast<size_t>(Dv));

  for (int64_t i = 0; i < p.seq_q; ++i) {
    const bool sees = row.compute(&q[size_t(i * D)], i);
    const Real nothing = -std::numeric_limits<Real>::infinity();
    Real m = nothing;
    for (int64_t j = row.lo; j < row.hi; ++j) m = row.s[size_t(j)] > m ? row.s[size_t(j)] : m;
    Real l = 0;
    std::fill(sum.begin(), sum.end(), Real(0));
    if (o_floor) std::fill_n(o_floor + i * Dv, Dv, 0.0);
    // A NaN score leaves m alone and must still reach o.
    const bool weighs = sees && (m != nothing || std::any_of(&row.s[0] + row.lo, &row.s[0] + row.hi,
                                                             [](Real x) { return x != x; }));
    if (weighs) {
      for (int64_t j = row.lo; j < row.hi; ++j)
        l += row.s[size_t(j)] = std::exp(row.s[size_t(j)] - m);
      for (int64_t j = row.lo; j < row.hi; ++j) {
        const Real w = stored(row.s[size_t(j)] / l, p.dtype);
        add_scaled(sum.data(), w, &v[size_t(j * Dv)], Dv);
        if constexpr (sizeof(Real) == sizeof(double))
          if (o_floor) add_scaled_abs(o_floor + i * Dv, w, &v[size_t(j * Dv)], Dv);
      }
    }
    for (int64_t c = 0; c < Dv; ++c) o[i * Dv + c] = double(stored(sum[size_t(c)], p.dtype));
    if (lse) lse[i] = weighs ? double(m + std::log(l)) : double(nothing);
  }
}

}  // namespace

void fwd_ref(const Problem& problem, Precision precision, const RefHead& head, double* o,
             double* lse, double* o_floor) {
  with_precision(precision,
                 [&](auto real) { fwd<decltype(real)>(problem, head, o, lse, o_floor); });
}

}  // namespace tandem
