// SPDX-License-Identifier: MIT OR Apache-2.0
// The backward over parts of the keys, given o and lse of them all, has the gradients of a call
// over all keys.
#include "magnitudes.h"

using namespace parity;

namespace {

void check_parts(const char* line, const std::vector<int64_t>& parts) {
  CAPTURE(std::string(line));
  Expect expect = sparse();
  expect.options.parts = parts;
  Case test(parse(line), seed_of(line), expect.options);
  for (Target& target : targets()) check_on(target, test, expect);
}

CaseOptions in_parts(const std::vector<int64_t>& parts) {
  CaseOptions options;
  options.parts = parts;
  return options;
}

// q so large that scores are some thousands, and one key of a row has nearly all of its weight.
Magnitudes large(double size) { return with_scores(Magnitudes::Scores::spread, size); }

}  // namespace

TEST_CASE("ratio: parts of the keys") {
  check_parts("bwd f32 b1 hq2 hk2 sq40 sk96 d64 dv64", {40, 56});
  check_parts("bwd f16 b2 hq4 hk2 sq70 sk100 d32 dv32 sink d_lse grads=qkvs", {32, 36, 32});
  check_parts(
      "bwd bf16 b2 hq2 hk1 sq70 sk128 d64 dv64 bias:f32:1x2x70 d_bias:f32 kv_padded "
      "grads=qkvb",
      {64, 64});
}

TEST_CASE("ratio: parts of the keys, other kernels" * doctest::skip(!at_least(Tier::ci))) {
  check_parts("bwd bf16 b2 hq4 hk2 sq130 sk200 d128 dv128", {128, 72});
  check_parts(
      "bwd f16 b8 hq3 hk3 sq49 sk48 d32 dv32 bias:f16:1x3x49 d_bias:f16 keep:8x1x49 "
      "grads=qkvb",
      {16, 32});
  check_parts("bwd f16 b2 hq2 hk1 sq90 sk96 d64 dv64 keep:2x1x90 softcap=5 sink grads=qkvs",
              {48, 48});
  check_parts("bwd f32 b3 hq2 hk1 sq60 sk72 d32 dv32 q_padded kv_padded d_lse", {24, 24, 24});
  check_parts("bwd f16 hq2 hk1 sq70 sk80 d192 dv192", {40, 40});
}

TEST_CASE("magnitudes: parts of the keys") {
  // What was off by 94 %: each part was normalised as if it were all keys.
  check_magnitudes(parse("bwd f32 b1 hq2 hk2 sq96 sk96 d64 dv64"), large(2e3), seed_of("parts", 1),
                   in_parts({40, 56}));
  check_magnitudes(parse("bwd bf16 b1 hq2 hk1 sq70 sk96 d64 dv64 sink grads=qkvs"), large(5e3),
                   seed_of("parts", 2), in_parts({32, 64}));
}

TEST_CASE("magnitudes: parts of the keys, of every size" * doctest::skip(!at_least(Tier::ci))) {
  uint64_t n = 10;
  for (double size : {1e3, 1e4, 1e5, 1e6, 1e7, 1e8}) {
    CAPTURE(size);
    for (const char* line :
         {"bwd f32 b1 hq2 hk2 sq40 sk96 d64 dv64", "bwd f16 b1 hq2 hk1 sq40 sk96 d64 dv64 d_lse",
          "bwd bf16 b2 hq2 hk1 sq40 sk96 d128 dv128 kv_padded sink grads=qkvs"})
      check_magnitudes(parse(line), large(size), seed_of("parts", n++), in_parts({40, 24, 32}));
  }
}
