// SPDX-License-Identifier: MIT OR Apache-2.0
// The reference's optional inputs: every gradient, alone and combined, against central differences, and the
// edges of each.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cpu/element.h"
#include "cpu/reference.h"
#include "philox.h"

namespace {

using namespace tandem;

Problem checked(const std::string& line) {
  tandem_problem p;
  Status status = parse_problem(line.c_str(), &p);
  REQUIRE_MESSAGE(status.ok(), status.message());
  Problem problem;
  status = make_problem(&p, &problem);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return problem;
}

double infinity() { return std::numeric_limits<double>::infinity(); }

RefInputs draw(const Problem& p, uint32_t seed, double tau = -0.7) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  const auto fill = [&](bool wanted, int64_t count) {
    std::vector<double> x(size_t(wanted ? count : 0), 0.0);
    for (double& e : x) e = normal(engine);
    return x;
  };
  RefInputs in;
  in.q = fill(true, p.batch * p.heads_q * p.seq_q * p.head_dim);
  in.k = fill(true, p.batch * p.heads_kv * p.seq_kv * p.head_dim);
  in.v = fill(true, p.batch * p.heads_kv * p.seq_kv * p.head_dim_v);
  in.d_o = fill(true, p.batch * p.heads_q * p.seq_q * p.head_dim_v);
  in.bias = fill(bool(p.bias), p.bias.batch * p.bias.heads * p.bias.rows * p.seq_kv);
  in.dist_bias = fill(true, p.heads_q * p.dist_window);
  in.slope = fill(p.alibi, p.heads_q);
  in.sink = fill(p.sink, p.heads_q);
  in.tau = fill(p.normalizer == Normalizer::elastic, p.heads_q);
  for (double& x : in.slope) x = std::fabs(x) / 4;
  for (double& x : in.tau) x = tau + x / 8;
  in.keep.resize(size_t(p.keep ? p.keep.batch * p.keep.heads * p.keep.rows * p.seq_kv : 0));
  for (uint8_t& x : in.keep) x = engine() % 4 != 0 ? 1 + engine() % 255 : 0;
  // A row without a kept key, and lengths of 0, in the middle and at the end.
  if (p.keep.rows > 2) std::fill_n(in.keep.begin() + p.seq_kv, p.seq_kv, uint8_t(0));
  const auto lengths = [&](Lengths mode, int64_t size, bool empty, std::vector<int64_t>* to) {
    for (int64_t b = 0; mode != Lengths::full && b < p.batch; ++b)
      to->push_back(b == 0 ? size - 1 : b == 1 && empty ? 0 : size - b % 3);
  };
  lengths(p.lengths_q, p.seq_q, p.batch > 2, &in.lengths_q);
  lengths(p.lengths_kv, p.seq_kv, p.batch > 3, &in.lengths_kv);
  if (p.dropout > 0) in.dropout_seed = 0x123456789abcdefULL + seed, in.dropout_offset = seed;
  return in;
}

double loss(Problem p, const RefInputs& in) {
  p.backward = false;
  p.gradients = 0;
  const Reference r = reference(p, in);
  double sum = 0;
  for (size_t n = 0; n < r.o.size(); ++n) sum += in.d_o[n] * r.o[n];
  return sum;
}

struct Parameter {
  const char* name;
  std::vector<double> RefInputs::*values;
  std::vector<double> Reference::*gradient;
  std::vector<double> Reference::*floor;
  uint32_t bit;
};
const Parameter kParameters[] = {
    {"q", &RefInputs::q, &Reference::d_q, &Reference::d_q_floor, TANDEM_GRAD_Q},
    {"k", &RefInputs::k, &Reference::d_k, &Reference::d_k_floor, TANDEM_GRAD_K},
    {"v", &RefInputs::v, &Reference::d_v, &Reference::d_v_floor, TANDEM_GRAD_V},
    {"bias", &RefInputs::bias, &Reference::d_bias, &Reference::d_bias_floor, TANDEM_GRAD_BIAS},
    {"dist_bias", &RefInputs::dist_bias, &Reference::d_dist_bias, &Reference::d_dist_bias_floor,
     TANDEM_GRAD_DIST_BIAS},
    {"slope", &RefInputs::slope, &Reference::d_slope, &Reference::d_slope_floor, TANDEM_GRAD_SLOPE},
    {"tau", &RefInputs::tau, &Reference::d_tau, &Reference::d_tau_floor, TANDEM_GRAD_TAU},
    {"sink", &RefInputs::sink, &Reference::d_sink, &Reference::d_sink_floor, TANDEM_GRAD_SINK}};

void check_gradients(const std::string& line, double tau) {
  CAPTURE(line);
  constexpr double eps = 1e-6, atol = 1e-6, rtol = 1e-5;
  const Problem p = checked(line);
  RefInputs in = draw(p, 5 + uint32_t(line.size()), tau);
  const Reference r = reference(p, in);
  for (const Parameter& x : kParameters) {
    CAPTURE(x.name);
    const std::vector<double>&gradient = r.*x.gradient, &floor = r.*x.floor;
    REQUIRE(gradient.size() == (p.wants(x.bit) ? (in.*x.values).size() : 0));
    REQUIRE(floor.size() == gradient.size());
    size_t nonzero = 0;
    for (size_t n = 0; n < gradient.size(); ++n) {
      CAPTURE(n);
      double& value = (in.*x.values)[n];
      const double kept = value;
      value = kept + eps;
      const double above = loss(p, in);
      value = kept - eps;
      const double below = loss(p, in);
      value = kept;
      const double want = (above - below) / (2 * eps);
      nonzero += gradient[n] != 0;
      CHECK(std::fabs(gradient[n] - want) <= atol + rtol * std::fabs(want));
      CHECK(std::fabs(gradient[n]) <= floor[n] * (1 + 1e-12));
    }
    if (p.wants(x.bit)) CHECK(nonzero > 0);
  }
}

}  // namespace

TEST_CASE("reference: gradients of each optional input equal central differences") {
  for (const char* line : {
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 bias:f32:2x4x4 d_bias:f32 grads=qkvb",
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 bias:f32:1x4x4 d_bias:f32 grads=qkvb",
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 bias:f32:2x2x4 d_bias:f32 grads=b",
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 bias:f32:2x1x4 d_bias:f32 grads=b",
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 bias:f32:2x4x1 d_bias:f32 grads=b",
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 bias:f32:1x2x1 d_bias:f32 grads=b",
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 bias:f32:1x1x1 d_bias:f32 grads=b",
           "bwd f32 hq2 sq5 sk6 d3 dist=3 grads=d",
           "bwd f32 hq2 sq5 sk6 d3 dist=9 bottom_right grads=qkvd",
           "bwd f32 hq2 sq5 sk6 d3 alibi grads=a",
           "bwd f32 hq2 sq5 sk6 d3 alibi bottom_right causal_bottom_right grads=qkva",
           "bwd f32 hq2 sq5 sk6 d3 elastic grads=t",
           "bwd f32 hq2 sq5 sk6 d3 elastic causal_top_left grads=qkvt",
           "bwd f32 hq2 sq5 sk6 d3 entmax=1.5",
           "bwd f32 hq2 sq5 sk6 d3 entmax=2",
           "bwd f32 hq2 sq5 sk6 d3 entmax=1.25",
           "bwd f32 hq2 sq5 sk6 d3 entmax=1.8",
           "bwd f32 hq2 sq5 sk6 d3 softcap=1.5",
           "bwd f32 hq4 hk2 sq5 sk6 d3 dropout=0.3",
           "bwd f32 hq2 sq5 sk6 d3 sink grads=qkvs",
           "bwd f32 hq2 sq5 sk6 d3 sink grads=s",
           "bwd f32 b2 hq2 sq5 sk6 d3 keep:2x1x5",
           "bwd f32 b4 hq2 sq5 sk6 d3 q_padded kv_padded causal_bottom_right",
           "bwd f32 b3 hq2 sq5 sk6 d3 q_packed=15",
           "bwd f32 b3 hq2 sq5 sk6 d3 kv_padded left=2 right=1",
       })
    for (double tau : {-0.7, 0.5})
      if (tau < 0 || std::string(line).find("elastic") != std::string::npos)
        check_gradients(line, tau);
}

TEST_CASE("reference: gradients of combinations equal central differences") {
  const struct {
    const char *name, *line;
    double tau = -0.7;
  } cases[] = {
      {"Lazy", "bwd f32 b2 hq4 hk2 sq5 sk5 d3 causal_top_left elastic dist=4 grads=qkvdt"},
      {"Lazy, tau above 0",
       "bwd f32 b2 hq4 hk2 sq5 sk6 d3 causal_bottom_right elastic dist=4 dropout=0.2 grads=qkvdt",
       0.4},
      {"entmax 1.5, biases, lengths",
       "bwd f32 b3 hq4 hk2 sq4 sk5 d3 entmax=1.5 bias:f32:1x4x4 dist=3 alibi q_padded kv_padded "
       "causal_bottom_right d_bias:f32 grads=qkvbda"},
      {"sparsemax, keep, softcap",
       "bwd f32 b2 hq2 sq4 sk6 d3 dv2 entmax=2 keep:1x2x4 softcap=2 bias:f32:2x1x1 d_bias:f32 "
       "grads=qkvb"},
      {"entmax 1.25, dropout, window",
       "bwd f32 hq4 hk1 sq6 sk6 d4 dv3 entmax=1.25 dropout=0.4 left=3 right=2 alibi grads=qkva"},
      {"sink, softcap, window, grouped",
       "bwd f32 b2 hq6 hk2 sq5 sk6 d3 dv4 sink softcap=3 causal_bottom_right left=3 grads=qkvs"},
      {"everything, softmax",
       "bwd f32 b4 hq4 hk2 sq4 sk5 d3 dv2 causal_bottom_right left=3 softcap=2 bias:f32:1x2x4 "
       "dist=3 "
       "alibi keep:4x1x1 sink dropout=0.3 q_padded kv_padded d_bias:f32 grads=qkvbdas"},
      {"everything, elastic",
       "bwd f32 elastic b4 hq4 hk2 sq4 sk5 d3 dv2 causal_bottom_right left=3 softcap=2 "
       "bias:f32:4x2x1 "
       "dist=3 "
       "alibi keep:1x4x4 sink dropout=0.3 q_padded kv_padded d_bias:f32 grads=qkvbdats"},
      {"everything, elastic, tau above 0",
       "bwd f32 elastic b4 hq4 hk2 sq4 sk5 d3 dv2 bottom_right right=2 softcap=2 bias:f32:1x4x1 "
       "dist=8 "
       "alibi keep:4x4x1 sink dropout=0.3 kv_padded d_bias:f32 grads=qkvbdats",
       0.6},
      {"everything, entmax 1.5",
       "bwd f32 b4 hq4 hk2 sq4 sk5 d3 dv2 causal_top_left left=3 softcap=2 bias:f32:4x1x4 dist=3 "
       "alibi keep:1x2x4 dropout=0.3 q_padded kv_padded d_bias:f32 grads=qkvbda"},
      {"everything, entmax 1.25",
       "bwd f32 b4 hq4 hk2 sq4 sk5 d3 dv2 causal_bottom_right softcap=2 bias:f32:4x4x4 dist=6 "
       "alibi keep:4x4x4 dropout=0.3 q_padded d_bias:f32 grads=qkvbda"},
      {"negative scale, bias and sink",
       "bwd f32 b2 hq4 hk2 sq4 sk5 d3 scale=-0.7 sink bias:f32:1x1x4 elastic d_bias:f32 "
       "grads=qkvbst"},
  };
  for (const auto& c : cases) {
    CAPTURE(std::string(c.name));
    check_gradients(c.line, c.tau);
  }
}

TEST_CASE("reference: entmax finds its threshold whatever the scores") {
  std::mt19937 engine(3);
  std::normal_distribution<double> normal;
  for (int64_t count : {1, 2, 7, 300}) {
    std::vector<std::vector<double>> rows(5, std::vector<double>(size_t(count)));
    for (double& x : rows[0]) x = normal(engine);
    for (double& x : rows[1]) x = 100 * normal(engine);
    for (double& x : rows[2]) x = 3.25;
    for (double& x : rows[3]) x = normal(engine);
    rows[3][size_t(count / 2)] = 1e6;
    for (double& x : rows[4]) x = -infinity();
    rows[4][size_t(count - 1)] = -7;
    for (double alpha : {1.001, 1.01, 1.1, 1.25, 1.5, 1.7, 1.99, 2.0})
      for (size_t n = 0; n < rows.size(); ++n) {
        CAPTURE(count);
        CAPTURE(alpha);
        CAPTURE(n);
        std::vector<double> z = rows[n];
        for (double& x : z) x *= alpha - 1;
        const double t = entmax_threshold(z.data(), count, alpha);
        const double m = *std::max_element(z.begin(), z.end());
        CHECK(t >= m - 1);
        CHECK(t < m);
        double sum = 0;
        for (double x : z)
          if (x > t) sum += std::pow(x - t, 1 / (alpha - 1));
        // What the last bit of t and of z - t makes of the sum.
        const double ulp = 0x1p-52 * std::max(1.0, std::fabs(t)) / (alpha - 1);
        CHECK(std::fabs(sum - 1) <= 8 * ulp * std::pow(double(count), alpha - 1));
      }
  }
  const double nothing[] = {-infinity(), -infinity()}, nan[] = {0.0, NAN};
  CHECK(entmax_threshold(nothing, 2, 1.5) == -infinity());
  CHECK(std::isnan(entmax_threshold(nan, 2, 1.5)));
  CHECK(entmax_threshold(nothing, 0, 1.5) == -infinity());
}
