// SPDX-License-Identifier: MIT OR Apache-2.0
// Executes in slices, each submitted by itself, have the bits of one execute.
#include "parity.h"

using namespace parity;

namespace {

void check_slices(const char* line) {
  CAPTURE(std::string(line));
  if (!mine(parse(line))) return;
  // Without slices first: NVIDIA keeps compiled modules apart by their words alone.
  Case whole(parse(line), seed_of(line));
  for (Target& target : targets()) check_on(target, whole, sparse());
  Expect expect = sparse();
  expect.options.sliced = 3;
  Case test(parse(std::string(line) + " slices"), seed_of(line), expect.options);
  for (Target& target : targets()) check_on(target, test, expect);
}

}  // namespace

TEST_CASE("slices: the bits of one execute") {
  check_slices("fwd f16 b2 hq4 hk2 sq200 sk130 d64 dv64 causal_bottom_right");
  check_slices("bwd f16 b1 hq4 hk2 sq130 sk140 d64 dv64");
}

TEST_CASE("slices: the bits of one execute, other kernels" * doctest::skip(!at_least(Tier::ci))) {
  for (const char* line : {
           "fwd f32 b1 hq2 sq3 sk1100 d64 dv64 splits=4",
           "bwd f32 b2 hq4 hk2 sq200 sk130 d40 dv24 sink alibi grads=qkvas",
           "bwd bf16 b1 hq4 sq130 sk140 d128 dv128 deterministic",
           "bwd f16 b3 hq2 sq100 sk100 d32 dv32 bias:f16:1x2x100 grads=qkvb d_bias:f32",
           "bwd f32 b1 hq2 sq100 sk120 d64 dv64 elastic dist=64 grads=qkvdt",
           "fwd f16 b1 hq2 sq130 sk140 d64 dv64 spans=2:1x1 dropout=0.2",
           "bwd f16 b2 hq2 sq100 sk100 d64 dv64 table=31:u8:1 grads=qkvi",
           "bwd bf16 b3 hq2 sq128 d64 dv64 q_packed=300 kv_packed=300",
           "bwd f16 b2 hq4 hk2 sq200 sk180 d64 dv64 causal_top_left bias:f16:2x4x200 grads=qkvb "
           "d_bias:f16",
           "bwd f32 b2 hq4 hk2 sq200 sk180 d64 dv64 causal_top_left",
           "bwd f16 b2 hq2 sq130 d64 dv64 entmax=1.5",
           "bwd f16 b3 hq4 hk2 sq40 sk50 d64 dv64 causal_top_left deterministic",
           "fwd bf16 b2 hq2 sq300 d64 dv64 elastic causal_top_left",
           // Kernels of cuda.sm90, which forward cuts between heads or batch entries.
           "fwd f16 b2 hq6 hk2 sq700 d128 dv128 causal_top_left",
           "fwd bf16 b3 hq2 sq300 sk200 d64 dv64 q_packed=500 kv_packed=420",
           "fwd f16 b4 hq2 sq200 d64 dv64 keep:4x1x200",
           "fwd bf16 b2 hq3 sq200 sk180 d64 dv64 bias:bf16:1x3x200",
           "fwd f16 b2 hq3 sq200 d128 dv128 bias:f32:2x3x200 kv_padded",
           "fwd f16 b2 hq3 sq200 d64 dv64 entmax=1.5",
           "fwd bf16 b2 hq3 sq200 d256 dv256 left=70 right=0",
           "fwd bf16 b1 hq6 hk2 sq200 d512 dv512 causal_top_left",
           "fwd f16 b2 hq3 sq70 sk900 d512 dv512 splits=3",
           "fwd bf16 b3 hq2 hk1 sq130 sk600 d512 dv512 kv_padded splits=2",
           "bwd bf16 b2 hq4 hk2 sq300 d256 dv256 causal_top_left sink grads=qkvs",
           "bwd bf16 b2 hq4 hk2 sq200 sk300 d512 dv512 causal_top_left",
           "bwd f16 b1 hq4 hk1 sq130 sk200 d576 dv512 deterministic",
           "bwd f16 b3 hq4 hk2 sq300 d64 dv64 keep:3x1x300 deterministic",
           "bwd bf16 b9 hq16 hk8 sq300 d64 dv64 causal_top_left",
       })
    check_slices(line);
}
