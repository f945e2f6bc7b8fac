// SPDX-License-Identifier: MIT OR Apache-2.0
// What a repeated run may change, and what not, on a device that writes what a test tells it.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "../parity/recorded_session.h"
#include "magnitudes.h"
#include "problem/problem.h"

using namespace tandem::harness;

namespace {

// An H100 that gives the results of cpu.ref. spoil(run, outputs) changes those of each run of the
// backward.
class Repeated {
 public:
  using Spoil = std::function<void(int, Outputs*)>;
  explicit Repeated(const std::string& line, const Magnitudes& m = {}) : m_(m) {
    const tandem_problem p = parse(line);
    CaseOptions options;
    options.repeats = 3;
    test_ = std::make_unique<Case>(p, 7, options);
    fill_magnitudes(m, *test_);
    const CaseResult result = test_->run(*Session::open("cpu/ref"), &good_);
    REQUIRE_MESSAGE(result.ok, result.message);
    device_ = open_recorded("h100_cuda", {});
  }

  CaseResult run(const Spoil& spoil = {}) {
    int runs = 0;
    recorded_execute = [&](const tandem::Problem& p, const tandem_args& args) {
      const auto write = [](const tandem_buffer& to, const void* from, size_t bytes) {
        std::memcpy(reinterpret_cast<void*>(uintptr_t(to.handle + to.offset)), from, bytes);
      };
      if (!p.backward) {
        write(args.o, good_.o.bytes.data(), good_.o.bytes.size());
        write(args.lse, good_.lse.data(), good_.lse.size() * sizeof(float));
        return;
      }
      Outputs now = good_;
      if (spoil) spoil(++runs, &now);
      write(args.d_q, now.d_q.bytes.data(), now.d_q.bytes.size());
      write(args.d_k, now.d_k.bytes.data(), now.d_k.bytes.size());
      write(args.d_v, now.d_v.bytes.data(), now.d_v.bytes.size());
    };
    CaseResult result;
    if (m_.usual()) {
      result = test_->run_and_judge(*device_, &outputs);
    } else {
      const MagnitudeRules rules(*test_);
      result = run_and_judge(*test_, rules, *device_, &outputs);
    }
    recorded_execute = {};
    return result;
  }

  Outputs outputs;

 private:
  Magnitudes m_;
  std::unique_ptr<Case> test_;
  std::unique_ptr<Session> device_;
  Outputs good_;
};

void scale_d_q(Outputs* x, double by) {
  for (int64_t c = 0; c < x->d_q.dims.d; ++c) x->d_q.set(0, 1, 20, c, by * x->d_q.get(0, 1, 20, c));
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("support: sums in any order are judged in every run") {
  Magnitudes ones, large;
  ones.v = Magnitudes::Values::ones;
  large.scores = Magnitudes::Scores::high;
  large.score = 100;
  for (const Magnitudes& m : {Magnitudes(), ones, large}) {
    CAPTURE(print(m));
    Repeated device("bwd f32 b1 hq2 hk2 sq70 sk129 d64", m);
    CaseResult result = device.run();
    CHECK_MESSAGE(result.ok, result.message);
    CHECK(result.path == "sm80");
    CHECK(device.outputs.d_q_again.empty());

    // Another order: other bits, by what the terms of a row let be; the same ones twice.
    result = device.run([](int run, Outputs* x) {
      if (run > 1) scale_d_q(x, 1 + 0x1p-22);
    });
    CHECK_MESSAGE(result.ok, result.message);
    if (m.v != Magnitudes::Values::ones) {
      REQUIRE(device.outputs.d_q_again.size() == 1);
      CHECK(device.outputs.d_q_again[0].run == 2);
    }

    // A row that one run lost, or another wrote twice.
    for (int wrong : {2, 3}) {
      result = device.run([&](int run, Outputs* x) {
        if (run == wrong)
          for (int64_t c = 0; c < 64; ++c) x->d_q.set(0, 1, 20, c, wrong + double(c));
      });
      CHECK_FALSE(result.ok);
      CHECK_MESSAGE(
          has(result.message, wrong == 2 ? "d_q: run 2: b0 h1 row 20" : "d_q: run 3: b0 h1 row 20"),
          result.message);
    }
    result = device.run([](int run, Outputs* x) {
      if (run == 3) x->d_q.set(0, 0, 5, 6, std::nan(""));
    });
    CHECK_MESSAGE(has(result.message, "d_q: run 3: b0 h0 row 5 column 6"), result.message);
  }
  // Half a row in random inputs, where the largest results are no larger.
  Repeated device("bwd f32 b1 hq2 hk2 sq70 sk129 d64");
  const CaseResult result = device.run([](int run, Outputs* x) {
    if (run == 2) scale_d_q(x, 0.5);
  });
  CHECK_MESSAGE(has(result.message, "d_q: run 2: b0 h1 row 20"), result.message);
}

TEST_CASE("support: all other repeats have the same bits, and leave gaps alone") {
  const std::string line = "bwd f32 b1 hq2 hk2 sq70 sk129 d64";
  const auto in_run_2 = [](const std::function<void(Outputs*)>& spoil) {
    return [spoil](int run, Outputs* x) {
      if (run == 2) spoil(x);
    };
  };
  CHECK(Repeated(line).run(in_run_2([](Outputs* x) { x->d_k.bytes[0] ^= 1; })).message ==
        "d_k: other bits in run 2");
  Repeated fixed(line + " deterministic");
  CHECK(fixed.run().ok);
  CHECK(fixed.run(in_run_2([](Outputs* x) { x->d_q.bytes[0] ^= 1; })).message ==
        "d_q: other bits in run 2");
  // Element 64 lies between two rows.
  Repeated gapped(line + " d_q=10080,5040,72,1");
  CHECK(gapped.run().ok);
  CHECK(gapped.run(in_run_2([](Outputs* x) { x->d_q.bytes[64 * 4] = 0; })).message ==
        "d_q: run 2: element 64, which belongs to no row, was written");
}
