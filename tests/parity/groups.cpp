// SPDX-License-Identifier: MIT OR Apache-2.0
// Groups: inputs with fewer batch entries than the batch and more than one, whose gradients are
// sums over the entries of a group.
#include "parity.h"

using namespace parity;

TEST_CASE("ratio: groups") {
  check_lines(
      {"bwd f32 b4 hq2 hk1 sq40 sk50 d16 dv16 bias:f32:2x2x40 d_bias:f32 keep:2x1x40 grads=qkvb",
       "bwd f16 b6 hq2 hk1 sq70 sk80 d32 dv32 bias:f16:3x2x70 d_bias:f16 grads=qkvb",
       "bwd bf16 b6 hq4 hk2 sq70 sk72 d64 dv64 keep:2x1x70 bias:bf16:2x1x1 d_bias:f32 grads=b"},
      2);
}

TEST_CASE("ratio: groups of a bias" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {// A tile a head, and a window's.
       "bwd f16 b8 hq3 hk3 sq49 sk49 d32 dv32 bias:f16:4x3x49 d_bias:f16 grads=qkvb",
       "bwd bf16 b8 hq3 hk3 sq49 sk49 d32 dv32 bias:bf16:2x3x49 keep:4x1x49",
       "fwd f16 b6 hq2 hk2 sq49 sk49 d32 dv32 bias:f16:2x2x49 keep:3x1x49",
       // One row, heads of k and v, odd strides, elements one by one.
       "bwd f16 b4 hq4 hk2 sq130 sk101 d32 dv32 bias:f16:2x2x1 d_bias:f16 grads=qkvb",
       "bwd bf16 b6 hq4 hk2 sq100 sk133 d64 dv64 bias:bf16:3x4x100 d_bias:f32 grads=qkvb",
       "bwd f16 b4 hq2 hk1 sq100 sk160 d64 dv64 bias:f16:2x2x1 kv_padded",
       // Sums of some splits, in a fixed order.
       "bwd f32 b12 hq2 hk2 sq33 sk40 d8 dv8 bias:f32:2x1x33 d_bias:f32 grads=b deterministic",
       "bwd f16 b4 hq2 hk2 sq80 sk80 d128 dv128 bias:f16:2x2x80 d_bias:f16 grads=qkvb "
       "causal_top_left",
       "bwd bf16 b4 hq2 hk2 sq80 sk80 d128 dv128 bias:f32:2x2x80 q_padded kv_padded"},
      2);
}

TEST_CASE("ratio: groups of a bias, forward" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"fwd f16 b4 hq2 hk1 sq200 sk272 d64 dv64 bias:f16:2x2x200",
               "fwd bf16 b6 hq2 hk2 sq130 sk136 d128 dv128 bias:bf16:3x1x130 keep:2x2x130",
               "fwd f16 b6 hq2 hk1 sq130 sk200 d32 dv32 bias:f16:2x2x130 keep:3x1x1",
               "fwd f16 b4 hq2 hk1 sq130 sk200 d64 dv64 bias:f32:2x2x130",
               "fwd bf16 b4 hq4 hk2 sq140 sk101 d64 dv64 bias:bf16:2x4x140",
               "fwd bf16 b4 hq4 hk2 sq300 sk256 d128 dv128 bias:bf16:2x4x1 kv_padded"},
              2);
}

TEST_CASE("ratio: groups of slopes and sinks") {
  check_lines({"bwd f16 b4 hq2 hk1 sq40 sk50 d32 dv32 alibi slopes=2 sink sinks=4 grads=qkvas",
               "bwd f32 b6 hq2 hk2 sq30 sk40 d8 dv8 sink sinks=3 grads=qkvs"},
              2);
}

TEST_CASE("ratio: groups of slopes and sinks, other kernels" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd bf16 b4 hq2 hk1 sq140 sk150 d64 dv64 causal_top_left sink sinks=2 grads=qkvs",
               "bwd f16 b6 hq4 hk2 sq70 sk90 d32 dv32 alibi slopes=3 kv_padded grads=qkva",
               "bwd f16 b4 hq2 hk1 sq40 sk50 d32 dv32 elastic dist=8 sink sinks=2 grads=qkvdts",
               // One query, whose heads are rows only with sinks of the batch; split keys.
               "fwd f16 b4 hq4 hk1 sq1 sk300 d64 dv64 sink sinks=2",
               "fwd f16 b2 hq2 hk1 sq3 sk600 d64 dv64 sink sinks=2 splits=4",
               "fwd f32 b2 hq2 hk1 sq3 sk600 d64 dv64 sink sinks=2 splits=3"},
              2);
}

TEST_CASE("ratio: groups of a mask" * doctest::skip(!at_least(Tier::ci))) {
  check_lines({"bwd bf16 b4 hq2 hk1 sq150 sk170 d64 dv64 keep:2x1x150",
               "bwd f16 b6 hq2 hk2 sq70 sk90 d32 dv32 keep:3x2x1 causal_top_left",
               "bwd f16 b4 hq2 hk1 sq90 sk140 d128 dv128 keep:2x2x90 spans=1:4x1",
               "bwd f16 b4 hq2 hk1 sq90 sk140 d16 dv16 keep:2x1x90 entmax=1.5",
               "bwd f16 b4 hq2 hk1 sq90 sk140 d64 dv64 keep:2x1x90 softcap=5 dropout=0.25 sink "
               "grads=qkvs",
               // cuda.sm90 makes bits of it.
               "fwd bf16 b4 hq1 hk1 sq1024 sk1024 d64 dv64 keep:2x1x1024"},
              2);
}
