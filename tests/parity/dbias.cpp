// SPDX-License-Identifier: MIT OR Apache-2.0
// d_bias of a bias that batch entries or heads share, where cuda.sm80 has kernels of its own
// (cuda/sm80/bwd_dbias*.cuh), by the rules of the error-ratio suite: tiles of each size, splits,
// biases of one row, of any type and strides, and what may stand beside a bias. On CUDA's paths
// alone: the others have the same problems in features.cpp.
#include "magnitudes.h"
#include "parity.h"

using namespace parity;

namespace {

// Runs a case on the targets of CUDA, twice for equal bits.
void check_cuda(Case& test, const Expect& expect) {
  for (Target& target : targets())
    if (target.backend == "cuda") check_on(target, test, expect);
}

Expect twice() {
  Expect e = sparse();
  e.options.repeats = 2;
  return e;
}

void check_line(const std::string& line, Layout layout = Layout::bhsd) {
  tandem_problem p = parse(line);
  if (layout != Layout::bhsd)
    for (Role role : {Role::q, Role::k, Role::v, Role::d_o, Role::bias, Role::d_bias})
      set_layout(p, role, layout);
  Case test(p, seed_of(line.c_str(), uint64_t(layout)), twice().options);
  check_cuda(test, twice());
}

}  // namespace

// Tiles of 128 x 128, 128 x 64 and 64 x 64, all heads up to 128, and sums over the batch, over
// heads, and over both.
TEST_CASE("d_bias: shared by batch entries, by heads, by both") {
  check_line("bwd bf16 b9 hq2 hk2 sq100 sk120 d32 dv32 bias:bf16:1x2x100 d_bias:bf16 grads=b");
  check_line("bwd f16 b2 hq6 hk2 sq130 sk197 d64 dv64 bias:f16:2x1x130 d_bias:f32 grads=b");
  check_line("bwd bf16 b3 hq4 hk2 sq49 sk49 d128 dv72 bias:f32:1x2x49 d_bias:f32 grads=b");
}

// Of more members than a workgroup of each SM takes.
TEST_CASE("d_bias: splits of the sum") {
  check_line("bwd f16 b40 hq1 hk1 sq49 sk49 d32 dv32 bias:f16:1x1x49 d_bias:f16 grads=b");
  check_line("bwd bf16 b70 hq2 hk1 sq20 sk33 d64 dv64 bias:bf16:1x1x1 d_bias:bf16 grads=b dist=9");
}

TEST_CASE("d_bias: one row for all queries") {
  check_line("bwd bf16 b5 hq2 hk2 sq197 sk49 d40 dv24 bias:bf16:1x2x1 d_bias:bf16 grads=b");
  check_line("bwd f16 b2 hq4 hk2 sq70 sk197 d64 dv64 bias:f32:1x2x1 d_bias:f32 grads=b");
}

// A weight of keys that a mask or a length hides, and those of a row that sees none.
TEST_CASE("d_bias: keep, lengths and masks beside the bias") {
  check_line(
      "bwd bf16 b3 hq2 hk2 sq100 sk101 d64 dv64 bias:bf16:1x2x100 keep:3x1x1 d_bias:bf16 grads=b");
  check_line(
      "bwd f16 b3 hq2 hk2 sq100 sk130 d32 dv32 bias:f16:1x1x100 keep:1x2x100 d_bias:f16 grads=b "
      "causal_bottom_right");
  check_line(
      "bwd f16 b2 hq2 hk1 sq197 sk140 d64 dv64 bias:f32:1x2x197 left=70 right=20 grads=b "
      "d_bias:f32 sink");
  for (tandem_lengths kind : {TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PACKED}) {
    tandem_problem p = parse(
        "bwd bf16 b4 hq2 hk2 sq140 sk160 d64 dv64 causal_bottom_right bias:bf16:1x2x140 "
        "d_bias:bf16 grads=b");
    const bool packed = kind == TANDEM_LENGTHS_PACKED;
    set_lengths(p, kind, kind, packed ? 300 : 0, packed ? 320 : 0);
    Case test(p, seed_of("d_bias lengths", uint64_t(kind)), twice().options);
    set_lengths_of(test, false, {140, 0, 31, 129});
    set_lengths_of(test, true, {100, 60, 0, 160});
    check_cuda(test, twice());
  }
}

TEST_CASE("d_bias: other normalisers and optional inputs beside the bias") {
  const std::string shape = "bwd bf16 b9 hq4 hk2 sq70 sk101 d64 dv64 grads=b ";
  check_line(shape + "bias:bf16:1x2x70 d_bias:bf16 elastic dist=40 causal_bottom_right");
  check_line(shape + "bias:f32:1x4x70 entmax=1.5 keep:9x1x70 d_bias:f32");
  check_line(shape + "bias:bf16:1x1x1 d_bias:bf16 softcap=3 alibi dropout=0.2 kv_padded");
  check_line(
      "bwd f16 b3 hq2 hk2 sq49 sk197 d128 dv128 bias:f16:1x2x49 entmax=1.3 dropout=0.3 "
      "d_bias:f16 grads=b");
}

// Rows whose lse is far from 0 have origins of their own. Biases of a finite mask hide most keys.
TEST_CASE("d_bias: far rows and finite masks") {
  for (const char* more : {"", " softcap=50"})
    for (double mask : {-1e4, -1e9, -3e38}) {
      const tandem_problem p =
          parse(std::string("bwd bf16 b3 hq2 hk2 sq70 sk90 d64 dv64 bias:bf16:1x2x70 d_bias:f32 "
                            "grads=b") +
                more);
      check_magnitudes(p, with_bias(Magnitudes::Bias::rows, mask), seed_of("d_bias far", 1));
      check_magnitudes(p, with_bias(Magnitudes::Bias::all, mask), seed_of("d_bias far", 2));
    }
}

TEST_CASE("d_bias: shapes, types and strides" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  const char* biases[] = {"f16", "bf16", "f32"};
  for (const char* sizes : {"sq130 sk260 d32 dv32", "sq256 sk128 d64 dv48", "sq129 sk65 d128 dv128",
                            "sq1 sk300 d24 dv32", "sq300 sk1 d64 dv64", "sq64 sk64 d72 dv128"})
    for (const char* rows : {"1", "all"})
      for (Layout layout : {Layout::bhsd, Layout::bshd, Layout::gapped, Layout::transposed}) {
        const std::string sq = std::string(sizes).substr(2, std::string(sizes).find(' ') - 2);
        const std::string more = n % 3 == 2 ? " softcap=4" : n % 3 == 1 ? " kv_padded" : "";
        check_line(std::string("bwd ") + (n % 2 ? "f16" : "bf16") + " b3 hq4 hk2 " + sizes +
                       " bias:" + biases[n % 3] + (n % 4 == 3 ? ":3x" : ":1x") +
                       (n % 5 == 1   ? "1"
                        : n % 5 == 2 ? "4"
                                     : "2") +
                       "x" + (std::string(rows) == "1" ? rows : sq) +
                       " d_bias:" + (n / 3 % 2 ? "f32" : biases[n % 3]) + " grads=b" + more,
                   layout);
        ++n;
      }
}
