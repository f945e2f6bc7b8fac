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

// Calls body with a value of the type that precision selects. A chain of f64 is one of doubles.
template <typename Body>
void with_precision(const Problem& p, Precision precision, Body&& body) {
  if (precision == Precision::exact || p.dtype == TANDEM_F64)
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
  ScoreRows(const Problem& problem, const RefHead& heads, const Vec<Real>& k);

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
  bool compute(const Real* q, int64_t n, int64_t i);

  // Forms the row's weights and its lse or threshold. False: all its scores are -inf.
  bool normalise(Real* lse);

  // Forms the row's weights from what the forward stored. False: no key has a weight.
  bool weigh(Real lse, bool stored_lse);
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
  bool find_origin(Origin* origin);

  void divide(Real sum);

  void weigh_by(const Origin& origin);

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

  struct Weigher;  // weight of a score, for elastic softmax and entmax

  // Adds the terms behind the product, one by one, as a chain of operations would store them.
  void add_terms();
  // A score, or a part of it, as a chain of operations stores it, or as a kernel has it. A chain of
  // f16 would have to keep values beyond f16 in f32: they are still numbers, and hide
  // nothing.
  Real formed(Real x) const {
    const Real to = heads_.round_scores ? Real(float(x)) : stored(x, p_.dtype);
    return !heads_.round_scores && std::isinf(to) ? x : to;
  }
  void add_term(int64_t j, Real term) {
    s[size_t(j)] = formed(s[size_t(j)] + term);
    if (slack && std::isfinite(term)) size_[size_t(j)] += std::fabs(double(term));
  }

  void draw_factors();

  void start_sizes(const Real* q);

  // Slack if every score is off by its error, and the origin by their effect on it and its rounding
  // to f32.
  void find_slack(const Weigher& to_weight);

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

extern template class ScoreRows<double>;
extern template class ScoreRows<float>;

}  // namespace tandem
#endif
