// SPDX-License-Identifier: MIT OR Apache-2.0
// One row of the score matrix, for the *_ref.cpp files: which keys it sees, its scores, its weights.
// Real is double (Precision::exact) or float (stepwise). Every sum runs over ascending indices.
#ifndef TANDEM_SRC_CPU_REF_ROW_H
#define TANDEM_SRC_CPU_REF_ROW_H
#include <cmath>
#include <limits>
#include <vector>

#include "element.h"
#include "reference.h"

namespace tandem {

// Runs body with a value of the type that precision stands for.
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

template <typename Real>
std::vector<Real> stored_array(const double* from, int64_t count, tandem_dtype dtype) {
  std::vector<Real> to(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n) to[size_t(n)] = stored(Real(from[n]), dtype);
  return to;
}

// [rows][features] to [features][rows]: dot products of one row with all keys then run along keys, which
// vectorises without changing the order of any sum.
template <typename Real>
std::vector<Real> transposed(const std::vector<Real>& from, int64_t rows, int64_t features) {
  std::vector<Real> to(from.size());
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

inline double abs_dot(const double* x, const double* y, int64_t count) {
  double sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += std::fabs(x[c] * y[c]);
  return sum;
}

// ds = p (dp - delta), delta being stored already. A delta that went through f32 equals a dp that rounds to
// it: a row with a single key must have ds = 0.
template <typename Real>
Real score_gradient(Real p, Real dp, Real delta, bool stored_delta, tandem_dtype dtype) {
  if (stored_delta && float(dp) == float(delta)) return 0;
  return stored(stored(p, dtype) * stored(stored(dp, dtype) - delta, dtype), dtype);
}

// The scores of one row after the other against one kv head.
template <typename Real>
class ScoreRows {
 public:
  ScoreRows(const Problem& problem, const std::vector<Real>& k)
      : problem_(problem), kt_(transposed(k, problem.seq_kv, problem.head_dim)) {
    s.resize(size_t(problem.seq_kv));
  }

  // Keys outside [lo, hi) are hidden. Scores of hidden keys inside are -inf.
  int64_t lo = 0, hi = 0;
  std::vector<Real> s;

  // q is row i of its head. False: the row sees nothing.
  bool compute(const Real* q, int64_t i) {
    const int row = int(i), keys = int(problem_.seq_kv);
    lo = hi = 0;
    while (lo < keys && !tandem_visible(problem_.band, row, int(lo))) ++lo;
    for (hi = keys; hi > lo && !tandem_visible(problem_.band, row, int(hi - 1));) --hi;
    dots(q, kt_.data(), problem_.head_dim, problem_.seq_kv, lo, hi, s.data());
    for (int64_t j = lo; j < hi; ++j) s[size_t(j)] = stored(score(s[size_t(j)]), problem_.dtype);
    return lo < hi;
  }

  // p from a row's lse, in place of s.
  void weigh(Real lse, bool stored_lse) {
    for (int64_t j = lo; j < hi; ++j) {
      Real& x = s[size_t(j)];
      // An lse that went through f32 knows a score only up to that rounding; without this a row with a
      // single key would not have p = 1 exactly.
      const bool same = stored_lse && float(x) == float(lse);
      x = same ? Real(1) : std::exp(x - lse);
    }
  }

 private:
  // From the raw product to s; softcap and biases join here.
  Real score(Real product) const { return Real(problem_.scale) * product; }

  const Problem& problem_;
  std::vector<Real> kt_;
};

}  // namespace tandem
#endif
