// SPDX-License-Identifier: MIT OR Apache-2.0
// Merges: o and lse of parts of the keys become those of all keys, and the gradients of the parts.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "parity.h"

using namespace parity;

namespace {

void check_random(uint64_t first, uint64_t count) {
  Expect expect = sparse();
  expect.options.repeats = 2;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    expect.options.lead = int64_t(seed % 5 == 0);
    check(random_merge(seed), seed, expect);
  }
}

}  // namespace

TEST_CASE("merge: a few problems") {
  check_lines(
      {"merge f32 b2 hq3 sq37 dv64 parts=3", "merge bf16 b2 hq3 sq37 dv128 parts=2 part_o:f32 into",
       "merge f32 hq4 sq33 dv192 parts=1 part_o:bf16 into layout=bshd",
       "merge f16 b2 hq2 sq5 dv33 parts=70", "bwd_merge bf16 b2 hq2 sq9 dv576 parts=3",
       "bwd_merge f32 b2 hq3 sq37 dv64 parts=3 d_lse",
       "bwd_merge bf16 b2 hq2 sq37 dv160 parts=6 part_o:f16 d_part_o:f16 d_lse layout=bshd",
       "bwd_merge f16 hq3 sq40 dv17 parts=40"},
      2);
}

TEST_CASE("merge: sizes of zero") {
  check_lines({"merge f32 b0 hq3 sq37 dv64 parts=3", "merge f16 hq2 sq0 dv8 parts=2 into",
               "bwd_merge f32 hq0 sq5 dv4 parts=2"});
}

TEST_CASE("merge: random") { check_random(1, 40); }
TEST_CASE("merge: more random" * doctest::skip(!at_least(Tier::ci))) { check_random(1000, 200); }

// Of a row that one part alone saw, o and lse have that part's bits, subnormal numbers and the sign
// of zero included; d_o and d_lse arrive there as they are.
TEST_CASE("merge: with a part that saw nothing has the other's bits") {
  for (tandem_dtype dtype : kDtypes)
    for (bool into : {false, true}) {
      const tandem_problem p = make_merge(TANDEM_MERGE, dtype, dtype, 3, 2, 3, 21, 40, into);
      if (!mine(p)) continue;
      Case test(p, seed_of("merge bits"), sparse().options);
      HostTensor &o = test.input(Role::part_o), &lse = test.input(Role::part_lse);
      const auto owner = [&](int64_t b, int64_t h, int64_t s) {
        return (b + 2 * h + 3 * s) % (into ? 5 : 4);  // 3: none of them, 4: what o and lse hold
      };
      const double odd[] = {-0.0, 0x1p-140, 0x1p-20, 3e4};
      Random r(7);
      std::vector<double> want;
      for (int64_t n = 0; n < 5; ++n)
        for (int64_t b = 0; b < p.batch; ++b)
          for (int64_t h = 0; h < p.heads_q; ++h)
            for (int64_t s = 0; s < p.seq_q; ++s) {
              if (n == 3 || (n == 4 && !into)) continue;
              HostTensor& of = n == 4 ? test.input(Role::into_o) : o;
              HostTensor& of_lse = n == 4 ? test.input(Role::into_lse) : lse;
              const int64_t at = n == 4 ? b : n * p.batch + b;
              const bool sees = owner(b, h, s) == n;
              of_lse.set(at, h, s, 0, sees ? 1e3 * r.normal() : -INFINITY);
              for (int64_t d = 0; d < p.head_dim_v; ++d)
                of.set(at, h, s, d,
                       !sees          ? std::nan("")
                       : r.chance(10) ? odd[r.below(4)]
                                      : r.normal());
            }
      for (Target& target : targets()) {
        if (lacks(target, p) || target.recorded) continue;
        CAPTURE(target.name);
        Outputs outputs;
        CHECK(check_on(target, test, sparse(), &outputs) == 0);
        int64_t wrong = 0;
        for (int64_t b = 0; b < p.batch; ++b)
          for (int64_t h = 0; h < p.heads_q; ++h)
            for (int64_t s = 0; s < p.seq_q; ++s) {
              const int64_t n = owner(b, h, s);
              const HostTensor& of = n == 4 ? test.input(Role::into_o) : o;
              const HostTensor& of_lse = n == 4 ? test.input(Role::into_lse) : lse;
              const int64_t at = n == 4 ? b : n * p.batch + b;
              const float got = outputs.lse[size_t((b * p.heads_q + h) * p.seq_q + s)];
              wrong += n == 3 ? got != -INFINITY : got != float(of_lse.get(at, h, s, 0));
              const size_t size = element_size(uint32_t(dtype));
              for (int64_t d = 0; d < p.head_dim_v; ++d) {
                const uint8_t* one = &outputs.o.bytes[size_t(outputs.o.index(b, h, s, d)) * size];
                const uint8_t zeros[4] = {};
                const uint8_t* other =
                    n == 3 ? zeros : &of.bytes[size_t(of.index(at, h, s, d)) * size];
                wrong += std::memcmp(one, other, size) != 0;
              }
            }
        CHECK(wrong == 0);
      }
    }
}

TEST_CASE("merge: the gradients of a part that alone saw keys are those of the whole") {
  tandem_problem p = make_merge(TANDEM_MERGE_BACKWARD, TANDEM_F32, TANDEM_F32, 2, 1, 2, 19, 64);
  p.d_lse = 1;
  if (!mine(p)) return;
  Case test(p, seed_of("merge gradient bits"), sparse().options);
  HostTensor& lse = test.input(Role::part_lse);
  for (int64_t n = 0; n < 2; ++n)
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t s = 0; s < p.seq_q; ++s)
        lse.set(n, h, s, 0, s % 2 == n ? 20.5 - double(s) : -INFINITY);
  for (Target& target : targets()) {
    if (lacks(target, p) || target.recorded) continue;
    CAPTURE(target.name);
    Outputs outputs;
    CHECK(check_on(target, test, sparse(), &outputs) == 0);
    int64_t wrong = 0;
    for (int64_t n = 0; n < 2; ++n)
      for (int64_t h = 0; h < p.heads_q; ++h)
        for (int64_t s = 0; s < p.seq_q; ++s) {
          const bool sees = s % 2 == n;
          wrong += outputs.d_part_lse.get(n, h, s, 0) !=
                   (sees ? test.input(Role::d_lse).get(0, h, s, 0) : 0);
          for (int64_t d = 0; d < p.head_dim_v; ++d)
            wrong += outputs.d_part_o.get(n, h, s, d) !=
                     (sees ? test.input(Role::d_o).get(0, h, s, d) : 0);
        }
    CHECK(wrong == 0);
  }
}
