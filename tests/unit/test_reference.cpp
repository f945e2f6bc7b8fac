// SPDX-License-Identifier: MIT OR Apache-2.0
// The double reference against central differences of itself, and what it promises about edges.
// Everything else is measured against this reference, so it is checked against nothing but its own
// definition.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cpu/element.h"
#include "cpu/reference.h"

namespace {

using namespace tandem;

struct Case {
  const char* name;
  int64_t B, Hq, Hk, Sq, Sk, D, Dv;
  uint32_t mask = TANDEM_MASK_NONE, align = TANDEM_TOP_LEFT;
  int64_t left = TANDEM_UNBOUNDED, right = TANDEM_UNBOUNDED;
  float scale = NAN;
};

const Case kCases[] = {
    {"plain", 1, 1, 1, 5, 5, 4, 4},
    {"one row, one key", 1, 1, 1, 1, 1, 3, 2},
    {"batch and heads", 2, 2, 2, 4, 5, 3, 3},
    {"grouped heads", 1, 4, 2, 4, 5, 3, 3},
    {"one kv head", 2, 3, 1, 3, 4, 2, 2},
    {"Dv larger", 1, 2, 1, 4, 4, 2, 5},
    {"Dv smaller", 1, 1, 1, 4, 6, 5, 1},
    {"scale", 1, 1, 1, 4, 5, 4, 4, 0, 0, -1, -1, 0.3f},
    {"negative scale", 1, 1, 1, 4, 5, 4, 4, 0, 0, -1, -1, -0.7f},
    {"causal", 1, 1, 1, 6, 6, 4, 4, TANDEM_MASK_CAUSAL},
    {"causal top-left, Sq < Sk", 1, 1, 1, 4, 7, 3, 3, TANDEM_MASK_CAUSAL, TANDEM_TOP_LEFT},
    {"causal top-left, Sq > Sk", 1, 2, 1, 7, 4, 3, 3, TANDEM_MASK_CAUSAL, TANDEM_TOP_LEFT},
    {"causal bottom-right, Sq < Sk", 1, 2, 1, 4, 7, 3, 3, TANDEM_MASK_CAUSAL, TANDEM_BOTTOM_RIGHT},
    {"rows that see nothing", 1, 2, 1, 7, 4, 3, 3, TANDEM_MASK_CAUSAL, TANDEM_BOTTOM_RIGHT},
    {"window", 1, 1, 1, 7, 7, 3, 3, TANDEM_MASK_NONE, TANDEM_TOP_LEFT, 2, 1},
    {"window and causal, grouped", 1, 4, 2, 6, 9, 3, 2, TANDEM_MASK_CAUSAL, TANDEM_BOTTOM_RIGHT, 2,
     -1},
    {"window past the keys", 1, 1, 1, 9, 4, 3, 3, TANDEM_MASK_NONE, TANDEM_TOP_LEFT, 1, 1},
};

Problem make(const Case& c, tandem_direction direction = TANDEM_BACKWARD) {
  tandem_problem p;
  tandem_problem_init(&p);
  p.direction = direction;
  p.batch = c.B, p.heads_q = c.Hq, p.heads_kv = c.Hk, p.seq_q = c.Sq, p.seq_kv = c.Sk;
  p.head_dim = c.D, p.head_dim_v = c.Dv;
  p.mask = c.mask, p.align = c.align;
  p.window_left = c.left, p.window_right = c.right;
  p.scale = c.scale;
  tandem_problem_contiguous(&p, TANDEM_F32);
  Problem problem;
  const Status status = make_problem(&p, &problem);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return problem;
}

RefInputs draw(const Problem& p, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  const auto fill = [&](int64_t count) {
    std::vector<double> x(size_t(count), 0.0);
    for (double& e : x) e = normal(engine);
    return x;
  };
  RefInputs in;
  in.q = fill(p.batch * p.heads_q * p.seq_q * p.head_dim);
  in.k = fill(p.batch * p.heads_kv * p.seq_kv * p.head_dim);
  in.v = fill(p.batch * p.heads_kv * p.seq_kv * p.head_dim_v);
  in.d_o = fill(p.batch * p.heads_q * p.seq_q * p.head_dim_v);
  return in;
}

// One parameter of the loss <d_o, o> and the gradient that the reference gives for it. A feature
// that adds a parameter adds a line to parameters() below.
struct Parameter {
  const char* name;
  std::vector<double>* values;
  const std::vector<double>* gradient;
};

std::vector<Parameter> parameters(RefInputs& in, const Reference& r) {
  return {{"q", &in.q, &r.d_q}, {"k", &in.k, &r.d_k}, {"v", &in.v, &r.d_v}};
}

double loss(const Problem& forward, const RefInputs& in) {
  const Reference r = reference(forward, in);
  double sum = 0;
  for (size_t n = 0; n < r.o.size(); ++n) sum += in.d_o[n] * r.o[n];
  return sum;
}

}  // namespace

TEST_CASE("reference: gradients equal central differences") {
  constexpr double eps = 1e-6, atol = 1e-5, rtol = 1e-3;
  uint32_t seed = 1;
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    const Problem problem = make(c), forward = make(c, TANDEM_FORWARD);
    RefInputs in = draw(problem, seed++);
    const Reference r = reference(problem, in);
    size_t nonzero = 0;
    for (const Parameter& p : parameters(in, r)) {
      CAPTURE(p.name);
      REQUIRE(p.gradient->size() == p.values->size());
      for (size_t n = 0; n < p.values->size(); ++n) {
        CAPTURE(n);
        double& x = (*p.values)[n];
        const double kept = x;
        x = kept + eps;
        const double above = loss(forward, in);
        x = kept - eps;
        const double below = loss(forward, in);
        x = kept;
        const double want = (above - below) / (2 * eps), got = (*p.gradient)[n];
        nonzero += got != 0;
        CHECK(std::fabs(got - want) <= atol + rtol * std::fabs(want));
      }
    }
    CHECK(nonzero > 0);
  }
}

TEST_CASE("reference: a row that sees nothing is zero and has lse -inf") {
  const Problem problem = make({"", 1, 2, 1, 7, 4, 3, 3, TANDEM_MASK_CAUSAL, TANDEM_BOTTOM_RIGHT});
  const Reference r = reference(problem, draw(problem, 7));
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 7; ++i) {
      const bool sees = i >= 3;
      CHECK(std::isinf(r.lse[size_t(h * 7 + i)]) == !sees);
      if (sees) continue;
      CHECK(r.lse[size_t(h * 7 + i)] < 0);
      for (int64_t d = 0; d < 3; ++d) {
        CHECK(r.o[size_t((h * 7 + i) * 3 + d)] == 0);
        CHECK(r.d_q[size_t((h * 7 + i) * 3 + d)] == 0);
      }
    }
}

TEST_CASE("reference: a row with a single key copies it, exactly, in both precisions") {
  // Key j is seen by row j alone.
  const Problem problem = make({"", 1, 1, 1, 5, 5, 8, 4, 0, 0, 0, 0, 11.f});
  RefInputs in = draw(problem, 9);
  for (std::vector<double>* x : {&in.q, &in.k, &in.v, &in.d_o})
    for (double& e : *x) e = float(e);
  for (Precision precision : {Precision::exact, Precision::stepwise}) {
    const Reference r = reference(problem, in, precision);
    CHECK(r.o == in.v);
    CHECK(r.d_v == in.d_o);
  }
}

TEST_CASE("reference: only the gradients that are asked for, and the same values") {
  Problem problem = make({"", 1, 2, 1, 5, 6, 3, 4});
  const RefInputs in = draw(problem, 11);
  const Reference all = reference(problem, in);
  for (uint32_t gradients = 1; gradients <= TANDEM_GRAD_QKV; ++gradients) {
    problem.gradients = gradients;
    const Reference r = reference(problem, in, Precision::exact, 2);
    CHECK(r.d_q == (gradients & TANDEM_GRAD_Q ? all.d_q : std::vector<double>()));
    CHECK(r.d_k == (gradients & TANDEM_GRAD_K ? all.d_k : std::vector<double>()));
    CHECK(r.d_v == (gradients & TANDEM_GRAD_V ? all.d_v : std::vector<double>()));
  }
}

TEST_CASE("reference: stepwise stays near the truth and inside a few floors") {
  for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16, TANDEM_BF16}) {
    CAPTURE(dtype);
    Problem problem = make({"", 1, 2, 1, 33, 47, 16, 24, TANDEM_MASK_CAUSAL, TANDEM_BOTTOM_RIGHT});
    problem.dtype = dtype;
    RefInputs in = draw(problem, 13);
    for (std::vector<double>* x : {&in.q, &in.k, &in.v, &in.d_o})
      for (double& e : *x) e = round_element(e, dtype);
    const Reference truth = reference(problem, in),
                    step = reference(problem, in, Precision::stepwise);
    const double u = dtype == TANDEM_F32 ? 0x1p-24 : dtype == TANDEM_F16 ? 0x1p-11 : 0x1p-8;
    const auto check = [&](const char* name, const std::vector<double>& want,
                           const std::vector<double>& got, const std::vector<double>& floor) {
      CAPTURE(name);
      REQUIRE(floor.size() == want.size());
      bool differs = false;
      for (size_t n = 0; n < want.size(); ++n) {
        differs = differs || got[n] != want[n];
        CHECK(std::fabs(want[n]) <= floor[n] * (1 + 1e-12));
        CHECK(std::fabs(got[n] - want[n]) <= 16 * u * floor[n]);
      }
      CHECK(differs);
    };
    check("o", truth.o, step.o, truth.o_floor);
    check("d_q", truth.d_q, step.d_q, truth.d_q_floor);
    check("d_k", truth.d_k, step.d_k, truth.d_k_floor);
    check("d_v", truth.d_v, step.d_v, truth.d_v_floor);
  }
}

TEST_CASE("element: 16-bit types round to nearest even, from float and from double") {
  // Every f16 and bf16 comes back from its own value, and the midpoint above it goes to the even
  // one.
  const auto check = [](tandem_dtype dtype, uint16_t infinity, auto to_float, auto from_float) {
    CAPTURE(dtype);
    for (uint32_t h = 0; h < infinity; ++h) {
      const float x = to_float(uint16_t(h));
      const double next =
          h + 1 == infinity ? 2.0 * x - to_float(uint16_t(h - 1)) : to_float(uint16_t(h + 1));
      const double middle = (double(x) + next) / 2;
      const uint32_t even = h + (h & 1);
      bool good = from_float(x) == h && from_float(-x) == (h | 0x8000u);
      good = good && (middle > 3e38 || double(float(middle)) != middle ||
                      from_float(float(middle)) == even);
      uint16_t stored[2] = {};  // room for the f32 that the compiler cannot rule out
      for (double nudge : {-1e-14, 0.0, 1e-14}) {
        store_element(stored, 0, dtype, middle * (1 + nudge));
        good = good && stored[0] == (nudge < 0 ? h : nudge > 0 ? h + 1 : even);
      }
      if (!good) FAIL_CHECK("bits " << h);
    }
    CHECK(to_float(infinity) == INFINITY);
    CHECK(from_float(INFINITY) == infinity);
    CHECK(from_float(-3e38f * 2) == (infinity | 0x8000u));
    CHECK(std::isnan(to_float(from_float(NAN))));
  };
  check(TANDEM_F16, 0x7c00, f16_to_float, float_to_f16);
  check(TANDEM_BF16, 0x7f80, bf16_to_float, float_to_bf16);
}
