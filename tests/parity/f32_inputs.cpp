// SPDX-License-Identifier: MIT OR Apache-2.0
// f32 problems with a bias, a keep mask, lengths or a sink, for which cuda.sm80 has kernels of its
// own (cuda/sm80/*_inputs.cuh): tiles of each width and of a head's only keys, sums of d_bias, the
// postprocess of d_q, strides and element types of the bias, and lengths. On CUDA's paths alone:
// the others have the same problems in features.cpp.
#include "magnitudes.h"
#include "parity.h"

using namespace parity;

namespace {

void check_cuda(Case& test, const Expect& expect) {
  for (Target& target : targets())
    if (target.path == "sm80" || (target.backend == "cuda" && at_least(Tier::ci)))
      check_on(target, test, expect);
}

Expect twice() {
  Expect e = sparse();
  e.takes = "sm80";
  e.options.repeats = 2;
  return e;
}

void check_problem(const tandem_problem& p, uint64_t seed) {
  Case test(p, seed, twice().options);
  check_cuda(test, twice());
}

void check_line(const std::string& line, Layout layout = Layout::bhsd) {
  tandem_problem p = parse(line);
  if (layout != Layout::bhsd)
    for (Role role : {Role::q, Role::k, Role::v, Role::d_o, Role::bias, Role::d_bias})
      set_layout(p, role, layout);
  check_problem(p, seed_of(line.c_str(), uint64_t(layout)));
}

// Lengths that no tensor has, among others.
void check_lengths(const std::string& line, tandem_lengths kind, const std::vector<int64_t>& q,
                   const std::vector<int64_t>& kv) {
  tandem_problem p = parse(line);
  const bool packed = kind == TANDEM_LENGTHS_PACKED;
  set_lengths(p, kind, kind, packed ? p.seq_q * 3 : 0, packed ? p.seq_kv * 3 : 0);
  Case test(p, seed_of(line.c_str(), uint64_t(kind)), twice().options);
  set_lengths_of(test, false, q);
  set_lengths_of(test, true, kv);
  check_cuda(test, twice());
}

}  // namespace

// Of heads up to 32, 64 and 128: all keys of a head in a workgroup, and sums of d_q in any order.
TEST_CASE("f32 inputs: a bias of each head") {
  check_line("bwd f32 b2 hq2 hk1 sq70 sk100 d24 dv24 bias:f32:2x2x70 d_bias:f32 grads=qkvb");
  check_line("bwd f32 b1 hq2 hk2 sq40 sk49 d16 dv32 bias:f32:1x2x40 d_bias:f32 grads=qkvb");
  check_line("bwd f32 b1 hq2 hk1 sq50 sk131 d32 dv8 bias:bf16:1x2x50 d_bias:bf16 grads=qkvb");
  check_line("bwd f32 b1 hq2 hk2 sq66 sk97 d64 dv40 bias:f16:1x2x66 d_bias:f32 grads=qkvb");
  check_line("bwd f32 b1 hq2 hk1 sq35 sk70 d128 dv96 bias:f32:1x2x35 d_bias:f32 grads=qkvb");
}

TEST_CASE("f32 inputs: in a fixed order") {
  const std::string flag = " deterministic";
  check_line("bwd f32 b1 hq2 hk1 sq70 sk100 d24 dv24 bias:f32:1x2x70 d_bias:f32 grads=qkvb" + flag);
  check_line("bwd f32 b2 hq2 hk1 sq70 sk150 d24 dv24 kv_padded keep:2x1x1" + flag);
  check_line(
      "bwd f32 b1 hq2 hk2 sq70 sk100 d64 dv64 bias:f32:1x2x70 d_bias:f32 grads=qkvb "
      "causal_bottom_right" +
      flag);
  check_line(
      "bwd f32 b1 hq2 hk1 sq40 sk70 d128 dv128 bias:f32:1x1x1 keep:1x2x40 d_bias:f32 grads=qkvb" +
      flag);
}

TEST_CASE("f32 inputs: d_bias that batch entries or heads share") {
  check_line("bwd f32 b9 hq2 hk2 sq70 sk70 d64 dv64 bias:f32:1x2x70 d_bias:f32 grads=qkvb");
  check_line("bwd f32 b3 hq4 hk2 sq49 sk49 d32 dv32 bias:f32:3x2x49 d_bias:f32 grads=b keep:3x1x1");
  check_line("bwd f32 b2 hq2 hk1 sq70 sk66 d128 dv72 bias:bf16:1x1x1 d_bias:bf16 grads=qkvb sink");
  check_line("bwd f32 b150 hq2 hk1 sq20 sk33 d16 dv16 bias:f32:1x1x1 d_bias:f32 grads=b");
  check_line(
      "bwd f32 b2 hq2 hk2 sq130 sk65 d40 dv64 bias:f32:2x1x1 d_bias:f32 grads=b left=30 right=9");
}

TEST_CASE("f32 inputs: keep beside a bias, masks, a sink") {
  check_line("bwd f32 b2 hq2 hk1 sq70 sk140 d32 dv32 keep:2x1x1 sink grads=qkvs");
  check_line(
      "bwd f32 b2 hq2 hk2 sq66 sk70 d64 dv64 bias:f32:1x1x1 keep:2x2x66 causal_bottom_right");
  check_line(
      "bwd f32 b1 hq2 hk2 sq100 sk160 d24 dv24 bias:f32:1x2x100 keep:1x1x100 left=20 right=5 "
      "d_bias:f32 grads=qkvb");
  check_line("fwd f32 b1 hq4 hk2 sq3 sk500 d64 dv64 bias:f32:1x4x3 sink splits=4");
  check_line("fwd f32 b1 hq2 hk2 sq70 sk90 d100 dv128 bias:f32:1x2x70 keep:1x1x1");
}

TEST_CASE("f32 inputs: lengths") {
  for (tandem_lengths kind : {TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PACKED}) {
    const std::vector<int64_t> q = {40, 0, 31, 17}, kv = {40, 20, 0, 33};
    check_lengths("bwd f32 b4 hq2 hk2 sq40 sk40 d16 dv16", kind, q, kv);
    check_lengths("bwd f32 b4 hq2 hk1 sq40 sk40 d64 dv64 causal_bottom_right", kind, q, kv);
    check_lengths(
        "bwd f32 b4 hq2 hk2 sq40 sk40 d24 dv24 bias:f32:4x2x40 d_bias:f32 grads=qkvb keep:4x1x1",
        kind, q, kv);
    check_lengths("bwd f32 b4 hq1 hk1 sq70 sk150 d32 dv32", kind, {70, 1, 0, 65},
                  {150, 129, 64, 0});
    check_lengths("bwd f32 b4 hq2 hk2 sq70 sk70 d64 dv64 bias:f32:1x2x70 d_bias:f32 grads=qkvb",
                  kind, {70, 1, 0, 65}, {70, 69, 64, 0});
    check_lengths("bwd f32 b4 hq2 hk2 sq70 sk70 d32 dv32 deterministic", kind, {70, 1, 0, 65},
                  {70, 69, 64, 0});
  }
}

// The accumulator of d_q that a launch of its own casts.
TEST_CASE("f32 inputs: d_q of more than the last workgroup casts") {
  check_line("bwd f32 b1 hq2 hk2 sq1100 sk200 d64 dv64 kv_padded");
}

TEST_CASE("f32 inputs: far rows and finite masks") {
  for (double mask : {-1e4, -1e9, -3e38}) {
    for (const char* line :
         {"bwd f32 b2 hq2 hk2 sq40 sk70 d32 dv32 bias:f32:1x2x40 d_bias:f32 grads=qkvb",
          "bwd f32 b2 hq2 hk2 sq40 sk70 d64 dv64 bias:f32:2x2x40 d_bias:f32 grads=qkvb",
          "bwd f32 b2 hq2 hk1 sq40 sk70 d64 dv64 bias:f32:2x1x40 deterministic"}) {
      const tandem_problem p = parse(line);
      check_magnitudes(p, with_bias(Magnitudes::Bias::rows, mask), seed_of(line, 1));
      check_magnitudes(p, with_bias(Magnitudes::Bias::all, mask), seed_of(line, 2));
    }
  }
}

// Keys by every remainder, with what the bias is shared by, its strides and type, and what stands
// beside it taken in turn.
TEST_CASE("f32 inputs: keys of every number" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (int64_t keys = 1; keys <= 300; keys += keys < 20 ? 1 : 7, ++n) {
    const int64_t widths[] = {24, 64, 16, 128, 8, 40, 32, 80};
    const int64_t width = widths[n % 8], rows = n % 3 == 0 ? 1 + n : 37 + n % 40;
    tandem_problem p =
        problem(n % 6 == 5 ? TANDEM_FORWARD : TANDEM_BACKWARD, TANDEM_F32,
                {2, 4, n % 4 < 2 ? 4 : 2, rows, keys, width, n % 5 ? width : 48}, kMasks[n % 6]);
    if (n % 7 != 6) {
      set_bias(p, n % 4 == 3 ? TANDEM_BF16 : TANDEM_F32, n % 3 == 1 ? 1 : 2,
               n % 5 == 4 ? p.heads_kv : 4, n % 4 == 1 ? 1 : p.seq_q, TANDEM_F32);
      if (p.direction == TANDEM_BACKWARD) p.gradients |= TANDEM_GRAD_BIAS;
      if (n % 4 == 2) set_layout(p, Role::bias, Layout::transposed);
      if (n % 4 == 0) set_layout(p, Role::bias, Layout::gapped);
    }
    if (n % 3 == 2) set_keep(p, n % 2 ? 1 : 2, n % 4 == 1 ? 4 : 1, n % 5 < 3 ? p.seq_q : 1);
    if (n % 5 == 3) set_lengths(p, TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PADDED, 0, 0);
    if (n % 6 == 4) p.flags |= TANDEM_FLAG_DETERMINISTIC;
    check_problem(p, seed_of("f32 keys", uint64_t(n)));
  }
}
