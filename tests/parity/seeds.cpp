// SPDX-License-Identifier: MIT OR Apache-2.0
// The test grids of the systems whose work this library takes over, with their shapes and under our
// rules: Lazy Attention, AdaSplash, FlagGems, a FlashAttention tutorial, flash-dmattn. What takes a
// CPU minutes is for the device tier, on GPUs alone.
#include <algorithm>
#include <cmath>

#include "parity.h"

using namespace parity;

namespace {

Expect large() {
  Expect e = sparse();
  e.gpu_only = true;
  return e;
}

// Lengths of sequences in padded tensors, or all of them whole.
void check_lengths(tandem_problem p, const std::vector<int64_t>& lengths, uint64_t seed,
                   double tau = NAN) {
  if (!lengths.empty()) set_lengths(p, TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PADDED);
  Expect expect = sparse();
  expect.options.repeats = 2;
  Case test(p, seed, expect.options);
  if (!lengths.empty()) {
    set_lengths_of(test, false, lengths);
    set_lengths_of(test, true, lengths);
  }
  if (tau == tau) set_heads(test, Role::tau, tau);
  check_case(test, expect);
}

// Lazy Attention: causal, a window of distance biases, tau = -1 at first.
tandem_problem lazy(tandem_dtype dtype, int64_t b, int64_t h, int64_t s, int64_t d,
                    int64_t window) {
  tandem_problem p = problem(TANDEM_BACKWARD, dtype, {b, h, h, s, s, d, d}, kTopLeft);
  p.normalizer = TANDEM_ELASTIC;
  p.dist_window = window;
  p.gradients |= TANDEM_GRAD_DIST_BIAS | TANDEM_GRAD_TAU;
  return p;
}

tandem_problem entmax(tandem_direction direction, tandem_dtype dtype, const Shape& shape,
                      const Mask& mask, float alpha) {
  tandem_problem p = problem(direction, dtype, shape, mask);
  p.normalizer = TANDEM_ENTMAX;
  p.entmax_alpha = alpha;
  return p;
}

}  // namespace

TEST_CASE("seeds: Lazy Attention" * doctest::skip(!at_least(Tier::ci))) {
  check_lengths(lazy(TANDEM_F32, 1, 4, 8, 16, 16), {}, seed_of("lazy", 1));
  check_lengths(lazy(TANDEM_F32, 2, 4, 128, 64, 32), {}, seed_of("lazy", 2), -1);
  check_lengths(lazy(TANDEM_F32, 2, 4, 64, 32, 16), {}, seed_of("lazy", 3));
  check_lengths(lazy(TANDEM_F32, 1, 1, 32, 16, 8), {}, seed_of("lazy", 4));
  check_lengths(lazy(TANDEM_F32, 2, 4, 128, 64, 32), {64, 100}, seed_of("lazy", 5));
  check_lengths(lazy(TANDEM_F32, 2, 2, 64, 32, 16), {32, 48}, seed_of("lazy", 6), -1);
  check_lengths(lazy(TANDEM_F32, 2, 4, 64, 32, 16), {32, 48}, seed_of("lazy", 7), 0.7);
  check_lengths(lazy(TANDEM_BF16, 2, 4, 32, 64, 512), {}, seed_of("lazy", 8), -1);
  check_lengths(lazy(TANDEM_BF16, 2, 4, 64, 32, 64), {}, seed_of("lazy", 9), -1);
  // Far below every weight: the output is zero, and so are the gradients.
  check_lengths(lazy(TANDEM_F32, 2, 4, 64, 32, 16), {}, seed_of("lazy", 10), -100);
  // A loss that is the sum of o.
  tandem_problem sum = lazy(TANDEM_F32, 1, 4, 8, 16, 16);
  std::fill(sum.d_o.stride, sum.d_o.stride + 4, 0);
  check_lengths(sum, {}, seed_of("lazy", 11));
}

TEST_CASE("seeds: AdaSplash" * doctest::skip(!at_least(Tier::ci))) {
  check_lengths(entmax(TANDEM_BACKWARD, TANDEM_F32, {1, 1, 1, 128, 128, 32, 32}, kNone, 1.5f), {96},
                seed_of("splash", 1));
  int64_t n = 0;
  for (int64_t b : {1, 2})
    for (int64_t h : {1, 2})
      for (int64_t s : {128, 256})
        for (int64_t d : {32, 64})
          for (float alpha : {4.0f / 3, 1.5f, 2.0f})
            for (const Mask& mask : {kNone, kTopLeft}) {
              // Either dtype, and in the device tier all of the grid.
              const tandem_dtype dtype = ++n % 2 ? TANDEM_F32 : TANDEM_F16;
              if (!at_least(Tier::device) && n % 5 != 0) continue;
              check(entmax(TANDEM_FORWARD, dtype, {b, h, h, s, s, d, d}, mask, alpha),
                    seed_of("splash forward", uint64_t(n)), sparse());
            }
  for (float alpha : {1.5f, 2.0f})
    check(entmax(TANDEM_BACKWARD, TANDEM_F32, {2, 2, 2, 256, 256, 64, 64}, kTopLeft, alpha),
          seed_of("splash backward", uint64_t(alpha * 2)), sparse());
  check(entmax(TANDEM_BACKWARD, TANDEM_F32, {1, 1, 1, 256, 256, 32, 32}, kTopLeft, 1.5f),
        seed_of("splash", 2), sparse());
  // Scores of any size.
  Expect stable = sparse();
  stable.options.input_scale = 100;
  check(entmax(TANDEM_FORWARD, TANDEM_F16, {1, 1, 1, 512, 512, 32, 32}, kNone, 1.5f),
        seed_of("splash", 3), stable);
  Expect zero = sparse();
  zero.options.input_scale = 0;
  check(entmax(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 2, 128, 128, 32, 32}, kNone, 1.5f),
        seed_of("splash", 4), zero);
  check_lengths(entmax(TANDEM_BACKWARD, TANDEM_F32, {2, 1, 1, 256, 256, 32, 32}, kNone, 1.5f),
                {128, 64}, seed_of("splash", 5));
  check_lengths(entmax(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 256, 256, 32, 32}, kTopLeft, 1.5f),
                {160}, seed_of("splash", 6));
}

TEST_CASE("seeds: AdaSplash, long" * doctest::skip(!at_least(Tier::device))) {
  std::vector<tandem_problem> problems;
  for (int64_t s : {512, 1024, 2048, 4096})
    for (float alpha : {1.5f, 2.0f})
      problems.push_back(
          entmax(TANDEM_BACKWARD, TANDEM_F32, {2, 2, 2, s, s, 64, 64}, kTopLeft, alpha));
  for (int64_t kv : {1, 2, 4, 8})
    problems.push_back(
        entmax(TANDEM_BACKWARD, TANDEM_F32, {1, 8, kv, 1024, 1024, 64, 64}, kTopLeft, 1.5f));
  check_many(problems, "splash long", large());
  const struct {
    int64_t s;
    std::vector<int64_t> lengths;
  } rows[] = {{2048, {1000, 1500}},
              {4096, {3333, 2000}},
              {2048, {1024, 1024}},
              {4096, {64, 4096}},
              {1024, {65, 130}}};
  int64_t n = 0;
  for (const auto& row : rows)
    check_lengths(
        entmax(TANDEM_BACKWARD, TANDEM_F32, {2, 2, 2, row.s, row.s, 64, 64}, kTopLeft, 1.5f),
        row.lengths, seed_of("splash lengths", uint64_t(++n)));
}

TEST_CASE("seeds: FlagGems" * doctest::skip(!at_least(Tier::ci))) {
  // Small inputs, as theirs are: uniform within 0.05.
  const Shape shapes[] = {{4, 8, 8, 17, 1030, 64, 64},     {2, 4, 4, 512, 612, 128, 128},
                          {2, 4, 2, 512, 612, 128, 128},   {4, 8, 8, 17, 1030, 128, 128},
                          {4, 8, 8, 1024, 1024, 64, 64},   {4, 8, 8, 1024, 1024, 128, 128},
                          {4, 8, 8, 2048, 256, 64, 64},    {4, 8, 8, 2048, 256, 128, 128},
                          {2, 4, 4, 1024, 1034, 64, 64},   {2, 4, 1, 1024, 1034, 64, 64},
                          {2, 4, 4, 2048, 2048, 32, 32},   {2, 4, 2, 2048, 2048, 32, 32},
                          {2, 4, 4, 4096, 4096, 16, 16},   {2, 4, 1, 4096, 4096, 16, 16},
                          {2, 4, 4, 4001, 4001, 32, 32},   {2, 4, 2, 4001, 4001, 32, 32},
                          {2, 4, 4, 4001, 4096, 64, 64},   {2, 4, 1, 4001, 4096, 64, 64},
                          {2, 4, 4, 4096, 4000, 128, 128}, {2, 4, 2, 4096, 4000, 128, 128},
                          {1, 2, 2, 8192, 8202, 16, 16},   {1, 2, 1, 8192, 8202, 16, 16},
                          {1, 2, 2, 8192, 8192, 32, 32},   {1, 2, 1, 8192, 8192, 32, 32}};
  const bool device = at_least(Tier::device);
  std::vector<tandem_problem> problems;
  int64_t n = 0;
  for (const Shape& full : shapes)
    for (const Mask& mask : {kNone, kTopLeft}) {
      Shape shape = full;
      if (n++ >= 6 && !device) continue;
      if (!device) shape.b = 1, shape.hq = shape.hq / shape.hk * 2, shape.hk = 2;
      problems.push_back(
          problem(TANDEM_BACKWARD, n / 2 % 2 ? TANDEM_F16 : TANDEM_BF16, shape, mask));
    }
  Expect expect = device ? large() : sparse();
  expect.options.input_scale = 0.03;
  check_many(problems, "gems", expect);
  // Those that it was debugged with.
  for (int64_t s : {64, 120, 127, 128, 129, 255})
    check(problem(TANDEM_BACKWARD, TANDEM_F16, {1, 8, s % 2 ? 4 : 8, s, s, 64, 64}, kTopLeft),
          seed_of("gems tails", uint64_t(s)), sparse());
}

TEST_CASE("seeds: FlashAttention from scratch" * doctest::skip(!at_least(Tier::ci))) {
  const bool device = at_least(Tier::device);
  std::vector<tandem_problem> problems;
  for (int64_t s : {128, 500, 1024})
    for (const Mask& mask : {kNone, kTopLeft}) {
      if (s > 500 && !device) continue;
      problems.push_back(problem(TANDEM_BACKWARD, TANDEM_F16,
                                 {device ? 32 : 1, device ? 8 : 2, device ? 8 : 2, s, s, 64, 64},
                                 mask));
    }
  if (device)
    problems.push_back(problem(TANDEM_FORWARD, TANDEM_F16, {1, 8, 8, 1024, 4096, 128, 128}));
  check_many(problems, "scratch", device ? large() : sparse());
  check(problem(TANDEM_BACKWARD, TANDEM_F16, {1, 8, 8, 256, 256, 64, 64}, kTopLeft),
        seed_of("scratch", 2), sparse());
}

TEST_CASE("seeds: flash-dmattn" * doctest::skip(!at_least(Tier::ci))) {
  // A bias and a mask of kv heads, one row for all queries, and the sum of o as the loss.
  const bool device = at_least(Tier::device);
  std::vector<tandem_problem> problems;
  int64_t n = 0;
  for (int64_t s : {128, 256, 512, 1024, 2048, 4096})
    for (int64_t d : {32, 64, 96, 128, 192, 256})
      for (const Mask& mask : {kNone, kBottomRight}) {
        ++n;
        if (!device && (s > 256 || d > 96 || n % 3 != 0)) continue;
        if (s > 2048 && d != 64 && d != 128) continue;
        tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_BF16, {1, 2, 1, s, s, d, d}, mask);
        set_bias(p, TANDEM_BF16, 1, 1, 1);
        if (n % 2) set_keep(p, 1, 1, 1);
        std::fill(p.d_o.stride, p.d_o.stride + 4, 0);
        p.gradients |= TANDEM_GRAD_BIAS;
        problems.push_back(p);
      }
  check_many(problems, "dmattn", device ? large() : sparse());
}
