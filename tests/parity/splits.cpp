// SPDX-License-Identifier: MIT OR Apache-2.0
// Forward with its keys split over workgroups, by the rules of the error-ratio suite: every row's
// parts joined once, parts without a key left out, rows without any as they are without splits. The
// exact suite has its own (exact.cpp).
#include <algorithm>

#include "parity.h"

using namespace parity;

namespace {

tandem_problem split(uint32_t splits, tandem_dtype dtype, const Shape& shape, const Mask& mask,
                     tandem_direction direction = TANDEM_FORWARD) {
  tandem_problem p = problem(direction, dtype, shape, mask);
  p.splits = splits;
  return p;
}

// Sequences of any length, without any key, and without any query.
void check_ragged(tandem_problem p, tandem_lengths kind, const std::vector<int64_t>& q,
                  const std::vector<int64_t>& kv, uint64_t seed) {
  int64_t total_q = 3, total_kv = 0;  // three rows of no sequence
  for (int64_t x : q) total_q += x;
  for (int64_t x : kv) total_kv += x;
  const bool packed = kind == TANDEM_LENGTHS_PACKED;
  set_lengths(p, kind, kind, packed ? total_q : 0, packed ? total_kv : 0);
  Expect expect = sparse();
  expect.options.repeats = 2;
  Case test(p, seed, expect.options);
  set_lengths_of(test, false, q);
  set_lengths_of(test, true, kv);
  check_case(test, expect);
}

}  // namespace

// Every path, and every way in which a row can see nothing: rows and keys behind a length, splits
// that get no tile.
TEST_CASE("splits: a few with all that the combine knows") {
  tandem_problem p = split(3, TANDEM_F16, {4, 4, 2, 5, 170, 32, 32}, kBottomRight);
  p.sink = 1;
  check_ragged(p, TANDEM_LENGTHS_PADDED, {5, 1, 3, 0}, {170, 40, 0, 33}, seed_of("splits few"));
}

// With a gradient at the end of it, which reads the lse that was combined.
TEST_CASE("splits: forward leaves what backward needs") {
  check(split(4, TANDEM_F16, {1, 4, 2, 70, 101, 32, 32}, kBottomRight, TANDEM_BACKWARD),
        seed_of("splits backward"));
}

// Heads that share keys are rows of one tile there, whatever their strides.
TEST_CASE("splits: one query a head") {
  int n = 0;
  for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16, TANDEM_BF16})
    for (Layout layout : {Layout::bhsd, Layout::bshd, Layout::gapped}) {
      tandem_problem p =
          problem(TANDEM_FORWARD, dtype, {3, 12, 2, 1, 300, 64, 40}, n % 2 ? kBottomRight : kNone);
      p.splits = n % 4;
      p.softcap = n % 3 == 2 ? 4.f : 0.f;
      set_layout(p, layout);
      check(p, seed_of("splits one query", uint64_t(n++)), sparse());
    }
  check_lines({"fwd f16 b2 hq8 hk2 sq3 sk300 d64 dv40", "fwd f32 b2 hq6 hk2 sq2 sk90 d32 dv32",
               "fwd bf16 b3 hq4 hk1 sq4 sk170 d64 dv64 right=3 bottom_right kv_padded"},
              1);
  // Of entries with keys of their own number, one of which has none.
  // Then each head has a sink, too, or each row of that tile.
  for (uint32_t splits : {0u, 1u, 3u}) {
    tandem_problem p = problem(TANDEM_FORWARD, TANDEM_F16, {4, 6, 2, 1, 170, 32, 32}, kBottomRight);
    p.sink = splits != 0;
    p.splits = splits;
    set_lengths(p, TANDEM_LENGTHS_FULL, TANDEM_LENGTHS_PADDED, 0, 0);
    Case test(p, seed_of("splits one query lengths", splits), sparse().options);
    set_lengths_of(test, true, {170, 40, 0, 33});
    check_case(test, sparse());
  }
}

TEST_CASE("splits: masks, types, and more splits than tiles" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (const Mask& mask : kMasks)
    for (uint32_t splits : {2u, 5u, 40u})
      for (const Shape& shape : {Shape{2, 4, 2, 1, 300, 64, 64}, Shape{1, 2, 1, 70, 333, 40, 24}}) {
        tandem_problem p = split(splits, tandem_dtype(1 + n % 3), shape, mask);
        p.sink = n / 3 % 2 != 0;
        if (n % 4 == 1) set_layout(p, Layout::bshd);
        if (n % 4 == 3) set_layout(p, Layout::gapped);
        Expect expect = sparse();
        expect.options.no_lse = n % 5 == 0;
        check(p, seed_of("splits masks", uint64_t(n++)), expect);
      }
}

TEST_CASE("splits: head sizes" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (const auto& d :
       {std::pair<int64_t, int64_t>{1, 3}, {128, 128}, {16, 250}, {256, 256}, {72, 8}}) {
    check(split(7, tandem_dtype(1 + n % 3), {1, 2, 1, 35, 300, d.first, d.second}, kBottomRight),
          seed_of("splits heads", uint64_t(n)), sparse());
    ++n;
  }
}

TEST_CASE("splits: ragged lengths, padded and packed, few queries at the end of many keys" *
          doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (tandem_lengths kind : {TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PACKED})
    for (const Mask& mask : {kNone, kBottomRight, kCausalWindow})
      for (uint32_t splits : {2u, 6u}) {
        tandem_problem p =
            split(splits, n % 2 ? TANDEM_F16 : TANDEM_F32, {5, 4, 2, 40, 400, 32, 64}, mask);
        p.sink = n % 3 == 0;
        check_ragged(p, kind, {1, 0, 40, 33, 2}, {400, 17, 129, 0, 65},
                     seed_of("splits ragged", uint64_t(n++)));
      }
}

TEST_CASE("splits: optional inputs" * doctest::skip(!at_least(Tier::ci))) {
  for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16}) {
    tandem_problem p = split(4, dtype, {2, 4, 2, 33, 270, 32, 32}, kBottomRight);
    p.softcap = 4;
    p.alibi = 1;
    p.dropout = 0.25f;
    check(p, seed_of("splits extras", 1), sparse());
    p = split(5, dtype, {2, 4, 2, 33, 270, 32, 32}, kNone);
    set_bias(p, TANDEM_F32, 1, 2, p.seq_q);
    set_keep(p, 2, 1, p.seq_q);
    p.dist_window = 90;
    p.sink = 1;
    check(p, seed_of("splits extras", 2), sparse());
    p.flags |= TANDEM_FLAG_VISIT_ALL;
    check(p, seed_of("splits extras", 3), sparse());
  }
}

// One sink and one key that outweighs it or not: counted once, whatever the splits are.
TEST_CASE("splits: a sink joins once" * doctest::skip(!at_least(Tier::ci))) {
  for (double sink : {-40.0, 0.0, 6.0, 40.0}) {
    tandem_problem p = split(6, TANDEM_F32, {1, 2, 1, 3, 400, 32, 32}, kNone);
    p.sink = 1;
    Expect expect = sparse();
    expect.options.repeats = 2;
    Case test(p, seed_of("splits sink", uint64_t(sink + 100)), expect.options);
    set_heads(test, Role::sink, sink);
    check_case(test, expect);
  }
}

// The planner's own choice, and others, at the lengths that splits are for.
TEST_CASE("splits: long keys" * doctest::skip(!at_least(Tier::device))) {
  std::vector<tandem_problem> problems;
  int64_t n = 0;
  for (const Shape& shape : {Shape{1, 32, 8, 1, 8192, 128, 128}, Shape{2, 8, 2, 1, 65536, 128, 128},
                             Shape{1, 8, 1, 16, 32768, 64, 64}, Shape{3, 4, 4, 64, 10000, 128, 64}})
    for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16, TANDEM_BF16})
      for (uint32_t splits : {0u, 1u, 64u})
        problems.push_back(split(splits, dtype, shape, n++ % 2 ? kBottomRight : kNone));
  Expect expect = sparse();
  expect.gpu_only = true;
  check_many(problems, "splits long", expect);
}
