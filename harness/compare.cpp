// SPDX-License-Identifier: MIT OR Apache-2.0
#include "compare.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "problem/problem.h"

namespace tandem::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kF32 = 0x1p-24;  // half an ulp, relative
constexpr double kTf32 = 0x1p-11;
// Weights this small beside the largest terms may be lost: f32 arithmetic may flush what lies below
// 2^-126, before or after other factors join.
constexpr double kVanishing = 0x1p-100;
// Where all terms are that small, because a sink or a bias has nearly all weight, their sums may be
// lost.
constexpr double kFlushed = 0x1p-118;

double rounding_unit(uint32_t dtype) {
  return dtype == TANDEM_F64   ? 0x1p-53
         : dtype == TANDEM_F32 ? 0x1p-24
         : dtype == TANDEM_F16 ? 0x1p-11
                               : 0x1p-8;
}
// That of sums.
double sum_unit(uint32_t chain) { return chain == TANDEM_F64 ? rounding_unit(chain) : kF32; }

std::string number(double x) {
  char text[40];  // printf follows the locale
  return {text, std::to_chars(text, text + sizeof text, x, std::chars_format::general, 9).ptr};
}

// The largest of the rows' mean magnitudes.
double row_magnitude(const std::vector<double>& values, int64_t width) {
  double largest = 0;
  for (size_t row = 0; row + size_t(width) <= values.size(); row += size_t(width)) {
    double sum = 0;
    for (size_t n = row; n < row + size_t(width); ++n) sum += std::fabs(values[n]);
    largest = std::max(largest, sum / double(width));
  }
  return largest;
}

constexpr size_t kEnoughRows = 16;

// The stepwise error per unit of terms that 39 of 40 rows stay below, among rows with as many terms
// as each row has (within a factor of two, or more where there are few rows like it). Rows without
// terms are negative and do not count.
std::vector<double> usual_errors(const std::vector<double>& relative,
                                 const std::vector<double>& counts, size_t live) {
  std::map<int, std::vector<double>> bins;
  const auto bin_of = [&](size_t row) { return std::ilogb(std::max(1.0, counts[row])); };
  for (size_t row = 0; row < relative.size(); ++row)
    if (relative[row] >= 0) bins[bin_of(row)].push_back(relative[row]);
  std::map<int, double> usual;
  for (const auto& [bin, own] : bins) {
    std::vector<double> pool;
    for (int reach = 0; pool.size() < std::min(kEnoughRows, live); ++reach) {
      pool.clear();
      for (const auto& [other, errors] : bins)
        if (std::abs(other - bin) <= reach) pool.insert(pool.end(), errors.begin(), errors.end());
    }
    const auto most = pool.begin() + std::ptrdiff_t(pool.size() * 39 / 40);
    std::nth_element(pool.begin(), most, pool.end());
    usual[bin] = *most;
  }
  std::vector<double> per_row(relative.size());
  for (size_t row = 0; row < relative.size(); ++row)
    if (relative[row] >= 0) per_row[row] = usual[bin_of(row)];
  return per_row;
}

}  // namespace

Bounds make_bounds(const Samples& x, uint32_t dtype, double f32_roundings) {
  Bounds b;
  b.dims = x.dims;
  b.want = x.exact;
  b.element_error.resize(x.exact.size());
  const size_t width = size_t(x.dims.d), rows = width ? x.exact.size() / width : 0;
  b.row_error.resize(rows);
  std::vector<double> errors(rows), terms(rows), relative(rows, -1);
  const uint32_t chain = x.chain ? x.chain : dtype;
  const double of_sums = sum_unit(chain);
  // An f32 sum of terms that a chain stores in bf16 is no better than those.
  const double unit = std::max({rounding_unit(dtype), rounding_unit(chain), x.tf32 ? kTf32 : 0});
  double vanishing = kFlushed;
  // A chain in f16, and matrix kernels as well, lose weights below 2^-25: by the largest terms,
  // which suffices for rows.
  const double lost = x.chain == TANDEM_F16 ? 0x1p-22 : kVanishing;
  for (double terms_of_one : x.floor) vanishing = std::max(vanishing, lost * terms_of_one);
  size_t live = 0;
  for (size_t row = 0; row < rows; ++row) {
    // Sums of n terms of one sign lose n roundings in the worst case, and sqrt n as a rule.
    const double sums = of_sums * (f32_roundings + std::sqrt(std::max(0.0, x.counts[row])));
    // Each term's operand of f16 is off by up to 2^-25, however small it is. One of f32 below the
    // normal numbers may be 0, which shows beside numbers at the end of f32.
    const double count = std::max(0.0, x.counts[row]);
    const double subnormal = x.chain == TANDEM_F16
                                 ? std::min(count, 2 * std::sqrt(count)) * 0x1p-25 * x.operand
                                 : count * 0x1p-126 * x.operand;
    double largest = 0;
    // No term loses more than itself.
    for (size_t n = row * width; n < (row + 1) * width; ++n) {
      errors[row] = std::max(errors[row], std::fabs(x.stepwise[n] - x.exact[n]));
      terms[row] = std::max(terms[row], x.floor[n]);
      largest = std::max(largest, std::fabs(x.exact[n]));
      if (x.floor[n] == 0) continue;
      b.element_error[n] = 4 * (unit + sums) * x.floor[n] + ulp(0, dtype) +
                           std::min(std::max(vanishing, subnormal), x.floor[n]);
      // What q and k lose on their way to TF32 comes through exp, and grows with the score, not
      // with these terms. All that round to nearest lose the same, the yardstick included.
      if (x.tf32) b.element_error[n] += 2 * std::fabs(x.stepwise[n] - x.exact[n]);
    }
    if (terms[row] == 0) continue;
    ++live;
    relative[row] = errors[row] / terms[row];
    b.row_error[row] = ulp(largest, dtype) + f32_roundings * of_sums * terms[row] + vanishing;
    // The limit of f16 has this for the rounding of its results, and TF32 has as many bits.
    if (x.tf32) b.row_error[row] += kTf32 * largest;
  }
  const std::vector<double> usual = usual_errors(relative, x.counts, live);
  for (size_t row = 0; row < rows; ++row) {
    if (relative[row] < 0) continue;
    b.row_error[row] += 2 * std::max(errors[row], usual[row] * terms[row]);
    // Too few rows to know what is usual.
    if (live < kEnoughRows) b.row_error[row] += unit * terms[row];
  }
  if (x.slack.empty()) return b;
  for (size_t row = 0; row < rows; ++row) {
    double largest = 0;
    for (size_t n = row * width; n < (row + 1) * width; ++n) {
      b.element_error[n] += x.slack[n];
      largest = std::max(largest, x.slack[n]);
    }
    b.row_error[row] += largest;
  }
  return b;
}

namespace {
std::string place(const Dims& dims, size_t row) {
  const auto r = int64_t(row);
  return "b" + std::to_string(r / (dims.s * dims.h)) + " h" + std::to_string(r / dims.s % dims.h) +
         " row " + std::to_string(r % dims.s);
}

}  // namespace

Judgement judge_tensor(const std::string& name, const Bounds& bounds,
                       const std::vector<double>& want, const std::vector<double>& got) {
  Judgement j;
  j.tensor = name;
  const size_t width = size_t(bounds.dims.d);
  double told = -1;  // the ratio of the row that j.where tells of
  for (size_t row = 0; row < bounds.row_error.size(); ++row) {
    double worst = 0, limit = bounds.row_error[row];
    size_t at = row * width, beyond = got.size();
    for (size_t n = row * width; n < (row + 1) * width; ++n) {
      double error = got[n] == want[n] ? 0 : std::fabs(got[n] - want[n]);
      if (std::isnan(error)) error = kInfinity;
      if (error > bounds.element_error[n] && beyond == got.size()) beyond = n;
      if (error > worst) worst = error, at = n;
    }
    const double ratio = worst == 0 ? 0 : limit == 0 ? kInfinity : kRatioLimit * worst / limit;
    bool ok = ratio <= kRatioLimit;
    if (ok && beyond < got.size()) ok = false, at = beyond, limit = bounds.element_error[at];
    // A failure is reported before a good row, and the worst of its kind before others.
    if ((j.ok && !ok) || (j.ok == ok && ratio > told)) {
      told = ratio;
      j.error = std::fabs(got[at] - want[at]);
      j.where = place(bounds.dims, row) + " column " + std::to_string(at % width) + ": got " +
                number(got[at]) + ", want " + number(want[at]) + " +- " + number(limit);
    }
    j.ratio = std::max(j.ratio, ratio);
    j.ok &= ok;
  }
  return j;
}

namespace {
// least, and roundings of a score, are relative.
template <typename T>
Judgement judge_lse_within(const Dims& rows, const std::vector<double>& want,
                           const std::vector<T>& got, double least, double roundings,
                           bool threshold, const char* name) {
  Judgement j;
  j.tensor = name;
  for (size_t n = 0; n < want.size(); ++n) {
    const double g = double(got[n]);
    const double error = g == want[n] ? 0 : std::fabs(g - want[n]);
    // A threshold moves with the scores as they are; beside their roundings there are those of
    // (alpha - 1) s and its own.
    const double relative = threshold ? 1 : std::max(1.0, std::fabs(want[n]));
    const double limit =
        std::isinf(want[n]) ? 0 : std::max(least, roundings * (threshold ? 3 : 1)) * relative;
    const double ratio = error == 0                        ? 0
                         : std::isnan(error) || limit == 0 ? kInfinity
                                                           : kRatioLimit * error / limit;
    if (j.where.empty() || ratio > j.ratio) {
      j.where = place(rows, n) + ": got " + number(g) + ", want " + number(want[n]);
      j.error = error;
      j.ratio = ratio;
    }
    j.ok &= ratio <= kRatioLimit;
  }
  return j;
}
}  // namespace

Judgement judge_lse(const Dims& rows, const std::vector<double>& want,
                    const std::vector<float>& got, double f32_roundings, bool threshold, bool tf32,
                    const char* name) {
  return judge_lse_within(rows, want, got, 1e-5, (tf32 ? kTf32 : kF32) * f32_roundings, threshold,
                          name);
}

Judgement judge_lse(const Dims& rows, const std::vector<double>& want,
                    const std::vector<double>& got, double roundings, bool threshold) {
  const double unit = rounding_unit(TANDEM_F64);
  return judge_lse_within(rows, want, got, 64 * unit, unit * roundings, threshold, "lse");
}

double score_roundings(double scale, int64_t head_dim, const std::vector<double>& q,
                       const std::vector<double>& k) {
  return 8 + std::fabs(scale) * double(head_dim) * row_magnitude(q, head_dim) *
                 row_magnitude(k, head_dim);
}

double extra_roundings(const Problem& p, double plain, double bias, double dist_bias,
                       double slope) {
  double sum = 0;
  // A score before the cap is off by 2^-24 below the cap, whatever its size. The formula of tanh
  // loses 4 roundings of the cap, with the scaling of its argument and of its result.
  if (p.softcap > 0) sum += 4 * std::min(double(p.softcap), plain);
  // One rounding of the partial sum a term, and one of slope |t|, which is below both lengths
  // together.
  sum += bias + dist_bias + 2 * slope * double(p.seq_q + p.seq_kv);
  // x^e as exp2(e log2 x): what log2 loses is in the slack; exp2 is good for 3 + 2 |e log2 x| ulps
  // in GLSL, which over weights that sum to 1 is twice their entropy, at most log2 n bits.
  if (p.normalizer == Normalizer::entmax && p.alpha != 1.5f && p.alpha != 2.f)
    sum += 3 + 2 * std::log2(double(std::max<int64_t>(p.seq_kv, 2)));
  return sum;
}

Judgement judge_rows(const std::string& name, const Samples& rows, uint32_t dtype,
                     double f32_roundings, const std::vector<double>& got) {
  return judge_tensor(name, make_bounds(rows, dtype, f32_roundings), rows.exact, got);
}

// Keys that query row i sees, and query rows that see key j.
double visible_keys(const Problem& p, int64_t i) {
  const int64_t at = i + p.band.off;
  return double(std::min(p.seq_kv - 1, at + p.band.right) - std::max<int64_t>(0, at - p.band.left) +
                1);
}
double visible_rows(const Problem& p, int64_t j) {
  const int64_t at = j - p.band.off;
  return double(std::min(p.seq_q - 1, at + p.band.left) - std::max<int64_t>(0, at - p.band.right) +
                1);
}

double CaseResult::worst_ratio() const {
  double worst = 0;
  for (const Judgement& j : judgements) worst = std::max(worst, j.ratio);
  return worst;
}

}  // namespace tandem::harness
