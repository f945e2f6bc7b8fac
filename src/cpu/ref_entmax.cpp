// SPDX-License-Identifier: MIT OR Apache-2.0
// The threshold of alpha-entmax.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference.h"

namespace tandem {

// With w = z - max z and r = t - max z: N(r) = |[w - r]_+|_p - 1, p = 1 / (alpha - 1), is a convex
// falling function of r between -1, where it is not negative, and -n^(1 - alpha), where it is not
// positive. Newton's step from the left of the root stays there, and is exact if all w are equal.
// The bracket guards against rounding.
double entmax_threshold(const double* z, int64_t count, double alpha, double* max) {
  double m = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < count && m == m; ++j) m = z[j] != z[j] ? z[j] : std::max(m, z[j]);
  *max = m;
  if (std::isnan(m)) return m;
  if (std::isinf(m)) return m < 0 ? 0 : std::numeric_limits<double>::quiet_NaN();
  Vec<double> w;  // elements that can be in the support
  for (int64_t j = 0; j < count; ++j)
    if (z[j] - m > -1) w.push_back(z[j] - m);

  const double p = 1 / (alpha - 1);
  double lo = -1, hi = -std::pow(double(w.size()), 1 - alpha), r = lo;
  for (int step = 0; step < 200 && lo < hi; ++step) {
    double sum = 0, sum1 = 0;  // of x^p, x^(p-1)
    for (double each : w) {
      const double x = each - r;
      if (x <= 0) continue;
      const double power = p == 1 ? 1 : p == 2 ? x : std::pow(x, p - 1);
      sum1 += power;
      sum += power * x;
    }
    (sum >= 1 ? lo : hi) = r;
    double next = r;
    if (sum > 0 && sum1 > 0) {
      const double log_sum = std::log(sum);
      next = r + std::expm1(log_sum / p) * std::exp(log_sum * (1 - 1 / p)) / sum1;
    }
    if (std::fabs(next - r) <= 1e-16 * std::fabs(r)) break;
    if (!(next >= lo && next <= hi) || next == r) next = lo + (hi - lo) / 2;
    if (next == r) break;
    r = next;
  }
  return r;
}

double entmax_threshold(const double* z, int64_t count, double alpha) {
  double m = 0;
  const double r = entmax_threshold(z, count, alpha, &m);
  return m + r;
}

}  // namespace tandem
