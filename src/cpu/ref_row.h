// SPDX-License-Identifier: MIT OR Apache-2.0
// One row of the score matrix, for the *_ref.cpp files: which keys it sees, its scores, its
// weights. Real is double (Precision::exact) or float (stepwise). Every sum has ascending indices.
#ifndef TANDEM_SRC_CPU_REF_ROW_H
#define TANDEM_SRC_CPU_REF_ROW_H
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "element.h"
#include "problem/far_row.h"
#include "problem/philox.h"
#include "reference.h"

namespace tandem {

// Calls body with a value of the type that precision selects.
template <typename Body>
void with_precision(Precision precision, Body&& body) {
  if (precision == Precision::exact)
    body(double());
  else
    body(float());
}

// x as a chain of plain operations would store it.
inline double stored(double x, tandem_dtype) { return x; }
inline float stored(float x, tandem_dtype dtype) { return round_element(x, dtype); }

// The same as an operand of matrix products: with TANDEM_FLAG_TF32 rounded to 11 bits.
inline double operand(double x, const Problem&) { return x; }
inline float operand(float x, const Problem& p) {
  if (!p.tf32 || !std::isfinite(x)) return x;
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x1000u) & 0xffffe000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

template <typename Real>
Vec<Real> operands(const double* from, int64_t count, const Problem& p) {
  Vec<Real> to(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n) to[size_t(n)] = operand(stored(Real(from[n]), p.dtype), p);
  return to;
}

// [rows][features] to [features][rows]. Dot products of one row with all keys then run along keys,
// which vectorises without changing the order of any sum.
template <typename Real>
Vec<Real> transposed(const Vec<Real>& from, int64_t rows, int64_t features) {
  Vec<Real> to(from.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < features; ++c)
      to[size_t(c * rows + r)] = from[size_t(r * features + c)];
  return to;
}

// out[j] = <x, y_j> for lo <= j < hi, y transposed with pitch keys a row.
template <typename Real>
void dots(const Real* x, const Real* yt, int64_t features, int64_t pitch, int64_t lo, int64_t hi,
          Real* __restrict out) {
  for (int64_t j = lo; j < hi; ++j) out[j] = 0;
  int64_t c = 0;
  for (; c + 4 <= features; c += 4) {
    const Real x0 = x[c], x1 = x[c + 1], x2 = x[c + 2], x3 = x[c + 3];
    const Real *y0 = yt + c * pitch, *y1 = y0 + pitch, *y2 = y1 + pitch, *y3 = y2 + pitch;
    for (int64_t j = lo; j < hi; ++j)
      out[j] = (((out[j] + x0 * y0[j]) + x1 * y1[j]) + x2 * y2[j]) + x3 * y3[j];
  }
  for (; c < features; ++c)
    for (int64_t j = lo; j < hi; ++j) out[j] += x[c] * yt[c * pitch + j];
}

template <typename Real>
void add_scaled(Real* __restrict to, Real factor, const Real* x, int64_t count) {
  for (int64_t c = 0; c < count; ++c) to[c] += factor * x[c];
}
inline void add_scaled_abs(double* __restrict to, double factor, const double* x, int64_t count) {
  for (int64_t c = 0; c < count; ++c) to[c] += factor * std::fabs(x[c]);
}
inline void raise_scaled_abs(double* __restrict to, double factor, const double* x, int64_t count) {
  for (int64_t c = 0; c < count; ++c) to[c] = std::max(to[c], factor * std::fabs(x[c]));
}

// The rows of one query head, or of a group of them, with one kv head. compute() makes a row's
// scores. normalise() (forward), or weigh() (backward, from the row's lse or threshold), turns them
// into weights.
//
// If lse is large, even a double loses ln(sum). So weights of a far row (far_row.h) are formed
// relative to the row's largest score, in the backward as in the forward, whatever lse was given.
template <typename Real>
class ScoreRows {
 public:
  ScoreRows(const Problem& problem, const RefHead& heads, const Vec<Real>& k)
      : p_(problem),
        heads_(heads),
        kt_(transposed(k, problem.seq_kv, problem.head_dim)),
        q_len_(heads.q_len < 0 ? problem.seq_q : heads.q_len),
        kv_len_(heads.kv_len < 0 ? problem.seq_kv : heads.kv_len),
        band_(problem.band) {
    if (problem.has_lengths() && problem.bottom_right) band_.off = int(kv_len_ - q_len_);
    const auto keys = size_t(problem.seq_kv);
    s.resize(keys);
    if (problem.keep || problem.bias) hidden_.resize(keys);
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

  // Keys outside [lo, hi) are hidden. Hidden keys inside have scores of -inf and no weight.
  int64_t lo = 0, hi = 0;
  Vec<Real> s;                  // scores, or z of entmax; later what y() and g() read
  Vec<Real> bend;               // derivative of softcap
  Vec<Real> factor;             // of dropout: 0 or 1 / (1 - p)
  bool slack = false;           // whether there are dy, dg, dgm, dm
  Vec<double> dy, dg, dgm, dm;  // how far y, g, g M and M change within the scores' errors

  bool hidden(int64_t j) const { return !hidden_.empty() && hidden_[size_t(j)]; }
  // The table of docs/kernels/overview.md. Only this may be called for a hidden key.
  Real y(int64_t j) const { return y_.empty() ? s[size_t(j)] : y_[size_t(j)]; }
  Real g(int64_t j) const { return g_.empty() ? s[size_t(j)] : g_[size_t(j)]; }
  bool pass(int64_t j) const { return pass_.empty() || pass_[size_t(j)]; }
  // Weight in o and d_v: y as a chain of operations stores it, after dropout.
  Real weight(int64_t j) const {
    const Real w = stored(y(j), p_.dtype);
    return operand(factor.empty() ? w : stored(w * factor[size_t(j)], p_.dtype), p_);
  }
  Real drop(int64_t j) const { return factor.empty() ? Real(1) : factor[size_t(j)]; }
  int64_t distance(int64_t j) const { return row_ + band_.off - j; }  // t
  int positions() const { return n_; }                                // n_i

  // Makes the scores of q, which is row i of head n of the group. False: the row sees no key.
  bool compute(const Real* q, int64_t n, int64_t i) {
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
    if (keep_ &&
        std::find_if(keep_ + lo, keep_ + hi, [](uint8_t x) { return x != 0; }) == keep_ + hi)
      return false;
    dots(q, kt_.data(), p_.head_dim, p_.seq_kv, lo, hi, s.data());
    for (int64_t j = lo; j < hi; ++j) s[size_t(j)] = formed(Real(p_.scale) * s[size_t(j)]);
    if (slack) start_sizes(q);
    add_terms();
    if (!factor.empty()) draw_factors();
    return true;
  }

  // Forms the row's weights and its lse or threshold. False: all its scores are -inf.
  bool normalise(Real* lse) {
    Origin origin;
    if (!find_origin(&origin)) return false;
    *lse = origin.base + origin.rest;
    if (p_.normalizer == Normalizer::softmax)
      divide(origin.sum);
    else
      weigh_by(is_far(*lse) ? origin : Origin{0, *lse, 1, false});
    return true;
  }

  // Forms the row's weights from what the forward stored. False: no key has a weight.
  bool weigh(Real lse, bool stored_lse) {
    origin_ = Origin{0, lse, 1, stored_lse};
    far_ = is_far(lse);
    if (far_ && !find_origin(&origin_)) return false;
    if (far_ && p_.normalizer == Normalizer::softmax)
      divide(origin_.sum);
    else
      weigh_by(origin_);
    return true;
  }
  bool far() const { return far_; }
  // After weigh().
  Real sink_weight() const {
    return std::exp((Real(heads_.sink[head_]) - origin_.base) - origin_.rest);
  }
  static bool is_far(Real lse) {
    return std::isfinite(lse) && std::fabs(lse) > Real(TANDEM_FAR_LSE);
  }

 private:
  // Weights are exp((s - base) - rest), those of entmax powers of (z - base) - rest.
  struct Origin {
    Real base = 0, rest = 0;
    Real sum = 1;         // exp(rest), of a base that is the row's largest score
    bool stored = false;  // rest was stored as f32
  };

  // From the scores, sink included. Those of softmax become exp(s - base). False: all are -inf.
  bool find_origin(Origin* origin) {
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

  void divide(Real sum) {
    for (int64_t j = lo; j < hi; ++j) s[size_t(j)] /= sum;
  }

  void weigh_by(const Origin& origin) {
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

  struct Weight {
    Real y = 0, g = 0;
    bool pass = false;  // M
  };

  // p. An lse that was stored as f32 determines a score only up to that rounding; without this a
  // row with a single key would not have p = 1 exactly.
  static Real exponential(Real s, const Origin& origin) {
    if (origin.stored && float(s) == float(origin.rest)) return 1;
    return std::exp((s - origin.base) - origin.rest);
  }

  // Weight of a score, for elastic softmax and entmax.
  struct Weigher {
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

  // Adds the terms behind the product, one by one, as a chain of operations would store them.
  void add_terms() {
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
    for (int64_t j = lo; j < hi && !hidden_.empty(); ++j)
      hidden_[size_t(j)] = s[size_t(j)] == -std::numeric_limits<Real>::infinity();
    if (p_.normalizer == Normalizer::entmax)
      for (int64_t j = lo; j < hi; ++j) {
        s[size_t(j)] *= Real(p_.alpha) - 1;
        if (heads_.round_scores) s[size_t(j)] = Real(float(s[size_t(j)]));
      }
  }
  // A score, or a part of it, as a chain of operations stores it, or as a kernel has it. A chain of
  // f16 would have to keep values beyond f16 in f32: such a score is still a number, and hides
  // nothing.
  Real formed(Real x) const {
    const Real to = heads_.round_scores ? Real(float(x)) : stored(x, p_.dtype);
    return !heads_.round_scores && std::isinf(to) ? x : to;
  }
  void add_term(int64_t j, Real term) {
    s[size_t(j)] = formed(s[size_t(j)] + term);
    if (slack && std::isfinite(term)) size_[size_t(j)] += std::fabs(double(term));
  }

  void draw_factors() {
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

  void start_sizes(const Real* q) {
    Vec<double> x(static_cast<size_t>(p_.head_dim));
    for (size_t c = 0; c < x.size(); ++c) x[c] = std::fabs(double(q[c]) * double(p_.scale));
    dots(x.data(), kt_size_.data(), p_.head_dim, p_.seq_kv, lo, hi, size_.data());
  }

  // Slack if every score is off by its error, and the origin by their effect on it and its rounding
  // to f32.
  void find_slack(const Weigher& to_weight) {
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

  const Problem& p_;
  const RefHead heads_;
  Vec<Real> kt_;
  Vec<double> kt_size_, size_;
  int64_t q_len_, kv_len_;
  TandemBand band_;
  Vec<Real> y_, g_;
  Vec<uint8_t> pass_, hidden_;
  Origin origin_;  // set by weigh()
  bool far_ = false;
  const uint8_t* keep_ = nullptr;
  int64_t row_ = 0, head_ = 0;
  int n_ = 0;
};

}  // namespace tandem
#endif
