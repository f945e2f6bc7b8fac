// SPDX-License-Identifier: MIT OR Apache-2.0
// A dense bias of f32 beside tensors of f16 or bf16, with and without a mask. cuda.sm90 has kernels
// of their own for it: every head size, widths at which rows are and are not aligned, biases that
// entries, heads or queries share, with d_bias in clusters and in slices of the batch.
#include <cmath>

#include "parity.h"

using namespace parity;

namespace {

// bias: [batch or 1, heads or 1, rows or 1]. keep: 0 no mask, 1 a mask of one row, 2 of all rows.
struct Form {
  bool batch, heads, rows;
  int keep;
};

tandem_problem biased(tandem_direction direction, tandem_dtype dtype, const Shape& s,
                      const Mask& mask, const Form& form) {
  tandem_problem p = problem(direction, dtype, s, mask);
  set_bias(p, TANDEM_F32, form.batch ? s.b : 1, form.heads ? s.hq : 1, form.rows ? s.sq : 1,
           TANDEM_F32);
  if (form.keep) set_keep(p, form.keep == 1 ? s.b : 1, 1, form.keep == 1 ? 1 : s.sq);
  const bool sums = form.heads && form.rows;  // or cuda.sm80 forms d_bias
  if (direction == TANDEM_BACKWARD && sums) p.gradients |= TANDEM_GRAD_BIAS;
  return p;
}
void check(const tandem_problem& p, uint64_t n, const char* name, double value = NAN) {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  expect.options.repeats = 2;
  Case test(p, seed_of(name, n), expect.options);
  if (!std::isnan(value)) {  // in a third of the elements
    HostTensor& t = test.input(Role::bias);
    for (int64_t b = 0; b < t.dims.b; ++b)
      for (int64_t h = 0; h < t.dims.h; ++h)
        for (int64_t i = 0; i < t.dims.s; ++i)
          for (int64_t j = (i + b) % 3; j < t.dims.d; j += 3) t.set(b, h, i, j, value);
  }
  check_case(test, expect);
}

constexpr int64_t kHeads[] = {16, 24, 32, 40, 64, 72, 96, 128}, kKeys[] = {49, 200, 77, 144, 257};
constexpr Form kForms[] = {{false, true, true, 0},  {true, true, true, 1},
                           {false, false, true, 2}, {true, false, false, 0},
                           {false, true, false, 1}, {true, true, true, 2},
                           {false, true, true, 1}};

}  // namespace

TEST_CASE("f32 biases: forward" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (const Mask& mask : {kNone, kBottomRight, kWindow})
    for (int64_t d : kHeads) {
      const Shape s{2, 4, n % 2 ? 4 : 2, n % 3 ? 133 : 71, kKeys[n % 5], d, kHeads[(n * 3) % 8]};
      check(biased(TANDEM_FORWARD, n % 2 ? TANDEM_F16 : TANDEM_BF16, s, mask, kForms[n % 7]),
            uint64_t(n), "forward",
            n % 4 == 3   ? -INFINITY
            : n % 4 == 1 ? -1e30
                         : NAN);
      ++n;
    }
  // Work tiles that workgroups share by steps.
  check(biased(TANDEM_FORWARD, TANDEM_BF16, {2, 5, 5, 200, 700, 64, 64}, kNone, kForms[0]), 100,
        "forward");
  check(biased(TANDEM_FORWARD, TANDEM_F16, {2, 5, 1, 200, 330, 128, 96}, kNone, kForms[1]), 101,
        "forward");
  // Scales that other kernels with a dense bias do not take.
  for (float scale : {-0.3f, 0.f, 1e-20f}) {
    tandem_problem p =
        biased(TANDEM_FORWARD, TANDEM_BF16, {2, 2, 2, 70, 72, 64, 64}, kNone, kForms[0]);
    p.scale = scale;
    check(p, 102, "scales");
  }
}

TEST_CASE("f32 biases: backward" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (int64_t batch : {2, 5, 9, 1, 14})
    for (int64_t d : kHeads) {
      if (batch > 5 && n % 2) {
        ++n;
        continue;
      }
      const Shape s{batch,        2, n % 3 ? 2 : 1,      n % 2 ? 133 : 71,
                    kKeys[n % 5], d, kHeads[(n * 3) % 8]};
      tandem_problem p = biased(TANDEM_BACKWARD, n % 2 ? TANDEM_F16 : TANDEM_BF16, s,
                                n % 3 == 0   ? kNone
                                : n % 3 == 1 ? kBottomRight
                                             : kWindow,
                                kForms[n % 7]);
      if (n % 4 == 3) p.flags |= TANDEM_FLAG_DETERMINISTIC;
      check(p, uint64_t(n), "backward", n % 4 == 1 ? -INFINITY : n % 4 == 2 ? -1e30 : NAN);
      ++n;
    }
}

// As models have it: T5's for all entries, and a triangle's for all rows of a pair representation.
TEST_CASE("f32 biases: of models" * doctest::skip(!at_least(Tier::ci))) {
  for (int batch : {4, 16}) {
    tandem_problem p =
        biased(TANDEM_BACKWARD, TANDEM_BF16, {batch, 2, 2, 128, 256, 64, 64}, kNone, kForms[0]);
    p.scale = 1.f;
    check(p, uint64_t(batch), "T5");
  }
  check(biased(TANDEM_BACKWARD, TANDEM_BF16, {18, 1, 1, 64, 64, 32, 32}, kNone, kForms[6]), 0,
        "triangle");
}
