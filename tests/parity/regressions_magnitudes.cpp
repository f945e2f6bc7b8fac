// SPDX-License-Identifier: MIT OR Apache-2.0
// Bugs with finite numbers of unusual size, by the smallest inputs that showed them; most gave NaN.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "magnitudes.h"

using namespace parity;

namespace {

constexpr double kHide = -std::numeric_limits<double>::infinity();
constexpr double kLowestBf16 = -0x1.fep127;

void fill(HostTensor& t, const std::function<double(int64_t, int64_t)>& value) {
  for (int64_t b = 0; b < t.dims.b; ++b)
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t i = 0; i < t.dims.s; ++i)
        for (int64_t j = 0; j < t.dims.d; ++j) t.set(b, h, i, j, value(i, j));
}
void fill(Case& test, Role role, double value) {
  fill(test.input(role), [&](int64_t, int64_t) { return value; });
}

// The line with inputs as given, on every target that takes it; seen: what is looked at beside the
// rules.
void check_line(const std::string& line, const std::string& what,
                const std::function<void(Case&)>& inputs,
                const std::function<void(const Outputs&)>& seen = {},
                const CaseOptions& options = {}) {
  const tandem_problem p = parse(line);
  CaseOptions twice = options;
  twice.repeats = 2;
  Case test(p, seed_of(what.c_str()), twice);
  inputs(test);
  const MagnitudeRules rules(test);
  for (Target& target : targets()) {
    if (!takes(target, p)) continue;
    Outputs outputs;
    const std::string where = line + ", " + what;
    if (check_on(target, test, rules, where, &outputs) == 0 && seen && outputs.o.dims.count() > 0) {
      INFO(target.name << ": " << where);
      seen(outputs);
    }
  }
}

// Every key at one score, by q of 1 and the right k. v and d_o of 1 make delta D: what a key behind
// Sk has for ds is exp(-lse) times that, which at the end of a type's range decides whether it is
// infinite.
void level(Case& test, double score) {
  const tandem_problem& p = test.problem();
  fill(test, Role::q, 1);
  fill(test, Role::v, 1), fill(test, Role::d_o, 1);
  fill(test, Role::k, score / std::sqrt(double(p.head_dim)));
}

std::string number(double x) { return std::to_string(x); }

}  // namespace

// cuda.sm80: rows of zeros behind Sk gave exp(0 - lse) = inf, and inf times 0 is NaN.
TEST_CASE("regression: magnitudes: d_q where lse is low and Sk no multiple of a tile") {
  const auto low = [](const char* dtype, int keys, double score) {
    check_line("bwd " + std::string(dtype) + " b1 hq1 hk1 sq1 sk" + std::to_string(keys) +
                   " d8 dv8 grads=qkv",
               "scores of " + number(score), [&](Case& test) { level(test, score); });
  };
  low("f16", 1, -10);
  low("f16", 64, -20);
  low("f16", 127, -20);
  for (const char* dtype : {"bf16", "f32"}) {
    low(dtype, 1, -88);
    low(dtype, 127, -100);
  }
  check_line("bwd bf16 b1 hq2 hk1 sq1 sk97 d64 dv64", "one feature", [](Case& test) {
    for (Role role : {Role::q, Role::k}) {
      HostTensor& t = test.input(role);
      t.fill_normal(role == Role::q ? 31 : 32, 0.1);
      for (int64_t h = 0; h < t.dims.h; ++h)
        for (int64_t i = 0; i < t.dims.s; ++i) t.set(0, h, i, 0, role == Role::q ? 1 : -128 * 8);
    }
  });
}

TEST_CASE("regression: magnitudes: one key under a finite mask") {
  for (double mask : {-1e10, -1e12, -1e20, -1e30, kLowestBf16})
    check_line(
        "fwd bf16 b1 hq1 hk1 sq1 sk1 d64 dv64 bias:bf16:1x1x1", "bias " + number(mask),
        [&](Case& test) {
          fill(test, Role::q, 0), fill(test, Role::k, 0), fill(test, Role::v, 1);
          fill(test, Role::bias, mask);
        },
        [](const Outputs& out) { CHECK(out.o.get(0, 0, 0, 5) == 1); });
  check_line("fwd f16 b1 hq1 hk1 sq1 sk1 d64 dv64 bias:f32:1x1x1", "bias -1e9", [](Case& test) {
    fill(test, Role::q, 0), fill(test, Role::k, 0), fill(test, Role::v, 1);
    fill(test, Role::bias, -1e9);
  });
}

TEST_CASE("regression: magnitudes: a head with a masked row without gradient") {
  check_line(
      "bwd bf16 b1 hq1 hk1 sq48 sk48 d64 dv64 causal_top_left bias:bf16:1x1x48 grads=qkvb "
      "d_bias:bf16",
      "bias -1e10 in rows 0 to 19", [](Case& test) {
        fill(test.input(Role::bias), [](int64_t i, int64_t) { return i < 20 ? -1e10 : 0; });
        HostTensor& d_o = test.input(Role::d_o);
        for (int64_t i = 0; i < 20; ++i)
          for (int64_t c = 0; c < 64; ++c) d_o.set(0, 0, i, c, 0);
      });
}

TEST_CASE("regression: magnitudes: d_v of one key under a finite mask") {
  for (const char* grads : {"v", "qkv"})
    for (double mask : {-1e6, -1e7, -1e8, -1e9})
      check_line(
          std::string("bwd bf16 b1 hq1 hk1 sq1 sk1 d64 dv64 bias:bf16:1x1x1 grads=") + grads,
          "bias " + number(mask),
          [&](Case& test) {
            fill(test, Role::d_o, 1);
            fill(test, Role::bias, mask);
          },
          [](const Outputs& out) { CHECK(out.d_v.get(0, 0, 0, 5) == 1); });
}

TEST_CASE("regression: magnitudes: a batch with left padding") {
  for (double mask : {-1e10, kLowestBf16})
    check_line("bwd bf16 b2 hq4 hk4 sq200 sk200 d64 dv64 bias:bf16:2x1x200",
               "padding of " + number(mask), [&](Case& test) {
                 HostTensor& bias = test.input(Role::bias);
                 for (int64_t b = 0; b < 2; ++b)
                   for (int64_t i = 0; i < 200; ++i)
                     for (int64_t j = 0; j < 200; ++j)
                       bias.set(b, 0, i, j, j > i || j < (b ? 70 : 13) ? mask : 0);
               });
}

TEST_CASE("regression: magnitudes: forward elsewhere, and rows of the lowest number") {
  CaseOptions options;
  options.forward = &another_device();
  check_line(
      "bwd bf16 b1 hq1 hk1 sq16 sk32 d64 dv64 bias:bf16:1x1x16", "rows 0 to 3 at the lowest number",
      [](Case& test) {
        fill(test.input(Role::bias), [](int64_t i, int64_t) { return i < 4 ? kLowestBf16 : 0; });
      },
      {}, options);
}

// Bounds of a path's own for what counts as hidden: rows beyond them had o = 0.
TEST_CASE("regression: magnitudes: rows of one large finite number are the mean of v") {
  // Of 24 keys, whose rows of the tensors' type begin at multiples of 16 bytes, cuda.sm90 has the
  // bias; of 21 a tile ends early.
  for (const char* dtype : {"bf16", "f32", "f16"})
    for (const char* of : {"f32", "bf16"})
      for (const char* keys : {"21", "24"})
        for (double mask : {-1e9, -1e12, -1e15, -1e30, -0x1.fffffep127})
          check_line(std::string("fwd ") + dtype + " b1 hq1 hk1 sq5 sk" + keys +
                         " d64 dv64 bias:" + of + ":1x1x5",
                     "rows of " + number(mask), [&](Case& test) {
                       const double value = *of == 'b' ? std::max(mask, kLowestBf16) : mask;
                       fill(test, Role::q, 0);
                       fill(test.input(Role::bias),
                            [&](int64_t i, int64_t j) { return i % 2 ? double(j % 3) : value; });
                     });
}

TEST_CASE("regression: magnitudes: weights of a masked row in the backward") {
  for (double mask : {-1e8, -1e9, -1e10, -1e20})
    for (int keys : {7, 64})
      check_line(
          "bwd bf16 b1 hq1 hk1 sq3 sk" + std::to_string(keys) + " d64 dv64 bias:bf16:1x1x3",
          "rows of " + number(mask),
          [&](Case& test) {
            fill(test, Role::bias, mask);
            fill(test, Role::v, 1), fill(test, Role::d_o, 1);
          },
          [&](const Outputs& out) {
            double sum = 0;
            for (int j = 0; j < keys; ++j) sum += out.d_v.get(0, 0, j, 3);
            CHECK(sum == doctest::Approx(3).epsilon(0.02));
          });
}

TEST_CASE("regression: magnitudes: one key far above the others") {
  for (const char* dtype : {"bf16", "f16", "f32"})
    for (double score : {1e6, 1e7, 1e8})
      check_line(std::string("bwd ") + dtype + " b1 hq1 hk1 sq12 sk40 d128 dv128 grads=qkv",
                 "a score of " + number(score), [&](Case& test) {
                   const double a = std::sqrt(score / std::sqrt(128.0));
                   const auto sign = [](int64_t c) {
                     return Random::mix(uint64_t(c) + 5) % 2 ? 1.0 : -1.0;
                   };
                   test.input(Role::k).fill_normal(77, 0.1);
                   fill(test.input(Role::q), [&](int64_t i, int64_t c) {
                     return (1 + 0.37 * double(i) / 12) * a * sign(c);
                   });
                   for (int64_t c = 0; c < 128; ++c)
                     test.input(Role::k).set(0, 0, 7, c, a * sign(c));
                 });
}

TEST_CASE(
    "regression: magnitudes: a sink near the end of f32, and one beside a row that sees nothing") {
  check_line("bwd bf16 b1 hq1 hk1 sq5 sk9 d64 dv64 sink grads=qkvs", "sink 2.4e38",
             [](Case& test) { fill(test, Role::sink, 2.4e38); });
  check_line(
      "fwd bf16 b1 hq1 hk1 sq5 sk9 d64 dv64 bias:bf16:1x1x5 sink", "a row of -inf",
      [](Case& test) {
        fill(test, Role::sink, 1.5);
        fill(test.input(Role::bias), [](int64_t i, int64_t) { return i == 2 ? kHide : 0; });
      },
      [](const Outputs& out) { CHECK(double(out.lse[2]) == kHide); });
}

TEST_CASE("regression: magnitudes: entmax of rows under a finite mask") {
  for (const char* alpha : {"1.5", "2", "1.25"})
    for (double mask : {-1e6, -1e7, -1e8, -1e10})
      check_line(
          std::string("bwd bf16 b1 hq1 hk1 sq5 sk21 d64 dv64 entmax=") + alpha + " bias:f32:1x1x5",
          "rows of " + number(mask), [&](Case& test) {
            fill(test, Role::q, 0), fill(test, Role::v, 1), fill(test, Role::d_o, 1);
            fill(test.input(Role::bias), [&](int64_t i, int64_t) { return i < 3 ? mask : 0; });
          });
}

// CUDA: a key behind minus infinity had the share tau / n of elastic softmax, which is of keys that
// a row sees.
TEST_CASE("regression: magnitudes: elastic softmax gives no share to keys behind minus infinity") {
  for (const char* dtype : {"bf16", "f32"})
    check_line(
        "bwd " + std::string(dtype) +
            " b1 hq1 hk1 sq6 sk40 d64 dv64 elastic bias:f32:1x1x6 grads=qkvbt d_bias:f32",
        "hidden keys without a share",
        [](Case& test) {
          fill(test, Role::tau, 1);
          fill(test, Role::v, 1);
          fill(test, Role::q, 0);
          fill(test.input(Role::bias), [](int64_t i, int64_t j) {
            return i == 0 || (i < 3 && j % 2 == 0) ? kHide : i == 5 ? -1e10 : 0.5;
          });
        },
        [](const Outputs& outputs) {
          const double want[] = {0, 1.5, 1.5, 2, 2, 2};
          for (int i = 0; i < 6; ++i)
            CHECK(outputs.o.get(0, 0, i, 7) == doctest::Approx(want[i]).epsilon(0.01));
        });
}

// CUDA: lse of a row with large scores was the largest score plus what relates to it, rounded to
// the last place of that score: -1e6 + 999996 gave -4.1875 where the sink is -4.2079.
TEST_CASE("regression: magnitudes: elastic softmax under a finite mask, beside a sink") {
  for (double mask : {-1e4, -1e6, -1e15})
    check_line(
        "bwd f32 b1 hq2 hk2 sq5 sk9 d64 dv64 elastic bias:f32:1x1x5 sink grads=qkvbts d_bias:f32",
        "rows of " + number(mask),
        [&](Case& test) {
          fill(test, Role::sink, -4.2079), fill(test, Role::v, 1);
          fill(test.input(Role::bias), [&](int64_t i, int64_t) { return i < 3 ? mask : 0; });
        },
        [](const Outputs& out) {
          CHECK(double(out.lse[1]) == doctest::Approx(-4.2079).epsilon(1e-5));
        });
}

// vulkan.scalar: lse of a row with these scores was the number that marks rows that see nothing.
TEST_CASE("regression: magnitudes: a score at the end of f32") {
  for (const char* normalizer : {"", " elastic"})
    check_line("bwd f32 b1 hq2 hk2 sq5 sk9 d64 dv64" + std::string(normalizer) +
                   " bias:f32:1x1x5 grads=qkvb d_bias:f32",
               "one key at f32's largest number", [&](Case& test) {
                 fill(test.input(Role::bias), [&](int64_t i, int64_t j) {
                   return i < 3 && j == 4 ? double(std::numeric_limits<float>::max()) : 0;
                 });
               });
}

namespace {

void check_random(const std::string& line, uint64_t seed, const std::string& words) {
  CaseOptions options = random_options(seed);
  options.lead = 0;
  check_magnitudes(parse(line), parse_magnitudes(words), seed, options);
}

}  // namespace

// The judge's: cuda.sm90 sums d_bias from ds of f16, each of which is a multiple of 2^-24, or 0.
TEST_CASE("regression: magnitudes: ds of a row below the numbers of f16") {
  check_random(
      "bwd f16 b1 hq1 hk1 sq33 sk49 d48 dv48 scale=0x1.dp-2 bias:f32:1x1x33 grads=qkvb d_bias:f32 "
      "q=0,1584,48,1",
      407092, "v=some,d_o=tiny");
  check_random(
      "bwd f16 b1 hq2 hk2 sq240 sk16 d48 dv48 bottom_right bias:f32:1x2x240 grads=qkvb d_bias:f32 "
      "bias=9137,0,19,1 d_bias=9137,4565,19,1 layout=bshd",
      407082, "bias=one:-1e+20,v=some,d_o=tiny");
}

// The judge's: cpu.ref has scores of double, which keep eighths of the products under this mask,
// and rounds them again, times alpha - 1.
TEST_CASE("regression: magnitudes: entmax of scores that double rounds") {
  check_random(
      "bwd bf16 b1 hq2 hk1 sq264 sk18 d64 dv64 bottom_right scale=0x1p-1 entmax=0x1.cp+0 dist=18 "
      "dropout=0x1p-2 grads=qkvd visit_all layout=bshd",
      400898, "bias=rows:1e+15,v=largest");
}

// vulkan.coopmat and coopmat2: -1e34 was the number by which they knew hidden keys, which have no
// share of elastic softmax. A row that entmax saw at this score alone had o = 0.
TEST_CASE("regression: magnitudes: scores of -1e34") {
  for (const char* normalizer : {"elastic", "entmax=2"})
    for (const char* dtype : {"f16", "bf16"})
      check_line("fwd " + std::string(dtype) +
                     " b1 hq1 hk1 sq9 sk15 d64 dv64 causal_top_left dist=15 " + normalizer,
                 "some at -1e34", [&](Case& test) {
                   fill(test, Role::q, 0), fill(test, Role::k, 0);
                   fill(test.input(Role::dist_bias),
                        [](int64_t, int64_t t) { return t % 3 == 1 ? 0 : -1e34; });
                 });
}

// cpu.simd: without tau every key that is seen passes, although its weight is below f32.
TEST_CASE("regression: magnitudes: elastic softmax without tau, of weights below f32") {
  check_random(
      "bwd f32 b1 hq1 hk1 sq2 sk129 d5 dv8 scale=0x1.cp-5 elastic dropout=0x1.99999ap-4 q_padded "
      "kv_padded grads=t",
      5101, "scores=one:1e+08,v=ones,d_o=some");
}

// cpu.simd: products of bf16 by pairs took subnormal numbers as 0.
TEST_CASE("regression: magnitudes: subnormal values beside the largest ones") {
  check_random(
      "bwd bf16 b11 hq1 hk1 sq19 sk12 d192 dv16 left=17 scale=0x1.cp-5 elastic alibi grads=qkvat",
      570, "scores=tiny:1e+05,d_o=largest");
  check_random(
      "bwd bf16 b1 hq1 hk1 sq35 sk225 d32 dv32 causal_top_left elastic dist=225 keep:1x1x35 "
      "grads=qkvdt layout=bshd",
      2539, "bias=all:-1e+34,v=tiny,d_o=largest");
}

// The judge: weights of 4e-44, as a sink has nearly all, may be 0 in f32 and bf16.
TEST_CASE("regression: magnitudes: weights below f32 beside gradients at its end") {
  check_random(
      "bwd bf16 b2 hq1 hk1 sq31 sk31 d24 dv24 causal_bottom_right left=0 elastic softcap=0x1p+0 "
      "dist=20 sink grads=qkvdts q=744,744,1,31 k=880,876,28,1 d_k=880,876,28,1 d_v=744,744,1,31",
      300003512, "scores=low:30,bias=pad:-1e+07,sink=100,v=zero,d_o=largest");
  check_random("bwd bf16 b1 hq1 hk1 sq48 sk64 d8 dv8 dist=64 sink grads=qkvds splits=16 cores=2",
               300517464, "scores=spread:10,bias=one:-1e+09,sink=100,d_o=largest");
}

// cuda.sm90: the forward's sums of products start from the bias, which loses its last bits where
// products of 1e7 cancel to a score of -4e3. The bias was 0.48, and lse was off by 0.16.
TEST_CASE("regression: magnitudes: a bias below the last place of what cancels") {
  check_random(
      "bwd bf16 b11 hq1 hk1 sq84 sk31 d56 dv56 scale=0x1.48p-2 bias:bf16:1x1x84 keep:11x1x84 "
      "grads=qkvb d_bias:f32 cores=1",
      671867, "scores=spread:1e+07,v=ones");
}
