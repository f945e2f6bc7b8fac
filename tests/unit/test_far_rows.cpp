// SPDX-License-Identifier: MIT OR Apache-2.0
// Scores far from 0 in the reference and on cpu.ref: a row's weights sum to 1 in the forward and in
// the backward, whatever finite number masks it, and minus infinity alone hides. cpu.simd:
// test_cpu.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cpu/reference.h"
#include "harness/compare.h"
#include "harness/session.h"
#include "reference_fixture.h"

namespace {

using namespace tandem;
using tandem_tests::checked;
using tandem_tests::draw;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLowest = -double(std::numeric_limits<float>::max());
const double kMasks[] = {-1e4, -1e6, -1e8, -1e10, -1e16, -1e20, -1e30, kLowest, 1e10, 3e38};

void check_near(const std::string& name, const std::vector<double>& got,
                const std::vector<double>& want, double tolerance) {
  CAPTURE(name);
  REQUIRE(got.size() == want.size());
  for (size_t n = 0; n < got.size(); ++n) {
    CAPTURE(n);
    CHECK(std::fabs(got[n] - want[n]) <= tolerance * (1 + std::fabs(want[n])));
  }
}

void check_near(const Reference& got, const Reference& want, double tolerance) {
  check_near("o", got.o, want.o, tolerance);
  check_near("d_q", got.d_q, want.d_q, tolerance);
  check_near("d_k", got.d_k, want.d_k, tolerance);
  check_near("d_v", got.d_v, want.d_v, tolerance);
  check_near("d_bias", got.d_bias, want.d_bias, tolerance);
  check_near("d_slope", got.d_slope, want.d_slope, tolerance);
  check_near("d_tau", got.d_tau, want.d_tau, tolerance);
  check_near("d_sink", got.d_sink, want.d_sink, tolerance);
}

const char* const kLines[] = {
    "bwd f32 hq2 sq3 sk7 d4 bias:f32:1x2x3 d_bias:f32 grads=qkvb",
    "bwd f32 hq2 sq3 sk7 d4 bias:f32:1x2x3 d_bias:f32 sink dropout=0.3 grads=qkvbs",
    "bwd f32 hq2 sq7 sk7 d4 bias:f32:1x2x7 d_bias:f32 elastic sink causal_top_left grads=qkvbts",
    "bwd f32 hq2 sq3 sk7 d4 bias:f32:1x2x3 d_bias:f32 entmax=1.5 grads=qkvb",
    "bwd f32 hq2 sq3 sk7 d4 bias:f32:1x2x3 d_bias:f32 entmax=2 dropout=0.3 grads=qkvb",
    "bwd f32 hq2 sq3 sk7 d4 bias:f32:1x2x3 d_bias:f32 entmax=1.25 grads=qkvb",
};

// Outputs of cpu.ref, its own forward first.
class OnCpuRef {
 public:
  explicit OnCpuRef(const std::string& line) : test_(parsed(line), 5) {}
  harness::Case& test() { return test_; }
  void fill(harness::Role role, double value) {
    harness::HostTensor& t = test_.input(role);
    t.set_dense(std::vector<double>(size_t(t.dims.count()), value));
  }
  const harness::Outputs& run() {
    harness::SessionOptions options;
    options.disable = "cpu.simd";
    const auto session = harness::Session::open("cpu", options);
    const harness::CaseResult result = test_.run(*session, &outputs_);
    REQUIRE_MESSAGE(result.ok, result.message);
    return outputs_;
  }

 private:
  static tandem_problem parsed(const std::string& line) {
    tandem_problem p;
    REQUIRE(parse_problem(line.c_str(), &p).ok());
    return p;
  }
  harness::Case test_;
  harness::Outputs outputs_;
};

}  // namespace

// ln(sum) is lost in a double next to a large lse as well: the weights of the backward were 1.
TEST_CASE("reference: rows under one finite number are rows without it") {
  for (const char* line : kLines)
    for (Precision precision : {Precision::exact, Precision::stepwise}) {
      CAPTURE(std::string(line));
      const Problem p = checked(line);
      RefInputs in = draw(p, 3);
      // All scores of a row are one number, so that no rounding decides between keys.
      std::fill(in.q.begin(), in.q.end(), 0.0);
      std::fill(in.bias.begin(), in.bias.end(), 0.0);
      std::fill(in.sink.begin(), in.sink.end(), 0.0);
      const Reference want = reference(p, in, precision, 1, 0x1p-20);
      for (double mask : kMasks) {
        CAPTURE(mask);
        std::fill(in.bias.begin(), in.bias.end(), mask);
        std::fill(in.sink.begin(), in.sink.end(), mask);
        const Reference got = reference(p, in, precision, 1, 0x1p-20);
        // Up to 4096 the threshold of steps in f32 is f32's.
        check_near(got, want, precision == Precision::exact ? 1e-11 : mask == -1e4 ? 1e-3 : 1e-5);
        for (const std::vector<double>* x : {&got.o_slack, &got.d_q_slack, &got.d_k_slack})
          for (double e : *x) CHECK(std::isfinite(e));
      }
    }
}

TEST_CASE("reference: gradients under large numbers equal central differences") {
  // Scores that differ, as far as a double still has differences for a step of 1e-3.
  constexpr double eps = 1e-3, tolerance = 1e-4;
  for (const char* line : kLines)
    for (double mask : {-1e6, 1e7}) {
      CAPTURE(std::string(line));
      CAPTURE(mask);
      const Problem p = checked(line);
      Problem forward = p;
      forward.backward = false, forward.gradients = 0;
      RefInputs in = draw(p, 8, -0.2);
      for (double& x : in.bias) x += mask;
      for (double& x : in.sink) x += mask;
      const Reference r = reference(p, in);
      const auto loss = [&] {
        const std::vector<double> o = reference(forward, in).o;
        double sum = 0;
        for (size_t n = 0; n < o.size(); ++n) sum += in.d_o[n] * o[n];
        return sum;
      };
      size_t nonzero = 0;
      const auto check = [&](const char* name, std::vector<double>& values,
                             const std::vector<double>& gradient) {
        CAPTURE(std::string(name));
        for (size_t n = 0; n < gradient.size(); ++n) {
          double& x = values[n];
          const double kept = x;
          x = kept + eps;
          const double above = loss();
          x = kept - eps;
          const double below = loss();
          x = kept;
          const double want = (above - below) / (2 * eps);
          nonzero += gradient[n] != 0;
          // An entmax of alpha 2 has kinks, and a step across one is off by its size.
          CHECK(std::fabs(gradient[n] - want) <= tolerance * (1 + std::fabs(want)));
        }
      };
      check("q", in.q, r.d_q);
      check("k", in.k, r.d_k);
      check("v", in.v, r.d_v);
      check("bias", in.bias, r.d_bias);
      check("tau", in.tau, r.d_tau);
      check("sink", in.sink, r.d_sink);
      CHECK(nonzero > 0);
    }
}

TEST_CASE("reference: scores rounded to f32, on request") {
  const Problem p = checked("bwd f32 hq2 sq3 sk7 d4 bias:f32:1x1x1 alibi grads=qkva");
  RefInputs in = draw(p, 4);
  std::fill(in.bias.begin(), in.bias.end(), -1e10);
  const Reference exact = reference(p, in);
  const Reference rounded = reference(p, in, Precision::exact, 1, 0, true);
  size_t differ = 0;
  for (size_t h = 0; h < 2; ++h)
    for (size_t c = 0; c < 4; ++c) {
      double mean = 0;
      for (size_t j = 0; j < 7; ++j) mean += in.v[(h * 7 + j) * 4 + c] / 7;
      for (size_t i = 0; i < 3; ++i) {
        const size_t n = (h * 3 + i) * 4 + c;
        CHECK(std::fabs(rounded.o[n] - mean) <= 1e-12);
        differ += std::fabs(exact.o[n] - mean) > 1e-3;
      }
    }
  CHECK(differ > 12);
  // And of f32's own accuracy, and no more, next to 0.
  std::fill(in.bias.begin(), in.bias.end(), 0.5);
  const Reference a = reference(p, in), b = reference(p, in, Precision::exact, 1, 0, true);
  CHECK(a.o != b.o);
  check_near(b, a, 1e-5);
}

TEST_CASE("regression: a row of minus infinity sees nothing, sink or not") {
  for (const char* line : {"bwd f32 hq2 sq3 sk7 d4 bias:f32:1x1x3 sink grads=qkvbs d_bias:f32",
                           "bwd f32 hq2 sq3 sk7 d4 bias:f32:1x1x3 elastic sink grads=qkvbts "
                           "d_bias:f32"}) {
    CAPTURE(std::string(line));
    const Problem p = checked(line);
    RefInputs in = draw(p, 6, 0.4);
    std::fill_n(in.bias.begin() + 7, 7, -kInfinity);
    for (Precision precision : {Precision::exact, Precision::stepwise}) {
      const Reference r = reference(p, in, precision);
      for (size_t h = 0; h < 2; ++h) {
        CHECK(r.lse[h * 3 + 1] == -kInfinity);
        CHECK(std::isfinite(r.lse[h * 3]));
        for (size_t c = 0; c < 4; ++c) {
          CHECK(r.o[(h * 3 + 1) * 4 + c] == 0);
          CHECK(r.d_q[(h * 3 + 1) * 4 + c] == 0);
        }
      }
      for (size_t j = 0; j < 7; ++j) CHECK(r.d_bias[7 + j] == 0);
      for (double x : r.d_sink) CHECK(std::isfinite(x));
    }
    OnCpuRef on(line);
    on.test().input(harness::Role::bias).set_dense(in.bias);
    const harness::Outputs& got = on.run();
    CHECK(got.lse[1] == -kInfinity);
    CHECK(got.lse[4] == -kInfinity);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t c = 0; c < 4; ++c) CHECK(got.o.get(0, h, 1, c) == 0);
  }
}

TEST_CASE("regression: a key under minus infinity has no weight in elastic softmax either") {
  const Problem p = checked("bwd f32 sq2 sk3 d4 bias:f32:1x1x1 elastic grads=qkvt");
  RefInputs in = draw(p, 6);
  in.tau = {0.5};  // a share for every key that is seen
  in.bias = {0, -kInfinity, 0};
  const Reference r = reference(p, in);
  for (size_t c = 0; c < 4; ++c) {
    CHECK(r.d_v[4 + c] == 0);
    CHECK(r.d_k[4 + c] == 0);
    CHECK(r.d_v[c] != 0);
  }
  std::fill_n(in.v.begin() + 4, 4, 1e30);
  const Reference other = reference(p, in);
  CHECK(other.o == r.o);
  CHECK(other.d_tau == r.d_tau);
}

TEST_CASE("reference: finite sinks up to the largest numbers") {
  const Problem p = checked("bwd f32 hq2 sq3 sk7 d4 sink grads=qkvs"),
                without = checked("bwd f32 hq2 sq3 sk7 d4");
  RefInputs in = draw(p, 7);
  const Reference plain = reference(without, in);
  for (Precision precision : {Precision::exact, Precision::stepwise})
    for (double sink : {1e4, 1e10, 2.4e38, 3e38, -1e4, -2.4e38, -3e38}) {
      CAPTURE(sink);
      in.sink = {sink, sink};
      const Reference r = reference(p, in, precision);
      for (double x : r.d_sink) CHECK(x == 0);
      if (sink < 0)
        check_near("o", r.o, plain.o, 1e-5);
      else
        for (double x : r.o) CHECK(x == 0);
      for (double x : r.d_v) CHECK(std::isfinite(x));
    }
}

// The weights of the backward summed to the number of keys from -1e8 on, those of entmax to 0.4 to
// 20.
TEST_CASE("regression: rows masked in full by finite numbers on cpu.ref") {
  using harness::Role;
  for (const char* extra : {"", "sink ", "elastic ", "entmax=1.5 ", "entmax=2 ", "entmax=1.25 "})
    for (const char* grads : {"qkvb", "v"}) {
      const std::string line =
          std::string("bwd f32 hq4 hk2 sq6 sk50 d8 bias:f32:1x1x6 d_bias:f32 ") + extra +
          "grads=" + grads;
      CAPTURE(line);
      for (double mask : kMasks) {
        CAPTURE(mask);
        if (mask == kLowest && std::string(extra) == "sink ") continue;  // no sink is below it
        OnCpuRef on(line);
        std::vector<double> bias(6 * 50, 0.0);
        std::fill_n(bias.begin(), 4 * 50, mask);
        on.test().input(Role::bias).set_dense(bias);
        if (mask > 1e9 || mask < -1e9)
          on.fill(Role::q, 0);  // the largest score takes all otherwise
        on.fill(Role::v, 1);
        on.fill(Role::d_o, 1);
        if (std::string(extra) == "sink ") on.fill(Role::sink, -3e38);
        if (std::string(extra) == "elastic ") on.fill(Role::tau, 0);
        const harness::Outputs& got = on.run();
        for (double o : got.o.dense()) CHECK(std::fabs(o - 1) <= 1e-3);
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t c = 0; c < 8; ++c) {
            double sum = 0;
            for (int64_t j = 0; j < 50; ++j) sum += got.d_v.get(0, h, j, c);
            CHECK(std::fabs(sum - 12) <= 0.05);  // entmax below 4096 has f32's threshold
          }
        if (std::string(grads) == "v") continue;
        for (const harness::HostTensor* t : {&got.d_q, &got.d_k})
          for (double x : t->dense()) CHECK(std::fabs(x) <= 1e-2);
      }
    }
}

// o and lse by a kernel that forms scores in f32, where the mask leaves no difference between keys:
// they are not of the weights that a reference in double has, and sums of ds were not 0.
TEST_CASE("regression: o and lse of f32 kernels serve the reference's backward of far rows") {
  const Problem p = checked("bwd f32 sq5 sk40 d8 bias:f32:1x1x1 d_bias:f32 grads=qkvb");
  RefInputs in = draw(p, 9);
  for (double mask : {-1e6, -1e7, -1e9}) {
    CAPTURE(mask);
    std::fill(in.bias.begin(), in.bias.end(), mask);
    const Reference f32 = reference(p, in, Precision::exact, 1, 0, true);
    std::vector<double> lse = f32.lse, delta(5), d_bias(40), d_v(40 * 8);
    for (double& x : lse) x = float(x);
    RefHead head;
    head.q = in.q.data(), head.k = in.k.data(), head.v = in.v.data(), head.d_o = in.d_o.data();
    head.o = f32.o.data(), head.lse = lse.data(), head.delta = delta.data();
    head.bias = in.bias.data();
    head.stored_lse = head.stored_delta = true;
    bwd_dot_ref(p, Precision::exact, head, delta.data());
    bwd_dbias_ref(p, Precision::exact, head, d_bias.data(), nullptr, nullptr);
    bwd_dkv_ref(p, Precision::exact, head, nullptr, d_v.data(), nullptr, nullptr);
    double sum = 0, magnitude = 0;
    for (double x : d_bias) sum += x, magnitude += std::fabs(x);
    CHECK(magnitude > 0.1);
    CHECK(std::fabs(sum) <= 1e-12 * magnitude);
    for (size_t c = 0; c < 8; ++c) {
      double got = 0, want = 0;
      for (size_t j = 0; j < 40; ++j) got += d_v[j * 8 + c];
      for (size_t i = 0; i < 5; ++i) want += in.d_o[i * 8 + c];
      CHECK(std::fabs(got - want) <= 1e-12);
    }
  }
}
