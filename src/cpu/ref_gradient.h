// SPDX-License-Identifier: MIT OR Apache-2.0
// ds of one row, for the bwd_*_ref.cpp files, with floors and slack, to which its rounding errors
// are proportional.
#ifndef TANDEM_SRC_CPU_REF_GRADIENT_H
#define TANDEM_SRC_CPU_REF_GRADIENT_H
#include "ref_row.h"

namespace tandem {

template <typename Real>
class GradientRows {
 public:
  // heads: query heads, one after the other. with_dp: a problem with d_v alone needs no dp.
  GradientRows(const Problem& problem, const RefHead& group, int64_t heads, bool with_dp,
               bool with_floor);

  const Vec<Real> q, k, d_o;
  ScoreRows<Real> row;
  Vec<Real> dp, ds;               // dp after dropout; both 0 where a key is hidden
  Vec<double> e, dds;             // floor and slack of ds
  double bound = 0, d_delta = 0;  // on |delta| before it cancels; how much it may change
  // Whether d_delta is due to a rounding of o, from which a path may form delta of softmax also
  // where bwd_row_sums runs. Few roundings are in the same direction all over a row, so they do not
  // add up over rows.
  bool rounds = false;

  const Real* q_row(int64_t r) const { return &q[size_t(r * p_.head_dim)]; }
  const Real* d_o_row(int64_t r) const { return &d_o[size_t(r * p_.head_dim_v)]; }
  const Real* k_row(int64_t j) const { return &k[size_t(j * p_.head_dim)]; }

  // The factor of ds, e and dds in d_q and d_k.
  Real inner(int64_t j) const {
    return operand(bent_.empty() ? ds[size_t(j)] : bent_[size_t(j)], p_);
  }
  double inner(const Vec<double>& x, int64_t j) const {
    const double factor = std::fabs(double(p_.scale));
    return factor * x[size_t(j)] * (bent_.empty() ? 1 : std::fabs(double(row.bend[size_t(j)])));
  }

  // Forms the weights of row r. False: the row takes part in no gradient.
  bool weigh(int64_t r);

  void make_dp();

  // A bound on |dp| before it cancels, by Cauchy and Schwarz; with floors only.
  double dp_size(int64_t j) const {
    return d_o_size_ * v_size_[size_t(j)] * std::fabs(double(row.drop(j)));
  }

  // delta by the normaliser, less d_lse, for a row whose delta is not known yet.
  Real delta() const;

  // Forms ds from dp, with floor and slack. The o of a far row, and with it delta, may be of other
  // weights, from scores that f32 rounds another way.
  void make_ds(Real delta);

 private:
  // g (M dp - delta). A delta that was stored as f32 counts as equal to a dp that rounds to it, as
  // a row with a single key must have ds = 0.
  Real gradient(Real g, Real dp, Real delta) const {
    if (group_.stored_delta && float(dp) == float(delta)) return 0;
    return stored(stored(g, p_.dtype) * stored(dp - delta, p_.dtype), p_.dtype);
  }

  void make_floor();

  // o may round up or down, and delta = <d_o, o> changes with it.
  void make_rounding();

  void make_slack(double delta);

  const Problem& p_;
  const RefHead group_;
  const bool with_floor_;
  Vec<Real> vt_, bent_;
  Vec<double> v_size_;   // |v_j|
  double d_o_size_ = 0;  // of the row
  int64_t r_ = 0;
};

extern template class GradientRows<double>;
extern template class GradientRows<float>;

// Adds ds of every key of a head's rows to the element of sum with the index place(row, i, j) (-1:
// to none), and adds to floor and slack, if wanted, accordingly.
template <typename Real, typename Place>
void add_ds(const Problem& p, const RefHead& head, double* sum, double* floor, double* slack,
            Place&& place) {
  GradientRows<Real> gradient(p, head, 1, true, floor != nullptr);
  const ScoreRows<Real>& row = gradient.row;
  for (int64_t i = 0; i < p.seq_q; ++i) {
    if (!gradient.weigh(i)) continue;
    gradient.make_dp();
    gradient.make_ds(Real(head.delta[i]));
    for (int64_t j = row.lo; j < row.hi; ++j) {
      const int64_t to = place(row, i, j);
      if (to < 0) continue;
      sum[to] = double(Real(sum[to]) + gradient.ds[size_t(j)]);
      if constexpr (sizeof(Real) == sizeof(double)) {
        if (floor) floor[to] += gradient.e[size_t(j)];
        if (slack && row.slack) slack[to] += gradient.dds[size_t(j)];
        if (slack && gradient.rounds) slack[to] = std::max(slack[to], gradient.dds[size_t(j)]);
      }
    }
  }
}

}  // namespace tandem
#endif
