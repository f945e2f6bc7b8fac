// SPDX-License-Identifier: MIT OR Apache-2.0
// The largest logit of each head, an output of forward.
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "magnitudes.h"

using namespace parity;

namespace {

using Edit = std::function<void(Case&)>;

// A line with edited inputs on every target.
void check_edited(const std::string& line, const Edit& edit) {
  CAPTURE(line);
  Expect expect = sparse();
  expect.may_refuse = line.find("tile=") != std::string::npos;
  Case test(parse(line), seed_of(line.c_str()), expect.options);
  edit(test);
  for (Target& target : targets()) check_on(target, test, expect);
}

// Changes every element: change(number, head, row).
void change(Case& test, Role role,
            const std::function<double(double, int64_t, int64_t)>& change_one) {
  HostTensor& t = test.input(role);
  for (int64_t b = 0; b < t.dims.b; ++b)
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t s = 0; s < t.dims.s; ++s)
        for (int64_t d = 0; d < t.dims.d; ++d)
          t.set(b, h, s, d, change_one(t.get(b, h, s, d), h, s));
}

// Heads one after the other: large and small, so that nothing may stay from one to the next.
double size_of(int64_t head) { return head % 2 ? 0.25 : 4; }

// Several tiles of rows, of which the last is not full, for every loop and score policy on Hopper.
const char* const kManyTiles[] = {
    "fwd bf16 hq4 hk4 sq300 sk320 d128 dv128 tile=128x128 max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d64 dv64 tile=192x128 max_logit=1",
    "fwd f16 hq4 hk4 sq300 sk320 d128 dv128 max_logit=1",
    "fwd f16 hq4 hk4 sq300 sk320 d128 dv128 causal_bottom_right max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d64 dv64 causal_top_left max_logit=1",
    "fwd f16 hq4 hk4 sq200 sk320 d256 dv256 max_logit=1",
    "fwd bf16 hq4 hk4 sq200 sk320 d192 dv128 causal_bottom_right max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d72 dv72 tile=256x64 max_logit=1",
    "fwd f16 hq4 hk4 sq300 sk330 d80 dv80 tile=256x48 max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d64 dv64 bias:f32:1x4x1 max_logit=1",
    "fwd f16 hq4 hk4 sq300 sk320 d128 dv128 bias:f16:1x4x300 max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d128 dv128 tile=192x128 bias:bf16:1x4x300 max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d64 dv64 bias:bf16:1x4x300 max_logit=1",
    "fwd f16 hq4 hk4 sq300 sk320 d64 dv64 scale=0x1.8p-3 bias:f16:1x4x300 max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d64 dv64 bias:bf16:1x4x300 keep:1x1x1 max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d128 dv128 bias:bf16:1x4x300 q_padded kv_padded max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d64 dv64 bias:f32:1x4x300 keep:1x1x300 max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d64 dv64 bias:f32:1x4x300 q_padded kv_padded max_logit=1",
    "fwd f16 hq4 hk4 sq300 sk320 d128 dv128 sink max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d64 dv64 causal_top_left alibi max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d128 dv128 softcap=50 max_logit=1",
    "fwd bf16 hq4 hk4 sq300 sk320 d64 dv64 keep:1x1x300 max_logit=1"};

}  // namespace

TEST_CASE("ratio: max_logit") {
  check_lines({"fwd f16 b2 hq4 hk2 sq70 sk101 d32 dv32 causal_bottom_right max_logit=2",
               "fwd f32 b2 hq2 hk1 sq40 sk50 d16 dv24 sink q_padded kv_padded max_logit=1",
               "fwd bf16 b4 hq2 hk2 sq70 sk80 d64 dv64 bias:f32:1x2x70 max_logit=2",
               "fwd f16 hq2 hk1 sq70 sk80 d64 dv64 alibi max_logit=1"});
}

TEST_CASE("ratio: max_logit, other kernels" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"fwd bf16 b2 hq4 hk2 sq300 sk340 d128 dv128 max_logit=2",
       "fwd f16 b2 hq4 hk2 sq300 sk340 d64 dv64 causal_top_left max_logit=1",
       "fwd bf16 b2 hq2 hk2 sq200 sk300 d128 dv128 left=40 right=0 max_logit=2",
       // Loads by element; heads beyond 128; whole heads; split keys; one query of many heads.
       "fwd f16 b2 hq2 hk1 sq33 sk47 d33 dv17 max_logit=2",
       "fwd f16 hq2 hk1 sq130 sk180 d192 dv192 max_logit=1",
       "fwd bf16 b8 hq3 hk3 sq49 sk49 d32 dv32 bias:bf16:1x3x49 keep:8x1x49 max_logit=8",
       "fwd f16 b2 hq2 hk1 sq8 sk900 d64 dv64 splits=4 max_logit=2",
       "fwd bf16 b2 hq8 hk1 sq1 sk700 d128 dv128 max_logit=2",
       "fwd f32 b2 hq2 hk1 sq130 sk101 d64 dv64 max_logit=2",
       "fwd f32 b2 hq2 hk1 sq130 sk101 d64 dv64 tf32 max_logit=2",
       // The optional inputs. Scores of which all are negative; sinks beside them.
       "fwd bf16 b3 hq2 hk1 sq90 sk100 d64 dv64 q_packed=200 kv_packed=230 sink max_logit=3",
       "fwd f16 b2 hq2 hk1 sq90 sk100 d64 dv64 keep:2x1x90 softcap=5 dropout=0.25 max_logit=2",
       "fwd bf16 b2 hq2 hk1 sq300 sk300 d128 dv128 bias:bf16:2x2x300 max_logit=2",
       "fwd bf16 b2 hq2 hk1 sq150 sk170 d64 dv64 alibi softcap=30 right=20 max_logit=2",
       "fwd f16 b2 hq2 hk1 sq60 sk70 d32 dv32 dist=30 max_logit=2",
       "fwd f16 b2 hq2 hk1 sq60 sk70 d32 dv32 table=60:u8:1 max_logit=2",
       "fwd f16 b2 hq2 hk1 sq160 sk170 d64 dv64 spans=1:2x1 max_logit=2"});
}

// Rows that see no key have none. A head that has no other rows keeps what stands there.
TEST_CASE("max_logit of scores that are all negative, far, or hidden") {
  for (const char* line :
       {"fwd f16 b2 hq2 hk1 sq70 sk80 d64 dv64 bias:f32:2x2x70 max_logit=2",
        "fwd f32 b2 hq2 hk1 sq70 sk80 d64 dv64 bias:f32:2x2x70 splits=2 max_logit=2",
        "fwd bf16 b2 hq2 hk2 sq200 sk210 d128 dv128 bias:f32:2x2x200 max_logit=2"})
    for (double least : {-40., -3000., -3e6}) {
      CAPTURE(std::string(line));
      CAPTURE(least);
      Expect expect = sparse();
      Case test(parse(line), seed_of(line), expect.options);
      HostTensor& bias = test.input(Role::bias);
      const tandem_problem& p = test.problem();
      for (int64_t b = 0; b < p.bias_batch; ++b)
        for (int64_t h = 0; h < p.bias_heads; ++h)
          for (int64_t i = 0; i < p.bias_rows; ++i)
            for (int64_t j = 0; j < p.seq_kv; ++j)
              bias.set(b, h, i, j,
                       b + h == 2 ? -std::numeric_limits<double>::infinity()
                                  : least + bias.get(b, h, i, j));
      for (Target& target : targets()) check_on(target, test, expect);
    }
}

TEST_CASE("max_logit of heads one after the other" * doctest::skip(!at_least(Tier::ci))) {
  for (const std::string line : kManyTiles) {
    check_edited(line, [](Case& test) {
      change(test, Role::q, [](double x, int64_t h, int64_t) { return x * size_of(h); });
    });
    // Far from 0, beside heads that are near.
    check_edited(line, [](Case& test) {
      change(test, Role::q, [](double x, int64_t h, int64_t) { return h % 2 ? x : x * 2048; });
      change(test, Role::k, [](double x, int64_t h, int64_t) { return h % 2 ? x : x * 2048; });
    });
  }
}

// Rows that do not exist have scores of 0, or those of a row that the length of its entry cuts off.
TEST_CASE("max_logit of scores that are all negative, many tiles" *
          doctest::skip(!at_least(Tier::ci))) {
  for (const std::string line : kManyTiles)
    check_edited(line, [](Case& test) {
      change(test, Role::q,
             [](double x, int64_t h, int64_t) { return (0.5 + std::fabs(x)) * size_of(h); });
      change(test, Role::k, [](double x, int64_t, int64_t) { return -0.5 - std::fabs(x); });
    });
}

TEST_CASE("max_logit beside rows of another entry" * doctest::skip(!at_least(Tier::ci))) {
  const std::vector<int64_t> rows = {70, 130, 33}, keys = {150, 90, 70};
  const auto entry_of = [&](int64_t row) {
    return row < rows[0] ? 0 : row < rows[0] + rows[1] ? 1 : 2;
  };
  for (const char* words : {"", " keep:3x1x1", " alibi softcap=60", " bias:f32:3x2x1"})
    for (double sign : {1., -1.})
      for (int large = 0; large < 2; ++large) {
        const std::string line =
            "fwd bf16 b3 hq2 hk2 sq150 sk160 d64 dv64 q_packed=240 kv_packed=320" +
            std::string(words) + " max_logit=3";
        check_edited(line, [&](Case& test) {
          set_lengths_of(test, false, rows), set_lengths_of(test, true, keys);
          change(test, Role::q, [&](double x, int64_t, int64_t i) {
            return entry_of(i) % 2 == large ? -16 * std::fabs(x) : sign * std::fabs(x);
          });
          change(test, Role::k, [&](double x, int64_t, int64_t) { return -std::fabs(x); });
        });
      }
  // Padded: rows behind the length.
  for (const char* words : {"", " keep:3x1x1", " bias:bf16:3x2x150", " bias:f32:3x2x150"}) {
    const std::string line = "fwd bf16 b3 hq2 hk2 sq150 sk160 d64 dv64 q_padded kv_padded" +
                             std::string(words) + " max_logit=3";
    check_edited(line, [&](Case& test) {
      set_lengths_of(test, false, rows), set_lengths_of(test, true, keys);
      HostTensor& q = test.input(Role::q);
      for (int64_t b = 0; b < 3; ++b)
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < 150; ++i)
            for (int64_t d = 0; d < 64; ++d)
              q.set(b, h, i, d, std::fabs(q.get(b, h, i, d)) * (i < rows[size_t(b)] ? 1 : -16));
      change(test, Role::k, [&](double x, int64_t, int64_t) { return -std::fabs(x); });
    });
  }
}

// Two workgroups have keys of the same rows.
TEST_CASE("max_logit of keys that workgroups share" * doctest::skip(!at_least(Tier::ci))) {
  for (const char* heads : {"d64 dv64", "d128 dv128"})
    for (bool first : {true, false})
      check_edited(
          "fwd bf16 hq9 hk9 sq256 sk1024 " + std::string(heads) + " bias:bf16:1x9x256 max_logit=1",
          [&](Case& test) {
            change(test, Role::k, [&](double x, int64_t h, int64_t j) {
              return (j < 512) == (first == (h % 2 == 0)) ? 2 * x : x;
            });
          });
}

TEST_CASE("max_logit of any scale" * doctest::skip(!at_least(Tier::ci))) {
  for (const char* of : {"d64 dv64", "d128 dv128 causal_top_left", "d256 dv256", "d128 dv128 sink",
                         "d64 dv64 keep:1x1x150", "d64 dv64 bias:f32:1x2x1"})
    for (const char* scale : {"-0x1p-3", "0x1p-60", "0x1.8p+3", "0"})
      check_edited(
          "fwd bf16 hq2 hk2 sq150 sk170 " + std::string(of) + " scale=" + scale + " max_logit=1",
          [](Case&) {});
}
