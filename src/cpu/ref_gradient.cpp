// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ref_gradient.h"

namespace tandem {

template <typename Real>
GradientRows<Real>::GradientRows(const Problem& problem, const RefHead& group, int64_t heads,
                                 bool with_dp, bool with_floor)
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
  rounds =
      with_floor_ && problem.normalizer == Normalizer::softmax && group.o && group.score_error > 0;
  if (row.slack || rounds) dds.resize(size_t(Sk));
}

template <typename Real>
bool GradientRows<Real>::weigh(int64_t r) {
  const Real origin = Real(group_.lse[r]);
  if (!row.compute(q_row(r), r / p_.seq_q, r % p_.seq_q)) return false;
  if (origin == -std::numeric_limits<Real>::infinity()) return false;
  r_ = r;
  return row.weigh(origin, group_.stored_lse);
}

template <typename Real>
void GradientRows<Real>::make_dp() {
  dots(d_o_row(r_), vt_.data(), p_.head_dim_v, p_.seq_kv, row.lo, row.hi, dp.data());
  for (int64_t j = row.lo; j < row.hi; ++j) {
    Real& x = dp[size_t(j)];
    x = stored(x, p_.dtype);
    if (!row.factor.empty()) x = stored(x * row.factor[size_t(j)], p_.dtype);
    if (row.hidden(j)) x = 0;
  }
}

template <typename Real>
Real GradientRows<Real>::delta() const {
  Real sum = 0, weights = 0;
  for (int64_t j = row.lo; j < row.hi; ++j) {
    if (row.hidden(j)) continue;
    const Real g = stored(row.g(j), p_.dtype);
    weights += g;
    if (row.pass(j)) sum += g * dp[size_t(j)];
  }
  if (p_.normalizer == Normalizer::entmax) sum = weights == 0 ? Real(0) : sum / weights;
  sum = stored(sum, p_.dtype);
  return group_.d_lse ? stored(sum - Real(group_.d_lse[r_]), p_.dtype) : sum;
}

template <typename Real>
void GradientRows<Real>::make_ds(Real delta) {
  if (row.far() && group_.stored_lse && !p_.part_of_keys) delta = this->delta();
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

template <typename Real>
void GradientRows<Real>::make_floor() {
  const Real* d_o_row = this->d_o_row(r_);
  d_o_size_ = 0;
  for (int64_t c = 0; c < p_.head_dim_v; ++c) d_o_size_ += double(d_o_row[c]) * double(d_o_row[c]);
  d_o_size_ = std::sqrt(d_o_size_);
  // delta as a sum over keys. <d_o, o> is the same sum, and the rounding of o is within it.
  double sum = 0, weights = 0;
  for (int64_t j = row.lo; j < row.hi; ++j) {
    if (row.hidden(j)) continue;
    weights += row.g(j);
    if (row.pass(j)) sum += row.g(j) * dp_size(j);
  }
  if (p_.normalizer == Normalizer::entmax) sum = weights == 0 ? 0 : sum / weights;
  bound = sum + (group_.d_lse ? std::fabs(group_.d_lse[r_]) : 0);
  // f16 rounds numbers below 2^-14 as if they were that large, and o may be one of them.
  if (p_.normalizer == Normalizer::softmax && p_.dtype == TANDEM_F16)
    for (int64_t c = 0; c < p_.head_dim_v; ++c) bound += 0x1p-14 * std::fabs(double(d_o_row[c]));
  for (int64_t j = row.lo; j < row.hi; ++j)
    e[size_t(j)] = row.hidden(j) ? 0 : row.g(j) * (dp_size(j) + bound);
}

template <typename Real>
void GradientRows<Real>::make_rounding() {
  const Real* d_o_row = this->d_o_row(r_);
  const double* o_row = group_.o + r_ * p_.head_dim_v;
  d_delta = 0;
  for (int64_t c = 0; c < p_.head_dim_v; ++c) d_delta += std::fabs(double(d_o_row[c]) * o_row[c]);
  d_delta *= p_.dtype == TANDEM_F64   ? 0x1p-53
             : p_.dtype == TANDEM_F32 ? 0x1p-24
             : p_.dtype == TANDEM_F16 ? 0x1p-11
                                      : 0x1p-8;
  for (int64_t j = row.lo; j < row.hi; ++j) dds[size_t(j)] = row.hidden(j) ? 0 : row.g(j) * d_delta;
}

template <typename Real>
void GradientRows<Real>::make_slack(double delta) {
  const bool entmax = p_.normalizer == Normalizer::entmax;
  double weights = 0, least = 0;
  d_delta = 0;
  for (int64_t j = row.lo; j < row.hi; ++j) {
    if (row.hidden(j)) continue;
    const auto n = size_t(j);
    weights += row.g(j);
    least += std::max(0.0, row.g(j) - row.dg[n]);
    d_delta +=
        entmax ? row.dg[n] * (std::fabs(dp[n]) + std::fabs(delta)) : row.dgm[n] * std::fabs(dp[n]);
  }
  if (entmax && weights > 0) d_delta /= least > 0 ? least : weights;
  for (int64_t j = row.lo; j < row.hi; ++j) {
    const auto n = size_t(j);
    dds[n] = row.hidden(j) ? 0
                           : row.dgm[n] * std::fabs(dp[n]) + row.dg[n] * std::fabs(delta) +
                                 (row.g(j) + row.dg[n]) * d_delta;
  }
}

template class GradientRows<double>;
template class GradientRows<float>;

}  // namespace tandem
