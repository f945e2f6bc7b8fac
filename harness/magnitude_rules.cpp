// SPDX-License-Identifier: MIT OR Apache-2.0
// The rules of magnitudes.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "case_impl.h"
#include "magnitude_row.h"
#include "magnitudes.h"
#include "problem/philox.h"

namespace tandem::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kF32 = 0x1p-24;

double unit_of(uint32_t dtype) {  // f64 is judged as f32
  return dtype == TANDEM_F16 ? 0x1p-11 : dtype == TANDEM_BF16 ? 0x1p-8 : 0x1p-24;
}
double most_of(uint32_t dtype) {
  return dtype == TANDEM_F16 ? 65504 : dtype == TANDEM_BF16 ? 0x1.fep127 : 0x1.fffffep127;
}

std::string number(double x) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", x);
  return text;
}

// The elements of an output: what each should be, the sum of the magnitudes of its terms, and how
// far it may move. count: terms of an element.
struct Sums {
  Dims dims{};
  std::vector<double> want, terms, slack;
  double count = 0, operand = 0, of_weight = 0;  // of_weight: the most that a weight multiplies
  void start(const Dims& d) {
    dims = d;
    for (auto* x : {&want, &terms, &slack}) x->assign(size_t(d.count()), 0.0);
  }
  void add(int64_t at, double value, double size, double moves) {
    want[size_t(at)] += value;
    terms[size_t(at)] += size;
    slack[size_t(at)] += moves;
  }
};

struct Row {  // of [B,Hq,Sq]
  bool sees = false;
  double lse = -kInfinity, lse_error = 0, common = 0, threshold_moves = 0;
  double ds_size = 0;  // sum of the magnitudes of the terms of its ds
  double ds_lost = 0;  // bound on the summed rounding error of its dS values stored as f16
  double o_low = 0, o_high = 0;
};

double sized(const std::vector<double>& x) {
  double m = 0;
  for (double v : x)
    if (std::isfinite(v)) m = std::max(m, std::fabs(v));
  return m;
}

}  // namespace

struct MagnitudeRules::Impl {
  explicit Impl(Case& test) : test(test) {}
  Case& test;
  Problem p;
  std::array<Sums, kRoleCount> sums;
  std::vector<Row> rows;
  std::vector<double> v_low, v_high;  // over the keys with a weight, [B,Hq,Sq,Dv]
  std::vector<double> d_v_sum;        // of each [B,Hk,Dv], and what it may be off by
  std::vector<double> d_v_sum_error;
  RefInputs in;
  double roundings = 8;
  bool has_denormals = false;  // q, k, v or d_o has numbers below 2^-126

  Sums& at(Role role) { return sums[size_t(role)]; }
  void read();
  void make();
  ScoreTerms score(const Problem& entry, int64_t b, int64_t h, int64_t i, int64_t q_len,
                   int64_t kv_len) const;
  std::vector<double> factors(int64_t head, int64_t row, const std::vector<int64_t>& keys) const;
  void add_row(const Problem& entry, int64_t b, int64_t h, int64_t i, int64_t q_len,
               int64_t kv_len);
  // run: the words before the place that name the run. lost: the part of an element's terms that
  // may count as 0.
  void judge(Role role, const std::string& run, const std::vector<double>& got, double lost,
             CaseResult* result) const;
  void judge_lse(const std::vector<float>& got, CaseResult* result) const;
  void judge_averages(const std::vector<double>& o, CaseResult* result) const;
  void judge_key_sums(const std::vector<double>& d_v, CaseResult* result) const;
  void judge_row_sums(const std::vector<double>& d_bias, CaseResult* result) const;
  // The entry of the table that a pair reads; -1: none.
  int64_t table_entry(int64_t b, int64_t i, int64_t j) const {
    if (!p.table) return -1;
    const int64_t n = in.bias_index[size_t((p.index_entry(b) * p.seq_q + i) * p.seq_kv + j)];
    return n < p.table.size ? n : -1;
  }
  bool weights_sum_to_one() const {
    return p.normalizer != Normalizer::elastic && !p.sink && p.dropout == 0;
  }
};

void MagnitudeRules::Impl::read() {
  const tandem_problem& problem = test.problem();
  const Status status = tandem::make_problem(&problem, &p);
  if (!status.ok()) throw Error(status.code(), status.message().c_str());
  const auto get = [&](Role role, std::vector<double>* to) {
    if (is_input(problem, role)) *to = test.logical(role, test.input(role));
  };
  get(Role::q, &in.q);
  get(Role::k, &in.k);
  get(Role::v, &in.v);
  get(Role::d_o, &in.d_o);
  if (p.d_lse) get(Role::d_lse, &in.d_lse);
  for (const auto* x : {&in.q, &in.k, &in.v, &in.d_o})
    for (double v : *x) has_denormals |= v != 0 && std::fabs(v) < 0x1p-126;
  get(Role::bias, &in.bias);
  get(Role::bias_table, &in.bias_table);
  if (is_input(problem, Role::bias_index)) {
    const std::vector<double> index = test.input(Role::bias_index).dense();
    in.bias_index.assign(index.begin(), index.end());
  }
  get(Role::dist_bias, &in.dist_bias);
  get(Role::slope, &in.slope);
  get(Role::tau, &in.tau);
  get(Role::sink, &in.sink);
  if (is_input(problem, Role::keep)) {
    const std::vector<double> keep = test.input(Role::keep).dense();
    in.keep.assign(keep.begin(), keep.end());
  }
  if (is_input(problem, Role::blocks))
    in.keep = expanded_blocks(problem, test.input(Role::blocks), test.input(Role::block_bits));
  if (is_input(problem, Role::spans)) {
    const std::vector<double> spans = test.input(Role::spans).dense();
    in.spans.assign(spans.begin(), spans.end());
  }
  if (p.normalizer == Normalizer::entmax && p.alpha != 1.5f && p.alpha != 2.f)
    roundings += 3 + 2 * std::log2(double(std::max<int64_t>(p.seq_kv, 2)));
}

ScoreTerms MagnitudeRules::Impl::score(const Problem& entry, int64_t b, int64_t h, int64_t i,
                                       int64_t q_len, int64_t kv_len) const {
  ScoreTerms row;
  row.has_sink = p.sink;
  if (p.sink) row.sink = in.sink[size_t(p.head_number(p.sinks_batch, b, h))];
  if (i >= q_len) return row;
  const int64_t D = p.head_dim, hk = h / p.group();
  const double* q = &in.q[size_t(((b * p.heads_q + h) * p.seq_q + i) * D)];
  const auto overlay = [&](const Overlay& x, int64_t j) {
    const int64_t batch = p.entry_of(x, b), head = h / (p.heads_q / x.heads);
    return size_t(((batch * x.heads + head) * x.rows + (x.rows == 1 ? 0 : i)) * p.seq_kv + j);
  };
  for (int64_t j = 0; j < kv_len; ++j) {
    if (!tandem_visible(entry.band, int(i), int(j))) continue;
    if (p.keep && in.keep[overlay(p.keep, j)] == 0) continue;
    if (p.spans &&
        !p.spans.show(&in.spans[size_t(p.spans.numbers(p.spans_head(b, h) * p.seq_kv + j))], i))
      continue;
    const double* k = &in.k[size_t(((b * p.heads_kv + hk) * p.seq_kv + j) * D)];
    double sum = 0, size = 0;
    for (int64_t d = 0; d < D; ++d) sum += q[d] * k[d], size += std::fabs(q[d] * k[d]);
    const double c = double(p.scale) * sum;
    double s = c, bend = 1, bend_error = 0;
    if (p.softcap > 0) {
      const double cap = double(p.softcap), e = kScoreUnits * std::fabs(double(p.scale)) * size;
      const auto slope = [&](double x) { return std::pow(std::cosh(x / cap), -2); };
      s = cap * std::tanh(c / cap);
      bend = slope(c);
      bend_error =
          0x1p-21 + std::max(std::fabs(slope(c + e) - bend), std::fabs(slope(c - e) - bend));
    }
    double added = 0, terms = 0;
    float f32 = float(s);
    double whole = s;
    const auto add = [&](double x) {
      added += x, terms += std::fabs(x), f32 += float(x), whole += x;
    };
    const int64_t t = i + entry.band.off - j;
    if (p.bias) add(in.bias[overlay(p.bias, j)]);
    if (const int64_t n = table_entry(b, i, j); n >= 0)
      add(in.bias_table[size_t(h * p.table.size + n)]);
    if (t >= 0 && t < p.dist_window) add(in.dist_bias[size_t(h * p.dist_window + t)]);
    if (p.alibi) add(-in.slope[size_t(p.head_number(p.slopes_batch, b, h))] * double(std::abs(t)));
    if (added == -kInfinity) continue;
    row.key.push_back(j);
    row.product.push_back(c);
    row.product_size.push_back(std::fabs(double(p.scale)) * size);
    row.score.push_back(whole);
    row.f32.push_back(std::isfinite(f32) ? double(f32) : whole);
    row.terms.push_back(terms);
    row.added.push_back(added);
    row.bend.push_back(bend);
    row.bend_error.push_back(bend_error);
  }
  return row;
}

std::vector<double> MagnitudeRules::Impl::factors(int64_t head, int64_t row,
                                                  const std::vector<int64_t>& keys) const {
  std::vector<double> factor(keys.size(), 1.0);
  if (p.dropout == 0) return factor;
  const uint32_t threshold = dropout_threshold(p.dropout);
  for (size_t n = 0; n < keys.size(); ++n) {
    const TandemPhilox words =
        tandem_dropout_words(int(head), int(row), int(keys[n] / 4), uint32_t(test.dropout_seed),
                             uint32_t(test.dropout_seed >> 32), test.dropout_offset);
    const uint32_t word[] = {words.x, words.y, words.z, words.w};
    factor[n] = word[keys[n] % 4] < threshold ? 0 : 1 / (1 - double(p.dropout));
  }
  return factor;
}

void MagnitudeRules::Impl::add_row(const Problem& entry, int64_t b, int64_t h, int64_t i,
                                   int64_t q_len, int64_t kv_len) {
  const int64_t index = (b * p.heads_q + h) * p.seq_q + i, hk = h / p.group();
  const int64_t D = p.head_dim, Dv = p.head_dim_v;
  const ScoreTerms terms = score(entry, b, h, i, q_len, kv_len);
  const RowWeights w = weigh(p, terms);
  Row& row = rows[size_t(index)];
  row.sees = w.sees;
  if (!w.sees) return;
  row.lse = w.lse;
  row.lse_error = w.lse_error;
  row.common = w.common;
  row.threshold_moves = w.threshold_moves;
  const size_t n = terms.key.size();
  const std::vector<double> factor = factors(b * p.heads_q + h, i, terms.key);
  const auto v_of = [&](size_t j) {
    return &in.v[size_t(((b * p.heads_kv + hk) * p.seq_kv + terms.key[j]) * Dv)];
  };

  // y and g with their intervals (docs/guide/semantics.md); M, and whether it is sure.
  std::vector<double> y = w.p, dy = w.p_error, g = w.p, dg = w.p_error, high(n), pass(n, 1),
                      flips(n);
  for (size_t j = 0; j < n; ++j) {
    high[j] = w.range[j].hi;
    // A weight below the normal numbers of f32 may count as 0.
    const double lost = std::min(high[j], 0x1p-126);
    dy[j] += lost, dg[j] += lost;
  }
  double shift = 0;
  if (p.normalizer == Normalizer::elastic) {
    const int count = tandem_key_count(entry.band, int(i), int(q_len), int(kv_len));
    shift = in.tau[size_t(h)] / double(count);
    for (size_t j = 0; j < n; ++j) {
      const double low = w.range[j].lo * (1 - w.common) * (1 - 0x1p-20) + shift;
      const double top = w.range[j].hi * (1 + w.common) * (1 + 0x1p-20) + shift;
      y[j] = std::max(0.0, w.p[j] + shift);
      dy[j] = std::max(std::max(0.0, top) - y[j], y[j] - std::max(0.0, low));
      // At the kink itself, where the truth is 0, a rounding gives a small number.
      pass[j] = w.p[j] + shift > 0;
      flips[j] = (low > 0) != (top > 0) || (low <= 0 && top >= 0);
    }
  }
  if (p.normalizer == Normalizer::entmax) {
    const double power = 2 - double(p.alpha);
    for (size_t j = 0; j < n; ++j) {
      const auto u = [&](double x) { return x <= 0 ? 0.0 : std::pow(x, power); };
      g[j] = u(w.p[j]);
      high[j] = u(w.range[j].hi);
      dg[j] = std::max(high[j] - g[j], g[j] - u(w.range[j].lo));
    }
  }
  // o.
  for (int64_t c = 0; c < Dv; ++c) {
    const int64_t at = index * Dv + c;
    double low = kInfinity, top = -kInfinity;
    for (size_t j = 0; j < n; ++j) {
      const double v = v_of(j)[c], f = factor[j];
      this->at(Role::o).add(at, y[j] * f * v, (y[j] + dy[j]) * f * std::fabs(v),
                            dy[j] * f * std::fabs(v));
      low = std::min(low, v), top = std::max(top, v);
    }
    v_low[size_t(at)] = low, v_high[size_t(at)] = top;
  }
  if (!p.backward) return;

  const double* d_o = &in.d_o[size_t(index * Dv)];
  double d_o_size = 0;
  for (int64_t c = 0; c < Dv; ++c) d_o_size += d_o[c] * d_o[c];
  d_o_size = std::sqrt(d_o_size);
  // Products of numbers this small may count as 0.
  constexpr double tiny = 0x1p-126;
  std::vector<double> dp(n), size(n);
  double delta = 0, bound = 0, sum_g = 0, low_g = 0;
  for (size_t j = 0; j < n; ++j) {
    double v_size = 0;
    for (int64_t c = 0; c < Dv; ++c) {
      dp[j] += factor[j] * d_o[c] * v_of(j)[c];
      v_size += v_of(j)[c] * v_of(j)[c];
    }
    size[j] = factor[j] * d_o_size * std::sqrt(v_size);
    delta += g[j] * pass[j] * dp[j];
    bound += high[j] * (pass[j] > 0 || flips[j] > 0 ? 1 : 0) * size[j];
    sum_g += g[j];
    low_g += std::max(0.0, g[j] - dg[j]);
  }
  const bool is_entmax = p.normalizer == Normalizer::entmax;
  if (is_entmax && sum_g > 0) delta /= sum_g, bound /= std::max(low_g, sum_g / 2);
  double moves = 0, apart = 0;  // of delta
  for (size_t j = 0; j < n; ++j) {
    const double away = std::fabs(pass[j] * dp[j] - delta);
    moves += dg[j] * away + high[j] * flips[j] * std::fabs(dp[j]);
    if (high[j] > 0) apart = std::max(apart, away + flips[j] * std::fabs(dp[j]));
  }
  if (is_entmax) moves = low_g > 0 ? std::min(apart, moves / low_g) : apart;
  if (p.sink) {  // the sums of two sets of weights need not agree
    double total = 0;
    for (size_t j = 0; j < n; ++j) total += dg[j];
    moves += total * std::fabs(delta);
  }
  // <d_o, o> has the forward's weights, and o is rounded. A sum formed here has the common factor.
  moves += w.common * std::fabs(delta);
  // o and v may be so small that they lose bits, or count as 0.
  double d_o_sum = 0;
  for (int64_t c = 0; c < Dv; ++c) d_o_sum += std::fabs(d_o[c]);
  double v_sum = 0;
  for (size_t j = 0; j < n; ++j) {
    double sum = 0;
    for (int64_t c = 0; c < Dv; ++c) sum += std::fabs(v_of(j)[c]);
    v_sum = std::max(v_sum, sum);
  }
  const double lost = (p.dtype == TANDEM_F16 ? 0x1p-24 : tiny) * d_o_sum + tiny * v_sum;
  moves += 2 * lost;
  if (p.d_lse) {
    delta -= in.d_lse[size_t(index)];
    bound += std::fabs(in.d_lse[size_t(index)]);
  }
  const double scale = std::fabs(double(p.scale));
  const double* q = &in.q[size_t(index * D)];
  double tau = 0, tau_size = 0, tau_moves = 0;
  for (size_t j = 0; j < n; ++j) {
    const int64_t key = terms.key[j], kv = (b * p.heads_kv + hk) * p.seq_kv + key;
    const double weight = high[j] * w.common;
    if (p.wants(TANDEM_GRAD_V))
      for (int64_t c = 0; c < Dv; ++c) {
        const double x = factor[j] * std::fabs(d_o[c]);
        const double common = w.range[j].hi * w.common;
        at(Role::d_v).add(kv * Dv + c, y[j] * factor[j] * d_o[c], (y[j] + dy[j]) * x,
                          (dy[j] + common) * x);
      }
    const double away = pass[j] * dp[j] - delta;
    const double ds = g[j] * away;
    const double e = high[j] * (size[j] + bound);
    const double off = (dg[j] + weight) * std::fabs(away) + high[j] * (1 + w.common) * moves +
                       high[j] * (flips[j] * std::fabs(dp[j]) + lost);
    row.ds_size += e + high[j] * lost / (0x1p-20);
    // Each loses half of f16's smallest number at most, and no more than itself.
    if (p.dtype == TANDEM_F16) row.ds_lost += std::min(0x1p-25, e + off);
    const double bend = terms.bend[j], wide = std::fabs(bend) + terms.bend_error[j];
    const double bent = off * std::fabs(bend) + e * terms.bend_error[j];
    const double* k = &in.k[size_t(kv * D)];
    for (int64_t d = 0; d < D; ++d) {
      const double kd = scale * std::fabs(k[d]), qd = scale * std::fabs(q[d]);
      if (p.wants(TANDEM_GRAD_Q))
        at(Role::d_q).add(index * D + d, double(p.scale) * ds * bend * k[d], e * wide * kd,
                          bent * kd);
      if (p.wants(TANDEM_GRAD_K))
        at(Role::d_k).add(kv * D + d, double(p.scale) * ds * bend * q[d], e * wide * qd, bent * qd);
    }
    const int64_t t = i + entry.band.off - key;
    if (p.wants(TANDEM_GRAD_BIAS)) {
      const Overlay& x = p.bias;
      const int64_t batch = p.entry_of(x, b), head = h / (p.heads_q / x.heads);
      at(Role::d_bias)
          .add(((batch * x.heads + head) * x.rows + (x.rows == 1 ? 0 : i)) * p.seq_kv + key, ds, e,
               off);
    }
    if (const int64_t entry_of = table_entry(b, i, key);
        p.wants(TANDEM_GRAD_BIAS_TABLE) && entry_of >= 0)
      at(Role::d_bias_table).add(h * p.table.size + entry_of, ds, e, off);
    if (p.wants(TANDEM_GRAD_DIST_BIAS) && t >= 0 && t < p.dist_window)
      at(Role::d_dist_bias).add(h * p.dist_window + t, ds, e, off);
    if (p.wants(TANDEM_GRAD_SLOPE)) {
      const double far = double(std::abs(t));
      at(Role::d_slope).add(p.head_number(p.slopes_batch, b, h), -far * ds, far * e, far * off);
    }
    tau += pass[j] * dp[j];
    tau_size += (pass[j] > 0 || flips[j] > 0 ? 1 : 0) * size[j];
    tau_moves += flips[j] * std::fabs(dp[j]);
  }
  if (p.wants(TANDEM_GRAD_TAU)) {
    const int count = tandem_key_count(entry.band, int(i), int(q_len), int(kv_len));
    at(Role::d_tau).add(h, tau / count, tau_size / count, tau_moves / count);
  }
  if (p.wants(TANDEM_GRAD_SINK)) {
    const double top = w.p_sink + w.p_sink_error;
    // Below the normal numbers of f32 it may count as 0, as the other weights may.
    const double off = w.p_sink_error + std::min(top, 0x1p-126) + top * w.common;
    at(Role::d_sink)
        .add(p.head_number(p.sinks_batch, b, h), -w.p_sink * delta, top * bound,
             off * std::fabs(delta) + top * moves);
  }
  if (p.wants(TANDEM_GRAD_V) && weights_sum_to_one())
    for (int64_t c = 0; c < Dv; ++c) {
      const auto to = size_t((b * p.heads_kv + hk) * Dv + c);
      d_v_sum[to] += d_o[c];
      d_v_sum_error[to] += std::fabs(d_o[c]) * w.common;
    }
}

void MagnitudeRules::Impl::make() {
  const tandem_problem& problem = test.problem();
  for (Role role : kOutputs) {
    if (role != Role::o && !is_output(problem, role)) continue;
    Sums& s = at(role);
    s.start(logical_dims(problem, role));
    const double kept = p.dropout > 0 ? 1 / (1 - double(p.dropout)) : 1;
    const double scale = std::fabs(double(p.scale));
    s.count = role == Role::o || role == Role::d_q     ? double(p.seq_kv)
              : role == Role::d_k || role == Role::d_v ? double(p.group() * p.seq_q)
              : role == Role::d_bias                   ? double(p.batch * p.heads_q * p.seq_q)
                                     : double(p.batch * p.seq_q) * double(p.seq_kv);
    s.operand = role == Role::o     ? kept * sized(in.v)
                : role == Role::d_q ? scale * sized(in.k)
                : role == Role::d_k ? scale * sized(in.q)
                : role == Role::d_v ? kept * sized(in.d_o)
                                    : 1;
    const double dp = kept * double(p.head_dim_v) * sized(in.d_o) * sized(in.v);
    s.of_weight = s.operand * (role == Role::o || role == Role::d_v ? 1 : std::max(1.0, dp));
  }
  rows.resize(size_t(p.batch * p.heads_q * p.seq_q));
  v_low.resize(rows.size() * size_t(p.head_dim_v));
  v_high = v_low;
  d_v_sum.assign(size_t(p.batch * p.heads_kv * p.head_dim_v), 0.0);
  d_v_sum_error = d_v_sum;
  const Sequences q = test.sequences(false), kv = test.sequences(true);
  for (int64_t b = 0; b < p.batch; ++b) {
    Problem entry = p;
    entry.seq_q = q.length[size_t(b)];
    entry.seq_kv = kv.length[size_t(b)];
    if (p.bottom_right) entry.band.off = int(entry.seq_kv - entry.seq_q);
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < p.seq_q; ++i) add_row(entry, b, h, i, entry.seq_q, entry.seq_kv);
  }
}

namespace {

// Adds one judgement, whose text names the element that is furthest beyond its limit.
class Teller {
 public:
  Teller(const std::string& tensor, CaseResult* result) : result_(result) { j_.tensor = tensor; }
  template <typename Where>
  void see(double got, double want, double limit, double most, Where where) {
    double error = got == want ? 0 : std::fabs(got - want);
    // Where the truth is beyond the last number of the type, any number beyond it is right.
    if (!std::isnan(got) && std::isfinite(want) && std::fabs(want) + limit >= most) return;
    if (std::isnan(error)) error = kInfinity;
    const double ratio = error == 0 ? 0 : limit == 0 ? kInfinity : kRatioLimit * error / limit;
    if (!(ratio <= kRatioLimit)) j_.ok = false;
    if (ratio < j_.ratio || (!j_.where.empty() && ratio == j_.ratio)) return;
    j_.ratio = ratio;
    j_.error = error;
    j_.where = where() + ": got " + number(got) + ", want " + number(want) + " +- " + number(limit);
  }
  ~Teller() {
    if (!j_.ok) {
      result_->ok = false;
      if (result_->message.empty()) result_->message = j_.tensor + ": " + j_.where;
    }
    result_->judgements.push_back(std::move(j_));
  }

 private:
  CaseResult* result_;
  Judgement j_;
};

std::string place(const Dims& d, size_t n) {
  const auto at = int64_t(n);
  return "b" + std::to_string(at / (d.d * d.s * d.h)) + " h" +
         std::to_string(at / (d.d * d.s) % d.h) + " row " + std::to_string(at / d.d % d.s) +
         " column " + std::to_string(at % d.d);
}

}  // namespace

void MagnitudeRules::Impl::judge(Role role, const std::string& run, const std::vector<double>& got,
                                 double lost_terms, CaseResult* result) const {
  const Sums& s = sums[size_t(role)];
  const uint32_t own =
      role == Role::o ? test.problem().o.dtype : layout_of(test.problem(), role).dtype;
  const uint32_t chain = test.problem().q.dtype;
  const double unit = std::max({unit_of(own), unit_of(chain), p.tf32 ? 0x1p-11 : 0});
  // harness/compare.cpp says of each what it is for.
  double vanishing = 0x1p-118;
  const double lost = chain == TANDEM_F16 ? 0x1p-22 : 0x1p-100;
  for (double x : s.terms) vanishing = std::max(vanishing, lost * x);
  // Rows of one kind round the same way, so these roundings add up.
  const double subnormal =
      s.count * std::max((chain == TANDEM_F16 ? 0x1p-25 : 0) * s.operand, 0x1p-126 * s.of_weight);
  const double relative = 4 * (unit + (roundings + std::sqrt(s.count)) * kF32);
  Teller tell(role_name(role), result);
  for (size_t n = 0; n < s.want.size(); ++n) {
    double limit = 0;
    if (s.terms[n] > 0)
      limit = (relative + lost_terms) * s.terms[n] + s.slack[n] + ulp(0, own) +
              std::min(std::max(vanishing, subnormal), s.terms[n]);
    tell.see(got[n], s.want[n], limit, most_of(own), [&] { return run + place(s.dims, n); });
  }
}

void MagnitudeRules::Impl::judge_lse(const std::vector<float>& got, CaseResult* result) const {
  Teller tell("lse", result);
  const Dims dims = {p.batch, p.heads_q, p.seq_q, 1};
  for (size_t n = 0; n < rows.size(); ++n) {
    const Row& r = rows[n];
    const double limit = r.sees ? r.lse_error + 1e-5 * std::max(1.0, std::fabs(r.lse)) : 0;
    tell.see(double(got[n]), r.lse, limit, 0x1.fffffep127 * 1.001, [&] { return place(dims, n); });
  }
}

// o lies between the values that a row averages; with a sink 0 is one of them.
void MagnitudeRules::Impl::judge_averages(const std::vector<double>& o, CaseResult* result) const {
  const uint32_t dtype = test.problem().o.dtype;
  Teller tell("o between values", result);
  const auto width = size_t(p.head_dim_v);
  const Dims dims = {p.batch, p.heads_q, p.seq_q, p.head_dim_v};
  for (size_t n = 0; n < o.size(); ++n) {
    if (!rows[n / width].sees) continue;
    const double low = p.sink ? std::min(0.0, v_low[n]) : v_low[n];
    const double high = p.sink ? std::max(0.0, v_high[n]) : v_high[n];
    const double size = std::max(std::fabs(low), std::fabs(high));
    // A sum of n equal weights rounds one way, by up to n half ulps. Softmax divides by another
    // sum of weights, entmax does not: its weights sum to 1 as far as the threshold is exact.
    const double keys = double(p.seq_kv), one_way = p.normalizer == Normalizer::entmax ? keys : 0;
    const double limit = (4 * std::max(unit_of(dtype), p.tf32 ? 0x1p-11 : 0) +
                          (4 * (roundings + std::sqrt(keys)) + one_way / 2) * kF32 +
                          rows[n / width].threshold_moves) *
                             size +
                         ulp(0, dtype) + std::min(size, 0x1p-118) +
                         (dtype == TANDEM_F16 ? double(p.seq_kv) * 0x1p-25 * size : 0);
    // An average of finite numbers is finite, also of the type's largest.
    const double most = std::isinf(o[n]) ? kInfinity : most_of(dtype);
    tell.see(o[n], std::isnan(o[n]) ? low : std::clamp(o[n], low, high), limit, most,
             [&] { return place(dims, n); });
  }
}

// Over the keys, d_v adds up to d_o of the rows that see one.
void MagnitudeRules::Impl::judge_key_sums(const std::vector<double>& d_v,
                                          CaseResult* result) const {
  const uint32_t dtype = test.problem().d_v.dtype;
  const double unit = std::max(unit_of(dtype), p.tf32 ? 0x1p-11 : 0);
  Teller tell("d_v over keys", result);
  const Dims dims = {p.batch, p.heads_kv, 1, p.head_dim_v};
  const int64_t Dv = p.head_dim_v;
  for (size_t n = 0; n < d_v_sum.size(); ++n) {
    const int64_t head = int64_t(n) / Dv, c = int64_t(n) % Dv;
    double sum = 0, stored = 0, size = 0;
    for (int64_t j = 0; j < p.seq_kv; ++j) {
      const auto at = size_t((head * p.seq_kv + j) * Dv + c);
      sum += d_v[at];
      size += sums[size_t(Role::d_v)].terms[at];
      stored += unit * std::fabs(d_v[at]) + ulp(0, dtype);
    }
    if (std::isinf(stored)) continue;  // a sum of its own beyond the type, judged as an element
    // The roundings of weights, which are not all one way. Those of a sum of n equal weights are,
    // up to n half ulps: the sum that the weights of a row are divided by, and that over rows.
    const double one_way = double(p.seq_kv + p.group() * p.seq_q) / 2;
    double limit =
        d_v_sum_error[n] + stored + (unit + (4 * roundings + one_way) * kF32) * size + 0x1p-118;
    if (dtype == TANDEM_F16) limit += double(p.seq_kv) * 0x1p-24 * size;
    tell.see(sum, d_v_sum[n], limit, most_of(dtype), [&] { return place(dims, n); });
  }
}

// ds of a row adds up to d_lse, or 0. That is checked where d_bias has a row of its own for each
// row.
void MagnitudeRules::Impl::judge_row_sums(const std::vector<double>& d_bias,
                                          CaseResult* result) const {
  const uint32_t own = p.d_bias_dtype;
  const double unit = std::max({unit_of(own), unit_of(p.dtype), p.tf32 ? 0x1p-11 : 0});
  Teller tell("d_bias over keys", result);
  const Dims dims = {p.batch, p.heads_q, p.seq_q, 1};
  for (size_t n = 0; n < rows.size(); ++n) {
    double sum = 0, stored = 0;
    for (int64_t j = 0; j < p.seq_kv; ++j) {
      const double x = d_bias[n * size_t(p.seq_kv) + size_t(j)];
      sum += x;
      stored += unit * std::fabs(x) + ulp(0, own);
    }
    if (std::isinf(stored)) continue;
    const double size = rows[n].ds_size;
    double limit =
        stored + (4 * unit + 4 * roundings * kF32 + 2 * rows[n].common) * size + 0x1p-118;
    if (p.dtype == TANDEM_F16) limit += double(p.seq_kv) * 0x1p-24 * size + rows[n].ds_lost;
    const double want = p.d_lse && rows[n].sees ? in.d_lse[n] : 0;
    tell.see(sum, want, size == 0 ? 0 : limit, most_of(TANDEM_F32), [&] { return place(dims, n); });
  }
}

MagnitudeRules::MagnitudeRules(Case& test) : impl_(new Impl(test)) {
  impl_->read();
  impl_->make();
}
MagnitudeRules::~MagnitudeRules() = default;

void MagnitudeRules::judge(const Outputs& outputs, CaseResult* result, bool loses_denormals) const {
  const Impl& m = *impl_;
  const double lost = loses_denormals && m.has_denormals ? 1 : 0;
  const tandem_problem& problem = m.test.problem();
  for (Role role : kOutputs) {
    if (role != Role::o && !is_output(problem, role)) continue;
    for (const auto& [tensor, run] : outputs.written(role))
      m.judge(role, run, m.test.logical(role, *tensor), lost, result);
    const std::vector<double> got = m.test.logical(role, outputs.tensor(role));
    if (role == Role::o && m.p.normalizer != Normalizer::elastic && m.p.dropout == 0)
      m.judge_averages(got, result);
    if (role == Role::d_v && m.weights_sum_to_one()) m.judge_key_sums(got, result);
    if (role == Role::d_bias && !m.p.sink && m.p.bias.batch == m.p.batch &&
        m.p.bias.heads == m.p.heads_q && m.p.bias.rows == m.p.seq_q)
      m.judge_row_sums(got, result);
  }
  if (!outputs.lse.empty()) m.judge_lse(outputs.lse, result);
}

CaseResult run_and_judge(Case& test, const MagnitudeRules& rules, Session& session,
                         Outputs* outputs) {
  Outputs own;
  Outputs* to = outputs ? outputs : &own;
  CaseResult result = test.run(session, to);
  if (result.ok) rules.judge(*to, &result, session.loses_denormals());
  return result;
}

}  // namespace tandem::harness
