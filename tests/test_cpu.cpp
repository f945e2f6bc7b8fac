// SPDX-License-Identifier: MIT OR Apache-2.0
// What only the CPU device has: a choice of instruction sets, which the parity suite meets one of, and a
// choice of threads, which must not show in the bits.
#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "support/compare.h"
#include "support/support.h"

namespace {

using namespace tandem::support;

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
  for (const char* name : {"avx512", "avx2", "baseline"})
    if (message.find(std::string(" ") + name, list) != std::string::npos) names.push_back(name);
  return names;
}

bool same_bits(const Outputs& a, const Outputs& b) {
  return a.o.bytes == b.o.bytes && a.lse == b.lse && a.d_q.bytes == b.d_q.bytes &&
         a.d_k.bytes == b.d_k.bytes && a.d_v.bytes == b.d_v.bytes;
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
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    RandomLimits limits;
    limits.backward_only = true;
    Case random_case(random_problem(seed, limits), seed);
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
