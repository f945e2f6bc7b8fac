// SPDX-License-Identifier: MIT OR Apache-2.0
// Dense biases that TMA cannot read where they lie, which cuda.sm90 copies first (pack_bias): rows
// that are no multiple of 16 bytes apart, elements that are not side by side, odd addresses. And
// those with one row for all queries, which have kernels of their own there (row_bias). In the tier
// smoke on that path alone.
#include <limits>

#include "magnitudes.h"

using namespace parity;

namespace {

// Calls check(target) for the targets that the tier has.
template <typename Check>
void for_each_target(const Check& check) {
  for (Target& target : targets())
    if (target.path == "sm90" || at_least(Tier::ci)) check(target);
}

// lead: elements between the bias's buffer and its tensor.
void check_bias(const std::string& line, Layout layout = Layout::bhsd, int64_t lead = 0) {
  tandem_problem p = parse(line);
  if (layout != Layout::bhsd) set_layout(p, Role::bias, layout);
  Expect expect = sparse();
  expect.takes = "sm90";
  expect.may_refuse = p.tile_rows > 0;  // other paths have other tiles
  expect.options.repeats = 2;
  Case test(p, seed_of(line.c_str()), expect.options);
  if (lead > 0) {
    HostTensor& bias = test.input(Role::bias);
    HostTensor moved(p, Role::bias, lead);
    moved.set_dense(bias.dense());
    bias = moved;
  }
  for_each_target([&](Target& target) { check_on(target, test, expect); });
}

// The type's lowest number in a bias. pad: as models build a mask of a padded batch, in front of
// each sequence, in one row for all queries.
void check_lowest(const std::string& line, Magnitudes::Bias where = Magnitudes::Bias::pad) {
  const tandem_problem p = parse(line);
  const Magnitudes m = with_bias(where, -0x1.fffffep127);
  CaseOptions twice;
  twice.repeats = 2;
  Case test(p, seed_of(line.c_str()), twice);
  fill_magnitudes(m, test);
  const MagnitudeRules rules(test);
  for_each_target([&](Target& target) {
    if (takes(target, p)) check_on(target, test, rules, line);
  });
}

// No number in the bias of keys behind the end of an entry.
void check_lengths(const std::string& line, const std::vector<int64_t>& keys,
                   const std::vector<int64_t>& queries = {}) {
  const tandem_problem p = parse(line);
  Expect expect = sparse();
  expect.takes = "sm90";
  expect.options.repeats = 2;
  Case test(p, seed_of(line.c_str()), expect.options);
  set_lengths_of(test, true, keys);
  if (!queries.empty()) set_lengths_of(test, false, queries);
  HostTensor& bias = test.input(Role::bias);
  for (int64_t b = 0; b < bias.dims.b; ++b)
    for (int64_t h = 0; h < bias.dims.h; ++h)
      for (int64_t j = keys[size_t(b)]; j < bias.dims.d; ++j)
        bias.set(b, h, 0, j, std::numeric_limits<double>::quiet_NaN());
  for_each_target([&](Target& target) { check_on(target, test, expect); });
}

}  // namespace

TEST_CASE("biases: rows at odd distances") {
  check_bias("fwd bf16 b2 hq2 hk2 sq49 sk49 d64 dv64 bias:bf16:1x2x49");
  check_bias("bwd f16 b2 hq4 hk2 sq49 sk49 d32 dv32 bias:f16:1x4x49 grads=qkvb d_bias:f16");
  check_bias(
      "bwd bf16 b2 hq2 hk1 sq70 sk197 d64 dv64 causal_bottom_right bias:bf16:2x2x70 grads=qkvb "
      "d_bias:f32");
  check_bias("bwd f16 b2 hq2 hk2 sq66 sk250 d128 dv64 left=40 right=20 bias:f16:2x1x66");
  check_bias("fwd f16 b2 hq2 hk2 sq200 sk197 d128 dv72 bias:f16:1x2x200 tile=192x128");
}

TEST_CASE("biases: strides and addresses that TMA does not take") {
  check_bias("fwd f16 b2 hq2 hk1 sq70 sk104 d64 dv64 bias:f16:2x2x70", Layout::transposed);
  check_bias("bwd bf16 b2 hq2 hk2 sq50 sk72 d64 dv64 bias:bf16:2x2x50 grads=qkvb d_bias:bf16",
             Layout::gapped);
  check_bias("fwd bf16 b1 hq2 hk2 sq70 sk250 d64 dv64 bias:bf16:1x2x70", Layout::bhsd, 1);
}

TEST_CASE("biases: one row for all queries") {
  check_bias("fwd f16 b2 hq4 hk2 sq150 sk265 d64 dv64 bias:f16:2x4x1");
  check_bias("fwd bf16 b2 hq4 hk2 sq140 sk131 d96 dv80 bias:f32:2x2x1", Layout::transposed);
  check_bias("fwd f16 b2 hq2 hk2 sq70 sk200 d64 dv64 scale=-0.125 bias:f32:1x2x1", Layout::gapped);
  check_bias("bwd bf16 b2 hq2 hk1 sq150 sk265 d64 dv64 causal_bottom_right bias:f32:2x1x1",
             Layout::bhsd, 1);
  check_bias("bwd f16 b2 hq4 hk2 sq70 sk131 d96 dv96 bias:f16:2x4x1 deterministic",
             Layout::transposed);
  check_bias("bwd bf16 b1 hq2 hk2 sq70 sk77 d128 dv72 scale=-0.125 bias:bf16:1x1x1");
  check_bias("fwd bf16 b1 hq2 hk2 sq200 sk197 d64 dv64 causal_top_left bias:bf16:1x1x1");
  check_bias("fwd f16 b2 hq2 hk2 sq200 sk104 d128 dv128 bias:f16:2x1x1");
  check_bias("bwd bf16 b3 hq2 hk1 sq150 sk96 d64 dv64 bias:bf16:3x1x1");
  check_bias("bwd f16 b2 hq2 hk2 sq70 sk49 d128 dv128 left=30 right=10 bias:f16:1x2x1",
             Layout::bhsd, 1);
}

// The mask takes it to the kernels with tiles of the bias.
TEST_CASE("biases: one row for all queries beside a mask") {
  check_bias("fwd bf16 b2 hq2 hk2 sq100 sk197 d64 dv64 bias:bf16:2x1x1 keep:2x1x1");
  check_bias("bwd f16 b2 hq2 hk1 sq70 sk104 d128 dv128 bias:f32:1x2x1 keep:2x1x70");
}

TEST_CASE("biases: one row for no query, and no entry") {
  check_lines({"bwd f32 b1 hq2 hk2 sq0 sk9 d8 dv8 bias:f32:1x2x1 d_bias:f32 grads=qkvb",
               "bwd f16 b0 hq2 hk2 sq7 sk9 d8 dv8 bias:f32:1x2x1 d_bias:f32 grads=qkvb",
               "bwd bf16 b0 hq2 hk1 sq7 sk9 d8 dv8 bias:bf16:1x2x7 d_bias:bf16 grads=qkvb"});
}

TEST_CASE("biases: one row for all queries, many tiles") {
  check_bias("fwd f16 b2 hq4 hk4 sq300 sk197 d64 dv64 bias:f16:2x1x1 tile=192x128");
  check_bias("fwd bf16 b2 hq4 hk4 sq300 sk333 d64 dv64 bias:f32:2x1x1 tile=256x64");
  check_bias("bwd f16 b2 hq16 hk8 sq140 sk200 d64 dv64 bias:f16:2x16x1");
  check_bias(
      "bwd bf16 b3 hq10 hk10 sq70 sk131 d128 dv128 causal_top_left bias:f32:3x1x1 "
      "deterministic");
}

TEST_CASE("biases: one row for all queries, heads over 128") {
  check_bias("fwd f16 b2 hq2 hk1 sq70 sk200 d256 dv256 bias:f16:2x1x1");
  check_bias("fwd bf16 b1 hq2 hk2 sq150 sk250 d192 dv128 causal_top_left bias:f32:1x2x1",
             Layout::bhsd, 1);
  check_bias("fwd f16 b1 hq2 hk2 sq150 sk197 d192 dv192 bias:f32:1x1x1");
}

TEST_CASE("biases: one row for all queries beside lengths and a sink") {
  check_lengths("fwd f16 b3 hq2 hk1 sq140 sk265 d64 dv64 bias:f16:3x1x1 q_padded kv_padded",
                {265, 1, 130}, {140, 70, 3});
  check_lengths("fwd bf16 b3 hq2 hk2 sq100 sk150 d128 dv128 bias:f32:3x2x1 kv_packed=300 sink",
                {150, 23, 127});
  check_lengths(
      "fwd f16 b2 hq2 hk2 sq100 sk150 d96 dv96 bias:f16:2x1x1 kv_padded sink "
      "causal_bottom_right",
      {97, 0});
  check_lengths("fwd bf16 b2 hq2 hk1 sq70 sk170 d256 dv256 bias:bf16:2x1x1 kv_padded sink",
                {163, 81});
  check_lengths("bwd f16 b3 hq2 hk1 sq140 sk265 d64 dv64 bias:f32:3x1x1 q_padded kv_padded",
                {265, 1, 130}, {140, 70, 3});
  check_lengths(
      "bwd bf16 b3 hq4 hk2 sq100 sk150 d128 dv128 bias:bf16:3x4x1 q_packed=210 "
      "kv_packed=300 sink grads=qkvs",
      {150, 23, 127}, {100, 10, 100});
  check_lengths(
      "bwd f16 b2 hq2 hk2 sq100 sk150 d96 dv96 bias:f16:2x1x1 kv_padded sink grads=qkvs "
      "causal_bottom_right deterministic",
      {97, 0});
}

TEST_CASE("biases: one row of the lowest number, or of minus infinity") {
  using Bias = Magnitudes::Bias;
  check_lowest("fwd f16 b4 hq4 hk4 sq70 sk150 d64 dv64 bias:f16:4x4x1", Bias::rows);
  check_lowest("fwd bf16 b4 hq4 hk4 sq70 sk150 d64 dv64 bias:bf16:4x4x1 sink", Bias::rows);
  check_lowest("fwd f16 b4 hq4 hk2 sq70 sk150 d128 dv128 bias:f32:4x4x1", Bias::rows);
  check_lowest("bwd bf16 b4 hq4 hk4 sq70 sk150 d64 dv64 bias:bf16:4x4x1", Bias::rows);
  check_lowest("bwd f16 b4 hq4 hk2 sq70 sk150 d96 dv96 bias:f32:4x4x1 causal_bottom_right",
               Bias::rows);
  check_lowest("bwd f16 b4 hq4 hk4 sq70 sk150 d128 dv128 bias:f16:4x4x1 sink grads=qkvs",
               Bias::some);
}

TEST_CASE("biases: left padding by the lowest number") {
  check_lowest("fwd f16 b2 hq2 hk2 sq70 sk70 d64 dv64 bias:f16:2x1x1");
  check_lowest("bwd bf16 b2 hq2 hk2 sq66 sk66 d64 dv64 causal_top_left bias:bf16:2x1x1");
  check_lowest("bwd f16 b2 hq2 hk1 sq66 sk66 d128 dv128 bias:f16:2x1x1");
  check_lowest("fwd f16 b2 hq2 hk2 sq70 sk70 d64 dv64 bias:f32:2x1x70");
  check_lowest("bwd f16 b2 hq2 hk1 sq66 sk72 d32 dv32 causal_top_left bias:f32:2x1x1");
  check_lowest("bwd bf16 b2 hq2 hk1 sq66 sk66 d128 dv128 bias:f32:2x1x66");
}

// On cuda.sm90 alone: others have "features: biases by 8 elements".
TEST_CASE("biases: of every width" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (int64_t keys : {1, 7, 49, 63, 65, 196, 197, 250, 257})
    for (const Mask& mask : {kNone, kWindow, kBottomRight})
      for (int64_t rows : {0, 1}) {
        tandem_problem p = problem(
            n % 3 ? TANDEM_BACKWARD : TANDEM_FORWARD, n % 2 ? TANDEM_F16 : TANDEM_BF16,
            {2, 4, n % 4 < 2 ? 4 : 2, n % 5 ? 133 : 71, keys, n % 7 < 3 ? 64 : 128, 64}, mask);
        set_bias(p, tandem_dtype(p.q.dtype), n % 3 == 1 ? 1 : 2, n % 5 == 4 ? 1 : 4,
                 rows ? rows : p.seq_q, n % 2 ? uint32_t(TANDEM_F32) : p.q.dtype);
        const bool sums = p.direction == TANDEM_BACKWARD && !rows && p.bias_heads == 4;
        if (sums) p.gradients |= TANDEM_GRAD_BIAS;
        if (n % 4 == 3) set_layout(p, Role::bias, Layout::transposed);
        if (n % 6 == 5) p.flags |= TANDEM_FLAG_DETERMINISTIC;
        Expect expect = sparse();
        expect.takes = "sm90";
        expect.options.repeats = 2;
        Case test(p, seed_of("biases", uint64_t(++n)), expect.options);
        for (Target& target : targets())
          if (target.path == "sm90") check_on(target, test, expect);
      }
}
