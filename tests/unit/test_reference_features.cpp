// SPDX-License-Identifier: MIT OR Apache-2.0
// The reference's optional inputs: every gradient, alone and combined, against central differences,
// and the edges of each.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpu/element.h"
#include "cpu/reference.h"
#include "problem/philox.h"
#include "reference_fixture.h"

namespace {

using namespace tandem;
using tandem_tests::checked;
using tandem_tests::draw;

double infinity() { return std::numeric_limits<double>::infinity(); }

double loss(Problem p, const RefInputs& in) {
  p.backward = false;
  p.gradients = 0;
  const Reference r = reference(p, in);
  double sum = 0;
  for (size_t n = 0; n < r.o.size(); ++n) sum += in.d_o[n] * r.o[n];
  // Rows that see no key have no part in it, whatever their d_lse.
  for (size_t n = 0; n < in.d_lse.size(); ++n)
    if (std::isfinite(r.lse[n])) sum += in.d_lse[n] * r.lse[n];
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
    {"bias_table", &RefInputs::bias_table, &Reference::d_bias_table, &Reference::d_bias_table_floor,
     TANDEM_GRAD_BIAS_TABLE},
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
           "bwd f32 b4 hq4 hk2 sq4 sk5 d3 bias:f32:2x4x4 d_bias:f32 grads=qkvb",
           "bwd f32 b6 hq2 hk1 sq3 sk4 d3 bias:f32:3x2x1 d_bias:f32 keep:2x1x3 grads=qkvb",
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 bias:f32:1x2x1 d_bias:f32 grads=b",
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 bias:f32:1x1x1 d_bias:f32 grads=b",
           "bwd f32 hq2 sq5 sk6 d3 dist=3 grads=d",
           "bwd f32 hq2 sq5 sk6 d3 dist=9 bottom_right grads=qkvd",
           "bwd f32 hq2 sq5 sk6 d3 alibi grads=a",
           "bwd f32 hq2 sq5 sk6 d3 alibi bottom_right causal_bottom_right grads=qkva",
           "bwd f32 b4 hq2 sq4 sk5 d3 alibi slopes=2 grads=qkva",
           "bwd f32 b6 hq2 hk1 sq3 sk4 d3 alibi slopes=6 sink sinks=3 grads=qas",
           "bwd f32 b4 hq2 sq3 sk4 d3 elastic sink sinks=2 grads=ts",
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
           "bwd f32 b2 hq4 hk2 sq5 sk6 d3 d_lse",
           "bwd f32 hq2 sq5 sk6 d3 d_lse causal_top_left softcap=3 sink grads=qkvs",
           "bwd f32 b4 hq2 sq5 sk6 d3 d_lse q_padded kv_padded sink grads=qks",
           "bwd f32 b2 hq4 hk2 sq4 sk5 d3 d_lse bias:f32:1x2x4 d_bias:f32 alibi dist=3 "
           "grads=qkvbad",
           "bwd f32 b2 hq4 hk2 sq5 sk6 d3 d_lse table=7:u8:1 dropout=0.25 grads=qkvi",
           "bwd f32 b2 hq2 sq5 sk6 d3 d_lse keep:2x1x5 grads=qk",
           "bwd f32 b2 hq4 hk2 sq5 sk6 d3 table=7:u8:1 grads=qkvi",
           "bwd f32 b2 hq2 sq5 sk6 d3 table=3:i32:2 causal_top_left softcap=3 grads=i",
           "bwd f32 b4 hq2 sq5 sk6 d3 table=5:u16:2 elastic q_padded kv_padded grads=qkvti",
           "bwd f32 b2 hq2 sq5 sk6 d3 spans=1:1x2",
           "bwd f32 b4 hq4 hk2 sq5 sk6 d3 spans=2:2x2 causal_top_left",
           "bwd f32 b4 hq2 sq5 sk6 d3 q_padded kv_padded causal_bottom_right",
           "bwd f32 b3 hq2 sq5 sk6 d3 q_packed=15",
           "bwd f32 b3 hq2 sq5 sk6 d3 kv_padded left=2 right=1",
       })
    for (double tau : {-0.7, 0.5})
      if (tau < 0 || std::string(line).find("elastic") != std::string::npos)
        check_gradients(line, tau);
}

TEST_CASE("reference: the derivative of a softcap keeps its bits far from 0") {
  const Problem p = checked("bwd f32 sq1 sk2 d1 dv1 scale=1 softcap=1 grads=k");
  RefInputs in = draw(p, 1);
  in.q = {1}, in.v = {0, 1}, in.d_o = {1};
  for (double score : {1.0, 9.0, 17.0, 40.0, 300.0}) {
    CAPTURE(score);
    in.k = {score, score};  // weights of 1/2, ds of -1/4 and 1/4
    const Reference r = reference(p, in);
    const double u = std::exp(-2 * score), want = u / ((1 + u) * (1 + u));
    CHECK(r.d_k[1] / want == doctest::Approx(1).epsilon(1e-12));
    CHECK(r.d_k[0] / want == doctest::Approx(-1).epsilon(1e-12));
  }
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

TEST_CASE("reference: entmax weights sum to 1, and a huge score takes all") {
  for (const char* alpha : {"1.01", "1.25", "1.5", "2"}) {
    CAPTURE(std::string(alpha));
    const Problem p =
        checked(std::string("bwd f32 hq2 sq7 sk9 d4 dv1 causal_bottom_right entmax=") + alpha);
    for (double size : {1.0, 100.0}) {
      RefInputs in = draw(p, 21);
      for (double& x : in.q) x *= size;
      std::fill(in.v.begin(), in.v.end(), 1.0);
      const Reference r = reference(p, in);
      for (double o : r.o) CHECK(std::fabs(o - 1) <= 1e-10);
      // All weights alike: nothing can move their sum.
      for (double d : r.d_q) CHECK(std::fabs(d) <= 1e-9 * size);
    }
  }
}

TEST_CASE("reference: elastic softmax at its kink, and n counts positions") {
  // Row 0 of a causal mask has n = 1: at tau = -1 its weight is 0 on the spot, and so is M.
  const Problem p = checked("bwd f32 sq5 d4 causal_top_left elastic grads=qkvt");
  RefInputs in = draw(p, 31);
  in.tau = {-1};
  for (Precision precision : {Precision::exact, Precision::stepwise}) {
    const Reference r = reference(p, in, precision);
    for (size_t c = 0; c < 4; ++c) {
      CHECK(r.o[c] == 0);
      CHECK(r.d_q[c] == 0);
    }
    CHECK(std::isfinite(r.lse[0]));
    CHECK(r.delta[0] == 0);
  }
  // Two keys are seen, one of them kept: its weight is 1 + tau / 2.
  const Problem kept = checked("fwd f32 sq1 sk2 d4 elastic keep:1x1x1");
  RefInputs two = draw(kept, 32);
  two.tau = {-0.5};
  two.keep = {0, 1};
  const Reference r = reference(kept, two);
  for (size_t c = 0; c < 4; ++c) CHECK(std::fabs(r.o[c] - 0.75 * two.v[4 + c]) <= 1e-15);
}

TEST_CASE("reference: rows without keys and rows behind a length, whatever else there is") {
  for (const char* normalizer : {"sink", "elastic sink", "entmax=1.5"}) {
    CAPTURE(std::string(normalizer));
    const Problem p = checked(std::string("bwd f32 b3 hq2 sq4 sk5 d3 keep:1x1x4 q_padded kv_padded "
                                          "alibi bias:f32:1x2x4 d_bias:f32 grads=qkvba ") +
                              normalizer);
    RefInputs in = draw(p, 41, 0.4);
    in.lengths_q = {3, 9, -2};
    in.lengths_kv = {5, 0, 4};
    const Reference r = reference(p, in, Precision::exact, 1, 0x1p-20);
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < 4; ++i) {
          const auto row = size_t((b * 2 + h) * 4 + i);
          const bool sees = b == 0 && i < 3 && i != 1;  // draw() keeps no key of row 1
          CHECK((r.lse[row] == -infinity()) == !sees);
          CHECK((r.delta[row] == 0) == !sees);
          for (size_t c = 0; c < 3; ++c) {
            CHECK((r.o[row * 3 + c] == 0) == !sees);
            CHECK((r.d_q[row * 3 + c] == 0) == !sees);
          }
        }
    for (const std::vector<double>* x : {&r.d_k, &r.d_v, &r.d_bias, &r.d_slope, &r.d_q_slack})
      for (double e : *x) CHECK(std::isfinite(e));
    for (size_t n = 2 * 5 * 3; n < r.d_k.size(); ++n) CHECK(r.d_k[n] == 0);
  }
}

TEST_CASE("reference: f32 steps stay within floors and slack, next to kinks too") {
  const char* lines[] = {
      "bwd f32 hq2 sq17 sk23 d8 entmax=2",
      "bwd f32 hq2 sq17 sk23 d8 entmax=1.75 bias:f32:1x1x1 d_bias:f32 grads=qkvb",
      "bwd f32 hq2 sq17 sk23 d8 entmax=1.5 softcap=3 alibi grads=qkva",
      "bwd f32 hq2 sq17 sk23 d8 entmax=1.05",
      "bwd f32 hq2 sq17 sk23 d8 elastic dist=5 dropout=0.2 causal_bottom_right grads=qkvdt",
      "bwd f32 hq2 sq17 sk23 d8 elastic sink alibi grads=qkvats",
      "bwd f32 hq2 sq17 sk23 d8 sink alibi softcap=2 bias:f32:1x2x17 d_bias:f32 grads=qkvbas",
  };
  const double u = 0x1p-24;
  size_t count = 0, used = 0, large = 0;  // elements, those that needed their slack or have much
  for (const char* line : lines)
    for (uint32_t seed = 0; seed < 8; ++seed) {
      CAPTURE(std::string(line));
      CAPTURE(seed);
      const Problem p = checked(line);
      RefInputs in = draw(p, seed);
      // Few distinct scores: many of them end up next to a threshold.
      for (std::vector<double>* x : {&in.q, &in.k})
        for (double& e : *x) e = std::round(e);
      for (std::vector<double>* x :
           {&in.v, &in.d_o, &in.bias, &in.dist_bias, &in.slope, &in.tau, &in.sink})
        for (double& e : *x) e = float(e);
      const Reference truth = reference(p, in, Precision::exact, 1, 8 * u),
                      step = reference(p, in, Precision::stepwise);
      const auto check = [&](const char* name, const std::vector<double>& want,
                             const std::vector<double>& got, const std::vector<double>& floor,
                             const std::vector<double>& slack) {
        CAPTURE(std::string(name));
        REQUIRE(slack.size() == want.size());
        for (size_t n = 0; n < want.size(); ++n) {
          const double error = std::fabs(got[n] - want[n]), bound = 64 * u * floor[n];
          ++count;
          used += error > bound;
          large += slack[n] > 1e-3 * floor[n];
          CHECK(error <= bound + slack[n]);
          if (p.normalizer == Normalizer::softmax) CHECK(slack[n] <= bound);  // of o's rounding
        }
      };
#define TANDEM_CHECK(x) check(#x, truth.x, step.x, truth.x##_floor, truth.x##_slack)
      TANDEM_CHECK(o);
      TANDEM_CHECK(d_q);
      TANDEM_CHECK(d_k);
      TANDEM_CHECK(d_v);
      TANDEM_CHECK(d_bias);
      TANDEM_CHECK(d_dist_bias);
      TANDEM_CHECK(d_slope);
      TANDEM_CHECK(d_tau);
      TANDEM_CHECK(d_sink);
#undef TANDEM_CHECK
    }
  CHECK(used > 0);
  CHECK(large * 50 < count);  // slack is for the few next to a kink
}

TEST_CASE("reference: dropout drops its share, the same in every precision") {
  const Problem p = checked("fwd f32 b2 hq3 sq40 sk50 d4 dropout=0.25");
  RefInputs in = draw(p, 51);
  std::fill(in.q.begin(), in.q.end(), 0.0);
  std::fill(in.v.begin(), in.v.end(), 1.0);
  const Reference r = reference(p, in), step = reference(p, in, Precision::stepwise);
  double mean = 0;
  for (size_t n = 0; n < r.o.size(); ++n) {
    mean += r.o[n] / double(r.o.size());
    CHECK(std::fabs(r.o[n] - step.o[n]) <= 1e-5);
  }
  CHECK(std::fabs(mean - 1) <= 0.02);
  in.dropout_offset += 1;
  CHECK(reference(p, in).o != r.o);
  in.dropout_offset -= 1;
  in.dropout_seed += uint64_t(1) << 32;
  CHECK(reference(p, in).o != r.o);
}

TEST_CASE("philox: the published known answers") {
  const struct {
    TandemPhilox counter;
    uint32_t key0, key1;
    TandemPhilox words;
  } known[] = {
      {{0, 0, 0, 0}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, ~0u, ~0u, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0xa4093822,
       0x299f31d0,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& k : known) {
    const TandemPhilox got = tandem_philox(k.counter, k.key0, k.key1);
    CHECK(got.x == k.words.x);
    CHECK(got.y == k.words.y);
    CHECK(got.z == k.words.z);
    CHECK(got.w == k.words.w);
  }
  const TandemPhilox c = tandem_dropout_words(7, 5, 3, 11, 13, 17),
                     d = tandem_philox({3, 5, 7, 17}, 11, 13);
  CHECK(c.x == d.x);
  CHECK(c.w == d.w);
  CHECK(dropout_threshold(0.5f) == 0x80000000u);
  CHECK(dropout_threshold(0) == 0);
}
