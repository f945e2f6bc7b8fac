// SPDX-License-Identifier: MIT OR Apache-2.0
// A keep mask beside a dense bias. cuda.sm90 hides scores or sets weights to 0: masks of
// one row and of a row for each query, of every alignment, in which whole tiles, rows and batch
// entries are hidden.
#include <functional>
#include <limits>

#include "parity.h"

using namespace parity;

namespace {

// A bias of the tensors' type for all heads. Backward: with d_bias, if each entry or all share it.
tandem_problem biased(tandem_direction direction, tandem_dtype dtype, const Shape& shape,
                      const Mask& mask, int64_t bias_batch) {
  tandem_problem p = problem(direction, dtype, shape, mask);
  set_bias(p, dtype, bias_batch, p.heads_q, p.seq_q, dtype);
  if (direction == TANDEM_BACKWARD) p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_BIAS;
  return p;
}
Expect on_sm90() {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  return expect;
}
void check_filled(const tandem_problem& p, const char* name,
                  const std::function<void(Case&)>& fill) {
  if (!mine(p)) return;
  Expect expect = on_sm90();
  expect.options.repeats = 2;
  Case test(p, seed_of(name), expect.options);
  fill(test);
  check_case(test, expect);
}
void fill_each(Case& test, Role role,
               const std::function<double(int64_t b, int64_t i, int64_t j)>& value) {
  HostTensor& t = test.input(role);
  for (int64_t b = 0; b < t.dims.b; ++b)
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t i = 0; i < t.dims.s; ++i)
        for (int64_t j = 0; j < t.dims.d; ++j) t.set(b, h, i, j, value(b, i, j));
}

constexpr Layout kLayouts[] = {Layout::bhsd, Layout::gapped, Layout::transposed};

}  // namespace

TEST_CASE("bias and keep: forward" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (int64_t rows : {1, 0})  // of the mask; 0: one for each query
    for (const Shape& s : {Shape{3, 2, 1, 70, 200, 32, 32}, Shape{1, 4, 2, 200, 272, 64, 40},
                           Shape{2, 2, 2, 130, 333, 128, 96}, Shape{1, 2, 1, 100, 144, 80, 64}})
      for (const Mask& mask : {kNone, kBottomRight, kWindow}) {
        tandem_problem p =
            biased(TANDEM_FORWARD, n % 2 ? TANDEM_F16 : TANDEM_BF16, s, mask, n % 3 ? s.b : 1);
        if (s.sk % 8)
          p.bias.stride[2] = (s.sk + 7) / 8 * 8, p.bias.stride[1] = s.sq * p.bias.stride[2],
          p.bias.stride[0] = s.hq * p.bias.stride[1];
        set_keep(p, n % 4 == 1 ? 1 : s.b,
                 n % 4 == 2   ? s.hq
                 : n % 4 == 3 ? s.hk
                              : 1,
                 rows ? rows : s.sq);
        set_layout(p, Role::keep, kLayouts[n / 3 % 3]);
        check(p, seed_of("bias and keep, forward", uint64_t(n++)), on_sm90());
      }
}

TEST_CASE("bias and keep: backward" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (int64_t rows : {1, 0})
    for (int64_t batch : {1, 3, 9, 40})
      for (int64_t width : {32, 96, 128}) {
        if (batch == 40 && width != 32) continue;
        const bool small = batch > 3;
        const Shape s = {batch, 2,    n % 4 ? 2 : 1, small ? 70 : 200, small ? 136 : 264,
                         width, width};
        tandem_problem p = biased(TANDEM_BACKWARD, n % 3 ? TANDEM_BF16 : TANDEM_F16, s,
                                  n % 5 == 1   ? kTopLeft
                                  : n % 5 == 4 ? kWindow
                                               : kNone,
                                  n % 7 == 6 ? batch : 1);
        if (n % 6 == 5) p.flags |= TANDEM_FLAG_DETERMINISTIC;
        set_keep(p, n % 8 == 7 ? 1 : batch, n % 4 == 2 ? 2 : 1, rows ? rows : s.sq);
        set_layout(p, Role::keep, kLayouts[(n + n / 3) % 3]);
        check(p, seed_of("bias and keep, backward", uint64_t(n++)), on_sm90());
      }
  // Without d_bias, and of heads that share a bias.
  for (int64_t rows : {1, 200}) {
    tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_BF16, {3, 4, 2, 200, 136, 64, 64}, kTopLeft);
    set_bias(p, TANDEM_BF16, rows == 1 ? 1 : 3, 2, 200);
    set_keep(p, 3, 2, rows);
    check(p, seed_of("bias and keep, no d_bias", uint64_t(rows)), on_sm90());
  }
}

// An entry, tiles of keys, and rows of which nothing is left; a bias of minus infinity beside the
// mask; and numbers in hidden keys and in the bias of hidden elements that must not matter.
TEST_CASE("bias and keep: everything hidden" * doctest::skip(!at_least(Tier::ci))) {
  const auto hidden = [](int64_t rows) {
    return [=](int64_t b, int64_t i, int64_t j) {
      if (b == 1) return 0.0;
      if (rows > 1 && i % 7 == 3) return 0.0;
      return b == 2 && j < 130 ? 0.0 : double(j % 5 != 2);
    };
  };
  for (tandem_direction direction : {TANDEM_FORWARD, TANDEM_BACKWARD})
    for (int64_t batch : {3, 9})
      for (int64_t rows : {int64_t(1), int64_t(150)}) {
        tandem_problem p =
            biased(direction, TANDEM_BF16, {batch, 2, 1, 150, 200, 64, 64}, kNone, 1);
        set_keep(p, batch, 1, rows);
        check_filled(p, "bias and keep, hidden", [&](Case& test) {
          fill_each(test, Role::keep, hidden(rows));
          HostTensor& k = test.input(Role::k);
          HostTensor& v = test.input(Role::v);
          for (int64_t j = 0; j < 200; ++j)
            for (int64_t d = 0; d < 64; ++d)
              k.set(1, 0, j, d, 1e4), v.set(1, 0, j, d, d % 2 ? 1e4 : -1e4);
          const double infinity = std::numeric_limits<double>::infinity();
          fill_each(test, Role::bias, [&](int64_t, int64_t i, int64_t j) {
            return i % 11 == 4 || j % 13 == 6 ? -infinity : double((i + 3 * j) % 7) / 4 - 1;
          });
        });
      }
}

// With matrices of Vulkan bwd_dq and bwd_dbias read the dS that bwd_dkv leaves, of tiles without a
// kept key as well. Splits of the batch sum d_bias.
TEST_CASE("bias and keep: d_bias from shared dS") {
  int n = 0;
  for (const Shape& s : {Shape{3, 2, 1, 150, 200, 24, 16}, Shape{2, 2, 2, 49, 49, 32, 32},
                         Shape{2, 2, 1, 131, 150, 80, 72}})
    for (int64_t rows : {s.sq, int64_t(1)}) {
      // Both kinds of masks, in f16, which CPU drivers have; they take half a minute each.
      const int at = n++;
      if (at != 1 && at != 2 && !at_least(Tier::ci)) continue;
      tandem_problem p = biased(TANDEM_BACKWARD, at % 3 ? TANDEM_F16 : TANDEM_BF16, s,
                                at == 1 ? kBottomRight : kNone, 1);
      set_keep(p, s.b, 1, rows);
      Expect expect = sparse();
      expect.options.repeats = 2;
      Case test(p, seed_of("shared dS", uint64_t(at)), expect.options);
      // Whole tiles are hidden; each row has kept keys.
      fill_each(test, Role::keep, [&](int64_t b, int64_t i, int64_t j) {
        return (i / 32 + j / 32 + b) % 2 == 0 || j == 3 ? 1 : 0;
      });
      for (Target& target : targets())
        if (target.path == "coopmat2" || target.path == "coopmat") check_on(target, test, expect);
    }
}
