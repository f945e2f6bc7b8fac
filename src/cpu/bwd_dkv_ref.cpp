// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv: d_k and d_v of one kv head, summed over the query heads of its group.
#include "ref_gradient.h"

namespace tandem {
namespace {

struct Outputs {
  double *d_k, *d_v, *d_k_floor, *d_v_floor, *d_k_slack, *d_v_slack;
};

template <typename Real>
void bwd_dkv(const Problem& p, const RefHead& group, const Outputs& out) {
  const int64_t D = p.head_dim, Dv = p.head_dim_v, Sk = p.seq_kv, rows = p.group() * p.seq_q;
  GradientRows<Real> gradient(p, group, p.group(), out.d_k != nullptr, out.d_k_floor != nullptr);
  const ScoreRows<Real>& row = gradient.row;
  Vec<Real> d_k(size_t(out.d_k ? Sk * D : 0)), d_v(size_t(out.d_v ? Sk * Dv : 0));
  for (double* x : {out.d_k_floor, out.d_k_slack})
    if (x) std::fill_n(x, Sk * D, 0.0);
  for (double* x : {out.d_v_floor, out.d_v_slack})
    if (x) std::fill_n(x, Sk * Dv, 0.0);

  for (int64_t r = 0; r < rows; ++r) {
    if (!gradient.weigh(r)) continue;
    const Real *q_row = gradient.q_row(r), *d_o_row = gradient.d_o_row(r);
    if (out.d_v)
      for (int64_t j = row.lo; j < row.hi; ++j)
        if (!row.hidden(j)) add_scaled(&d_v[size_t(j * Dv)], row.weight(j), d_o_row, Dv);
    if (out.d_k) {
      gradient.make_dp();
      gradient.make_ds(Real(group.delta[r]));
      for (int64_t j = row.lo; j < row.hi; ++j)
        if (!row.hidden(j)) add_scaled(&d_k[size_t(j * D)], gradient.inner(j), q_row, D);
    }
    if constexpr (sizeof(Real) == sizeof(double)) {
      for (int64_t j = row.lo; j < row.hi; ++j) {
        if (row.hidden(j)) continue;
        if (out.d_v_floor)
          add_scaled_abs(out.d_v_floor + j * Dv, std::fabs(row.weight(j)), d_o_row, Dv);
        if (out.d_k_floor)
          add_scaled_abs(out.d_k_floor + j * D, gradient.inner(gradient.e, j), q_row, D);
        if (out.d_k_slack && gradient.rounds)
          raise_scaled_abs(out.d_k_slack + j * D, gradient.inner(gradient.dds, j), q_row, D);
        if (!row.slack) continue;
        if (out.d_v_slack)
          add_scaled_abs(out.d_v_slack + j * Dv, row.drop(j) * row.dy[size_t(j)], d_o_row, Dv);
        if (out.d_k_slack)
          add_scaled_abs(out.d_k_slack + j * D, gradient.inner(gradient.dds, j), q_row, D);
      }
    }
  }
  for (size_t n = 0; n < d_k.size(); ++n)
    out.d_k[n] = double(stored(Real(p.exact_scale()) * d_k[n], p.dtype));
  for (size_t n = 0; n < d_v.size(); ++n) out.d_v[n] = double(stored(d_v[n], p.dtype));
}

}  // namespace

void bwd_dkv_ref(const Problem& problem, Precision precision, const RefHead& group, double* d_k,
                 double* d_v, double* d_k_floor, double* d_v_floor, double* d_k_slack,
                 double* d_v_slack) {
  const Outputs out{d_k,
                    d_v,
                    d_k ? d_k_floor : nullptr,
                    d_v ? d_v_floor : nullptr,
                    d_k ? d_k_slack : nullptr,
                    d_v ? d_v_slack : nullptr};
  with_precision(problem, precision,
                 [&](auto real) { bwd_dkv<decltype(real)>(problem, group, out); });
}

}  // namespace tandem
