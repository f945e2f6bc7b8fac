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
