// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv: d_k and d_v of one kv head, summed over the query heads of its group.
#include <algorithm>

#include "ref_row.h"

namespace tandem {
namespace {

struct Outputs {
  double *d_k, *d_v, *d_k_floor, *d_v_floor;
};

template <typename Real>
void bwd_dkv(const Problem& p, const RefHead& group, const Outputs& out) {
  const int64_t D = p.head_dim, Dv = p.head_dim_v, rows = p.group() * p.seq_q;
  const auto q = stored_array<Real>(group.q, rows * D, p.dtype);
  const auto d_o = stored_array<Real>(group.d_o, rows * Dv, p.dtype);
  const auto k = stored_array<Real>(group.k, p.seq_kv * D, p.dtype);
  std::vector<Real> vt, dp;
  if (out.d_k) {
    vt = transposed(stored_array<Real>(group.v, p.seq_kv * Dv, p.dtype), p.seq_kv, Dv);
    dp.resize(size_t(p.seq_kv));
  }
  ScoreRows<Real> row(p, k);
  std::vector<Real> d_k(size_t(out.d_k ? p.seq_kv * D : 0)),
      d_v(size_t(out.d_v ? p.seq_kv * Dv : 0));
  if (out.d_k_floor) std::fill_n(out.d_k_floor, p.seq_kv * D, 0.0);
  if (out.d_v_floor) std::fill_n(out.d_v_floor, p.seq_kv * Dv, 0.0);

  for (int64_t r = 0; r < rows; ++r) {
    const Real lse = Real(group.lse[r]);
    if (!row.compute(&q[size_t(r * D)], r % p.seq_q)) continue;
    if (lse == -std::numeric_limits<Real>::infinity()) continue;
    row.weigh(lse, group.stored_lse);
    const Real *q_row = &q[size_t(r * D)], *d_o_row = &d_o[size_t(r * Dv)];
    if (out.d_v)
      for (int64_t j = row.lo; j < row.hi; ++j)
        add_scaled(&d_v[size_t(j * Dv)], stored(row.s[size_t(j)], p.dtype), d_o_row, Dv);
    if (out.d_k) {
      const Real delta = Real(group.delta[r]);
      dots(d_o_row, vt.data(), Dv, p.seq_kv, row.lo, row.hi, dp.data());
      for (int64_t j = row.lo; j < row.hi; ++j)
        add_scaled(
            &d_k[size_t(j * D)],
            score_gradient(row.s[size_t(j)], dp[size_t(j)], delta, group.stored_delta, p.dtype),
            q_row, D);
    }
    if constexpr (sizeof(Real) == sizeof(double)) {
      if (out.d_v_floor)
        for (int64_t j = row.lo; j < row.hi; ++j)
          add_scaled_abs(out.d_v_floor + j * Dv, row.s[size_t(j)], d_o_row, Dv);
      if (out.d_k_floor) {
        const double base = abs_dot(d_o_row, group.o + r * Dv, Dv);
        for (int64_t j = row.lo; j < row.hi; ++j)
          add_scaled_abs(out.d_k_floor + j * D,
                         std::fabs(p.scale) * row.s[size_t(j)] * (std::fabs(dp[size_t(j)]) + base),
                         q_row, D);
      }
    }
  }
  for (size_t n = 0; n < d_k.size(); ++n)
    out.d_k[n] = double(stored(Real(p.scale) * d_k[n], p.dtype));
  for (size_t n = 0; n < d_v.size(); ++n) out.d_v[n] = double(stored(d_v[n], p.dtype));
}

}  // namespace

void bwd_dkv_ref(const Problem& problem, Precision precision, const RefHead& group, double* d_k,
                 double* d_v, double* d_k_floor, double* d_v_floor) {
  const Outputs out{d_k, d_v, d_k ? d_k_floor : nullptr, d_v ? d_v_floor : nullptr};
  with_precision(precision, [&](auto real) { bwd_dkv<decltype(real)>(problem, group, out); });
}

}  // namespace tandem
