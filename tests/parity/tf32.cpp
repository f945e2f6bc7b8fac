// SPDX-License-Identifier: MIT OR Apache-2.0
// f32 problems on paths that multiply by TF32: what TANDEM_FLAG_TF32 allows, and that nothing is
// lost without it.
#include <algorithm>
#include <cmath>

#include "parity.h"

using namespace parity;

namespace {

tandem_problem with_flag(tandem_problem p) {
  p.flags |= TANDEM_FLAG_TF32;
  return p;
}

}  // namespace

TEST_CASE("tf32: operands of 11 bits where the caller allows it") {
  check(with_flag(problem(TANDEM_BACKWARD, TANDEM_F32, {1, 4, 2, 70, 101, 64, 64}, kBottomRight)),
        seed_of("tf32", 1));
  check(with_flag(problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 2, 65, 65, 128, 96}, kWindow,
                          Layout::bhsd)),
        seed_of("tf32", 2));
  tandem_problem p =
      with_flag(problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 40, 130, 32, 32}, kNone));
  p.flags |= TANDEM_FLAG_DETERMINISTIC;
  check(p, seed_of("tf32", 3));
}

// The limits of TF32 would hide an f32 product of one term, and those of f32 must not let it pass.
TEST_CASE("tf32: the flag and nothing else gives bits away") {
  const tandem_problem whole = problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 64, 96, 64, 64});
  for (Target& target : targets()) {
    if (target.path != "sm80" || !takes(target, whole)) continue;
    Case plain(whole, seed_of("flag")), rounded(with_flag(whole), seed_of("flag"));
    Outputs a, b;
    CaseResult with = plain.run(*target.session, &a), without = rounded.run(*target.session, &b);
    REQUIRE(with.ok);
    REQUIRE(without.ok);
    plain.judge(a, &with);
    CHECK(with.worst_ratio() <= kRatioLimit);
    plain.judge(b, &without);
    int beyond = 0;
    for (const Judgement& j : without.judgements) beyond += j.tensor != "lse" && !j.ok;
    CHECK(beyond == 4);
  }
}

// Scores that spread by 5 and more: what q and k lose in their rounding is most of what o is off
// by.
TEST_CASE("tf32: large scores") {
  const std::pair<uint64_t, const char*> found[] = {
      {28358, "bwd f32 b3 hq1 hk1 sq32 sk32 d63 dv63 causal_top_left scale=0x1.18p-2 grads=v tf32"},
      {31669,
       "fwd f32 b1 hq2 hk1 sq113 sk75 d192 dv32 bottom_right left=111 scale=0x1.cp-2 tf32 "
       "splits=2"},
      {31677,
       "fwd f32 b1 hq4 hk1 sq48 sk47 d192 dv32 causal_bottom_right scale=0x1.3p-2 tf32 splits=5"}};
  for (const auto& [seed, line] : found) check(parse(line), seed, sparse());
}

// What a sum is cut off by has one sign: over many keys it would add up, were they one sum on
// tensor cores.
TEST_CASE("tf32: sums of many terms of one sign") {
  for (int side = 0; side < 2; ++side) {
    const int64_t sq = side ? 1500 : 24, sk = side ? 24 : 1500;
    Case test(problem(TANDEM_BACKWARD, TANDEM_F32, {1, 1, 1, sq, sk, 64, 64}), seed_of("one sign"));
    for (Role role : {Role::v, Role::d_o, Role::q, Role::k}) {
      std::vector<double> x = test.input(role).dense();
      for (double& n : x) n = 0.3 + std::fabs(n);
      test.input(role).set_dense(x);
    }
    check_case(test, sparse());
  }
}

// d_q of a row that sees one key is 0. dp took 11 bits of d_o and delta all: 2^-12 of the terms
// were left, 6e-4 of some 1.
TEST_CASE("tf32: rows that see one key have all but no d_q") {
  tandem_problem p =
      parse("bwd f32 b1 hq4 hk4 sq199 sk2 d128 dv128 causal_top_left left=0 right=5 tf32");
  Case test(p, seed_of("one key"));
  for (Target& target : targets()) {
    if (target.backend == "vulkan" || !takes(target, p)) continue;
    Outputs outputs;
    check_on(target, test, sparse(), &outputs);
    double largest = 0;
    for (double x : outputs.d_q.dense()) largest = std::max(largest, std::fabs(x));
    CHECK_MESSAGE(largest < 2e-5, target.name << ": d_q of " << largest);
  }
}
