// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of large scores in the forward kernels of cuda.sm90, by name: masks of finite numbers,
// scores far from 0, sinks. A case is judged by what holds whatever the rounding of a score does:
// weights sum to 1, o lies between the values of the keys whose scores may be the largest, and lse
// is that of the scores in double.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "parity.h"

using namespace parity;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kLowestBf16 = -3.3895313892515355e38, kLowestF16 = -65504;

using Fill = std::function<void(Case&)>;
using Value = std::function<double(int64_t b, int64_t h, int64_t i, int64_t j)>;

void fill(Case& test, Role role, const Value& value) {
  HostTensor& t = test.input(role);
  for (int64_t b = 0; b < t.dims.b; ++b)
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t i = 0; i < t.dims.s; ++i)
        for (int64_t j = 0; j < t.dims.d; ++j) t.set(b, h, i, j, value(b, h, i, j));
}
void fill(Case& test, Role role, double value) {
  fill(test, role, [=](int64_t, int64_t, int64_t, int64_t) { return value; });
}
double scale_of(const tandem_problem& p) {
  return std::isnan(p.scale) ? 1 / std::sqrt(double(p.head_dim)) : double(p.scale);
}
// Scores of about this size, which differ a little.
Fill scores_of(double size) {
  return [=](Case& test) {
    const tandem_problem& p = test.problem();
    const double root = std::sqrt(std::fabs(size) / scale_of(p));
    fill(test, Role::q, [=](int64_t, int64_t, int64_t i, int64_t d) {
      return d == 0 ? root : 0.01 * std::sin(double(i + 3 * d));
    });
    fill(test, Role::k, [=](int64_t, int64_t, int64_t j, int64_t d) {
      return d == 0 ? (size < 0 ? -root : root) : 0.1 * std::sin(double(7 * j + d));
    });
  };
}
Fill bias_of(const Value& value) {
  return [=](Case& test) { fill(test, Role::bias, value); };
}

// o and lse of a problem of softmax or elastic softmax with everything but softcap, dropout and
// lengths, in double; and how far the scores may be off.
void judge(Case& test, const Outputs& got, const std::string& where) {
  const tandem_problem& p = test.problem();
  const auto in = [&](Role role) { return test.input(role).dense(); };
  const std::vector<double> q = in(Role::q), k = in(Role::k), v = in(Role::v), o = got.o.dense();
  std::vector<double> bias, sink, dist, slope, tau;
  if (p.bias.dtype) bias = in(Role::bias);
  if (p.sink) sink = in(Role::sink);
  if (p.dist_window) dist = in(Role::dist_bias);
  if (p.alibi) slope = in(Role::slope);
  if (p.normalizer == TANDEM_ELASTIC) tau = in(Role::tau);
  const double scale = scale_of(p);
  const bool entmax = p.normalizer == TANDEM_ENTMAX;
  const double unit = p.q.dtype == TANDEM_BF16 ? 0x1p-8 : 0x1p-11;
  int wrong = 0;
  const auto fail = [&](const std::string& what, int64_t h, int64_t i, double x, double low,
                        double high) {
    if (++wrong > 3) return;
    FAIL_CHECK(where << "\n  " << what << " of head " << h << " row " << i << " is " << x
                     << ", must be in " << low << " to " << high);
  };
  for (int64_t bh = 0; bh < p.batch * p.heads_q; ++bh)
    for (int64_t i = 0; i < p.seq_q; ++i) {
      const int64_t b = bh / p.heads_q, h = bh % p.heads_q,
                    kv = b * p.heads_kv + h / (p.heads_q / p.heads_kv);
      const Span span = visible(p, i);
      std::vector<double> s(size_t(p.seq_kv), -kInf);
      double top = -kInf, off = 0;
      for (int64_t j = span.first; j <= span.last; ++j) {
        double x = 0, terms = 0;
        for (int64_t d = 0; d < p.head_dim; ++d) {
          const double y = scale * q[size_t((bh * p.seq_q + i) * p.head_dim + d)] *
                           k[size_t((kv * p.seq_kv + j) * p.head_dim + d)];
          x += y, terms += std::fabs(y);
        }
        const auto add = [&](double y) {
          x += y;
          if (y > -kInf) terms += std::fabs(y);
        };
        if (!bias.empty()) {
          const int64_t of_b = p.bias_batch == 1 ? 0 : b, of_h = h * p.bias_heads / p.heads_q;
          add(bias[size_t(
              ((of_b * p.bias_heads + of_h) * p.bias_rows + (p.bias_rows == 1 ? 0 : i)) * p.seq_kv +
              j)]);
        }
        const int64_t distance = i - j + (p.align == TANDEM_BOTTOM_RIGHT ? p.seq_kv - p.seq_q : 0);
        if (distance >= 0 && distance < p.dist_window)
          add(dist[size_t(h * p.dist_window + distance)]);
        if (!slope.empty()) add(-slope[size_t(h)] * double(std::llabs(distance)));
        s[size_t(j)] = x;
        top = std::max(top, x);
        if (x > -kInf) off = std::max(off, 0x1p-20 * terms);
      }
      const double end = sink.empty() ? -kInf : sink[size_t(h)], most = std::max(top, end);
      const float lse = got.lse.empty() ? 0 : got.lse[size_t(bh * p.seq_q + i)];
      double sum = 0, low = kInf, high = -kInf;
      const double shift =
          tau.empty() || span.empty() ? 0 : tau[size_t(h)] / double(span.last - span.first + 1);
      for (int64_t j = 0; j < p.seq_kv; ++j)
        if (top > -kInf) sum += std::exp(s[size_t(j)] - most);
      if (top > -kInf && end > -kInf) sum += std::exp(end - most);
      const double want = top > -kInf ? most + std::log(sum) : -kInf;
      if (!entmax && !got.lse.empty() &&
          !(want == -kInf ? double(lse) == want
                          : std::fabs(lse - want) <= 1e-5 * std::max(1.0, std::fabs(want)) + off))
        fail("lse", bh, i, lse, want, want);
      std::vector<double> weight(s.size(), 0.0);
      for (int64_t j = 0; j < p.seq_kv && top > -kInf; ++j)
        if (s[size_t(j)] > -kInf)
          weight[size_t(j)] = std::max(std::exp(s[size_t(j)] - most) / sum + shift, 0.0);
      for (int64_t d = 0; d < p.head_dim_v; ++d) {
        const double x = o[size_t((bh * p.seq_q + i) * p.head_dim_v + d)];
        double mean = 0, size = 0;
        low = kInf, high = -kInf;
        for (int64_t j = 0; j < p.seq_kv && top > -kInf; ++j) {
          const double of = v[size_t((kv * p.seq_kv + j) * p.head_dim_v + d)];
          const double w = weight[size_t(j)];
          mean += w * of, size += w * std::fabs(of);
          // Keys whose weight, without the sink, is not as good as 0.
          if (s[size_t(j)] >= top - 2 * off - 30)
            low = std::min(low, of), high = std::max(high, of);
        }
        if (top == -kInf) {
          if (x != 0) fail("o", bh, i, x, 0, 0);
          continue;
        }
        const double error = unit * 2 * (std::fabs(mean) + size) + 1e-6;
        if (!entmax && off < 1e-3) {
          low = mean - error - 2 * off * size, high = mean + error + 2 * off * size;
        } else if (shift < 0) {  // at the kink any rounding decides
          low = std::min(low, 0.0) - error, high = std::max(high, 0.0) + error;
        } else if (shift > 0) {
          if (high != low) continue;
          low = mean - error, high = mean + error;
        } else if (end > -kInf) {
          // All or nothing, as cases are made.
          if (end > top + 2 * off + 30) low = high = 0;
          low -= error, high += error;
        } else {
          const double around = 2 * unit * std::max(std::fabs(low), std::fabs(high));
          low -= around, high += around;
        }
        if (!(x >= low && x <= high)) fail("o", bh, i, x, low, high);
      }
    }
}

void check_line(const std::string& line, const std::vector<Fill>& fills) {
  const auto is_sm90 = [](const Target& target) { return target.path == "sm90"; };
  if (std::none_of(targets().begin(), targets().end(), is_sm90)) return;
  const tandem_problem p = parse("fwd " + line);
  for (bool ones : {true, false}) {
    Case test(p, seed_of(line.c_str()));
    for (const Fill& f : fills) f(test);
    if (ones) fill(test, Role::v, 1);
    for (Target& target : targets()) {
      if (!is_sm90(target)) continue;
      Outputs out;
      const CaseResult result = test.run(*target.session, &out);
      const std::string where = target.name + ": " + print(p);
      CHECK_MESSAGE(!result.refused, where << ": " << result.message);
      if (result.refused) continue;
      CHECK_MESSAGE(result.message == "", where << ": " << result.message);
      count(result.kernels);
      if (!target.recorded) judge(test, out, where + (ones ? " (v = 1)" : ""));
    }
  }
}

const char* const kHeads[] = {"d64", "d128", "d192 dv128", "d256", "d40"};

}  // namespace

TEST_CASE("regression: sm90 forward, scores far from 0") {
  for (const char* heads : kHeads)
    for (double size : {1e3, -1e3, 1e5, -1e5, 3e6, -3e6, 1e8, -1e8, 1e12, -1e20, 1e30, -1e35})
      for (const char* mask : {"", " causal_bottom_right"})
        check_line("bf16 hq2 hk1 sq70 sk140 " + std::string(heads) + mask, {scores_of(size)});
  for (double size : {-1e4, 1e6, -1e6, 1e8})
    check_line("f16 hq1 sq70 sk140 d64", {scores_of(size)});
  // One key above all others, from one tile of keys to the next, and rows near and far in one tile.
  for (const char* heads : kHeads)
    for (double size : {1e4, 1e6, 1e7, 1e9, 1e20})
      for (int64_t one : {7, 300})
        for (double other : {0.0, -1.0})
          check_line(
              "bf16 hq1 sq40 sk310 " + std::string(heads), {[=](Case& test) {
                const double root = std::sqrt(size / scale_of(test.problem()));
                fill(test, Role::q, [=](int64_t, int64_t, int64_t i, int64_t d) {
                  return d == 0 && i % 3 ? root * (1 + 0.37 * double(i) / 12)
                                         : std::sin(double(i + d));
                });
                fill(test, Role::k, [=](int64_t, int64_t, int64_t j, int64_t d) {
                  return d == 0 ? j == one ? root : other * root : d == 1 ? std::sin(double(j)) : 0;
                });
              }});
}

TEST_CASE("regression: sm90 forward, masks of finite numbers") {
  struct Form {
    const char* words;
    double lowest;
  };
  const Form forms[] = {
      {"bf16 hq1 sq1 sk1 d64 bias:bf16:1x1x1", kLowestBf16},
      {"bf16 hq2 sq70 sk264 d64 bias:bf16:1x2x70", kLowestBf16},
      {"bf16 hq2 sq70 sk264 d128 bias:bf16:1x2x70", kLowestBf16},
      {"bf16 hq1 sq200 sk264 d128 tile=192x128 bias:bf16:1x1x200", kLowestBf16},
      {"bf16 hq1 sq70 sk264 d40 bias:bf16:1x1x70", kLowestBf16},
      {"bf16 hq1 sq70 sk264 d64 scale=0x1.8p+1 bias:bf16:1x1x70", kLowestBf16},
      {"bf16 hq1 sq70 sk264 d128 scale=0x1.8p-9 bias:bf16:1x1x70", kLowestBf16},
      {"f16 hq1 sq70 sk264 d64 bias:f16:1x1x70", kLowestF16},
      {"f16 hq1 sq70 sk264 d128 bias:f16:1x1x70", kLowestF16},
      {"bf16 hq1 sq70 sk264 d64 causal_top_left bias:bf16:1x1x70", kLowestBf16},
      {"bf16 hq1 sq70 sk264 d128 causal_bottom_right bias:bf16:1x1x70", kLowestBf16}};
  for (const Form& form : forms)
    for (double mask : {-1e4, -1e6, -1e9, -1e10, -1e20, -1e38, 0.0}) {
      const double x = mask == 0 ? form.lowest : std::max(mask, form.lowest);
      if (mask != 0 && x != mask) continue;
      using I = int64_t;
      // All keys; those before and behind one that the row says; all of some rows; a few beside
      // hidden ones; of different numbers.
      const Value values[] = {[=](I, I, I, I) { return x; },
                              [=](I, I, I i, I j) { return j < 3 * i ? x : 0; },
                              [=](I, I, I i, I j) { return j > 2 * i ? x : 0; },
                              [=](I, I, I i, I) { return i % 5 == 2 ? x : 0; },
                              [=](I, I, I i, I j) { return i % 3 == 1 || j % 4 == 1 ? -kInf : x; },
                              [=](I, I, I i, I j) { return (i + j) % 7 ? x : x / 2; },
                              [=](I, I, I i, I j) { return j == 200 ? -x : (i % 2 ? x : 0); }};
      for (const Value& value : values) check_line(form.words, {bias_of(value)});
    }
}

TEST_CASE("regression: sm90 forward, keys under finite masks that workgroups share") {
  using I = int64_t;
  for (const char* heads : {"d64", "d128"})
    for (double x : {-1e6, -1e10, kLowestBf16})
      for (int form = 0; form < 3; ++form) {
        if (!at_least(Tier::device) && x != -1e10) continue;  // a second each
        check_line("bf16 b1 hq9 sq256 sk1024 " + std::string(heads) + " bias:bf16:1x9x256",
                   {bias_of([=](I, I h, I i, I j) {
                     if (form == 0) return x;
                     if (form == 1) return j < 512 ? x : 0;
                     return (i + h) % 3 == 0 ? j < 700 ? -kInf : x : x / 2 * double(1 + j % 2);
                   })});
      }
}

TEST_CASE("regression: sm90 forward, large sinks, softcap and slopes") {
  for (const char* heads : {"d64", "d128", "d256"})
    for (double sink : {3e38, 2.4e38, -3e38, 1e6, -1e6, 1e30, 0.0})
      for (double size : {1.0, 1e6, -1e8})
        check_line("bf16 hq2 hk1 sq70 sk140 sink " + std::string(heads),
                   {scores_of(size), [=](Case& test) { set_heads(test, Role::sink, sink); }});
  for (const char* heads : {"d64", "d128"})
    for (double slope : {1e3, 1e8, 1e30, 1e36, 3e38})
      for (const char* mask : {"", " causal_top_left"})
        check_line("bf16 hq2 hk1 sq140 sk140 alibi " + std::string(heads) + mask,
                   {[=](Case& test) { set_heads(test, Role::slope, slope); }});
  for (const char* heads : {"d64", "d128"})
    for (double bias : {1e6, -1e9, -1e30, -1e37})
      check_line("bf16 hq2 hk1 sq140 sk140 dist=64 causal_top_left " + std::string(heads),
                 {[=](Case& test) {
                   fill(test, Role::dist_bias, [=](int64_t, int64_t, int64_t, int64_t t) {
                     return t % 3 == 1 ? bias : bias / 2;
                   });
                 }});
}

TEST_CASE("regression: sm90 forward, elastic softmax of scores far from 0") {
  for (const char* heads : {"d64", "d128"})
    for (const char* mask : {" causal_top_left", "", " left=100"})
      for (double tau : {-1.0, 0.5}) {
        const std::string line =
            "bf16 hq2 hk1 sq192 sk192 elastic dist=16 " + std::string(heads) + mask;
        const Fill taus = [=](Case& test) { set_heads(test, Role::tau, tau); };
        for (double size : {-1e4, 1e6, -1e7, 1e9, -1e20, 1e35})
          check_line(line, {scores_of(size), taus});
        for (double bias : {-1e4, 1e6, -1e9, -1e30, -1e37})
          check_line(line, {taus, [=](Case& test) {
                              fill(test, Role::dist_bias,
                                   [=](int64_t, int64_t, int64_t, int64_t t) {
                                     return t % 3 == 1 ? bias : bias / 2;
                                   });
                            }});
      }
}

TEST_CASE("regression: sm90 forward, entmax of scores far from 0") {
  for (const char* norm : {"entmax=0x1.8p+0", "entmax=0x1p+1", "entmax=0x1.4p+0"})
    for (const char* heads : {"d64", "d128"})
      for (const char* mask : {"", " causal_top_left"}) {
        const std::string line =
            "bf16 hq2 hk1 sq140 sk400 " + std::string(norm) + " " + heads + mask;
        for (double size : {-1e3, 1e4, -1e6, 1e7, -1e9, 1e20, -1e35})
          check_line(line, {scores_of(size)});
        for (double size : {1e4, 1e6, 1e8, 1e20})
          for (int64_t one : {7, 300})
            check_line(line, {[=](Case& test) {
                         const double root = std::sqrt(size / scale_of(test.problem()));
                         fill(test, Role::q, [=](int64_t, int64_t, int64_t i, int64_t d) {
                           return d == 0 && i % 3 ? root : std::sin(double(i + d));
                         });
                         fill(test, Role::k, [=](int64_t, int64_t, int64_t j, int64_t d) {
                           return d == 0 ? j == one ? root : 0 : d == 1 ? std::sin(double(j)) : 0;
                         });
                       }});
      }
}
