// SPDX-License-Identifier: MIT OR Apache-2.0
#include "magnitude_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/reference.h"
#include "magnitudes.h"

namespace tandem::harness {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();
// src/problem/far_row.h: rows beyond 4096, and certainly beyond this, have another origin than lse.
constexpr double kFarAtLeast = 4200;
// Thresholds beyond it are relative to the row's largest score on every path, and of at most 1.
constexpr double kNearThreshold = 8;
constexpr double kNeverMatters = -110;  // exp() of it is 0 in f32
constexpr double kClamped = 0x1p-23;    // within this of the largest a far row's keys count as it
constexpr double kLastPlace = 0x1p-23;  // of a sum, relative to its magnitudes

double largest(const std::vector<double>& x) {
  double m = kNothing;
  for (double v : x) m = std::max(m, v);
  return m;
}

// Scores relative to the row's largest, each off by its error, and the sink as one more.
struct Variant {
  double top = 0;
  std::vector<double> s, error;
  double sink = kNothing, sink_error = 0;
};

struct Result {
  double lse = 0, lse_error = 0, sum_error = 0;
  std::vector<double> p;
  std::vector<Interval> range;
  double p_sink = 0;
  Interval sink;
};

Result softmax(const Variant& x) {
  const size_t n = x.s.size();
  Result r;
  double m = largest(x.s);
  m = std::max(m, x.sink);
  std::vector<double> low(n), high(n);
  double all = std::exp(x.sink - m), all_low = std::exp(x.sink - x.sink_error - m),
         all_high = std::exp(std::min(700.0, x.sink + x.sink_error - m));
  const double sink_low = all_low, sink_high = all_high, sink_mid = all;
  for (size_t j = 0; j < n; ++j) {
    low[j] = std::exp(x.s[j] - x.error[j] - m);
    high[j] = std::exp(std::min(700.0, x.s[j] + x.error[j] - m));
    all += std::exp(x.s[j] - m), all_low += low[j], all_high += high[j];
  }
  // Its own share is subtracted, so that a key without rivals has 1 at both ends.
  const auto others = [&](const std::vector<double>& w, double sum, double sink, size_t but) {
    const double rest = sum - (but < n ? w[but] : sink);
    if (rest > 1e-6 * sum) return rest;
    double exact = but < n ? sink : 0;
    for (size_t j = 0; j < n; ++j) exact += j == but ? 0 : w[j];
    return exact;
  };
  const auto range = [&](double lo, double hi, size_t at) {
    const double least = others(low, all_low, sink_low, at);
    const double most = others(high, all_high, sink_high, at);
    return Interval{lo == 0 ? 0 : lo / (lo + most), hi == 0 ? 0 : hi / (hi + least)};
  };
  for (size_t j = 0; j < n; ++j) {
    r.p.push_back(std::exp(x.s[j] - m) / all);
    r.range.push_back(range(low[j], high[j], j));
    r.sum_error += r.range[j].hi * x.error[j];
  }
  r.p_sink = sink_mid / all;
  r.sink = range(sink_low, sink_high, n);
  r.lse = x.top + m + std::log(all);
  r.lse_error = r.sum_error + r.sink.hi * x.sink_error;
  return r;
}

Result entmax(const Variant& x, double alpha) {
  const size_t n = x.s.size();
  const double step = alpha - 1, power = 1 / step;
  Result r;
  std::vector<double> z(n);
  for (size_t j = 0; j < n; ++j) z[j] = step * x.s[j];
  const double t = entmax_threshold(z.data(), int64_t(n), alpha);
  // The threshold moves no further than the scores of those that have, or may have, a weight.
  double error = 0;
  for (bool more = true; more;) {
    more = false;
    for (size_t j = 0; j < n; ++j)
      if (x.error[j] > error && z[j] - t + step * (x.error[j] + error) > 0)
        error = x.error[j], more = true;
  }
  const auto weight = [&](double over) { return over <= 0 ? 0 : std::pow(over, power); };
  double lows = 0, highs = 0;
  for (size_t j = 0; j < n; ++j) {
    const double over = z[j] - t, off = step * (x.error[j] + error);
    r.p.push_back(weight(over));
    r.range.push_back({weight(over - off), std::min(1.0, weight(over + off))});
    lows += r.range[j].lo, highs += r.range[j].hi;
  }
  for (size_t j = 0; j < n; ++j) {
    const Interval own = r.range[j];
    r.range[j].lo = std::max(own.lo, std::min(r.p[j], 1 - (highs - own.hi)));
    r.range[j].hi = std::min(own.hi, std::max(r.p[j], 1 - (lows - own.lo)));
    r.sum_error += std::pow(r.range[j].hi, 2 - alpha) * x.error[j];
  }
  r.lse = step * x.top + t;
  r.lse_error = step * error;
  return r;
}

// step: alpha - 1 of entmax, by which cpu.ref multiplies in double, without rounding a score of
// f32; otherwise 1.
Variant variant(const ScoreTerms& row, const std::vector<double>& scores, double step) {
  Variant v;
  v.top = largest(scores);
  if (row.has_sink) v.top = std::max(v.top, row.sink);
  std::vector<double> z(scores);
  z.push_back(v.top);
  for (double& x : z) x *= step;
  for (size_t j = 0; j < scores.size(); ++j) v.s.push_back((z[j] - z.back()) / step);
  v.error.assign(scores.size(), 0);
  if (row.has_sink) {
    v.sink = row.sink - v.top;
    v.sink_error = kScoreUnits * std::fabs(row.sink);
  }
  return v;
}

}  // namespace

RowWeights weigh(const Problem& problem, const ScoreTerms& row) {
  RowWeights w;
  const size_t n = row.key.size();
  if (n == 0 || largest(row.score) == kNothing) return w;
  w.sees = true;
  const bool is_entmax = problem.normalizer == Normalizer::entmax;

  std::vector<double> error(n), product_error(n);
  double least = kNothing;
  for (size_t j = 0; j < n; ++j) {
    double size = row.product_size[j], own = kScoreUnits * size;
    if (problem.tf32)
      own += 0x1p-10 * size;  // q and k are rounded by 2^-12 each, the product by more
    if (problem.softcap > 0) {
      const double cap = double(problem.softcap), c = row.product[j];
      const double at = cap * std::tanh(c / cap);
      own = std::max(cap * std::tanh((c + own) / cap) - at, at - cap * std::tanh((c - own) / cap)) +
            kScoreUnits * std::min(cap, size);
    }
    product_error[j] = own;
    error[j] = own + kScoreUnits * row.terms[j];
    least = std::max(least, row.score[j] - error[j]);
  }
  // Whether those with a weight are one number on every path.
  bool settled = true, equal = true, first = true, lost = true;
  size_t at = 0;
  for (size_t j = 0; j < n; ++j) {
    if (row.score[j] + error[j] < least + kNeverMatters) continue;
    if (first) at = j;
    first = false;
    settled &= row.added[j] == row.added[at] && row.terms[j] == row.terms[at];
    equal &= row.product[j] == row.product[at] && row.product_size[j] == row.product_size[at];
    lost &= row.product_size[j] <= 0x1p-27 * std::fabs(row.added[j]);
  }
  settled &= equal || lost;

  const double step = is_entmax ? double(problem.alpha) - 1 : 1;
  std::vector<Variant> variants = {variant(row, row.score, step), variant(row, row.f32, step)};
  double together = 0;  // how far settled scores may be off, all by the same
  for (size_t j = 0; j < n; ++j) {
    const bool matters = row.score[j] + error[j] >= least + kNeverMatters;
    const double left = equal ? 0 : product_error[j];
    variants[0].error[j] = settled && matters ? left : error[j];
    variants[1].error[j] = settled && matters ? 0 : error[j];
    if (settled && matters) variants[1].s[j] = variants[1].s[at];
    if (settled && matters) together = std::max(together, lost ? product_error[j] : error[j]);
  }
  // Beside a sink that shift shows.
  if (row.has_sink)
    for (Variant& v : variants) v.sink_error += together;
  // The rounding of a threshold, which unlike that of lse is no factor of the weights.
  // Of lse and thresholds, in scores. What is far has one relative to its largest score.
  const auto rounding = [](double x) {
    return 0x1p-22 * (4 + (std::fabs(x) > kFarAtLeast ? 16 : std::fabs(x)));
  };
  const auto threshold_error = [&](const Variant& v) { return rounding(step * v.top) / step; };
  if (is_entmax)
    for (Variant& v : variants)
      for (double& e : v.error) e += threshold_error(v);

  double sum_error = 0;
  for (const Variant& v : variants) {
    const Result r = is_entmax ? entmax(v, double(problem.alpha)) : softmax(v);
    const bool start = w.range.empty();
    if (start) {
      w.lse = r.lse;
      w.lse_error = r.lse_error;
      w.range = r.range;
      w.p_sink = r.p_sink;
      w.p_sink_error = std::max(r.sink.hi - r.p_sink, r.p_sink - r.sink.lo);
    } else {
      w.lse_error = std::max(w.lse_error, std::fabs(r.lse - w.lse) + r.lse_error);
      for (size_t j = 0; j < n; ++j) {
        w.range[j].lo = std::min(w.range[j].lo, r.range[j].lo);
        w.range[j].hi = std::max(w.range[j].hi, r.range[j].hi);
      }
      w.p_sink_error = std::max({w.p_sink_error, r.sink.hi - w.p_sink, w.p_sink - r.sink.lo});
    }
    const bool far = std::fabs(r.lse) > kFarAtLeast;
    double spread = 0, own = 0;
    for (size_t j = 0; j < n; ++j) {
      const double share =
          is_entmax ? std::pow(r.range[j].hi, 2 - double(problem.alpha)) : r.range[j].hi;
      const bool top = far && v.s[j] >= -kClamped * std::fabs(v.top);
      if (!top && !settled) spread += share * v.error[j];
      if (is_entmax && (top || settled)) spread += share * threshold_error(v);
      // The threshold belongs to the forward's scores. Where it is an f32 of their size, the
      // backward's scores are off from it, all by the same number.
      if (is_entmax && settled && !far) spread += share * error[j];
      // The forward's sums of products may start from the bias, and the backward's not (cuda.sm90).
      // Each step of 16 features then drops another part of what lies below their last place.
      if (!is_entmax && settled && !far && problem.bias)
        spread += share * kLastPlace * double((problem.head_dim + 31) / 16) * row.product_size[j];
      if (is_entmax) own += share * 0x1p-24 * std::min(std::fabs(r.lse), kNearThreshold) / step;
    }
    w.threshold_moves = std::max(w.threshold_moves, own);
    sum_error = std::max(sum_error, spread);
  }
  // Keys that all have one score leave the weights alone when it is off; lse goes along.
  double shift = 0;
  for (size_t j = 0; j < n; ++j)
    if (settled && row.score[j] + error[j] >= least + kNeverMatters)
      shift = std::max(shift, error[j]);
  w.lse_error += is_entmax ? shift * (double(problem.alpha) - 1) : shift;
  w.common = sum_error + rounding(w.lse);
  for (const Interval& x : w.range) {
    w.p.push_back((x.lo + x.hi) / 2);
    w.p_error.push_back((x.hi - x.lo) / 2);
  }
  if (row.has_sink) return w;
  // Weights that sum to 1, for what follows.
  double sum = 0;
  for (double p : w.p) sum += p;
  for (size_t j = 0; j < n && sum > 0; ++j) {
    w.p[j] /= sum;
    w.p_error[j] = std::max(w.range[j].hi - w.p[j], w.p[j] - w.range[j].lo);
  }
  return w;
}

}  // namespace tandem::harness
