// SPDX-License-Identifier: MIT OR Apache-2.0
// Heads over 256: Gemma 4's global layers have 512, MLA's latent has 576 for scores and 512 for
// values, a VAE has one head of 512.
#include "parity.h"

using namespace parity;

TEST_CASE("ratio: heads over 256") {
  check_lines({"bwd bf16 b1 hq2 hk1 sq40 sk50 d512 dv512 causal_bottom_right",
               "bwd f16 b2 hq2 hk1 sq20 sk30 d320 dv320 kv_padded",
               "bwd f32 b1 hq1 hk1 sq33 sk40 d300 dv20 grads=qkv",
               "fwd bf16 b1 hq2 hk1 sq20 sk200 d512 dv512 splits=2",
               "fwd f16 b2 hq2 hk1 sq20 sk200 d512 dv512 kv_padded"},
              2);
}

TEST_CASE("ratio: heads over 256, sizes" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd bf16 b1 hq2 hk1 sq70 sk130 d512 dv512",
               "bwd f16 b2 hq2 hk2 sq70 sk70 d320 dv320 causal_top_left",
               // MLA's latent: many query heads of one.
               "bwd bf16 b1 hq16 hk1 sq20 sk70 d576 dv512 causal_bottom_right",
               // Rows whose lse is far from 0, whose numbers bwd_origin forms.
               "bwd f32 b1 hq2 hk2 sq40 sk40 d576 dv300 scale=1000 causal_top_left",
               // Sizes that no vector of four divides, one side alone wide.
               "bwd f16 b1 hq2 hk1 sq40 sk70 d257 dv40", "bwd bf16 b1 hq2 hk1 sq40 sk70 d40 dv511",
               "bwd f32 b1 hq2 hk1 sq70 sk33 d576 dv576 left=20 right=10",
               "bwd f32 b1 hq1 hk1 sq40 sk40 d384 dv264 grads=q",
               "bwd f16 b1 hq1 hk1 sq40 sk70 d448 dv576 grads=v",
               "bwd bf16 b1 hq1 hk1 sq70 sk40 d264 dv512 grads=k"},
              2);
}

TEST_CASE("ratio: heads over 256, few queries" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"fwd bf16 b1 hq16 hk1 sq1 sk700 d576 dv512", "fwd f16 b2 hq4 hk2 sq2 sk300 d512 dv512",
       "fwd bf16 b1 hq1 hk1 sq70 sk600 d512 dv512 splits=4",
       "fwd f32 b1 hq2 hk1 sq3 sk600 d300 dv576 splits=3",
       "fwd bf16 b2 hq8 hk1 sq1 sk300 d576 dv512 kv_padded"},
      2);
}

TEST_CASE("ratio: heads over 256, splits of keys" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"fwd bf16 b1 hq16 hk1 sq1 sk1500 d576 dv512", "fwd f16 b1 hq128 hk1 sq1 sk1300 d576 dv512",
       "fwd bf16 b2 hq8 hk2 sq1 sk1030 d512 dv512 splits=3",
       "fwd f16 b1 hq1 hk1 sq300 sk1100 d512 dv512",
       "fwd bf16 b1 hq2 hk1 sq100 sk400 d320 dv320 splits=2 max_logit=1",
       // Parts without a key: of a mask, and more of them than tiles.
       "fwd f16 b2 hq2 hk2 sq150 sk800 d384 dv384 causal_top_left splits=4",
       "fwd bf16 b1 hq3 hk1 sq40 sk900 d512 dv512 left=100 bottom_right splits=3",
       "fwd f16 b1 hq2 hk1 sq70 sk300 d576 dv576 splits=9",
       // Rows that see no key at all.
       "fwd bf16 b1 hq2 hk2 sq300 sk150 d512 dv512 causal_bottom_right splits=2",
       // Far rows, and rows of parts that no 16-byte chunks fill.
       "fwd f16 b1 hq2 hk2 sq9 sk600 d512 dv512 scale=1000 splits=3",
       "fwd bf16 b1 hq2 hk1 sq65 sk600 d264 dv40 splits=2 scale=-0.1",
       "fwd f16 b1 hq2 hk1 sq30 sk500 d40 dv330 splits=4"},
      2);
}

TEST_CASE("ratio: heads over 256, lengths of keys" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"fwd bf16 b5 hq16 hk1 sq1 sk1500 d576 dv512 kv_padded",
               "fwd f16 b3 hq128 hk1 sq1 sk600 d576 dv512 kv_packed=1000",
               "fwd bf16 b4 hq8 hk2 sq1 sk900 d512 dv512 kv_padded splits=3",
               "fwd f16 b6 hq2 hk1 sq150 sk300 d512 dv512 kv_padded causal_bottom_right",
               "fwd bf16 b3 hq2 hk2 sq70 sk400 d320 dv320 kv_packed=700 left=90 right=20",
               "fwd f16 b4 hq2 hk1 sq200 sk260 d384 dv384 kv_gapped=900 causal_bottom_right",
               "fwd bf16 b3 hq2 hk1 sq65 sk513 d576 dv576 kv_gapped=1100 splits=2 max_logit=1",
               "fwd f16 b2 hq3 hk3 sq20 sk200 d40 dv472 kv_padded causal_top_left",
               "fwd bf16 b7 hq4 hk1 sq2 sk128 d264 dv264 kv_padded scale=-0.1"},
              2);
}

TEST_CASE("ratio: heads over 256, forward" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"fwd bf16 b1 hq2 hk1 sq300 sk300 d512 dv512 causal_top_left",
       "fwd f16 b2 hq4 hk2 sq70 sk450 d512 dv512 causal_bottom_right max_logit=1",
       "fwd bf16 b3 hq6 hk3 sq130 sk129 d512 dv512", "fwd f16 b1 hq1 hk1 sq1 sk1 d512 dv512",
       "fwd bf16 b2 hq3 hk1 sq200 sk500 d320 dv320 causal_bottom_right",
       "fwd f16 b2 hq2 hk1 sq150 sk300 d320 dv320", "fwd f16 b1 hq2 hk2 sq300 sk70 d384 dv384",
       "fwd bf16 b2 hq2 hk2 sq300 sk400 d384 dv384 left=70 right=20",
       "fwd bf16 b1 hq128 hk1 sq65 sk200 d576 dv512 causal_bottom_right",
       "fwd f16 b1 hq4 hk1 sq70 sk700 d576 dv512",
       "fwd bf16 b2 hq2 hk1 sq130 sk390 d576 dv576 causal_top_left",
       "fwd f16 b1 hq2 hk1 sq70 sk513 d576 dv576 left=300",
       // Rows that see no key, heads narrower than their tile, one side alone wide.
       "fwd bf16 b1 hq2 hk1 sq300 sk100 d512 dv512 causal_bottom_right",
       "fwd f16 b1 hq2 hk1 sq200 sk260 d264 dv40", "fwd bf16 b1 hq2 hk1 sq70 sk140 d40 dv472",
       "fwd f16 b1 hq2 hk1 sq130 sk257 d560 dv328 left=20 right=10"},
      2);
}

TEST_CASE("ratio: heads over 256, backward" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"bwd bf16 b1 hq2 hk1 sq300 sk300 d512 dv512 causal_top_left",
       "bwd f16 b2 hq4 hk2 sq70 sk300 d512 dv512 causal_bottom_right d_lse",
       "bwd bf16 b3 hq2 hk2 sq200 sk130 d512 dv512", "bwd f16 b1 hq1 hk1 sq1 sk1 d512 dv512",
       "bwd bf16 b2 hq3 hk1 sq200 sk300 d320 dv320 causal_bottom_right",
       "bwd f16 b1 hq2 hk1 sq300 sk200 d320 dv320 left=70 right=20",
       "bwd f16 b2 hq2 hk1 sq200 sk70 d384 dv384 deterministic",
       "bwd bf16 b1 hq2 hk2 sq300 sk300 d384 dv384 causal_top_left deterministic",
       "bwd bf16 b1 hq128 hk1 sq70 sk130 d576 dv512 causal_bottom_right",
       "bwd f16 b2 hq4 hk1 sq130 sk200 d576 dv512 left=100 deterministic",
       "bwd bf16 b2 hq2 hk1 sq200 sk300 d576 dv576 causal_top_left",
       "bwd f16 b1 hq2 hk1 sq300 sk70 d576 dv576 deterministic",
       // Keys that no query sees, and queries that see no key.
       "bwd bf16 b1 hq2 hk1 sq70 sk300 d512 dv512 causal_top_left",
       "bwd f16 b1 hq2 hk2 sq300 sk100 d576 dv512 causal_bottom_right",
       // Heads narrower than their tile, one side alone wide.
       "bwd bf16 b1 hq2 hk1 sq200 sk200 d264 dv40", "bwd f16 b1 hq2 hk1 sq130 sk200 d40 dv472",
       "bwd bf16 b1 hq4 hk2 sq130 sk257 d560 dv328 left=20 right=10",
       // Not all gradients, and that of a sink.
       "bwd bf16 b1 hq2 hk1 sq200 sk130 d512 dv512 grads=q",
       "bwd f16 b1 hq2 hk1 sq130 sk200 d384 dv320 grads=k",
       "bwd bf16 b2 hq2 hk1 sq130 sk130 d576 dv512 grads=v causal_top_left",
       "bwd f16 b2 hq4 hk2 sq130 sk130 d512 dv512 sink grads=qkvs",
       "bwd bf16 b1 hq4 hk2 sq130 sk130 d320 dv320 sink grads=kvs",
       "bwd f16 b1 hq2 hk1 sq200 sk200 d512 dv512 scale=1000 causal_top_left"},
      2);
}

TEST_CASE("ratio: heads over 256 with every input" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd bf16 b2 hq2 hk1 sq70 sk80 d512 dv512 q_padded kv_padded",
               "bwd f16 b3 hq2 hk1 sq70 sk80 d320 dv320 q_packed=150 kv_packed=170 causal_top_left",
               "bwd f16 b2 hq4 hk1 sq70 sk130 d576 dv512 kv_padded causal_bottom_right sink "
               "grads=qkvs",
               "bwd bf16 b2 hq2 hk1 sq70 sk130 d384 dv384 keep:2x2x70 left=40",
               "bwd f16 b2 hq2 hk2 sq70 sk72 d512 dv512 keep:1x1x1 bias:f32:1x2x70 d_bias:f32 "
               "grads=qkvb",
               "fwd bf16 b2 hq4 hk2 sq9 sk700 d512 dv512 kv_padded bias:bf16:1x4x9 splits=3",
               "fwd f16 b2 hq8 hk1 sq3 sk500 d576 dv512 kv_padded sink scale=1e-4",
               "bwd bf16 b2 hq2 hk2 sq40 sk72 d512 dv512 bias:bf16:2x2x40 d_bias:f32 grads=qkvb",
               "bwd f16 b2 hq2 hk1 sq40 sk72 d320 dv512 keep:2x1x40 softcap=5 sink grads=qkvs",
               "bwd f16 b1 hq2 hk1 sq70 sk72 d512 dv300 alibi dropout=0.25 grads=qkva",
               "bwd f32 b1 hq2 hk1 sq40 sk72 d512 dv512 entmax=1.5",
               "bwd f16 b1 hq2 hk1 sq70 sk72 d320 dv320 entmax=1.3 causal_top_left",
               "bwd bf16 b1 hq2 hk1 sq40 sk72 d512 dv512 elastic dist=8 sink grads=qkvdts",
               "bwd f32 b1 hq2 hk1 sq40 sk40 d320 dv320 elastic dist=8 grads=qkvdt",
               "bwd bf16 b2 hq2 hk1 sq70 sk80 d512 dv512 spans=2:2x1 d_lse",
               "fwd f16 b2 hq2 hk1 sq70 sk80 d512 dv512 max_logit=1 sink",
               "bwd f16 b2 hq2 hk1 sq70 sk80 d512 dv320 deterministic table=20:u8:1 grads=qkvi"},
              2);
}
