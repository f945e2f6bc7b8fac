// SPDX-License-Identifier: MIT OR Apache-2.0
// Workgroups that take several (head, entry) pairs or tiles, of entries that differ: what a kernel
// keeps from one to the next must not depend on what belongs to one alone. `cores` limits the
// workgroups of persistent kernels, so that a small batch reaches what a real one does; the tier
// device also has real batches.
#include "parity.h"

using namespace parity;

namespace {

void check_lines(const char* name, std::initializer_list<const char*> lines,
                 const char* path = "") {
  Expect expect = sparse();
  expect.takes = path;
  uint64_t n = 0;
  for (const char* line : lines) check(parse(line), seed_of(name, n++), expect);
}

}  // namespace

// Key 0, with the larger bias, is hidden from the even entries alone. A workgroup that reads the
// bias under the mask of its first entry gives odd entries 0.5 in place of 0.9933.
TEST_CASE("reuse: a bias of the batch under the masks of its entries, exact") {
  const tandem_problem p =
      parse("fwd bf16 b10 hq1 hk1 sq1 sk2 d8 dv8 bias:bf16:1x1x1 keep:10x1x1 cores=1");
  const tandem_problem back = parse(
      "bwd bf16 b10 hq1 hk1 sq1 sk2 d8 dv8 bias:bf16:1x1x1 keep:10x1x1 grads=qkvb d_bias:f32 "
      "cores=1");
  for (const tandem_problem& problem : {p, back}) {
    if (!mine(problem)) continue;
    Case test(problem, seed_of("reuse exact"), CaseOptions());
    const auto fill = [&](Role role, auto value) {
      HostTensor& t = test.input(role);
      for (int64_t b = 0; b < t.dims.b; ++b)
        for (int64_t j = 0; j < t.dims.s; ++j)
          for (int64_t d = 0; d < t.dims.d; ++d) t.set(b, 0, j, d, value(b, j, d));
    };
    fill(Role::q, [](int64_t, int64_t, int64_t) { return 0.0; });
    fill(Role::k, [](int64_t, int64_t, int64_t) { return 0.0; });
    fill(Role::v, [](int64_t, int64_t j, int64_t) { return j == 0 ? 1.0 : 0.0; });
    fill(Role::bias, [](int64_t, int64_t, int64_t j) { return j == 0 ? 5.0 : 0.0; });
    fill(Role::keep,
         [](int64_t b, int64_t, int64_t j) { return j == 0 && b % 2 == 0 ? 0.0 : 1.0; });
    if (problem.direction == TANDEM_BACKWARD)
      fill(Role::d_o, [](int64_t, int64_t, int64_t) { return 1.0; });
    check_case(test, sparse());
  }
}

// Swin's shifted windows, AlphaFold's padded triangles, and the larger tiles of whole heads.
TEST_CASE("reuse: whole heads, a bias of the batch under the masks of its entries") {
  check_lines("reuse whole heads",
              {"fwd f16 b8 hq3 hk3 sq49 sk49 d32 bias:f16:1x3x49 keep:8x1x49 cores=1",
               "bwd f16 b8 hq3 hk3 sq49 sk49 d32 bias:f16:1x3x49 keep:8x1x49 grads=qkvb d_bias:f16 "
               "cores=1",
               "fwd bf16 b30 hq4 hk4 sq30 sk30 d32 bias:bf16:1x4x30 keep:30x1x1 cores=2",
               "bwd bf16 b30 hq4 hk4 sq30 sk30 d32 bias:bf16:1x4x30 keep:30x1x1 grads=qkvb "
               "d_bias:f32 cores=2",
               "bwd f16 b9 hq2 hk2 sq17 sk23 d40 bias:f32:1x1x1 keep:9x2x17 grads=qkv cores=1"});
}
TEST_CASE("reuse: larger whole heads" * doctest::skip(!at_least(Tier::ci))) {
  check_lines("reuse larger whole heads",
              {"fwd f16 b6 hq2 sq144 sk144 d64 bias:f16:1x2x144 keep:6x1x144 cores=1",
               "fwd bf16 b5 hq2 sq96 sk65 d64 bias:f32:1x1x96 keep:5x2x1 cores=1",
               "bwd bf16 b6 hq2 sq32 sk128 d32 bias:bf16:1x2x32 keep:6x1x32 grads=qkvb d_bias:f32 "
               "cores=1",
               "bwd f16 b5 hq2 sq144 sk140 d64 bias:f16:1x1x1 keep:5x1x1 cores=1",
               "bwd f16 b6 hq2 sq128 sk128 d32 bias:f32:6x2x128 keep:1x2x128 grads=qkvb d_bias:f32 "
               "cores=1"});
}

// Every persistent kernel of cuda.sm90, with work tiles, clusters and slices of entries that
// differ. Other paths compute the same; sequences over 144 keep whole heads of cuda.sm80 out.
TEST_CASE("reuse: persistent kernels, forward" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      "reuse forward",
      {"fwd bf16 b4 hq2 sq200 sk600 d64 bias:bf16:1x2x200 cores=3",  // stream-K
       "fwd bf16 b4 hq2 sq200 sk600 d64 bias:bf16:1x2x200 keep:4x1x1 cores=3",
       "fwd bf16 b3 hq2 sq200 sk300 d64 bias:bf16:1x2x200 keep:3x1x200 cores=2",
       "fwd bf16 b4 hq2 sq150 sk300 d64 bias:bf16:1x2x150 q_padded kv_padded cores=1",
       "fwd f16 b4 hq2 sq150 sk300 d64 bias:f32:1x2x150 keep:4x1x150 cores=2",
       "fwd bf16 b4 hq2 sq150 sk300 d64 bias:bf16:4x1x1 q_padded kv_padded cores=1",
       "fwd f16 b4 hq2 sq150 sk300 d64 keep:4x1x150 dropout=0.25 dist=70 alibi kv_padded cores=1",
       "fwd f16 b5 hq2 sq150 sk300 d64 q_padded kv_padded sink cores=1",
       "fwd f16 b5 hq2 sq150 sk300 d64 softcap=2 alibi q_padded kv_padded cores=1",
       "fwd bf16 b2 hq3 sq200 sk300 d64 elastic dist=70 cores=1",
       "fwd bf16 b2 hq3 sq256 sk256 d128 causal_top_left elastic dist=70 cores=1",
       "fwd bf16 b2 hq3 sq200 sk300 d64 entmax=1.5 cores=1"});
}
TEST_CASE("reuse: persistent kernels, backward" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      "reuse backward",
      {"bwd bf16 b3 hq2 sq200 sk300 d64 bias:bf16:3x1x1 cores=1",
       "bwd bf16 b3 hq4 hk2 sq200 sk300 d64 cores=1",
       "bwd bf16 b4 hq2 sq70 sk300 d64 bias:bf16:1x2x70 keep:4x1x70 grads=qkvb d_bias:f32 cores=4",
       "bwd f16 b4 hq2 sq70 sk300 d64 bias:f32:1x2x70 keep:4x1x1 grads=qkvb d_bias:f32 cores=4",
       "bwd bf16 b2 hq8 hk1 sq65 sk300 d128 bias:bf16:1x8x65 grads=qkvb d_bias:f32 cores=2",
       "bwd f16 b10 hq2 sq70 sk300 d64 bias:f16:1x2x70 keep:10x1x1 q_padded kv_padded grads=qkvb "
       "d_bias:f32 cores=1"});
}

// Sums over entries, heads and rows, and rows that share keys: what each member brings is its own.
// On Vulkan a workgroup takes several members too. The last lines are for kernels that have one
// tile a workgroup but keep dS, or the stages of heads, for all entries.
TEST_CASE("reuse: sums over entries that differ" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      "reuse sums",
      {"bwd bf16 b6 hq4 hk2 sq150 sk70 d40 bias:bf16:1x1x1 keep:6x4x1 dropout=0.25 grads=qb "
       "d_bias:f32 cores=1",
       "bwd f16 b6 hq2 sq60 sk70 d32 bias:f16:1x2x60 q_packed=200 kv_packed=250 grads=qkvb "
       "d_bias:f32 cores=1",
       "bwd f16 b6 hq2 sq60 sk70 d32 entmax=1.5 bias:f16:1x2x60 keep:6x1x1 grads=qkvb d_bias:f32 "
       "cores=1",
       "bwd f32 b6 hq2 sq70 sk90 d24 dist=40 elastic bottom_right q_padded kv_padded grads=qkvdt "
       "cores=1",
       "bwd f16 b5 hq2 sq140 sk72 d32 causal_bottom_right softcap=5 bias:f16:1x2x140 keep:5x2x140 "
       "grads=qb d_bias:f16 cores=1",
       "bwd f16 b6 hq2 sq140 sk72 d32 bias:f16:1x2x140 keep:6x1x140 grads=qkvb d_bias:f16 cores=1",
       "bwd f16 b3 hq6 hk2 sq70 sk65 d64 alibi bias:f16:1x6x70 keep:3x6x70 grads=qkva cores=1",
       "bwd f16 b4 hq2 sq150 sk70 d32 bias:f16:1x2x150 keep:4x1x150 grads=qkvb d_bias:f32",
       "bwd bf16 b4 hq2 sq200 sk136 d128 causal_bottom_right bias:bf16:1x2x200 keep:4x1x1 "
       "grads=qkvb d_bias:bf16",
       "fwd bf16 b9 hq8 hk2 sq1 sk300 d64 kv_padded sink cores=1"});
}

// Batches as models have them, without a limit: every entry is compared.
TEST_CASE("reuse: real batches" * doctest::skip(!at_least(Tier::device))) {
  check_lines("reuse real batches",
              {"fwd f16 b2048 hq3 hk3 sq49 sk49 d32 bias:f16:1x3x49 keep:2048x1x49",
               "bwd f16 b2048 hq3 hk3 sq49 sk49 d32 bias:f16:1x3x49 keep:2048x1x49 grads=qkvb "
               "d_bias:f16",
               "fwd bf16 b1024 hq4 hk4 sq128 sk128 d32 bias:bf16:1x4x128 keep:1024x1x1",
               "bwd bf16 b1024 hq4 hk4 sq128 sk128 d32 bias:bf16:1x4x128 keep:1024x1x1 grads=qkvb "
               "d_bias:bf16",
               "fwd bf16 b4096 hq4 hk4 sq30 sk30 d32 bias:bf16:1x4x30 keep:4096x1x1",
               "bwd bf16 b4096 hq4 hk4 sq30 sk30 d32 bias:bf16:1x4x30 keep:4096x1x1 grads=qkvb "
               "d_bias:bf16"});
}
