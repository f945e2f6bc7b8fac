// SPDX-License-Identifier: MIT OR Apache-2.0
// What only the CPU device has: a choice of instruction sets, which the parity suite meets one of,
// and a choice of threads, which must not show in the bits.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "harness/compare.h"
#include "harness/session.h"

namespace {

using namespace tandem::harness;

// TANDEM_CPU_ISA for as long as this lives.
class ChosenIsa {
 public:
  explicit ChosenIsa(const std::string& isa) {
    if (const char* old = std::getenv("TANDEM_CPU_ISA")) kept_ = old;
    set(isa);
  }
  ~ChosenIsa() { set(kept_); }

 private:
  static void set(const std::string& isa) {
#ifdef _WIN32
    _putenv_s("TANDEM_CPU_ISA", isa.c_str());
#else
    setenv("TANDEM_CPU_ISA", isa.c_str(), 1);
#endif
  }
  std::string kept_;
};

std::unique_ptr<Session> open(uint32_t threads = 0) {
  SessionOptions options;
  options.disable = "cpu.ref";
  options.threads = threads;
  return Session::open("cpu", options);
}

// The instruction sets of this machine, from the message for one that it does not have.
std::vector<std::string> usable_isas() {
  const ChosenIsa none("none");
  std::string message;
  try {
    open();
  } catch (const Error& e) {
    message = e.what();
  }
  const size_t list = message.find("this machine has:");
  REQUIRE(list != std::string::npos);
  std::vector<std::string> names;
  for (const char* name : {"avx512_bf16", "avx512", "avx2", "baseline"})
    if ((message + " ").find(std::string(" ") + name + " ", list) != std::string::npos)
      names.push_back(name);
  return names;
}

bool same_bits(const Outputs& a, const Outputs& b) {
  bool same = a.lse == b.lse;
  for (Role role : kOutputs) same = same && a.tensor(role).bytes == b.tensor(role).bytes;
  return same;
}

using Value = std::function<double(int64_t h, int64_t i, int64_t c)>;
void fill(Case& test, Role role, const Value& value) {
  HostTensor& t = test.input(role);
  for (int64_t b = 0; b < t.dims.b; ++b)
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t i = 0; i < t.dims.s; ++i)
        for (int64_t c = 0; c < t.dims.d; ++c) t.set(b, h, i, c, value(h, i, c));
}
Value constant(double x) {
  return [x](int64_t, int64_t, int64_t) { return x; };
}
// +-1, the same for all rows.
double sign(int64_t c) { return c * 7 % 5 < 2 ? -1 : 1; }

tandem_problem parsed(const std::string& line) {
  tandem_problem p;
  tandem_problem_init(&p);
  REQUIRE_MESSAGE(tandem_problem_parse(line.c_str(), &p) == TANDEM_OK, line);
  return p;
}

// test(isa's session), on each instruction set of this machine.
void on_every_isa(const std::function<void(Session&)>& test) {
  for (const std::string& isa : usable_isas()) {
    CAPTURE(isa);
    const ChosenIsa chosen(isa);
    test(*open());
  }
}

void check_within(const char* name, const HostTensor& got, const std::vector<double>& want,
                  double tolerance) {
  CAPTURE(name);
  const std::vector<double> values = got.dense();
  REQUIRE(values.size() == want.size());
  size_t wrong = 0;
  double worst = 0;
  for (size_t n = 0; n < want.size(); ++n) {
    const double error = std::fabs(values[n] - want[n]);
    worst = error > worst ? error : worst;
    wrong += !(error <= tolerance);
  }
  CAPTURE(worst);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("cpu: every instruction set computes random problems") {
  const std::vector<std::string> isas = usable_isas();
  REQUIRE(!isas.empty());
  CHECK(isas.back() == "baseline");
  for (const std::string& isa : isas) {
    CAPTURE(isa);
    const ChosenIsa chosen(isa);
    const auto session = open();
    for (uint64_t seed = 1; seed <= 24; ++seed) {
      RandomLimits limits;
      limits.max_work = 1000000;
      const tandem_problem problem = random_problem(seed, limits);
      const CaseResult result = run_case(*session, problem, seed, random_options(seed));
      CAPTURE(repro(problem, seed));
      CHECK(result.path == "simd");
      CHECK_MESSAGE(result.ok, result.message);
    }
  }
}

TEST_CASE("cpu: the number of threads does not show in the bits") {
  std::vector<tandem_problem> problems;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    RandomLimits limits;
    limits.backward_only = true;
    problems.push_back(random_problem(seed, limits));
  }
  // Sums over rows, in parts of several tiles.
  for (const char* line :
       {"bwd f32 b5 hq4 hk2 sq200 sk130 d16 dv8 dist=150 table=40:u8:1 dropout=0.25 grads=qkvdi",
        "bwd f32 b2 hq2 hk1 sq300 sk200 d8 dv8 dist=9 bias:f32:1x1x1 grads=qbd d_bias:f32",
        "bwd bf16 b3 hq2 hk2 sq150 sk150 d16 dv16 elastic alibi sink table=3000:i32:3 grads=kvtasi",
        "bwd f32 b2 hq2 hk2 sq130 sk130 d8 dv8 entmax=1.25 dist=40 blocks=64x64:2+1:1x2 grads=d"})
    problems.push_back(parsed(line));
  uint64_t seed = 0;
  for (const tandem_problem& problem : problems) {
    Case random_case(problem, ++seed);
    CAPTURE(repro(problem, seed));
    Outputs alone;
    const auto one = open(1);
    CHECK(random_case.run(*one, &alone).ok);
    for (uint32_t threads : {2u, 3u, 7u}) {
      CAPTURE(threads);
      Outputs together;
      const auto many = open(threads);
      CHECK(random_case.run(*many, &together).ok);
      CHECK(same_bits(alone, together));
    }
  }
}

// exp(s - lse) of an f32 lse: from 1e8 on the weights of rows with equal keys summed to the number
// of keys.
TEST_CASE("regression: cpu.simd, equal keys with large scores") {
  on_every_isa([](Session& session) {
    for (double score : {1e4, 1e6, 1e8, 1e10, 1e30, -1e6, -1e10, -1e30})
      for (const char* grads : {"qkv", "v", "k", "q"})
        for (const char* mask : {"", "causal_bottom_right", "causal_top_left left=9"}) {
          if (std::fabs(score) > 1e10 && std::string(grads) == "q") continue;
          const std::string line =
              std::string("bwd f32 hq4 hk2 sq70 sk90 d16 dv8 scale=1 grads=") + grads + " " + mask;
          CAPTURE(line);
          CAPTURE(score);
          Case test(parsed(line), 11);
          const double a = std::exp2(std::round(std::log2(std::fabs(score) / 16) / 2));
          fill(test, Role::q, [&](int64_t, int64_t i, int64_t c) {
            // Some rows have a score of 0.
            return i % 5 == 3 ? 0 : a * sign(c) * (score < 0 ? -1 : 1);
          });
          fill(test, Role::k, [&](int64_t, int64_t, int64_t c) { return a * sign(c); });
          Outputs got;
          const CaseResult result = test.run(session, &got);
          REQUIRE_MESSAGE(result.ok, result.message);
          check_within("o", got.o, test.reference(Role::o), 1e-5);
          // d_k is a sum of ds q, and d_q one of ds k, which are all alike: 0, but for rounding.
          const std::string wanted = grads;
          if (wanted.find('v') != std::string::npos)
            check_within("d_v", got.d_v, test.reference(Role::d_v), 1e-4);
          if (wanted.find('k') != std::string::npos)
            check_within("d_k", got.d_k, test.reference(Role::d_k), 1e-3 * a);
          if (wanted.find('q') != std::string::npos)
            check_within("d_q", got.d_q, test.reference(Role::d_q), 1e-3 * a);
        }
  });
}

TEST_CASE("cpu: one key far above the others takes all, exactly") {
  on_every_isa([](Session& session) {
    for (double score : {1e5, 1e6, 1e7, 1e8, 1e20, 1e36})
      for (const char* grads : {"qkv", "v"}) {
        CAPTURE(score);
        const std::string line = std::string("bwd f32 sq12 sk40 d128 dv128 grads=") + grads;
        Case test(parsed(line), 12);
        const double a = std::sqrt(score / std::sqrt(128.));
        fill(test, Role::q, [&](int64_t, int64_t i, int64_t c) {
          return a * (1 + 0.37 * double(i) / 12) * sign(c);
        });
        HostTensor& k = test.input(Role::k);
        for (int64_t c = 0; c < 128; ++c) k.set(0, 0, 7, c, a * sign(c));
        for (int64_t j = 0; j < 40; ++j)
          for (int64_t c = 0; j != 7 && c < 128; ++c) k.set(0, 0, j, c, 0.1 * k.get(0, 0, j, c));
        Outputs got;
        const CaseResult result = test.run(session, &got);
        REQUIRE_MESSAGE(result.ok, result.message);
        const std::vector<double> v = test.input(Role::v).dense(),
                                  d_o = test.input(Role::d_o).dense();
        size_t wrong = 0;
        for (int64_t c = 0; c < 128; ++c) {
          double sum = 0;
          for (int64_t i = 0; i < 12; ++i) {
            wrong += got.o.get(0, 0, i, c) != v[size_t(7 * 128 + c)];
            sum += d_o[size_t(i * 128 + c)];
          }
          for (int64_t j = 0; j < 40; ++j)
            wrong += !(std::fabs(got.d_v.get(0, 0, j, c) - (j == 7 ? sum : 0)) <= 1e-5);
        }
        CHECK(wrong == 0);
        if (std::string(grads) == "v") continue;
        // p is 1 or 0, dp - delta and with it ds 0, exactly.
        for (const HostTensor* t : {&got.d_q, &got.d_k})
          for (double x : t->dense()) wrong += x != 0;
        CHECK(wrong == 0);
      }
  });
}

TEST_CASE("cpu: weights sum to 1 in both directions, whatever the scores") {
  on_every_isa([](Session& session) {
    for (double size : {0.0, 1e-20, 1.0, 60.0, 1e3, 1e5, 1e15, 1e17})
      for (const char* dtype : {"f32", "bf16"})
        for (const char* mask : {"", "causal_top_left", "left=20 right=3"}) {
          const std::string line =
              std::string("bwd ") + dtype + " hq2 hk1 sq77 sk70 d24 dv8 " + mask;
          CAPTURE(line);
          CAPTURE(size);
          Case test(parsed(line), 13);
          for (Role role : {Role::q, Role::k}) {
            HostTensor& t = test.input(role);
            std::vector<double> x = t.dense();
            for (double& e : x) e *= size;
            t.set_dense(x);
          }
          fill(test, Role::v, constant(1));
          fill(test, Role::d_o, constant(1));
          Outputs got;
          const CaseResult result = test.run(session, &got);
          REQUIRE_MESSAGE(result.ok, result.message);
          const bool half = std::string(dtype) == "bf16";
          double rows = 0;
          size_t wrong = 0;
          for (size_t n = 0; n < got.lse.size(); ++n) {
            const bool sees = got.lse[n] != -std::numeric_limits<float>::infinity();
            rows += sees;
            for (int64_t c = 0; c < 8; ++c)
              wrong +=
                  !(std::fabs(got.o.get(0, int64_t(n) / 77, int64_t(n) % 77, c) - sees) <= 1e-5);
          }
          CHECK(wrong == 0);
          for (int64_t c = 0; c < 8; ++c) {
            double sum = 0;
            for (int64_t j = 0; j < 70; ++j) sum += got.d_v.get(0, 0, j, c);
            CHECK(std::fabs(sum - rows) <= (half ? 5e-3 : 5e-4) * rows);
          }
          // dp - delta is 0, but for roundings of weights: of f32's lse, where no row is far.
          for (const HostTensor* t : {&got.d_q, &got.d_k})
            for (double x : t->dense()) wrong += !(std::fabs(x) <= 0.02 * (size + 1e-30));
          CHECK(wrong == 0);
        }
  });
}

// Sums of p v are beyond f32 where their mean is not.
TEST_CASE("regression: cpu.simd, the largest values") {
  on_every_isa([](Session& session) {
    for (const char* dtype : {"f32", "bf16", "f16"})
      for (const char* mask : {"", "causal_bottom_right"}) {
        const std::string line =
            std::string("fwd ") + dtype + " hq2 hk1 sq40 sk150 d16 dv24 " + mask;
        CAPTURE(line);
        Case test(parsed(line), 14);
        const double most = dtype[0] == 'b' ? 3.3895313892515355e38
                            : std::string(dtype) == "f16"
                                ? 65504
                                : double(std::numeric_limits<float>::max());
        fill(test, Role::v, [&](int64_t, int64_t j, int64_t c) {
          return c == 0   ? most
                 : c == 1 ? -most
                 : c == 2 ? (j % 2 ? most : -most)
                          : double(c + j % 3);
        });
        Outputs got;
        CaseResult result = test.run(session, &got);
        REQUIRE_MESSAGE(result.ok, result.message);
        size_t wrong = 0;
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < 40; ++i) {
            wrong += !(std::fabs(got.o.get(0, h, i, 0) / most - 1) <= 1e-5);
            wrong += !(std::fabs(got.o.get(0, h, i, 1) / most + 1) <= 1e-5);
          }
        CHECK(wrong == 0);
        for (double x : got.o.dense()) wrong += !std::isfinite(x);
        CHECK(wrong == 0);
        test.judge(got, &result);
        CHECK_MESSAGE(result.ok, result.message);
      }
  });
}
