// SPDX-License-Identifier: MIT OR Apache-2.0
// The largest logit of each head, an output of forward.
#include <limits>

#include "magnitudes.h"

using namespace parity;

TEST_CASE("ratio: max_logit") {
  check_lines({"fwd f16 b2 hq4 hk2 sq70 sk101 d32 dv32 causal_bottom_right max_logit=2",
               "fwd f32 b2 hq2 hk1 sq40 sk50 d16 dv24 sink q_padded kv_padded max_logit=1",
               "fwd bf16 b4 hq2 hk2 sq70 sk80 d64 dv64 bias:f32:1x2x70 max_logit=2",
               "fwd f16 hq2 hk1 sq70 sk80 d64 dv64 alibi max_logit=1"});
}

TEST_CASE("ratio: max_logit, other kernels" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"fwd bf16 b2 hq4 hk2 sq300 sk340 d128 dv128 max_logit=2",
       "fwd f16 b2 hq4 hk2 sq300 sk340 d64 dv64 causal_top_left max_logit=1",
       "fwd bf16 b2 hq2 hk2 sq200 sk300 d128 dv128 left=40 right=0 max_logit=2",
       // Loads by element; heads beyond 128; whole heads; split keys; one query of many heads.
       "fwd f16 b2 hq2 hk1 sq33 sk47 d33 dv17 max_logit=2",
       "fwd f16 hq2 hk1 sq130 sk180 d192 dv192 max_logit=1",
       "fwd bf16 b8 hq3 hk3 sq49 sk49 d32 dv32 bias:bf16:1x3x49 keep:8x1x49 max_logit=8",
       "fwd f16 b2 hq2 hk1 sq8 sk900 d64 dv64 splits=4 max_logit=2",
       "fwd bf16 b2 hq8 hk1 sq1 sk700 d128 dv128 max_logit=2",
       "fwd f32 b2 hq2 hk1 sq130 sk101 d64 dv64 max_logit=2",
       "fwd f32 b2 hq2 hk1 sq130 sk101 d64 dv64 tf32 max_logit=2",
       // The optional inputs. Scores of which all are negative; sinks beside them.
       "fwd bf16 b3 hq2 hk1 sq90 sk100 d64 dv64 q_packed=200 kv_packed=230 sink max_logit=3",
       "fwd f16 b2 hq2 hk1 sq90 sk100 d64 dv64 keep:2x1x90 softcap=5 dropout=0.25 max_logit=2",
       "fwd bf16 b2 hq2 hk1 sq300 sk300 d128 dv128 bias:bf16:2x2x300 max_logit=2",
       "fwd bf16 b2 hq2 hk1 sq150 sk170 d64 dv64 alibi softcap=30 right=20 max_logit=2",
       "fwd f16 b2 hq2 hk1 sq60 sk70 d32 dv32 dist=30 max_logit=2",
       "fwd f16 b2 hq2 hk1 sq60 sk70 d32 dv32 table=60:u8:1 max_logit=2",
       "fwd f16 b2 hq2 hk1 sq160 sk170 d64 dv64 spans=1:2x1 max_logit=2"});
}

// Rows that see no key have none. A head that has no other rows keeps what stands there.
TEST_CASE("max_logit of scores that are all negative, far, or hidden") {
  for (const char* line :
       {"fwd f16 b2 hq2 hk1 sq70 sk80 d64 dv64 bias:f32:2x2x70 max_logit=2",
        "fwd f32 b2 hq2 hk1 sq70 sk80 d64 dv64 bias:f32:2x2x70 splits=2 max_logit=2",
        "fwd bf16 b2 hq2 hk2 sq200 sk210 d128 dv128 bias:f32:2x2x200 max_logit=2"})
    for (double least : {-40., -3000., -3e6}) {
      CAPTURE(std::string(line));
      CAPTURE(least);
      Expect expect = sparse();
      Case test(parse(line), seed_of(line), expect.options);
      HostTensor& bias = test.input(Role::bias);
      const tandem_problem& p = test.problem();
      for (int64_t b = 0; b < p.bias_batch; ++b)
        for (int64_t h = 0; h < p.bias_heads; ++h)
          for (int64_t i = 0; i < p.bias_rows; ++i)
            for (int64_t j = 0; j < p.seq_kv; ++j)
              bias.set(b, h, i, j,
                       b + h == 2 ? -std::numeric_limits<double>::infinity()
                                  : least + bias.get(b, h, i, j));
      for (Target& target : targets()) check_on(target, test, expect);
    }
}
