// SPDX-License-Identifier: MIT OR Apache-2.0
// Biases from a table by an index of each pair: types of indices, tables of one entry and of more
// than a workgroup sums, indices that are no entry, sums in parts; and other inputs beside them.
// fill_index() (harness/inputs.cpp) draws the indices.
#include "parity.h"

using namespace parity;

// The sums have the same bits in every run.
TEST_CASE("ratio: table") {
  check_lines({"bwd f32 b2 hq2 hk1 sq49 sk49 d16 dv16 table=169:u8:1 grads=qkvi",
               "bwd f16 b2 hq4 hk2 sq70 sk90 d32 dv32 table=32:i32:1 grads=qkvi",
               "bwd bf16 b1 hq2 hk2 sq130 sk100 d64 dv64 table=7:u16:1 causal_top_left grads=qkvi"},
              2);
}

TEST_CASE("ratio: table, of each entry or group" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd f16 b3 hq2 hk2 sq60 sk70 d32 dv32 table=300:u16:3 grads=qkvi",
               "bwd f32 b3 hq4 hk2 sq33 sk41 d8 dv8 table=40:u8:3 grads=i",
               "bwd bf16 b2 hq2 hk1 sq100 sk64 d64 dv64 table=100:i32:2 keep:2x1x100 grads=qkvi",
               "bwd f16 b6 hq2 hk2 sq50 sk49 d32 dv32 table=25:u8:3 grads=qkvi"});
}

// Entries of one invocation and of many, of a workgroup and of two.
TEST_CASE("ratio: table, sizes" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd f32 b1 hq2 hk2 sq40 sk50 d8 dv8 table=1:u8:1 grads=i",
               "bwd f32 b1 hq2 hk2 sq40 sk50 d8 dv8 table=128:u8:1 grads=i",
               "bwd f32 b1 hq2 hk2 sq60 sk50 d8 dv8 table=129:u8:1 grads=i",
               "bwd f32 b1 hq1 hk1 sq90 sk80 d8 dv8 table=2048:u16:1 grads=i",
               "bwd f32 b1 hq1 hk1 sq90 sk80 d8 dv8 table=5000:i32:1 grads=qi"},
              2);
}

TEST_CASE("ratio: table with other inputs" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"bwd bf16 b2 hq2 hk1 sq90 sk110 d64 dv64 q_packed=150 kv_packed=170 table=33:u8:1 "
       "grads=qkvi",
       "bwd f16 b2 hq2 hk2 sq80 sk80 d32 dv32 q_padded kv_padded table=33:u16:1 sink grads=qkvsi",
       "bwd f16 b1 hq2 hk1 sq70 sk80 d32 dv32 softcap=5 dropout=0.25 alibi table=9:u8:1 "
       "grads=qkvai",
       "bwd f32 b1 hq2 hk2 sq70 sk60 d16 dv16 elastic dist=24 table=9:u8:1 grads=qkvdti",
       "bwd f16 b1 hq2 hk1 sq60 sk90 d16 dv16 entmax=1.5 table=65:u8:1 grads=qkvi",
       "bwd bf16 b2 hq2 hk2 sq100 sk130 d64 dv64 spans=1:1x1 table=961:u16:1 grads=qkvi",
       "fwd f16 b1 hq2 hk1 sq3 sk900 d64 dv64 table=32:i32:1 splits=3",
       "bwd bf16 b1 hq2 hk2 sq64 sk96 d128 dv128 table=169:u8:1 deterministic grads=qkvi"});
}

// Swin's windows: many entries, one index.
TEST_CASE("ratio: table of windows" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd f16 b24 hq3 hk3 sq49 sk49 d32 dv32 table=169:u8:1 grads=qkvi",
               "bwd bf16 b24 hq3 hk3 sq49 sk49 d32 dv32 keep:24x1x49 table=169:u16:1 grads=qkvi"},
              2);
}

// Indices of a byte at any address, the others at multiples of their size.
TEST_CASE("ratio: table at odd addresses" * doctest::skip(!at_least(Tier::ci))) {
  for (const char* line : {"bwd f16 b1 hq1 hk1 sq50 sk61 d32 dv32 table=33:u8:1 grads=qkvi",
                           "bwd f32 b1 hq1 hk1 sq50 sk61 d16 dv16 table=33:u16:1 grads=qkvi"}) {
    Expect expect = sparse();
    expect.options.lead = 1;
    Case test(parse(line), seed_of(line), expect.options);
    CAPTURE(std::string(line));
    for (Target& target : targets()) check_on(target, test, expect);
  }
}

TEST_CASE("ratio: table, sizes of 0") {
  check_lines({"bwd f32 b0 hq2 hk2 sq9 sk9 d8 dv8 table=5:u8:0 grads=qkvi",
               "bwd f16 b2 hq2 hk2 sq0 sk9 d8 dv8 table=5:u8:1 grads=qkvi",
               "bwd f16 b2 hq2 hk2 sq9 sk0 d8 dv8 table=5:u8:1 grads=qkvi"});
}

// More launches than tandem_plan_info has room for.
TEST_CASE("table: a plan of many launches tells the first of its kernels") {
  const char* line =
      "bwd f32 b2 hq2 hk2 sq300 sk300 d16 dv16 elastic spans=1:1x1 table=300:u16:1 dist=40 sink "
      "grads=qkvdtsi";
  for (Target& target : targets()) {
    if (target.backend == "cpu" || lacks(target, parse(line))) continue;
    CAPTURE(target.name);
    const Plan plan(*target.session, parse(line));
    const tandem_plan_info& info = plan.info();
    CHECK(info.kernel_count <= TANDEM_MAX_KERNELS);
    for (uint32_t n = 0; n < TANDEM_MAX_KERNELS; ++n)
      CHECK(info.kernels[n] < tandem_kernel_count());
    CHECK(info.workspace_alignment == 256);
  }
}
