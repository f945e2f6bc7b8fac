// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ref_row.h"

namespace tandem {

template <typename Real>
ScoreRows<Real>::ScoreRows(const Problem& problem, const RefHead& heads, const Vec<Real>& k)
    : p_(problem),
      heads_(heads),
      kt_(transposed(k, problem.seq_kv, problem.head_dim)),
      q_len_(heads.q_len < 0 ? problem.seq_q : heads.q_len),
      kv_len_(heads.kv_len < 0 ? problem.seq_kv : heads.kv_len),
      band_(problem.band) {
  if (problem.has_lengths() && problem.bottom_right) band_.off = int(kv_len_ - q_len_);
  const auto keys = size_t(problem.seq_kv);
  s.resize(keys);
  if (problem.keep || problem.spans || problem.bias || problem.table) hidden_.resize(keys);
  if (problem.softcap > 0) bend.resize(keys);
  if (problem.dropout > 0) factor.resize(keys);
  if (problem.normalizer != Normalizer::softmax) y_.resize(keys);
  if (problem.normalizer == Normalizer::elastic) pass_.resize(keys);
  if (problem.normalizer == Normalizer::entmax) g_.resize(keys);
  slack = sizeof(Real) == sizeof(double) && heads.score_error > 0 && !y_.empty();
  if (slack) {
    for (Vec<double>* x : {&size_, &dy, &dg, &dgm, &dm}) x->resize(keys);
    for (Real x : kt_) kt_size_.push_back(std::fabs(double(x)));
  }
}

// Weight of a score, for elastic softmax and entmax.
template <typename Real>
struct ScoreRows<Real>::Weigher {
  Weigher(const ScoreRows& rows, const Origin& of_row) : dtype(rows.p_.dtype), origin(of_row) {
    elastic = rows.p_.normalizer == Normalizer::elastic;
    if (elastic) shift = Real(rows.heads_.tau[rows.head_]) / Real(rows.n_);
    alpha = double(rows.p_.alpha);
    exponent = Real((2 - alpha) / (alpha - 1));
  }
  Weight operator()(Real s) const {
    return elastic ? of_p(exponential(s, origin)) : of_x(above(s));
  }
  // Weight of a score whose error may lift it above 1, which no weight of a row exceeds.
  Weight capped(Real s) const {
    const Real x = above(s);
    return elastic ? of_p(std::exp(std::min(x, Real(0)))) : of_x(std::min(x, Real(1)));
  }
  Real above(Real z) const { return (z - origin.base) - origin.rest; }
  Weight of_p(Real p) const {
    const Real x = stored(p, dtype) + shift;
    return {x > 0 || x != x ? x : Real(0), p, !(x <= 0)};
  }
  Weight of_x(Real x) const {
    if (x <= 0) return {0, 0, true};
    const Real u = alpha == 1.5 ? x : alpha == 2 ? Real(1) : std::pow(x, exponent);
    return {x * u, x != x ? x : u, true};
  }
  tandem_dtype dtype;
  Origin origin;
  Real shift = 0, exponent = 0;
  bool elastic;
  double alpha = 0;
};

template <typename Real>
bool ScoreRows<Real>::compute(const Real* q, int64_t n, int64_t i) {
  row_ = i;
  lo = hi = 0;
  n_ = 0;
  if (i >= q_len_) return false;
  lo = std::max<int64_t>(0, i + band_.off - band_.left);
  hi = std::max(lo, std::min<int64_t>(kv_len_, i + int64_t(band_.off) + band_.right + 1));
  if (lo >= hi) return false;
  n_ = tandem_key_count(band_, int(i), int(q_len_), int(kv_len_));
  head_ = n;
  keep_ = p_.keep ? heads_.keep + n * heads_.keep_step + (p_.keep.rows == 1 ? 0 : i) * p_.seq_kv
                  : nullptr;
  if (keep_ && std::find_if(keep_ + lo, keep_ + hi, [](uint8_t x) { return x != 0; }) == keep_ + hi)
    return false;
  dots(q, kt_.data(), p_.head_dim, p_.seq_kv, lo, hi, s.data());
  for (int64_t j = lo; j < hi; ++j) s[size_t(j)] = formed(Real(p_.exact_scale()) * s[size_t(j)]);
  if (slack) start_sizes(q);
  add_terms();
  if (!factor.empty()) draw_factors();
  return true;
}

template <typename Real>
bool ScoreRows<Real>::normalise(Real* lse) {
  Origin origin;
  if (!find_origin(&origin)) return false;
  *lse = origin.base + origin.rest;
  if (p_.normalizer == Normalizer::softmax)
    divide(origin.sum);
  else
    weigh_by(is_far(*lse) ? origin : Origin{0, *lse, 1, false});
  return true;
}

namespace {
double part_slack(const Problem& p) {
  if (p.dtype == TANDEM_F64) return 0x1p-51;  // 4 units, as of f32
  return double(tandem_part_slack(int(p.head_dim), p.dtype == TANDEM_F32));
}
}  // namespace

template <typename Real>
bool ScoreRows<Real>::weigh(Real lse, bool stored_lse) {
  origin_ = Origin{0, lse, 1, stored_lse};
  far_ = is_far(lse);
  if (far_ && !find_origin(&origin_)) return false;
  if (far_ && p_.part_of_keys) {
    const Real whole = lse - origin_.base;
    if (whole > origin_.rest + Real(part_slack(p_)) * std::fabs(lse))
      origin_.rest = whole, origin_.sum = std::exp(whole);
  }
  if (far_ && p_.normalizer == Normalizer::softmax)
    divide(origin_.sum);
  else
    weigh_by(origin_);
  return true;
}

template <typename Real>
bool ScoreRows<Real>::find_origin(Origin* origin) {
  const Real nothing = -std::numeric_limits<Real>::infinity();
  if (p_.normalizer == Normalizer::entmax) {
    const Vec<double> z(s.begin() + lo, s.begin() + hi);
    double m = 0;
    const double rest = entmax_threshold(z.data(), hi - lo, double(p_.alpha), &m);
    *origin = Origin{Real(m), Real(rest), 1, false};
    return !(m == -std::numeric_limits<double>::infinity());
  }
  Real m = nothing, l = 0;
  for (int64_t j = lo; j < hi; ++j) m = s[size_t(j)] > m ? s[size_t(j)] : m;
  // A NaN score does not change m, but must still reach o.
  if (m == nothing && std::none_of(&s[0] + lo, &s[0] + hi, [](Real x) { return x != x; }))
    return false;
  if (p_.sink) {
    const Real sink = Real(heads_.sink[head_]);
    m = sink > m ? sink : m;
    l = std::exp(sink - m);
  }
  const bool softmax = p_.normalizer == Normalizer::softmax;
  for (int64_t j = lo; j < hi; ++j) {
    const Real e = std::exp(s[size_t(j)] - m);
    l += e;
    if (softmax) s[size_t(j)] = e;
  }
  *origin = Origin{m, std::log(l), l, false};
  return true;
}

template <typename Real>
void ScoreRows<Real>::divide(Real sum) {
  for (int64_t j = lo; j < hi; ++j) s[size_t(j)] /= sum;
}

template <typename Real>
void ScoreRows<Real>::weigh_by(const Origin& origin) {
  if (p_.normalizer == Normalizer::softmax) {
    for (int64_t j = lo; j < hi; ++j) s[size_t(j)] = exponential(s[size_t(j)], origin);
    return;
  }
  const Weigher to_weight(*this, origin);
  if (slack) find_slack(to_weight);
  for (int64_t j = lo; j < hi; ++j) {
    const Weight w = hidden(j) ? Weight{} : to_weight(s[size_t(j)]);
    y_[size_t(j)] = w.y;
    if (g_.empty()) {
      s[size_t(j)] = w.g;
      pass_[size_t(j)] = w.pass;
    } else {
      g_[size_t(j)] = w.g;
    }
  }
}

template <typename Real>
void ScoreRows<Real>::add_terms() {
  if (!bend.empty()) {
    const Real cap = Real(p_.softcap);
    for (int64_t j = lo; j < hi; ++j) {
      const Real ratio = s[size_t(j)] / cap, steep = std::cosh(ratio);
      s[size_t(j)] = formed(cap * std::tanh(ratio));
      bend[size_t(j)] = 1 / (steep * steep);  // 1 - tanh^2 would keep no bits far from 0
    }
  }
  if (p_.bias) {
    const double* bias =
        heads_.bias + head_ * heads_.bias_step + (p_.bias.rows == 1 ? 0 : row_) * p_.seq_kv;
    for (int64_t j = lo; j < hi; ++j) add_term(j, Real(bias[j]));
  }
  if (p_.table) {
    const double* table = heads_.bias_table + head_ * p_.table.size;
    const int32_t* index = heads_.bias_index + row_ * p_.seq_kv;
    for (int64_t j = lo; j < hi; ++j)
      if (index[j] >= 0 && index[j] < p_.table.size) add_term(j, Real(table[index[j]]));
  }
  if (p_.dist_window > 0) {
    const double* dist = heads_.dist_bias + head_ * p_.dist_window;
    for (int64_t j = lo; j < hi; ++j)
      if (const int64_t t = distance(j); t >= 0 && t < p_.dist_window) add_term(j, Real(dist[t]));
  }
  if (p_.alibi) {
    const Real slope = Real(heads_.slope[head_]);
    for (int64_t j = lo; j < hi; ++j) add_term(j, -slope * Real(std::abs(distance(j))));
  }
  if (keep_)
    for (int64_t j = lo; j < hi; ++j)
      if (!keep_[j]) s[size_t(j)] = -std::numeric_limits<Real>::infinity();
  const int32_t* spans = p_.spans ? heads_.spans + head_ * heads_.spans_step : nullptr;
  for (int64_t j = lo; j < hi && spans; ++j)
    if (!p_.spans.show(spans + p_.spans.numbers(j), row_))
      s[size_t(j)] = -std::numeric_limits<Real>::infinity();
  for (int64_t j = lo; j < hi && !hidden_.empty(); ++j)
    hidden_[size_t(j)] = s[size_t(j)] == -std::numeric_limits<Real>::infinity();
  if (p_.normalizer == Normalizer::entmax)
    for (int64_t j = lo; j < hi; ++j) {
      s[size_t(j)] *= Real(p_.alpha) - 1;
      if (heads_.round_scores) s[size_t(j)] = Real(float(s[size_t(j)]));
    }
}

template <typename Real>
void ScoreRows<Real>::draw_factors() {
  const uint32_t threshold = dropout_threshold(p_.dropout);
  const Real kept = 1 / (1 - Real(p_.dropout));
  for (int64_t quad = lo / 4; quad * 4 < hi; ++quad) {
    const TandemPhilox words = tandem_dropout_words(
        int(heads_.index + head_), int(row_), int(quad), uint32_t(heads_.dropout_seed),
        uint32_t(heads_.dropout_seed >> 32), heads_.dropout_offset);
    const uint32_t word[] = {words.x, words.y, words.z, words.w};
    for (int64_t j = std::max(lo, quad * 4); j < std::min(hi, quad * 4 + 4); ++j)
      factor[size_t(j)] = word[j % 4] < threshold ? Real(0) : kept;
  }
}

template <typename Real>
void ScoreRows<Real>::start_sizes(const Real* q) {
  Vec<double> x(static_cast<size_t>(p_.head_dim));
  for (size_t c = 0; c < x.size(); ++c) x[c] = std::fabs(double(q[c]) * p_.exact_scale());
  dots(x.data(), kt_size_.data(), p_.head_dim, p_.seq_kv, lo, hi, size_.data());
}

template <typename Real>
void ScoreRows<Real>::find_slack(const Weigher& to_weight) {
  const bool entmax = !to_weight.elastic;
  const double unit = heads_.score_error;
  const double origin = double(to_weight.origin.base) + double(to_weight.origin.rest);
  double origin_error = 0;
  for (int64_t j = lo; j < hi; ++j) {
    double& error = size_[size_t(j)];
    error = unit * std::max(1.0, error) * (entmax ? to_weight.alpha - 1 : 1);
    const Weight w = hidden(j) ? Weight{} : to_weight(s[size_t(j)]);
    if (!entmax)
      origin_error += double(w.g) * error;
    else if (w.y > 0)
      origin_error = std::max(origin_error, error);
  }
  origin_error += unit * std::fabs(origin);
  for (int64_t j = lo; j < hi; ++j) {
    const auto n = size_t(j);
    if (hidden(j) || !std::isfinite(s[n])) {
      dy[n] = dg[n] = dgm[n] = dm[n] = 0;
      continue;
    }
    // A power forms its logarithm with a relative error.
    const double x = entmax ? std::max(0.0, double(to_weight.above(s[n]))) : 0;
    const Real error = Real(size_[n] + origin_error + unit * x);
    const Weight a = to_weight.capped(s[n] + error), b = to_weight.capped(s[n] - error);
    dy[n] = std::fabs(double(a.y - b.y));
    dg[n] = std::fabs(double(a.g - b.g));
    dm[n] = a.pass != b.pass;
    dgm[n] = std::fabs(double(a.pass ? a.g : 0) - double(b.pass ? b.g : 0));
  }
}

template class ScoreRows<double>;
template class ScoreRows<float>;

}  // namespace tandem
