// SPDX-License-Identifier: MIT OR Apache-2.0
// Masks. Spans: long sequences, where tiles are skipped, or seen whole, by the mask map; and every
// other optional input beside them. Block lists likewise. A mask with a row for each query of many
// pairs, of which cuda.sm90 makes bits and blocks.
#include "parity.h"

using namespace parity;

TEST_CASE("ratio: spans") {
  check_lines({"bwd f32 b1 hq2 hk1 sq200 sk200 d16 dv16 spans=1:1x1",
               "bwd f16 b2 hq2 hk1 sq330 sk260 d32 dv32 spans=2:2x2",
               "bwd bf16 b1 hq2 hk2 sq270 sk270 d64 dv64 causal_top_left spans=1:1x1",
               // Workgroups without a tile: lavapipe runs the body of a loop without iterations.
               "bwd f16 b1 hq2 hk1 sq200 sk100 d32 dv32 spans=1:1x1 left=10 right=0"},
              2);
}

TEST_CASE("ratio: spans, of groups of a batch" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd f16 b6 hq2 hk1 sq40 sk90 d16 dv16 spans=1:3x1",
               "bwd f32 b4 hq4 hk2 sq30 sk40 d8 dv8 spans=2:2x2",
               "bwd bf16 b4 hq4 hk2 sq70 sk70 d64 dv64 spans=1:2x4"});
}

TEST_CASE("ratio: spans with other inputs" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd f16 b2 hq2 hk1 sq200 sk150 d32 dv32 spans=1:1x1 keep:2x1x200",
               "bwd bf16 b2 hq2 hk1 sq150 sk170 d64 dv64 spans=2:1x1 q_packed=260 kv_packed=300",
               "bwd f16 b1 hq2 hk1 sq150 sk150 d64 dv64 causal_top_left spans=1:1x1 "
               "bias:f16:1x2x150 d_bias:f16 grads=qkvb",
               "bwd f16 b1 hq1 hk1 sq140 sk140 d32 dv32 spans=2:1x1 softcap=5 dropout=0.25 sink "
               "grads=qkvs",
               "bwd f32 b1 hq2 hk2 sq100 sk130 d16 dv16 spans=1:1x1 elastic dist=24 grads=qkvdt",
               "bwd f16 b1 hq2 hk1 sq90 sk140 d16 dv16 spans=2:1x1 entmax=1.5",
               "bwd bf16 b1 hq2 hk2 sq140 sk200 d64 dv64 alibi left=70 spans=1:1x2 grads=qkva"});
}

// A word of the map has 32 blocks of 64: more rows, and more keys, than one word.
TEST_CASE("ratio: spans, several words of the map" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd f16 b1 hq1 hk1 sq70 sk4300 d16 dv16 spans=1:1x1",
               "bwd f16 b1 hq2 hk1 sq4300 sk70 d16 dv16 spans=2:1x1",
               "fwd f32 b1 hq1 hk1 sq130 sk4200 d8 dv8 spans=1:1x1"});
}

// Tiles of 64 query rows of cuda.sm90's backward, in a fixed order, with whatever stands beside.
TEST_CASE("ratio: spans of wider heads" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd bf16 b1 hq2 hk1 sq300 sk330 d128 dv128 spans=1:1x1 causal_top_left",
               "bwd f16 b2 hq2 hk1 sq200 sk260 d96 dv96 spans=2:1x2 deterministic",
               "bwd f16 b2 hq4 hk2 sq150 sk200 d128 dv128 keep:2x1x150 spans=1:1x1 dropout=0.2 "
               "q_padded kv_padded deterministic"});
}

// The numbers alone lie at an odd multiple of 4 bytes; all else as TMA wants it.
TEST_CASE("ratio: spans at 4 bytes" * doctest::skip(!at_least(Tier::ci))) {
  for (const char* line : {"bwd f16 b1 hq1 hk1 sq130 sk140 d64 dv64 spans=2:1x1",
                           "bwd bf16 b1 hq1 hk1 sq70 sk80 d128 dv128 spans=1:1x1"}) {
    Expect expect = sparse();
    expect.options.spans_lead = 1;
    Case test(parse(line), seed_of(line), expect.options);
    CAPTURE(std::string(line));
    for (Target& target : targets()) check_on(target, test, expect);
  }
}

TEST_CASE("ratio: spans, every tile visited" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd f16 b1 hq2 hk1 sq200 sk200 d32 dv32 spans=1:1x1 visit_all"});
}

TEST_CASE("ratio: spans, splits of keys" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"fwd f16 b1 hq2 hk1 sq3 sk900 d64 dv64 spans=1:1x1 splits=3",
               "fwd f32 b2 hq2 hk2 sq1 sk700 d32 dv32 spans=2:2x1"});
}

TEST_CASE("ratio: block lists") {
  check_lines({"bwd f32 b1 hq1 hk1 sq130 sk140 d8 dv8 blocks=64x64:3+1:1x1",
               "bwd f32 b1 hq2 hk1 sq200 sk200 d16 dv16 blocks=64x64:4+2:1x1",
               "bwd f16 b2 hq2 hk1 sq330 sk260 d32 dv32 blocks=128x64:5+0:2x2",
               "bwd bf16 b1 hq2 hk2 sq270 sk300 d64 dv64 causal_top_left blocks=64x128:3+3:1x1"},
              2);
}

TEST_CASE("ratio: block lists with other inputs" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"bwd f16 b2 hq2 hk1 sq200 sk150 d32 dv32 blocks=64x64:3+3:2x1 spans=1:1x1",
       "bwd bf16 b2 hq2 hk1 sq150 sk170 d64 dv64 blocks=64x64:2+1:1x1 q_packed=260 kv_packed=300",
       "bwd f16 b1 hq2 hk1 sq150 sk150 d64 dv64 blocks=64x64:3+2:1x2 bias:f16:1x2x150 "
       "d_bias:f16 grads=qkvb",
       "bwd f16 b1 hq1 hk1 sq140 sk140 d32 dv32 blocks=64x64:4+4:1x1 softcap=5 dropout=0.25 sink "
       "grads=qkvs",
       "bwd f32 b1 hq2 hk2 sq100 sk130 d16 dv16 blocks=64x64:2+2:1x1 elastic dist=24 grads=qkvdt",
       "bwd f16 b1 hq2 hk1 sq90 sk140 d16 dv16 blocks=64x64:3+0:1x1 entmax=1.5 visit_all",
       "bwd bf16 b1 hq4 hk2 sq140 sk200 d128 dv128 alibi blocks=128x64:4+1:1x2 grads=qkva",
       "fwd f16 b2 hq2 hk2 sq3 sk900 d64 dv64 blocks=64x192:5+2:2x1 splits=3",
       "bwd f32 b6 hq2 hk1 sq70 sk90 d16 dv16 blocks=64x64:2+1:3x1",
       // Many short sequences, whose heads a workgroup of cuda.sm80 has whole.
       "bwd f16 b6 hq2 hk2 sq49 sk49 d32 dv32 blocks=64x64:1+1:6x1"});
}

// A workgroup of expand_blocks takes 64 rows and 1,024 keys. A block may be larger than these.
TEST_CASE("ratio: block lists, long rows" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"fwd f32 b1 hq1 hk1 sq70 sk4300 d8 dv8 blocks=64x64:40+7:1x1",
               "bwd f16 b1 hq2 hk1 sq300 sk2500 d16 dv16 blocks=256x1088:3+2:1x2",
               "bwd f16 b1 hq1 hk1 sq2100 sk70 d16 dv16 blocks=128x64:2+1:1x1"});
}

// Where cuda.sm90 makes bits and blocks of the lists.
TEST_CASE("ratio: block lists of many pairs" * doctest::skip(!at_least(Tier::ci))) {
  bool hopper = at_least(Tier::device);
  for (const Target& t : targets()) hopper |= t.path == "sm90";
  if (!hopper) return;
  check_lines({"bwd bf16 b1 hq2 hk1 sq1030 sk1040 d64 dv64 blocks=128x128:9+3:1x1",
               "bwd f16 b1 hq1 hk1 sq1100 sk1000 d128 dv128 blocks=64x64:10+0:1x1 causal_top_left",
               "fwd f16 b2 hq2 hk2 sq1030 sk1033 d96 dv96 blocks=64x192:6+6:2x2 spans=1:1x1",
               "bwd f16 b2 hq2 hk1 sq1030 sk1033 d32 dv32 blocks=192x64:12+5:2x1 deterministic "
               "dropout=0.2 q_padded kv_padded"},
              2);
}

// cuda.sm90 reads these as bits that one launch makes of spans, of bytes, or of both.
TEST_CASE("ratio: masks beside a dense bias" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"fwd bf16 b2 hq4 hk2 sq300 sk500 d64 dv64 bias:bf16:2x4x300 spans=2:2x2",
       "bwd bf16 b2 hq4 hk4 sq300 sk500 d64 dv64 bias:bf16:1x4x300 spans=1:1x1 d_bias:bf16 "
       "grads=qkvb",
       "bwd f16 b3 hq4 hk4 sq200 sk300 d128 dv128 bias:f32:3x4x200 keep:1x4x200 spans=1:3x1 "
       "d_bias:f32 grads=qkvb",
       "bwd bf16 b2 hq4 hk4 sq256 sk320 d32 dv32 bias:bf16:1x1x256 blocks=64x64:4+2:1x1 "
       "spans=1:1x4",
       "fwd f16 b2 hq2 hk2 sq130 sk700 d128 dv128 bias:f16:1x2x130 keep:2x1x130 q_padded kv_padded",
       "fwd f16 b2 hq2 hk2 sq130 sk700 d96 dv96 bias:f32:1x2x130 spans=1:1x1 kv_padded",
       "bwd bf16 b4 hq2 hk2 sq256 sk256 d64 dv64 causal_top_left bias:bf16:4x2x256 spans=1:2x1 "
       "d_bias:bf16 grads=qkvb",
       "fwd bf16 b4 hq2 hk2 sq256 sk256 d64 dv64 bias:bf16:1x2x1 spans=1:2x1",
       // Tiles of keys that the mask hides are skipped, work tiles that see no key, too.
       "fwd bf16 b1 hq3 hk3 sq300 sk4500 d64 dv64 bias:bf16:1x3x300 blocks=64x64:2+1:1x1",
       "fwd f16 b2 hq4 hk2 sq500 sk2300 d128 dv128 bias:f32:1x4x500 blocks=64x64:1+1:1x1",
       "fwd bf16 b2 hq4 hk2 sq500 sk900 d96 dv96 causal_top_left bias:bf16:1x4x500 spans=1:1x1",
       // Two query heads of a key head; a fixed order, in which hidden tiles add nothing.
       "bwd bf16 b3 hq4 hk2 sq500 sk600 d64 dv64 bias:bf16:1x4x500 keep:3x4x500 d_bias:bf16 "
       "grads=qkvb",
       "bwd f16 b2 hq2 hk2 sq700 sk700 d128 dv128 bias:f16:1x2x700 spans=2:1x1 d_bias:f16 "
       "grads=qkvb deterministic",
       "bwd bf16 b20 hq1 hk1 sq200 sk300 d64 dv64 bias:bf16:1x1x200 keep:1x1x200 d_bias:bf16 "
       "grads=qkvb",
       "bwd bf16 b2 hq2 hk2 sq70 sk90 d128 dv128 bias:bf16:2x2x70 keep:2x2x70 visit_all "
       "d_bias:bf16 grads=qkvb"});
}

TEST_CASE("ratio: a mask of many pairs" * doctest::skip(!at_least(Tier::ci))) {
  // Where pack_keep runs; elsewhere smaller masks have shown the same.
  bool hopper = at_least(Tier::device);
  for (const Target& t : targets()) hopper |= t.path == "sm90";
  if (!hopper) return;
  check_lines({"bwd bf16 b1 hq1 hk1 sq1030 sk1040 d64 dv64 keep:1x1x1030",
               "fwd f16 b1 hq2 hk1 sq1100 sk1000 d32 dv32 keep:1x2x1100 spans=1:1x1",
               "bwd f16 b2 hq1 hk1 sq1030 sk1033 d32 dv32 causal_top_left keep:2x1x1030 "
               "spans=2:1x1 deterministic",
               "fwd f16 b1 hq1 hk1 sq1024 sk1024 d128 dv128 keep:1x1x1024 keep=0,0,1,1024",
               "fwd bf16 b2 hq1 hk1 sq1040 sk1030 d64 dv64 keep:2x1x1040 q_padded kv_padded",
               "bwd f16 b2 hq4 hk2 sq1030 sk1030 d128 dv128 keep:1x2x1030 spans=1:1x1 dropout=0.2 "
               "deterministic",
               "fwd bf16 b2 hq2 hk2 sq1030 sk1030 d96 dv96 keep:2x2x1030 keep=0,0,1030,1",
               "fwd f16 b1 hq1 hk1 sq130 sk8300 d32 dv32 keep:1x1x130"},
              2);
}

// A work tile of cuda.sm90 with one query tile visits it whatever the mask shows, even nothing: by
// the mask's bytes, and by the bits that pack_keep makes of 2^23 pairs of all heads.
TEST_CASE("ratio: a mask that hides tiles of keys from few queries") {
  const auto check_hidden = [](const char* line) {
    const tandem_problem p = parse(line);
    Expect expect = sparse();
    expect.options.repeats = 2;
    Case test(p, seed_of(line), expect.options);
    HostTensor& keep = test.input(Role::keep);
    for (int64_t i = 0; i < p.seq_q; ++i)
      for (int64_t j = 0; j < p.seq_kv; ++j)
        if (j / 128 % 3 == 1 || i % 32 == 5) keep.set(0, 0, i, j, 0);
    check_case(test, expect);
  };
  check_hidden("bwd bf16 b1 hq2 hk2 sq100 sk500 d64 dv64 keep:1x1x100 deterministic");
  check_hidden("bwd f16 b1 hq2 hk2 sq60 sk300 d128 dv128 keep:1x1x60 causal_bottom_right");
  if (!at_least(Tier::ci)) return;
  for (const Target& t : targets())
    if (t.path == "sm90") check_hidden("bwd bf16 b1 hq16 hk16 sq128 sk4100 d8 dv8 keep:1x1x128");
}
