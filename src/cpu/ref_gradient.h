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
               bool with_floor)
      : q(operands<Real>(group.q, heads * problem.seq_q * problem.head_dim, problem)),
        k(operands<Real>(group.k, problem.seq_kv * problem.head_dim, problem)),
        d_o(operands<Real>(group.d_o, heads * problem.seq_q * problem.head_dim_v, problem)),
        row(problem, group, k),
        p_(problem),
        group_(group),
        with_floor_(with_floor && sizeof(Real) == sizeof(double)) {
    if (!with_dp) return;
    const int64_t Sk = problem.seq_kv, Dv = problem.head_dim_v;
    vt_ = transposed(operands<Real>(group.v, Sk * Dv, problem), Sk, Dv);
    for (Vec<Real>* x : {&dp, &ds}) x->resize(size_t(Sk));
    if (problem.softcap > 0) bent_.resize(size_t(Sk));
    if (with_floor_) {
      e.resize(size_t(Sk));
      v_size_.resize(size_t(Sk));
      for (int64_t c = 0; c < Dv; ++c)
        for (int64_t j = 0; j < Sk; ++j) {
          const double v = double(vt_[size_t(c * Sk + j)]);
          v_size_[size_t(j)] += v * v;
        }
      for (double& x : v_size_) x = std::sqrt(x);
    }
    rounds = with_floor_ && problem.delta_is_dot() && group.o && group.score_error > 0;
    if (row.slack || rounds) dds.resize(size_t(Sk));
  }

  const Vec<Real> q, k, d_o;
  ScoreRows<Real> row;
  Vec<Real> dp, ds;               // dp after dropout; both 0 where a key is hidden
  Vec<double> e, dds;             // floor and slack of ds
  double bound = 0, d_delta = 0;  // on |delta| before it cancels; how much it may change
  // Whether d_delta is due to a rounding of o. Few roundings are in the same direction all over a
  // row, so they do not add up over rows.
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
  bool weigh(int64_t r) {
    const Real origin = Real(group_.lse[r]);
    if (!row.compute(q_row(r), r / p_.seq_q, r % p_.seq_q)) return false;
    if (origin == -std::numeric_limits<Real>::infinity()) return false;
    r_ = r;
    return row.weigh(origin, group_.stored_lse);
  }

  void make_dp() {
    dots(d_o_row(r_), vt_.data(), p_.head_dim_v, p_.seq_kv, row.lo, row.hi, dp.data());
    for (int64_t j = row.lo; j < row.hi; ++j) {
      Real& x = dp[size_t(j)];
      x = stored(x, p_.dtype);
      if (!row.factor.empty()) x = stored(x * row.factor[size_t(j)], p_.dtype);
      if (row.hidden(j)) x = 0;
    }
  }

  // A bound on |dp| before it cancels, by Cauchy and Schwarz; with floors only.
  double dp_size(int64_t j) const {
    return d_o_size_ * v_size_[size_t(j)] * std::fabs(double(row.drop(j)));
  }

  // delta by the normaliser, for a row whose delta is not known yet.
  Real delta() const {
    Real sum = 0, weights = 0;
    for (int64_t j = row.lo; j < row.hi; ++j) {
      if (row.hidden(j)) continue;
      const Real g = stored(row.g(j), p_.dtype);
      weights += g;
      if (row.pass(j)) sum += g * dp[size_t(j)];
    }
    if (p_.normalizer == Normalizer::entmax) sum = weights == 0 ? Real(0) : sum / weights;
    return stored(sum, p_.dtype);
  }

  // Forms ds from dp, with floor and slack. The o of a far row, and with it delta, may be of other
  // weights, from scores that f32 rounds another way.
  void make_ds(Real delta) {
    if (row.far() && group_.stored_lse) delta = this->delta();
    for (int64_t j = row.lo; j < row.hi; ++j) {
      const auto n = size_t(j);
      ds[n] = row.hidden(j) ? Real(0) : gradient(row.g(j), row.pass(j) ? dp[n] : Real(0), delta);
      if (!bent_.empty()) bent_[n] = stored(ds[n] * row.bend[n], p_.dtype);
    }
    if constexpr (sizeof(Real) == sizeof(double)) {
      if (with_floor_) make_floor();
      if (row.slack) make_slack(delta);
      if (rounds) make_rounding();
    }
  }

 private:
  // g (M dp - delta). A delta that was stored as f32 counts as equal to a dp that rounds to it, as
  // a row with a single key must have ds = 0.
  Real gradient(Real g, Real dp, Real delta) const {
    if (group_.stored_delta && float(dp) == float(delta)) return 0;
    return stored(stored(g, p_.dtype) * stored(dp - delta, p_.dtype), p_.dtype);
  }

  void make_floor() {
    const Real* d_o_row = this->d_o_row(r_);
    d_o_size_ = 0;
    for (int64_t c = 0; c < p_.head_dim_v; ++c)
      d_o_size_ += double(d_o_row[c]) * double(d_o_row[c]);
    d_o_size_ = std::sqrt(d_o_size_);
    // delta as a sum over keys. <d_o, o> is the same sum, and the rounding of o is within it.
    double sum = 0, weights = 0;
    for (int64_t j = row.lo; j < row.hi; ++j) {
      if (row.hidden(j)) continue;
      weights += row.g(j);
      if (row.pass(j)) sum += row.g(j) * dp_size(j);
    }
    if (p_.normalizer == Normalizer::entmax) sum = weights == 0 ? 0 : sum / weights;
    bound = sum;
    // f16 rounds numbers below 2^-14 as if they were that large, and o may be one of them.
    if (p_.delta_is_dot() && p_.dtype == TANDEM_F16)
      for (int64_t c = 0; c < p_.head_dim_v; ++c) bound += 0x1p-14 * std::fabs(double(d_o_row[c]));
    for (int64_t j = row.lo; j < row.hi; ++j)
      e[size_t(j)] = row.hidden(j) ? 0 : row.g(j) * (dp_size(j) + bound);
  }

  // o may round up or down, and delta = <d_o, o> changes with it.
  void make_rounding() {
    const double *d_o_row = this->d_o_row(r_), *o_row = group_.o + r_ * p_.head_dim_v;
    d_delta = 0;
    for (int64_t c = 0; c < p_.head_dim_v; ++c) d_delta += std::fabs(d_o_row[c] * o_row[c]);
    d_delta *= p_.dtype == TANDEM_F32 ? 0x1p-24 : p_.dtype == TANDEM_F16 ? 0x1p-11 : 0x1p-8;
    for (int64_t j = row.lo; j < row.hi; ++j)
      dds[size_t(j)] = row.hidden(j) ? 0 : row.g(j) * d_delta;
  }

  void make_slack(double delta) {
    const bool entmax = p_.normalizer == Normalizer::entmax;
    double weights = 0, least = 0;
    d_delta = 0;
    for (int64_t j = row.lo; j < row.hi; ++j) {
      if (row.hidden(j)) continue;
      const auto n = size_t(j);
      weights += row.g(j);
      least += std::max(0.0, row.g(j) - row.dg[n]);
      d_delta += entmax ? row.dg[n] * (std::fabs(dp[n]) + std::fabs(delta))
                        : row.dgm[n] * std::fabs(dp[n]);
    }
    if (entmax && weights > 0) d_delta /= least > 0 ? least : weights;
    for (int64_t j = row.lo; j < row.hi; ++j) {
      const auto n = size_t(j);
      dds[n] = row.hidden(j) ? 0
                             : row.dgm[n] * std::fabs(dp[n]) + row.dg[n] * std::fabs(delta) +
                                   (row.g(j) + row.dg[n]) * d_delta;
    }
  }

  const Problem& p_;
  const RefHead group_;
  const bool with_floor_;
  Vec<Real> vt_, bent_;
  Vec<double> v_size_;   // |v_j|
  double d_o_size_ = 0;  // of the row
  int64_t r_ = 0;
};

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
