// SPDX-License-Identifier: MIT OR Apache-2.0
// d_lse: the gradient of the loss with respect to lse, an input of the backward.
#include <cmath>

#include "magnitudes.h"

using namespace parity;

namespace {

// Puts NaN and infinities into d_lse wherever a row sees no key. Returns how many it found.
int64_t spoil_hidden_rows(Case& test) {
  HostTensor& t = test.input(Role::d_lse);
  const std::vector<double> lse = test.reference_lse();  // made before the values change
  const tandem_problem& p = test.problem();
  int64_t spoiled = 0;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < p.seq_q; ++i) {
        if (std::isfinite(lse[size_t((b * p.heads_q + h) * p.seq_q + i)])) continue;
        t.set(b, h, i, 0, spoiled % 3 ? std::nan("") : INFINITY);
        ++spoiled;
      }
  return spoiled;
}

}  // namespace

TEST_CASE("ratio: d_lse") {
  check_lines({"bwd f16 b2 hq4 hk2 sq70 sk101 d32 dv32 causal_bottom_right d_lse",
               "bwd f32 b2 hq2 hk1 sq40 sk50 d16 dv24 sink d_lse q_padded kv_padded grads=qkvs",
               "bwd bf16 hq2 hk2 sq70 sk80 d64 dv64 bias:f32:1x2x70 d_bias:f32 d_lse grads=qkvb",
               "bwd f16 hq2 hk1 sq70 sk80 d64 dv64 alibi d_lse grads=qkva"});
}

TEST_CASE("ratio: d_lse, other kernels" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"bwd bf16 b2 hq4 hk2 sq130 sk140 d128 dv128 d_lse",
       "bwd f16 b2 hq4 hk2 sq130 sk140 d64 dv64 causal_top_left d_lse deterministic",
       // Loads by element, and of 16 bytes; whole heads; heads beyond 128.
       "bwd f16 b2 hq2 hk1 sq33 sk47 d33 dv17 d_lse",
       "bwd bf16 b8 hq3 hk3 sq49 sk49 d32 dv32 bias:bf16:1x3x49 d_bias:bf16 d_lse grads=qkvb",
       "bwd f16 hq2 hk1 sq70 sk80 d192 dv192 d_lse",
       "bwd f32 b2 hq2 hk1 sq130 sk101 d64 dv64 d_lse",
       "bwd f32 b2 hq2 hk1 sq130 sk101 d64 dv64 d_lse tf32",
       "bwd f32 hq2 hk1 sq130 sk101 d64 dv64 bias:f32:1x2x130 d_bias:f32 d_lse grads=qkvb",
       // The optional inputs, and gradients that are sums of ds.
       "bwd bf16 b3 hq2 hk1 sq90 sk100 d64 dv64 q_packed=200 kv_packed=230 d_lse sink "
       "causal_top_left grads=qkvs",
       "bwd f16 b2 hq2 hk1 sq90 sk100 d64 dv64 keep:2x1x90 softcap=5 dropout=0.25 d_lse",
       "bwd f32 b2 hq2 hk1 sq60 sk70 d32 dv32 alibi q_padded kv_padded d_lse grads=qkva",
       "bwd bf16 hq2 hk1 sq150 sk170 d64 dv64 alibi softcap=30 causal_top_left d_lse "
       "grads=qa",
       "bwd f16 b2 hq2 hk1 sq60 sk70 d32 dv32 dist=30 d_lse grads=qkvd",
       "bwd f16 b2 hq2 hk1 sq60 sk70 d32 dv32 table=60:u8:1 d_lse grads=qkvi",
       "bwd f16 b2 hq2 hk1 sq60 sk70 d64 dv64 spans=1:2x1 d_lse",
       "bwd bf16 b2 hq2 hk1 sq60 sk70 d64 dv64 sink d_lse grads=s",
       "bwd f16 b2 hq2 hk1 sq60 sk70 d64 dv64 d_lse grads=k"});
}

// What stands there is NaN or an infinity, and would be in every gradient if it were read.
TEST_CASE("d_lse of rows that see no key has no effect") {
  for (const char* line :
       {"bwd f16 b2 hq2 hk1 sq70 sk80 d64 dv64 keep:2x1x70 spans=1:2x1 sink d_lse grads=qkvs",
        "bwd f32 b4 hq2 hk1 sq60 sk30 d16 dv16 q_padded kv_padded causal_bottom_right sink d_lse "
        "grads=qkvs",
        "bwd bf16 b2 hq2 hk1 sq90 sk40 d64 dv64 causal_bottom_right d_lse",
        "bwd f16 b3 hq2 hk1 sq60 sk70 d32 dv32 q_packed=100 kv_packed=130 alibi d_lse "
        "grads=qkva"}) {
    CAPTURE(std::string(line));
    Expect expect = sparse();
    Case test(parse(line), seed_of(line), expect.options);
    REQUIRE(spoil_hidden_rows(test) > 0);
    for (Target& target : targets()) check_on(target, test, expect);
  }
}

// Their delta is formed by bwd_origin.
TEST_CASE("ratio: d_lse of far rows") {
  for (const char* line : {"bwd f32 hq2 sq40 sk96 d64 dv64 d_lse",
                           "bwd f16 hq2 sq40 sk96 d64 dv64 sink d_lse grads=qkvs",
                           "bwd f32 hq2 sq40 sk50 d32 dv32 alibi d_lse grads=qkva"}) {
    CAPTURE(std::string(line));
    for (double size : {5e3, 1e6})
      check_magnitudes(parse(line), with_scores(Magnitudes::Scores::spread, size), seed_of(line));
  }
}
