// SPDX-License-Identifier: MIT OR Apache-2.0
// The error-ratio suite: random inputs, every row within twice the error of a plain computation in
// the same precision, every element within its floor. It decides accuracy, over shapes, masks,
// grouped heads, layouts, dtypes and subsets of gradients.
#include <algorithm>

#include "parity.h"

using namespace parity;

namespace {

constexpr int64_t kPairs[][2] = {
    {1, 1},     {64, 128},    {128, 192},   {256, 256},   {239, 1},     {799, 3},    {113, 203},
    {113, 128}, {128, 217},   {113, 211},   {108, 256},   {256, 512},   {384, 256},  {640, 128},
    {512, 256}, {1024, 1024}, {1023, 1024}, {1024, 1023}, {4096, 4096}, {4224, 4224}};
constexpr int64_t kHeads[][2] = {{1, 1}, {4, 4}, {8, 2}, {6, 1}};

// Rows that see nothing, or keys that no row sees, make most of an output zero in these.
bool mostly_empty(const Shape& s, const Mask& mask) {
  const bool limited = mask.mask != TANDEM_MASK_NONE || mask.left != kOpen || mask.right != kOpen;
  return limited && (s.sq > s.sk || s.sk > s.sq);
}

void run(tandem_direction direction, tandem_dtype dtype, const Shape& shape, const Mask& mask,
         Layout layout = Layout::bhsd) {
  const tandem_problem p = problem(direction, dtype, shape, mask, layout);
  Expect expect;
  expect.sparse = mostly_empty(shape, mask) || shape.sk == 1;  // one key: dS is zero
  check(p, seed_of("ratio", uint64_t(shape.sq * 4099 + shape.sk * 61 + shape.d)), expect);
}

}  // namespace

TEST_CASE("ratio: two shapes of each dtype and mask") {
  int n = 0;
  for (const Mask& mask : {kNone, kBottomRight, kWindow})
    for (tandem_dtype dtype : kDtypes) {
      const Shape shape =
          n++ % 2 ? Shape{2, 2, 2, 65, 65, 64, 64} : Shape{1, 4, 2, 70, 101, 32, 32};
      run(TANDEM_BACKWARD, dtype, shape, mask);
    }
  run(TANDEM_FORWARD, TANDEM_BF16, {1, 6, 1, 1, 300, 64, 64}, kNone);
}

// In a fixed order of sums cuda.sm80 has other kernels.
TEST_CASE("ratio: two shapes in a fixed order") {
  for (bool second : {false, true}) {
    tandem_problem p =
        second ? problem(TANDEM_BACKWARD, TANDEM_F16, {2, 2, 2, 65, 65, 64, 64}, kNone)
               : problem(TANDEM_BACKWARD, TANDEM_BF16, {1, 4, 2, 70, 101, 32, 32}, kNone);
    p.flags |= TANDEM_FLAG_DETERMINISTIC;
    check(p, seed_of("ratio in order", second));
  }
}

TEST_CASE("ratio: random problems") {
  const int problems = at_least(Tier::device) ? 128 : at_least(Tier::ci) ? 64 : 3;
  RandomLimits limits;
  if (!at_least(Tier::ci)) limits.max_work = 1000000, limits.max_seq = 200;
  for (int n = 0; n < problems; ++n) {
    const uint64_t seed = seed_of("random", uint64_t(n));
    Expect expect;
    expect.sparse = true;
    expect.may_refuse = true;  // more optional inputs at once than fit, by name
    expect.options = random_options(seed);
    check(random_problem(seed, limits), seed, expect);
  }
}

TEST_CASE("ratio: around the tile that the plan chose") {
  for (Target& target : targets()) {
    const Plan plan(*target.session,
                    problem(TANDEM_BACKWARD, TANDEM_F16, {1, 2, 1, 512, 512, 32, 32}));
    const int64_t br = plan.info().tile_rows, bc = plan.info().tile_cols;
    if (br == 0) continue;  // a path without tiles
    int n = 0;
    for (int64_t sq : {br - 1, br, br + 1})
      for (int64_t sk : {bc - 1, bc, bc + 1}) {
        if (!at_least(Tier::ci) && n++ % 3 != int(&target - targets().data()) % 3) continue;
        const tandem_problem p =
            problem(TANDEM_BACKWARD, TANDEM_F16, {1, 2, 1, sq, sk, 32, 32}, kBottomRight);
        Expect expect;
        expect.options.repeats = 2;
        expect.sparse = true;
        Case test(p, seed_of("tile", uint64_t(n)), expect.options);
        check_on(target, test, expect);
      }
  }
}

TEST_CASE("ratio: subsets of gradients") {
  for (uint32_t gradients = 1; gradients < TANDEM_GRAD_QKV; ++gradients) {
    if (!at_least(Tier::ci) && gradients != 1 && gradients != 2 && gradients != 4) continue;
    tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16, {1, 4, 2, 66, 70, 32, 32}, kTopLeft);
    p.gradients = gradients;
    check(p, seed_of("subset", gradients));
  }
}

TEST_CASE("ratio: head sizes" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (int64_t d : {1, 3, 32, 40, 64, 72, 80, 96, 128, 192, 256}) {
    run(TANDEM_BACKWARD, kDtypes[n % 3], {1, 2, 1, 67, 75, d, d}, kBottomRight);
    run(TANDEM_BACKWARD, kDtypes[++n % 3], {1, 2, 1, 67, 75, d, d == 64 ? 128 : 64}, kNone);
  }
}

TEST_CASE("ratio: heads, layouts, dtypes" * doctest::skip(!at_least(Tier::ci))) {
  for (const auto& heads : kHeads)
    for (Layout layout :
         {Layout::bhsd, Layout::bshd, Layout::gapped, Layout::gapped4, Layout::transposed})
      for (tandem_dtype dtype : kDtypes)
        run(TANDEM_BACKWARD, dtype, {2, heads[0], heads[1], 40, 51, 32, 32}, kBottomRight, layout);
}

TEST_CASE("ratio: single rows, long ones" * doctest::skip(!at_least(Tier::ci))) {
  for (const Mask& mask : {kNone, kBottomRight}) {
    run(TANDEM_BACKWARD, TANDEM_BF16, {1, 4, 2, 1, 4096, 64, 64}, mask);
    run(TANDEM_BACKWARD, TANDEM_F32, {1, 4, 2, 4096, 1, 64, 64}, mask);
  }
}

TEST_CASE("ratio: the twenty length pairs, short heads" *
          doctest::skip(!at_least(Tier::ci) || at_least(Tier::device))) {
  int n = 0;
  for (const auto& pair : kPairs) {
    if (pair[0] > 2048) continue;
    run(TANDEM_BACKWARD, kDtypes[n % 3], {1, 2, 1, pair[0], pair[1], 32, 32},
        n % 2 ? kNone : kBottomRight);
    ++n;
  }
}

// 20 pairs x 5 head sizes x 2 masks x 3 head ratios x 2 dtypes, forward and backward: nearly 2,400
// judged runs, fewer of the longest. The CPU targets are left out when there is a GPU.
TEST_CASE("ratio: the grid" * doctest::skip(!at_least(Tier::device))) {
  Expect expect;
  expect.sparse = true;
  expect.gpu_only = true;
  expect.options.repeats = 2;
  std::vector<tandem_problem> problems;
  int64_t n = 0;
  for (const auto& pair : kPairs)
    for (int64_t d : {32, 64, 80, 128, 256})
      for (const Mask& mask : {kNone, kBottomRight})
        for (int heads = 0; heads < 3; ++heads)
          for (tandem_dtype dtype : {n % 4 ? TANDEM_F16 : TANDEM_F32, TANDEM_BF16}) {
            if (pair[0] > 2048 && (heads > 0 || (d != 64 && d != 128))) continue;
            ++n;
            const Shape shape = {1, kHeads[heads][0], kHeads[heads][1], pair[0], pair[1], d, d};
            problems.push_back(problem(TANDEM_BACKWARD, dtype, shape, mask,
                                       heads == 2 ? Layout::bshd : Layout::bhsd));
          }
  check_many(problems, "grid", expect);
}

// The rows of all of them are more than L2 holds, as some GPUs see it; then heads come inside.
TEST_CASE("ratio: many query heads of a key head") {
  check_lines({"bwd bf16 b1 hq128 hk1 sq260 sk130 d64 dv64 causal_bottom_right",
               "bwd f16 b1 hq128 hk1 sq260 sk300 d64 dv64"});
}
