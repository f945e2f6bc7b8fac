// SPDX-License-Identifier: MIT OR Apache-2.0
// Scores, masks, sinks and values of every size that the types have, on small problems:
// harness/magnitudes.h says what must hold. A registry row that no case here ran fails the tests
// parity.magnitudes.*.
#include "magnitudes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

using namespace parity;
using Scores = Magnitudes::Scores;
using Bias = Magnitudes::Bias;
using Values = Magnitudes::Values;

namespace parity {

int check_on(Target& target, Case& test, const MagnitudeRules& rules, const std::string& repro,
             Outputs* outputs) {
  const std::string where = target.name + ": " + repro;
  CaseResult result;
  if (target.recorded) {
    Outputs own;
    count(test.run(*target.session, outputs ? outputs : &own).kernels);
    return 0;
  }
  try {
    result = run_and_judge(test, rules, *target.session, outputs);
  } catch (const Error& e) {
    FAIL_CHECK(where << "\n  threw: " << e.what());
    return 1;
  }
  if (result.refused) {
    if (lacks(target, test.problem())) return 0;
    FAIL_CHECK(where << "\n  refused: " << result.message);
    return 1;
  }
  count(result.kernels);
  if (result.ok) return 0;
  std::string what = result.message + " (" + result.plan + ")";
  for (const Judgement& j : result.judgements)
    if (!j.ok) {
      what += "\n    " + j.tensor + ": " + j.where;
      blame(target, "magnitudes", j.tensor);
    }
  FAIL_CHECK(where << "\n  " << what);
  return 1;
}

void check_magnitudes(const tandem_problem& given, const Magnitudes& m, uint64_t seed,
                      const CaseOptions& options) {
  CaseOptions twice = options;
  twice.repeats = 2;
  for (const tandem_problem& p : {given, in_f16(given)}) {
    const bool second = p.q.dtype != given.q.dtype;
    std::unique_ptr<Case> test;
    std::unique_ptr<MagnitudeRules> rules;
    for (Target& target : targets()) {
      const bool own = takes(target, given);
      if (own == second || (second && !takes(target, p)) || !mine(p)) continue;
      if (!test) {
        test = std::make_unique<Case>(p, seed, twice);
        fill_magnitudes(m, *test);
        rules = std::make_unique<MagnitudeRules>(*test);
      }
      check_on(target, *test, *rules, repro(p, seed, m));
    }
    if (given.q.dtype == TANDEM_F16 || (given.flags & TANDEM_FLAG_TF32)) break;
  }
}

Session& another_device() {
  static const std::unique_ptr<Session> session = Session::open("cpu/ref");
  return *session;
}

}  // namespace parity

namespace {

constexpr double kNumbers[] = {-1e4,  -65504, -1e5,  -1e6, -1e8,        -1e9,           -1e10,
                               -1e12, -1e20,  -1e30, 1e10, -0x1.fep127, -0x1.fffffep127};
constexpr int64_t kWidths[] = {64, 128, 8, 192};

const char* const kName = "magnitudes";

tandem_problem small(int n, const Shape& shape, const Mask& mask = kNone) {
  return problem(TANDEM_BACKWARD, kDtypes[n % 3], shape, mask);
}
// Every n-th in the smoke tier.
bool skipped(int n, int of) { return !at_least(Tier::ci) && n % of != 0; }

void normalise(tandem_problem& p, int n) {
  static const float alphas[] = {1.5f, 2.f, 1.25f};
  if (n % 4 == 0) {
    p.normalizer = TANDEM_ELASTIC;
    p.gradients |= TANDEM_GRAD_TAU;
  } else {
    p.normalizer = TANDEM_ENTMAX;
    p.entmax_alpha = alphas[n % 4 - 1];
  }
}

}  // namespace

TEST_CASE("magnitudes: scores, on tiles that end early by every remainder") {
  std::vector<int64_t> keys;
  for (int64_t n = 1; n <= 17; ++n) keys.push_back(n);
  for (int64_t n : {63, 64, 65, 66, 97, 127, 128, 129, 130}) keys.push_back(n);
  static const Scores kinds[] = {Scores::low, Scores::equal, Scores::one, Scores::high,
                                 Scores::spread};
  static const double sizes[] = {10, 88, 1e6, 100, 1e3, 1e8, 1e4, 5e3, 1e5, 1e7, 20, 1};
  int n = 0;
  for (int64_t sk : keys)
    for (int kind = 0; kind < 5; ++kind, ++n) {
      if (skipped(n, 3) && kind != 0) continue;
      const int64_t width = kWidths[n % 7 == 0 ? 3 : n % 3];
      Magnitudes m = with_scores(kinds[kind], sizes[n % 12]);
      if (n % 4 == 1) m.v = m.d_o = Values::ones;
      if (n % 5 == 2) m.d_o = Values::some;
      const Mask& mask = n % 3 == 1 ? kTopLeft : kNone;
      check_magnitudes(small(n, {1, 2, n % 2 + 1, 1 + n % 9, sk, width, width}, mask), m,
                       seed_of(kName, uint64_t(n)));
    }
}

TEST_CASE("magnitudes: finite numbers as masks, on some and on all keys of a row") {
  static const Bias kinds[] = {Bias::all, Bias::pad, Bias::some, Bias::rows, Bias::one};
  int n = 0;
  for (double mask : kNumbers)
    for (int kind = 0; kind < 5; ++kind, ++n) {
      if (skipped(n, 2) && kind > 1) continue;
      const int64_t width = kWidths[n % 3 == 2 ? 1 : 0];
      // Half of them are of the form for which cuda.sm90 has kernels: a row for each query, of the
      // tensors' type, and rows that begin at multiples of 16 bytes.
      const bool dense = n % 2 == 1;
      const int64_t keys = dense ? 32 + 8 * (n % 5) : 33 + n % 17;
      tandem_problem p = small(n, {2, 2, n % 4 / 2 + 1, 20 + n % 5, keys, width, width},
                               n % 8 > 5 ? kBottomRight : kNone);
      const tandem_dtype own = tandem_dtype(p.q.dtype), bias = dense ? own : kDtypes[(n / 3) % 3];
      set_bias(p, bias, n % 3 == 1 ? 1 : 2, dense || n % 4 == 0 ? 2 : 1,
               !dense && n % 5 == 4 ? 1 : p.seq_q, n % 3 ? TANDEM_F32 : bias);
      if (n % 3 != 2) p.gradients |= TANDEM_GRAD_BIAS;
      if (n % 7 == 3) p.flags |= TANDEM_FLAG_DETERMINISTIC;
      Magnitudes m = with_bias(kinds[kind], mask);
      if (n % 3 == 0) m.scores = Scores::zero;
      if (n % 4 == 1) m.v = m.d_o = Values::ones;
      if (n % 4 == 2) m.d_o = Values::some;
      check_magnitudes(p, m, seed_of(kName, uint64_t(1000 + n)));
    }
}

// As Hugging Face's models build it: a causal mask and a number in front of each sequence, both in
// the bias.
TEST_CASE("magnitudes: a batch with left padding") {
  int n = 0;
  for (double mask : {-1e10, -0x1.fffffep127, -1e4, -1e30}) {
    for (int64_t width : {64, 128}) {
      ++n;
      const tandem_dtype dtype = n % 3 == 0 ? TANDEM_F16 : n % 3 == 1 ? TANDEM_BF16 : TANDEM_F32;
      tandem_problem p =
          problem(TANDEM_BACKWARD, dtype, {2, 4, n % 2 ? 4 : 2, 72, 72, width, width},
                  n % 2 ? kTopLeft : kNone);
      set_bias(p, dtype, 2, 1, 72);
      Magnitudes m = with_bias(Bias::pad, mask);
      if (n % 4 == 2) m.v = m.d_o = Values::ones;
      if (n % 4 == 3) m.d_o = Values::some;
      check_magnitudes(p, m, seed_of(kName, uint64_t(2000 + n)));
      if (!at_least(Tier::ci)) break;
    }
  }
}

TEST_CASE("magnitudes: d_v alone") {
  int n = 0;
  for (double mask : kNumbers) {
    ++n;
    tandem_problem p = small(n, {1, 2, 1, 9, n % 2 ? 8 : 72, 64, 64});
    set_bias(p, tandem_dtype(p.q.dtype), 1, 1, 9);
    p.gradients = TANDEM_GRAD_V;
    Magnitudes m = with_bias(n % 2 ? Bias::all : Bias::pad, mask);
    m.v = m.d_o = Values::ones;
    check_magnitudes(p, m, seed_of(kName, uint64_t(3000 + n)));
  }
  for (Scores kind : {Scores::low, Scores::one, Scores::equal})
    for (double size : {1e3, 1e6, 1e8}) {
      ++n;
      tandem_problem p = small(n, {1, 2, 1, 9, 65 + n, 64, 64});
      p.gradients = TANDEM_GRAD_V;
      Magnitudes m = with_scores(kind, size);
      m.v = m.d_o = Values::ones;
      check_magnitudes(p, m, seed_of(kName, uint64_t(3000 + n)));
    }
}

TEST_CASE("magnitudes: sinks to the end of f32, and rows without a key beside them") {
  int n = 0;
  for (double sink : {5e3, 1e6, 2.4e38, 3e38}) {
    for (int kind = 0; kind < 3; ++kind) {
      ++n;
      tandem_problem p = small(n, {1, 4, 2, 20, 40 + n, 64, 64}, n % 2 ? kNone : kTopLeft);
      p.sink = 1;
      p.gradients |= TANDEM_GRAD_SINK;
      Magnitudes m;
      m.sink = sink;
      if (kind == 1) m.scores = Scores::low, m.score = 1e4;
      if (kind == 2) {
        set_bias(p, tandem_dtype(p.q.dtype), 1, 1, 20);
        p.gradients |= TANDEM_GRAD_BIAS;
        m.bias = Bias::rows, m.bias_value = n % 2 ? -1e10 : -1e5;
      }
      check_magnitudes(p, m, seed_of(kName, uint64_t(4000 + n)));
    }
  }
}

TEST_CASE("magnitudes: elastic softmax and entmax") {
  static const Bias biases[] = {Bias::all, Bias::pad, Bias::rows};
  static const Scores kinds[] = {Scores::low, Scores::one, Scores::equal};
  static const double sizes[] = {10, 1e3, 1e4, 1e6, 1e8};
  int n = 0;
  for (double mask : kNumbers)
    for (int normalizer = 0; normalizer < 4; ++normalizer, ++n) {
      if (skipped(n, 2) && mask != -1e6 && mask != -1e10) continue;
      tandem_problem p =
          small(n / 2, {1, 2, n % 2 + 1, 20, 35 + n % 31, 64, 64}, n % 3 == 1 ? kTopLeft : kNone);
      normalise(p, normalizer);
      set_bias(p, kDtypes[n % 3], 1, 2, 20, TANDEM_F32);
      p.gradients |= TANDEM_GRAD_BIAS;
      Magnitudes m = with_bias(biases[n % 3], mask);
      if (n % 2) m.scores = Scores::zero;
      if (n % 5 == 1) m.v = m.d_o = Values::ones;
      check_magnitudes(p, m, seed_of(kName, uint64_t(5000 + n)));
    }
  for (double size : sizes)
    for (Scores kind : kinds)
      for (int normalizer = 0; normalizer < 4; ++normalizer, ++n) {
        if (skipped(n, 3)) continue;
        tandem_problem p = small(n / 4, {1, 2, 1, 12, 30 + n % 40, 64, 64});
        normalise(p, normalizer);
        check_magnitudes(p, with_scores(kind, size), seed_of(kName, uint64_t(5000 + n)));
      }
}

TEST_CASE("magnitudes: the smallest and the largest numbers of a type, and zeros") {
  int n = 0;
  for (Values v : {Values::ones, Values::largest, Values::tiny, Values::zero, Values::usual})
    for (Values d_o : {Values::usual, Values::largest, Values::tiny, Values::zero, Values::some})
      for (Scores scores : {Scores::usual, Scores::tiny, Scores::one}) {
        ++n;
        if (v == Values::largest && d_o != Values::tiny && d_o != Values::zero &&
            d_o != Values::usual)
          continue;
        if (d_o == Values::largest && v != Values::tiny && v != Values::zero && v != Values::usual)
          continue;
        if (skipped(n, 2)) continue;
        Magnitudes m = with_scores(scores, 1e4);
        m.v = v, m.d_o = d_o;
        check_magnitudes(small(n, {1, 2, 1, 17, 40, 64, 64}, n % 2 ? kTopLeft : kNone), m,
                         seed_of(kName, uint64_t(6000 + n)));
      }
}

// o and lse of another device, whose scores have other roundings.
TEST_CASE("magnitudes: forward on another device") {
  CaseOptions options;
  options.forward = &another_device();
  int n = 0;
  for (double mask : kNumbers) {
    ++n;
    tandem_problem p = small(n, {1, 2, 1, 16, n % 2 ? 32 : 33 + n % 3, n % 4 == 3 ? 128 : 64, 64});
    set_bias(p, tandem_dtype(p.q.dtype), 1, 2, 16);
    p.gradients |= TANDEM_GRAD_BIAS;
    Magnitudes m = with_bias(n % 2 ? Bias::all : Bias::pad, mask);
    if (n % 3 == 0) m.v = m.d_o = Values::ones;
    check_magnitudes(p, m, seed_of(kName, uint64_t(7000 + n)), options);
  }
  for (Scores kind : {Scores::low, Scores::one, Scores::equal, Scores::spread})
    for (double size : {100., 1e4, 1e6, 1e8})
      ++n, check_magnitudes(small(n, {1, 2, 1, 12, 40 + n % 9, 64, 64}), with_scores(kind, size),
                            seed_of(kName, uint64_t(7000 + n)), options);
}

TEST_CASE("magnitudes: with lengths, softcap, dropout, distances, TF32, and sums in order") {
  int n = 0;
  for (Scores kind : {Scores::low, Scores::one, Scores::equal, Scores::high}) {
    for (double size : {88., 1e4, 1e6}) {
      ++n;
      tandem_problem p = small(n, {2, 2, 1, 20, 50 + n, 64, 64}, n % 2 ? kBottomRight : kNone);
      if (n % 4 == 0) set_lengths(p, TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PADDED);
      if (n % 4 == 1) set_lengths(p, TANDEM_LENGTHS_PACKED, TANDEM_LENGTHS_PACKED, 33, 70);
      if (n % 4 == 2) p.softcap = 30;
      if (n % 4 == 3) p.dropout = 0.25f;
      if (n % 3 == 0) {
        p.alibi = 1, p.dist_window = 40;
        p.gradients |= TANDEM_GRAD_SLOPE | TANDEM_GRAD_DIST_BIAS;
      }
      if (n % 2) p.flags |= TANDEM_FLAG_DETERMINISTIC;
      check_magnitudes(p, with_scores(kind, size), seed_of(kName, uint64_t(8000 + n)));
    }
  }
  // Sums of d_bias over what it repeats, and over distances, of the same numbers.
  for (double mask : {-1e4, -1e10}) {
    for (bool distances : {false, true}) {
      ++n;
      tandem_problem p = small(n, {2, 4, 2, 40, 70, 64, 64});
      if (distances) {
        p.dist_window = 70;
        p.gradients |= TANDEM_GRAD_DIST_BIAS;
      } else {
        set_bias(p, TANDEM_BF16, 1, 1, 1, TANDEM_F32);
        p.gradients |= TANDEM_GRAD_BIAS;
      }
      check_magnitudes(p, with_bias(Bias::some, mask), seed_of(kName, uint64_t(8000 + n)));
    }
  }
  tandem_problem many = small(1, {4, 4, 2, 80, 70, 64, 64});
  many.normalizer = TANDEM_ELASTIC;
  many.dist_window = 40;
  many.gradients |= TANDEM_GRAD_TAU | TANDEM_GRAD_DIST_BIAS;
  check_magnitudes(many, with_bias(Bias::some, -1e6), seed_of(kName, uint64_t(8000 + ++n)));
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 20, 70, 64, 64});
  p.flags |= TANDEM_FLAG_TF32;
  for (double size : {100., 1e4, 1e6})
    check_magnitudes(p, with_scores(Scores::low, size), seed_of(kName, uint64_t(8000 + ++n)));
}

// Workgroups that go on from one tile of keys to the next, on devices of few SMs.
TEST_CASE("magnitudes: many heads") {
  int n = 0;
  for (Scores kind : {Scores::low, Scores::one})
    for (double size : {88., 1e6}) {
      ++n;
      check_magnitudes(small(1 + n % 2, {4, 8, 8, 9, 100, 64, 64}), with_scores(kind, size),
                       seed_of(kName, uint64_t(10000 + n)));
      if (!at_least(Tier::ci)) break;
    }
}

TEST_CASE("magnitudes: heads over 256") {
  static const Scores kinds[] = {Scores::one, Scores::low, Scores::equal, Scores::spread};
  static const int64_t widths[][2] = {{128, 264}, {320, 512}, {512, 512}, {576, 40}};
  int n = 0;
  for (Scores kind : kinds)
    for (double size : {5000., 20., 1e6}) {
      if (skipped(n++, 4)) continue;
      check_magnitudes(small(n, {1, 2, 1, 9, 40, widths[n % 4][0], widths[n % 4][1]}),
                       with_scores(kind, size), seed_of(kName, uint64_t(11000 + n)));
    }
}

// Two warpgroups with the same rows, on cuda.sm90.
TEST_CASE("magnitudes: forward of heads over 256") {
  static const int64_t widths[] = {512, 320, 576, 384};
  int n = 0;
  for (Scores kind : {Scores::low, Scores::one, Scores::equal, Scores::high, Scores::spread})
    for (double size : {20., 88., 1e4, 1e6, 1e8}) {
      ++n;
      if (skipped(n, 4)) continue;
      const int64_t width = widths[n % 4];
      Magnitudes m = with_scores(kind, size);
      if (n % 4 == 1) m.v = Values::ones;
      if (n % 7 == 2) m.v = Values::largest;
      check_magnitudes(problem(TANDEM_FORWARD, n % 2 ? TANDEM_BF16 : TANDEM_F16,
                               {1, 2, 1, 1 + n % 70, n % 3 == 1 ? n : 100 + 13 * n, width,
                                width == 576 && n % 8 == 2 ? 512 : width},
                               n % 3 == 2 ? kTopLeft : kNone),
                       m, seed_of(kName, uint64_t(12000 + n)));
    }
}

// Hidden scores may be larger than all that are shown.
TEST_CASE("magnitudes: spans, and masks beside a bias") {
  static const char* lines[] = {
      "bwd f16 b1 hq2 hk1 sq130 sk140 d64 dv64 spans=1:1x1",
      "bwd bf16 b2 hq2 hk2 sq100 sk200 d64 dv64 bias:bf16:1x2x100 spans=2:1x2 d_bias:bf16 "
      "grads=qkvb",
      "bwd bf16 b1 hq2 hk2 sq130 sk200 d64 dv64 bias:bf16:1x2x130 blocks=64x64:2+1:1x1 "
      "d_bias:bf16 grads=qkvb",
      "fwd bf16 b1 hq2 hk2 sq130 sk300 d128 dv128 bias:f32:1x2x130 keep:1x1x130",
      "bwd f32 b1 hq2 hk2 sq70 sk90 d40 dv40 causal_bottom_right spans=2:1x1"};
  int n = 0;
  for (const char* line : lines)
    for (Scores kind : {Scores::low, Scores::one, Scores::spread})
      for (double size : {20., 1e4, 1e6}) {
        if (skipped(n++, 4)) continue;
        check_magnitudes(parse(line), with_scores(kind, size), seed_of(kName, uint64_t(14000 + n)));
      }
}

TEST_CASE("magnitudes: keys split over workgroups") {
  int n = 0;
  for (Scores kind : {Scores::low, Scores::one, Scores::equal})
    for (double size : {100., 1e6, 1e8}) {
      ++n;
      tandem_problem p = problem(TANDEM_FORWARD, kDtypes[n % 3], {1, 2, 1, 1 + n % 3, 200, 64, 64});
      p.splits = 3;
      check_magnitudes(p, with_scores(kind, size), seed_of(kName, uint64_t(9000 + n)));
      if (!at_least(Tier::ci)) continue;
      p = problem(TANDEM_FORWARD, n % 2 ? TANDEM_F16 : TANDEM_BF16,
                  {1, 2, 1, n % 3 ? 3 : 70, 400, 512, 512});
      p.splits = 3;
      check_magnitudes(p, with_scores(kind, size), seed_of(kName, uint64_t(9500 + n)));
    }
  for (double mask : kNumbers) {
    ++n;
    tandem_problem p = problem(TANDEM_FORWARD, kDtypes[n % 3], {2, 2, 1, 3, 200, 64, 64});
    p.splits = 3;
    set_bias(p, tandem_dtype(p.q.dtype), 2, 1, 3);
    check_magnitudes(p, with_bias(n % 2 ? Bias::all : Bias::pad, mask),
                     seed_of(kName, uint64_t(9000 + n)));
  }
}

// Few kernels and all of a path's, for devices that take longer to compile than to run.
TEST_CASE("magnitudes: few kernels, masks and scores of every size") {
  int n = 0;
  const auto run = [&](const tandem_problem& p, const Magnitudes& m) {
    check_magnitudes(p, m, seed_of(kName, uint64_t(11000 + n++)));
  };
  for (double mask : kNumbers)
    for (Bias kind : {Bias::all, Bias::pad, Bias::rows}) {
      tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16, {2, 2, 1, 20, 40 + n % 9, 32, 32});
      set_bias(p, TANDEM_F32, n % 2 + 1, 2, 20, TANDEM_F32);
      p.gradients |= TANDEM_GRAD_BIAS;
      Magnitudes m = with_bias(kind, mask);
      if (n % 2) m.scores = Scores::zero;
      run(p, m);
    }
  for (Scores kind : {Scores::low, Scores::one, Scores::equal, Scores::high})
    for (double size : {20., 88., 5e3, 1e5, 1e6, 1e8})
      run(problem(TANDEM_BACKWARD, TANDEM_F16, {1, 2, 1, 9, 33 + n % 31, 32, 32}),
          with_scores(kind, size));
  for (int distances = 0; distances < 2; ++distances)
    for (double mask : {-1e4, -1e6, -1e10}) {
      tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16, {2, 2, 1, 70, 70, 32, 32});
      p.normalizer = TANDEM_ELASTIC;
      p.gradients |= TANDEM_GRAD_TAU;
      if (distances) {
        p.dist_window = 70;
        p.gradients |= TANDEM_GRAD_DIST_BIAS;
      } else {
        set_bias(p, TANDEM_F16, 1, 1, 1, TANDEM_F32);
        p.gradients |= TANDEM_GRAD_BIAS;
      }
      run(p, with_bias(Bias::some, mask));
    }
  for (double size : {88., 1e6, 1e8}) {
    tandem_problem p = problem(TANDEM_FORWARD, TANDEM_F16, {1, 2, 1, 3, 200, 32, 32});
    p.splits = 3;
    run(p, with_scores(Scores::equal, size));
  }
}

TEST_CASE("magnitudes: what is wrong is noticed") {
  Target& target = targets()[0];
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16, {1, 2, 1, 17, 24, 64, 64});
  set_bias(p, TANDEM_F16, 1, 2, 17, TANDEM_F32);
  p.gradients |= TANDEM_GRAD_BIAS;
  double too_large = 1.0015;
  if (lacks(target, p)) {
    p = problem(TANDEM_BACKWARD, TANDEM_F16, {1, 2, 1, 17, 24, 64, 64});
    too_large = 1.0012;  // some element would show more
  }
  Case test(p, seed_of("noticed"));
  Magnitudes m = with_bias(Bias::some, -1e10);
  m.d_o = Values::ones;
  fill_magnitudes(m, test);
  const MagnitudeRules rules(test);
  Outputs good;
  REQUIRE(test.run(*target.session, &good).ok);
  const auto blamed = [&](const Outputs& outputs, const std::string& tensor) {
    CaseResult result;
    result.ok = true;
    rules.judge(outputs, &result);
    return std::any_of(result.judgements.begin(), result.judgements.end(),
                       [&](const Judgement& j) { return !j.ok && j.tensor == tensor; });
  };
  CaseResult result;
  result.ok = true;
  rules.judge(good, &result);
  CHECK_MESSAGE(result.ok, result.message);
  for (Role role : kOutputs) {
    if (good.tensor(role).dims.count() == 0) continue;
    for (double spoiled : {double(NAN), double(INFINITY), 60000.0}) {
      Outputs bad = good;
      bad.tensor(role).set(0, 0, 3, 5, spoiled);
      CHECK_MESSAGE(blamed(bad, role_name(role)), role_name(role) << " of " << spoiled);
    }
  }
  Outputs bad = good;
  bad.lse[4] = -INFINITY;
  CHECK(blamed(bad, "lse"));
  // All weights too large by what no element shows alone.
  bad = good;
  for (int64_t j = 0; j < 24; ++j)
    for (int64_t c = 0; c < 64; ++c) bad.d_v.set(0, 0, j, c, too_large * good.d_v.get(0, 0, j, c));
  CHECK(blamed(bad, "d_v over keys"));
  bad = good;
  bad.o.set(0, 1, 2, 7, 9);
  CHECK(blamed(bad, "o between values"));
  for (uint64_t seed = 0; seed < 100; ++seed) {
    p.sink = 1;
    const std::string words = print(random_magnitudes(seed, p, 100));
    CHECK(print(parse_magnitudes(words)) == words);
  }
  CHECK_THROWS_AS(parse_magnitudes("scores=loud:1"), Error);
  CHECK_THROWS_AS(parse_magnitudes("bias=all:1,5"), Error);
}

// As `tandem check` draws them. TANDEM_MAGNITUDES says how many.
TEST_CASE("magnitudes: at random") {
  const char* wanted = std::getenv("TANDEM_MAGNITUDES");
  const int many = wanted && *wanted        ? std::atoi(wanted)
                   : at_least(Tier::device) ? 2000
                   : at_least(Tier::ci)     ? 100
                                            : 20;
  RandomLimits limits;
  limits.max_work = at_least(Tier::device) ? 4000000 : 400000;
  limits.max_seq = at_least(Tier::device) ? 600 : 150;
  const uint64_t first = seed_of("magnitudes at random") % 1000000 * kSameKernels;
  for (int n = 0; n < many; ++n) {
    const uint64_t seed = first + uint64_t(n / 4) * kSameKernels + uint64_t(n % 4);
    tandem_problem p = random_problem(seed, limits);
    p.tile_rows = p.tile_cols = p.splits = 0;  // which not every path has
    CaseOptions options = random_options(seed);
    options.lead = 0;  // as --repro has it
    check_magnitudes(p, random_magnitudes(seed, p, 100), seed, options);
  }
}
