// SPDX-License-Identifier: MIT OR Apache-2.0
// Tensors of f64, which cpu.ref alone computes, within a few roundings of f64. An array that passed
// through f32 on the way, as lse does beside other tensors, would be off by 10^8 times as much.
#include <cmath>

#include "parity.h"

using namespace parity;

namespace {

// Elements of the outputs, lse included, that f32 does not hold.
int64_t beyond_f32(const Outputs& outputs, Role role) {
  int64_t count = 0;
  const auto see = [&](double x) { count += std::isfinite(x) && x != double(float(x)); };
  if (role == Role::o)
    for (double x : outputs.lse_f64) see(x);
  for (double x : outputs.tensor(role).dense()) see(x);
  return count;
}

void check_all(std::initializer_list<const char*> lines) {
  for (const char* line : lines) {
    CAPTURE(std::string(line));
    if (!mine(parse(line))) continue;
    Expect expect = sparse();
    expect.options.repeats = 2;
    Case test(parse(line), seed_of(line), expect.options);
    for (Target& target : targets()) {
      Outputs outputs;
      if (lacks(target, test.problem()) || check_on(target, test, expect, &outputs) > 0) continue;
      CHECK(outputs.lse.empty());
      for (Role role : kOutputs)
        if (is_output(test.problem(), role) ||
            (role == Role::o && test.problem().direction == TANDEM_BACKWARD)) {
          CAPTURE(std::string(role_name(role)));
          CHECK(beyond_f32(outputs, role) > 0);
        }
    }
  }
}

}  // namespace

TEST_CASE("f64: within roundings of f64, every input and gradient") {
  check_all({"fwd f64 b2 hq4 hk2 sq20 sk31 d16 dv8 causal_bottom_right",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d16 dv8 left=9 right=4",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d15 dv9 scale=0x1.4p-2 layout=bshd d_lse",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d16 dv8 bias:f64:2x4x20 d_bias:f64 d_lse grads=qkvb",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d16 dv8 bias:f64:1x2x1 d_bias:f64 softcap=5 grads=qkvb",
             "bwd f64 b2 hq2 hk2 sq20 sk31 d16 dv8 bias:f32:1x2x20 d_bias:f64 grads=qkvb",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d8 dv8 table=60:u8:1 d_lse grads=qkvi",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d8 dv8 dist=12 grads=qkvd",
             "bwd f64 b4 hq4 hk2 sq20 sk31 d8 dv8 alibi slopes=2 sink sinks=2 d_lse grads=qkvas",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d8 dv8 keep:2x4x20 dropout=0.25 sink grads=qkvs",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d8 dv8 spans=1:2x1 q_padded kv_padded d_lse",
             "bwd f64 b3 hq2 hk1 sq20 sk31 d8 dv8 q_packed=50 kv_packed=70 causal_top_left alibi "
             "grads=qkva",
             "bwd f64 b1 hq2 hk1 sq100 sk130 d8 dv8 blocks=64x64:3+2:1x1",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d8 dv8 elastic alibi dist=40 grads=qkvdat",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d8 dv8 entmax=1.5 bias:f64:2x1x20 d_bias:f64 grads=qkvb",
             "bwd f64 b2 hq4 hk2 sq20 sk31 d8 dv8 entmax=1.25 alibi grads=qkva",
             "merge f64 b2 hq3 sq20 dv9 parts=3",
             "merge f64 b2 hq3 sq20 dv8 parts=2 into layout=bshd",
             "bwd_merge f64 b2 hq3 sq20 dv9 parts=3 d_lse"});
}

TEST_CASE("f64: random problems") {
  const int problems = at_least(Tier::ci) ? 64 : 16;
  RandomLimits limits;
  limits.f64 = 100;
  limits.max_work = 200000, limits.max_seq = 120;
  for (int n = 0; n < problems; ++n) {
    const uint64_t seed = seed_of("random f64", uint64_t(n) * kSameKernels);
    const tandem_problem p = random_problem(seed, limits);
    REQUIRE(p.q.dtype == TANDEM_F64);
    Expect expect = sparse();
    expect.options = random_options(seed);
    expect.options.repeats = 2;
    Case test(p, seed, expect.options);
    for (Target& target : targets())
      if (!lacks(target, p)) check_on(target, test, expect);
  }
}

// In every other path's own words, as tandem explain has them.
TEST_CASE("f64: paths that lack it say so") {
  const tandem_problem p = parse("bwd f64 b1 hq2 hk2 sq20 sk31 d16 dv16");
  for (Target& target : targets()) {
    if (target.recorded || target.path == "ref") continue;
    Case test(p, seed_of("refused"));
    Outputs outputs;
    const CaseResult result = test.run(*target.session, &outputs);
    CHECK(result.refused);
    CHECK_MESSAGE(result.message.find(target.backend + "." + target.path +
                                      ": it has no kernel for tensors of f64, which cpu.ref alone "
                                      "computes") != std::string::npos,
                  target.name << ": " << result.message);
  }
}
