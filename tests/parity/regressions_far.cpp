// SPDX-License-Identifier: MIT OR Apache-2.0
// Bugs of rows whose scores are far from 0 that showed while these rows got origins of their own.
// Each would have been caught by its test here.
#include "magnitudes.h"

using namespace parity;

// A part's lse, an f32, had lost how many keys it is of: parts of unlike sizes had equal weights at
// -1e10, and at 4000 weights were off by 6e-5.
TEST_CASE("regression: far rows: parts of a row's keys, of unlike sizes") {
  for (const char* line : {"fwd f32 b1 hq1 hk1 sq1 sk42 d80 dv8 splits=2",
                           "fwd f32 b1 hq2 hk1 sq3 sk150 d16 dv16 bias:f32:1x1x1 splits=3"}) {
    const tandem_problem p = parse(line);
    check_magnitudes(p, with_scores(Magnitudes::Scores::low, 4000), seed_of("far parts", 1));
    check_magnitudes(p, with_scores(Magnitudes::Scores::equal, 1e6), seed_of("far parts", 2));
    if (p.bias.dtype == 0) continue;
    check_magnitudes(p, with_bias(Magnitudes::Bias::all, -1e10), seed_of("far parts", 3));
    check_magnitudes(p, with_bias(Magnitudes::Bias::all, -3e38), seed_of("far parts", 4));
  }
}

// The threshold was rounded as an f32 of its size: at 100 the weights' sum was off by 1e-5.
TEST_CASE("regression: far rows: entmax of scores about -100") {
  for (const char* alpha : {"0x1.8p+0", "0x1.cp+0", "0x1p+1"}) {
    Magnitudes m = with_scores(Magnitudes::Scores::low, 100);
    m.v = Magnitudes::Values::ones;
    check_magnitudes(parse(std::string("fwd f32 b1 hq1 hk1 sq16 sk20 d24 dv24 entmax=") + alpha), m,
                     seed_of("far threshold"));
  }
}

// vulkan.*: elastic softmax gave tau / n to keys that a bias of minus infinity hides.
TEST_CASE("regression: far rows: elastic softmax and keys hidden by their bias") {
  check_magnitudes(parse("bwd f16 b1 hq1 hk1 sq16 sk24 d16 dv16 bias:f32:1x1x16 elastic "
                         "grads=qkvb d_bias:f32"),
                   with_bias(Magnitudes::Bias::rows, -1e10), seed_of("far elastic"));
}

// cuda.sm80: a key's product of 1e8 may be made of terms that are larger still. Its sum on matrix
// hardware was below the row's origin by more than the slack, and the row's weights were 0.
TEST_CASE("regression: far rows: scores far smaller than the terms that they are sums of") {
  check_magnitudes(parse("bwd f16 b1 hq2 hk1 sq77 sk81 d160 dv72 causal_top_left keep:1x1x1 "
                         "visit_all q=24640,160,320,1 k=12960,160,160,1 o=11724,5860,76,1 "
                         "d_o=11724,5860,76,1 d_q=24640,160,320,1 d_v=6168,6164,76,1"),
                   with_scores(Magnitudes::Scores::spread, 1e8), 25975);
  for (const char* line : {"bwd f16 b1 hq2 hk1 sq77 sk81 d160 dv72 causal_top_left keep:1x1x1",
                           "bwd bf16 b1 hq3 hk3 sq166 sk3 d192 dv33 causal_top_left entmax=0x1p+1"})
    for (uint64_t n = 0; n < 4; ++n)
      check_magnitudes(parse(line), with_scores(Magnitudes::Scores::spread, n % 2 ? 1e8 : 1e7),
                       seed_of("far terms", n));
}

// vulkan.coopmat, coopmat2: a row whose keys are all at -1e9 was not found to be far where a sink
// is above them, so that its weights were infinite and o was NaN.
TEST_CASE("regression: far rows: a sink above rows of finite masks") {
  for (const char* line : {"fwd bf16 b1 hq2 hk1 sq63 sk31 d72 dv16 bottom_right scale=0x1.2p-4 "
                           "bias:bf16:1x2x63 sink dropout=0x1.99999ap-4",
                           "fwd f16 b1 hq2 hk1 sq33 sk40 d64 dv64 bias:f32:1x1x33 sink",
                           "fwd f16 b2 hq1 hk1 sq15 sk15 d64 dv40 bottom_right left=14 "
                           "softcap=0x1p+0 bias:f32:1x1x15 sink dropout=0x1p-2"})
    for (double value : {-1e9, -1.1e9, -3e9, -1e10}) {
      check_magnitudes(parse(line), with_bias(Magnitudes::Bias::pad, value), seed_of("far sink"));
      check_magnitudes(parse(line), with_bias(Magnitudes::Bias::all, value), seed_of("far sink"));
    }
}

// An average of f16's largest values was infinite, as weights are rounded and their sum is not; and
// delta, with d_o = 0 there, was NaN.
TEST_CASE("regression: averages of the largest values of f16") {
  Magnitudes found = with_scores(Magnitudes::Scores::low, 1);
  found.v = Magnitudes::Values::largest;
  found.d_o = Magnitudes::Values::zero;
  check_magnitudes(parse("bwd f16 b1 hq2 hk1 sq69 sk46 d256 dv256 dist=46 keep:1x2x69 grads=qk "
                         "q=35328,256,0,1 o=35328,256,512,1 d_o=35328,256,512,1 "
                         "d_q=35328,256,512,1 d_k=11776,256,256,1 d_v=11776,256,256,1"),
                   found, 20035);
  for (const char* line : {"bwd f16 b1 hq2 hk1 sq69 sk46 d256 dv256 dist=46 keep:1x2x69 grads=qk",
                           "bwd f16 b2 hq2 hk1 sq69 sk46 d64 dv64",
                           "bwd f16 b1 hq2 hk2 sq40 sk300 d128 dv128 causal_top_left splits=2",
                           "bwd f16 b4 hq3 hk3 sq49 sk49 d32 dv32 bias:f16:1x3x49"})
    for (uint64_t n = 0; n < 3; ++n)
      check_magnitudes(parse(line), found, seed_of("largest averages", n));
}

// Where a gradient needs no tile of scores, a table or block lists were not expanded, and
// bwd_origin read the workspace in their place.
TEST_CASE("regression: far rows: the gradient of a sink alone beside a table or lists") {
  for (const char* line :
       {"bwd bf16 b1 hq3 hk1 sq63 sk8 d80 dv80 causal_top_left alibi table=31:i32:1 "
        "sink grads=s",
        "bwd f16 b3 hq6 hk3 sq3 sk339 d8 dv5 bottom_right left=170 right=56 "
        "blocks=64x64:7+7:1x1 sink grads=s"})
    for (double size : {1e6, 1e8})
      check_magnitudes(parse(line), with_scores(Magnitudes::Scores::equal, size),
                       seed_of("sink alone"));
}
