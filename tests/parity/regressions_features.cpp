// SPDX-License-Identifier: MIT OR Apache-2.0
// Bugs that kernels with biases, masks, lengths and other normalisers have had elsewhere, by name.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "parity.h"

using namespace parity;

namespace {

// A case whose inputs are changed before it runs.
void check_filled(const tandem_problem& p, const char* name,
                  const std::function<void(Case&)>& fill) {
  Expect expect = sparse();
  expect.options.repeats = 2;
  Case test(p, seed_of(name), expect.options);
  fill(test);
  check_case(test, expect);
}

void fill_overlay(Case& test, Role role, const std::function<double(int64_t, int64_t)>& value) {
  HostTensor& t = test.input(role);
  for (int64_t b = 0; b < t.dims.b; ++b)
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t i = 0; i < t.dims.s; ++i)
        for (int64_t j = 0; j < t.dims.d; ++j) t.set(b, h, i, j, value(i, j));
}

constexpr Shape kShape = {1, 2, 1, 200, 330, 32, 32};

}  // namespace

TEST_CASE("regression: a dead tile followed by a live one (stale prefetch, pointers not moved)") {
  tandem_problem p =
      problem(at_least(Tier::ci) ? TANDEM_BACKWARD : TANDEM_FORWARD, TANDEM_F16, kShape);
  set_keep(p, 1, 1, p.seq_q);
  // Tiles of either size: dead and live ones by turns, both ways round and two in a row.
  for (int64_t tile : {64, 32}) {
    if (tile == 32 && !at_least(Tier::ci)) continue;
    for (int64_t first : {0, 1})
      check_filled(p, "dead tiles", [&](Case& test) {
        fill_overlay(test, Role::keep, [&](int64_t i, int64_t j) {
          const int64_t at = j / tile + i / tile + first;
          return at % 2 == 0 && at % 6 != 4 ? 1 : 0;
        });
      });
  }
  if (!at_least(Tier::ci)) return;
  tandem_problem q = problem(TANDEM_BACKWARD, TANDEM_F32, kShape, kBottomRight);
  q.normalizer = TANDEM_ENTMAX;
  for (float alpha : {1.5f, 2.0f, 1.25f}) {
    q.entmax_alpha = alpha;
    set_bias(q, TANDEM_F16, 1, 1, q.seq_q);
    q.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_BIAS;
    check_filled(q, "tiles without support", [&](Case& test) {
      fill_overlay(test, Role::bias, [&](int64_t i, int64_t j) {
        return (j / 64 + i / 64) % 2 ? -40.0 : double((i * 7 + j) % 5) / 4;
      });
    });
  }
}

TEST_CASE("regression: a mask that means the opposite" * doctest::skip(!at_least(Tier::ci))) {
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 2, 66, 90, 32, 32});
  set_keep(p, 1, 2, 1);
  check_filled(p, "mask inverted", [](Case& test) {
    fill_overlay(test, Role::keep, [](int64_t, int64_t j) { return j % 9 == 2 ? 128 : 0; });
  });
}

TEST_CASE("regression: the gradient of a bias alone, of every shape" *
          doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (int64_t batch : {3, 1})
    for (int64_t heads : {4, 2, 1})
      for (int64_t rows : {int64_t(70), int64_t(1)})
        for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16, TANDEM_BF16}) {
          tandem_problem p = problem(TANDEM_BACKWARD, dtype, {3, 4, 2, 70, 77, 32, 32},
                                     n % 2 ? kBottomRight : kNone);
          set_bias(p, tandem_dtype(1 + (n / 2) % 3), batch, heads, rows, n % 3 ? 0 : TANDEM_F32);
          p.gradients = TANDEM_GRAD_BIAS;
          if (n % 5 == 0) set_layout(p, Role::d_bias, Layout::gapped);
          if (n % 7 == 0) set_layout(p, Role::d_bias, Layout::transposed);
          check(p, seed_of("bias alone", uint64_t(n++)), sparse());
        }
}

TEST_CASE("regression: sums with few outputs and many members") {
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {4, 8, 2, 150, 40, 32, 32});
  set_bias(p, TANDEM_BF16, 1, 1, 1);
  p.dist_window = 9;
  p.gradients = TANDEM_GRAD_BIAS | TANDEM_GRAD_DIST_BIAS;
  check(p, seed_of("members"), sparse());
  if (!at_least(Tier::ci)) return;
  p = problem(TANDEM_BACKWARD, TANDEM_BF16, {6, 8, 8, 300, 300, 16, 16}, kBottomRight);
  set_bias(p, TANDEM_F32, 1, 1, 1);
  p.dist_window = 300;
  p.gradients = TANDEM_GRAD_BIAS | TANDEM_GRAD_DIST_BIAS;
  check(p, seed_of("members", 2), sparse());
}

TEST_CASE("regression: keys behind the end of a tile that no row masks") {
  // Every key of the last tile is visible to the later rows, so nothing hides the places behind Sk.
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 130, 44, 24, 24}, kTopLeft);
  p.dist_window = 36;
  for (auto normalizer : {TANDEM_ELASTIC, TANDEM_SOFTMAX}) {
    p.normalizer = normalizer;
    p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_DIST_BIAS;
    if (normalizer == TANDEM_ELASTIC) p.gradients |= TANDEM_GRAD_TAU;
    check(p, seed_of("behind", uint64_t(normalizer)), sparse());
  }
}

TEST_CASE("regression: future keys that leak when tau is positive" *
          doctest::skip(!at_least(Tier::ci))) {
  for (const Mask& mask : {kTopLeft, kBottomRight, kCausalWindow})
    for (double tau : {1.0, 8.0}) {
      tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 70, 101, 32, 32}, mask);
      p.normalizer = TANDEM_ELASTIC;
      p.gradients |= TANDEM_GRAD_TAU;
      check_filled(p, "leak", [&](Case& test) { set_heads(test, Role::tau, tau); });
    }
}

// cuda.sm90: p of a row's only key was next to 1, and with tau = -1 the key had a part in d_tau.
TEST_CASE("regression: the only key of a row, and a tau that takes all of it") {
  for (int64_t d : {int64_t(64), int64_t(80)})
    for (double tau : {-1.0, -3.0}) {
      if (d == 80 && !at_least(Tier::ci)) continue;
      tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16, {1, 3, 1, 170, 64, d, d}, kTopLeft);
      p.normalizer = TANDEM_ELASTIC;
      p.scale = 0.296875;
      p.gradients |= TANDEM_GRAD_TAU;
      check_filled(p, "only key", [&](Case& test) { set_heads(test, Role::tau, tau); });
    }
}

TEST_CASE("regression: a threshold that flips between the kernels" *
          doctest::skip(!at_least(Tier::ci))) {
  // However the weights' thresholds round: every row's ds add up to zero if all kernels see the
  // same support. Scores on a grid, so that many keys lie at or next to the threshold.
  for (int kind = 0; kind < 4; ++kind) {
    tandem_problem p = problem(TANDEM_BACKWARD, kind == 3 ? TANDEM_F16 : TANDEM_F32,
                               {1, 2, 1, 130, 200, 64, 64}, kNone);
    set_bias(p, TANDEM_F32, 1, 2, p.seq_q, TANDEM_F32);
    p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_BIAS;
    p.normalizer = kind == 0 || kind == 3 ? TANDEM_ELASTIC : TANDEM_ENTMAX;
    p.entmax_alpha = kind == 1 ? 2.0f : kind == 2 ? 1.5f : 0;
    if (!mine(p)) continue;
    Case test(p, seed_of("flip", uint64_t(kind)));
    fill_overlay(test, Role::bias,
                 [](int64_t i, int64_t j) { return double((i + 3 * j) % 8) / 8; });
    test.input(Role::q).set_dense(std::vector<double>(size_t(2 * 130 * 64), 1.0 / 3));
    if (kind == 0 || kind == 3) set_heads(test, Role::tau, -1);
    for (Target& target : targets()) {
      if (lacks(target, p)) continue;
      Outputs out;
      const CaseResult result = test.run(*target.session, &out);
      INFO(target.name << ": " << repro(p, test.seed()));
      CHECK_MESSAGE(result.ok, result.message);
      if (!result.ok) continue;
      count(result.kernels);
      double worst = 0;
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < p.seq_q; ++i) {
          double sum = 0, size = 1e-6;
          for (int64_t j = 0; j < p.seq_kv; ++j) {
            const double ds = out.d_bias.get(0, h, i, j);
            sum += ds;
            size += std::fabs(ds);
          }
          worst = std::max(worst, std::fabs(sum) / size);
        }
      CHECK(worst < 1e-4);
    }
  }
}

TEST_CASE("regression: padded rows that are not written, packed neighbours that are overwritten") {
  const int64_t lengths[][4] = {{0, 70, 1, 65}, {63, 64, 65, 0}, {1, 1, 1, 1}, {70, 70, 70, 70}};
  int n = 0;
  for (const auto& row : lengths)
    for (tandem_lengths kind : {TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PACKED}) {
      if (++n != 2 && !at_least(Tier::ci)) continue;
      const std::vector<int64_t> q(row, row + 4);
      std::vector<int64_t> kv(row, row + 4);
      std::rotate(kv.begin(), kv.begin() + n % 4, kv.end());
      int64_t total = 0;
      for (int64_t x : q) total += x;
      tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16, {4, 4, 2, 70, 70, 32, 32},
                                 n % 4 < 2 ? kBottomRight : kNone);
      set_lengths(p, kind, kind, total + (kind == TANDEM_LENGTHS_PACKED ? 3 : 0), total);
      if (n % 3 == 0) set_layout(p, Layout::bshd);
      check_filled(p, "lengths", [&](Case& test) {
        set_lengths_of(test, false, q);  // three packed rows belong to no sequence
        set_lengths_of(test, true, kv);
      });
    }
}

TEST_CASE("regression: lengths beyond the sizes and below zero" *
          doctest::skip(!at_least(Tier::ci))) {
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {4, 2, 1, 40, 51, 32, 32}, kBottomRight);
  set_lengths(p, TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PADDED);
  check_filled(p, "wild lengths", [](Case& test) {
    set_lengths_of(test, false, {1000000, -5, 40, 41});
    set_lengths_of(test, true, {52, 30, -2147483647, 2147483647});
  });
}

namespace {

void set_offsets(Case& test, bool kv, const std::vector<int64_t>& offsets) {
  HostTensor& t = test.input(kv ? Role::lengths_kv : Role::lengths_q);
  REQUIRE(t.dims.d == int64_t(offsets.size()));
  for (size_t n = 0; n < offsets.size(); ++n) t.set(0, 0, 0, int64_t(n), double(offsets[n]));
}

// Of either direction, wide enough for paths with requirements; with the deterministic flag, by
// which some paths add d_q up in a fixed order, and without. Few kernels, as drivers take their
// time to compile them.
std::vector<tandem_problem> packed_problems(int64_t batch, int64_t longest, int64_t total_q,
                                            int64_t total_kv) {
  std::vector<tandem_problem> problems;
  const auto add = [&](tandem_direction direction, tandem_dtype dtype, uint32_t flags) {
    tandem_problem p =
        problem(direction, dtype, {batch, 2, 1, longest, longest, 64, 64}, kBottomRight);
    set_lengths(p, TANDEM_LENGTHS_PACKED, TANDEM_LENGTHS_PACKED, total_q, total_kv);
    p.flags = flags;
    if (direction == TANDEM_FORWARD) p.splits = 2;
    problems.push_back(p);
  };
  add(TANDEM_FORWARD, TANDEM_BF16, 0);
  add(TANDEM_BACKWARD, TANDEM_BF16, 0);
  add(TANDEM_BACKWARD, TANDEM_BF16, TANDEM_FLAG_DETERMINISTIC);
  if (at_least(Tier::ci)) add(TANDEM_FORWARD, TANDEM_F32, 0);
  if (at_least(Tier::ci)) add(TANDEM_BACKWARD, TANDEM_F32, 0);
  return problems;
}

constexpr int64_t kLowest = std::numeric_limits<int32_t>::min(),
                  kHighest = std::numeric_limits<int32_t>::max();

}  // namespace

// A length within Sq and Sk reached behind the tensors, where the sequence begins late.
TEST_CASE("regression: packed offsets beyond the total") {
  for (tandem_direction direction : {TANDEM_FORWARD, TANDEM_BACKWARD}) {
    if (direction == TANDEM_BACKWARD && !at_least(Tier::ci)) continue;
    tandem_problem p = problem(direction, TANDEM_F32, {2, 1, 1, 4, 4, 4, 4});
    set_lengths(p, TANDEM_LENGTHS_PACKED, TANDEM_LENGTHS_PACKED, 6, 6);
    check_filled(p, "packed beyond", [](Case& test) {
      set_offsets(test, false, {0, 3, 1000});
      set_offsets(test, true, {0, 3, 1000});
    });
  }
  // The last sequence has 4 of its 70 rows; one begins behind the end, and one before row 0.
  for (const tandem_problem& p : packed_problems(5, 70, 140, 131)) {
    check_filled(p, "packed beyond", [](Case& test) {
      set_offsets(test, false, {-7, 66, 136, 1000, kHighest, 1001});
      set_offsets(test, true, {kLowest, 61, 127, kHighest, kHighest, kLowest});
    });
    if (!at_least(Tier::ci)) continue;
    check_filled(p, "packed beyond", [](Case& test) {
      set_offsets(test, false, {0, 70, 30, -1, kLowest, kLowest});
      set_offsets(test, true, {kLowest, 0, 0, 131, -1, kLowest});
    });
  }
}

TEST_CASE("regression: hostile lengths and offsets") {
  Random r(seed_of("hostile"));
  for (int n = 0; n < (at_least(Tier::device) ? 40 : at_least(Tier::ci) ? 8 : 2); ++n) {
    const int64_t batch = r.between(1, 6), longest = r.between(40, 90);
    int64_t totals[2];
    std::vector<int64_t> offsets[2];
    for (int kv = 0; kv < 2; ++kv) {
      totals[kv] = r.between(1, batch * longest + 20);
      for (int64_t b = 0; b <= batch; ++b) offsets[kv].push_back(r.between(0, totals[kv]));
      std::sort(offsets[kv].begin(), offsets[kv].end());
      for (int64_t& at : offsets[kv]) at = r.chance(20) ? 0 : r.chance(20) ? totals[kv] : at;
      std::sort(offsets[kv].begin(), offsets[kv].end());
      make_hostile(&r, totals[kv], &offsets[kv]);
    }
    for (const tandem_problem& p : packed_problems(batch, longest, totals[0], totals[1]))
      check_filled(p, "hostile", [&](Case& test) {
        for (bool kv : {false, true}) set_offsets(test, kv, offsets[kv]);
      });
    std::vector<int64_t> lengths[2];
    for (auto& of : lengths)
      for (int64_t b = 0; b < batch; ++b)
        of.push_back(r.chance(30) ? r.pick(std::vector<int64_t>{kLowest, -1, kHighest, longest + 1})
                                  : r.between(0, longest));
    for (tandem_problem p : packed_problems(batch, longest, 0, 0)) {
      set_lengths(p, TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PADDED);
      set_layout(p, Layout::bhsd);
      check_filled(p, "hostile", [&](Case& test) {
        for (bool kv : {false, true}) set_lengths_of(test, kv, lengths[kv]);
      });
    }
  }
}

// What sequences with rows in common leave there is not said, but nothing beside it is touched, and
// every path ends: in a fixed order of sums cuda.sm90 waited for ever, as two entries counted in
// one word.
TEST_CASE("regression: offsets that go down, whose sequences share rows") {
  Random r(seed_of("shared rows"));
  for (int n = 0; n < (at_least(Tier::device) ? 40 : at_least(Tier::ci) ? 9 : 3); ++n) {
    const bool known = n < 2;
    const int64_t batch = known ? 3 : r.between(2, 6), total = known ? 400 : r.between(1, 300);
    std::vector<int64_t> offsets[2];
    for (auto& of : offsets)
      for (int64_t b = 0; !known && b <= batch; ++b)
        of.push_back(r.chance(20) ? r.pick(std::vector<int64_t>{kLowest, -1, kHighest, total + 1})
                                  : r.between(0, total));
    // Entries whose sums of d_q lie in the same tiles of 64 rows, and of 128, with two tiles of
    // keys each.
    if (known) offsets[0] = {128 * (n + 1), 128 * (n + 1) + 90, 0, 90};
    if (known) offsets[1] = {0, 200, 190, 390};
    for (const tandem_problem& p : packed_problems(batch, known ? 200 : 90, total, total)) {
      if (!mine(p)) continue;
      Case test(p, seed_of("shared rows", uint64_t(n)));
      for (bool kv : {false, true}) set_offsets(test, kv, offsets[kv]);
      for (Target& target : targets()) {
        if (lacks(target, p)) continue;
        Outputs outputs;
        const CaseResult result = test.run(*target.session, &outputs);
        CHECK_MESSAGE(!result.refused, target.name << ": " << repro(p, test.seed()));
        CHECK_MESSAGE(result.message == "",
                      target.name << ": " << repro(p, test.seed()) << "\n  " << result.message);
      }
    }
  }
}

TEST_CASE("regression: a sink in rows that see nothing" * doctest::skip(!at_least(Tier::ci))) {
  for (tandem_normalizer normalizer : {TANDEM_SOFTMAX, TANDEM_ELASTIC}) {
    tandem_problem p =
        problem(TANDEM_BACKWARD, TANDEM_BF16, {1, 2, 1, 100, 40, 32, 32}, kBottomRight);
    p.sink = 1;
    p.normalizer = uint32_t(normalizer);
    set_keep(p, 1, 2, p.seq_q);
    p.gradients |= TANDEM_GRAD_SINK | (normalizer == TANDEM_ELASTIC ? TANDEM_GRAD_TAU : 0u);
    check_filled(p, "blind sink", [](Case& test) {
      set_heads(test, Role::sink, 3);
      fill_overlay(test, Role::keep,
                   [](int64_t i, int64_t j) { return (i / 3 + j / 5) % 3 ? 0 : 1; });
    });
  }
}

TEST_CASE("regression: softcap that forgets its factor, or its derivative" *
          doctest::skip(!at_least(Tier::ci))) {
  // Flat and steep: scores far beyond the cap, and far below it.
  for (float cap : {0.5f, 4.0f, 1000.0f}) {
    tandem_problem p =
        problem(TANDEM_BACKWARD, TANDEM_F32, {1, 4, 2, 66, 70, 64, 32}, kBottomRight);
    p.softcap = cap;
    p.scale = 1;
    set_bias(p, TANDEM_F32, 1, 2, 1);
    p.gradients |= TANDEM_GRAD_BIAS;
    check(p, seed_of("softcap", uint64_t(cap * 2)), sparse());
  }
}

// Heads over 128 have kernels of their own on cuda.sm90.
TEST_CASE("regression: softcap and wide heads") {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  int n = 0;
  for (float cap : {0.5f, 4.0f, 1000.0f})
    for (const Shape& s : {Shape{1, 4, 2, 150, 200, 256, 256}, Shape{2, 2, 2, 70, 130, 192, 128},
                           Shape{1, 2, 1, 130, 66, 136, 200}}) {
      tandem_problem p = problem(TANDEM_BACKWARD, n % 2 ? TANDEM_F16 : TANDEM_BF16, s,
                                 n % 3 == 0   ? kNone
                                 : n % 3 == 1 ? kBottomRight
                                              : kWindow);
      p.softcap = cap;
      if (cap == 4) p.scale = 1;
      if (n % 4 == 1) p.sink = 1, p.gradients |= TANDEM_GRAD_SINK;
      if (n % 4 == 2) p.gradients = TANDEM_GRAD_Q;
      if (n % 4 == 3) p.gradients = TANDEM_GRAD_K | TANDEM_GRAD_V;
      check(p, seed_of("softcap and wide heads", uint64_t(n++)), expect);
    }
  // More tiles than the emulator has workgroups, and an H100 has: o of the next tile is in
  // registers beside scores of 80 keys, which the kernel counted as 96.
  for (int64_t heads : {4, 6, 8, 150}) {
    tandem_problem p = problem(TANDEM_FORWARD, TANDEM_BF16,
                               {1, heads, heads / 2, heads > 8 ? 130 : 150, 90, 256, 256}, kNone);
    p.softcap = 2;
    check(p, seed_of("softcap and wide heads", uint64_t(n++)), expect);
  }
}

// Where a bias comes by products with a unit matrix (cuda.sm90 had them), 0 times infinity is NaN.
// Where bwd_dkv leaves ds for bwd_dq, heads over 64 with 16-bit elements, bwd_dq wants it through
// softcap and d_bias in front of it.
TEST_CASE("regression: d_bias that went through softcap's derivative") {
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16, {1, 2, 2, 40, 72, 96, 96}, kBottomRight);
  p.softcap = 2;
  set_bias(p, TANDEM_F16, 1, 2, p.seq_q, TANDEM_F32);
  p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_BIAS;
  check(p, seed_of("softcap and d_bias"), sparse());
}

TEST_CASE("regression: minus infinity in a bias hides a key, and no other row's") {
  const double hidden = -std::numeric_limits<double>::infinity();
  const auto some = [](int64_t i, int64_t j) { return double((i * 5 + j * 3) % 7) / 4 - 1; };
  struct Pattern {
    const char* name;
    std::function<bool(int64_t, int64_t)> hides;
  };
  const Pattern patterns[] = {
      {"one key of one row", [](int64_t i, int64_t j) { return i == 70 && j % 250 == 50; }},
      {"every few keys", [](int64_t i, int64_t j) { return (i + 2 * j) % 11 == 0; }},
      {"whole rows", [](int64_t i, int64_t) { return i % 64 == 9; }},
      {"the last keys", [](int64_t, int64_t j) { return j >= 250; }},
      {"keys behind the query", [](int64_t i, int64_t j) { return j > i; }}};
  for (const Pattern& pattern : patterns)
    for (tandem_dtype dtype : {TANDEM_BF16, TANDEM_F16})
      for (int64_t d : {64, 128}) {
        // Drivers that compute on a CPU take minutes for all of it.
        const bool all = at_least(Tier::ci);
        if (!all && (d == 128 || dtype == TANDEM_F16 || &pattern > patterns + 2)) continue;
        for (bool wide : {false, true}) {
          if (wide && (!all || &pattern != patterns)) continue;
          const Shape shape = {
              all ? 2 : 1, 2, 1, wide ? 72 : all ? 200 : 80, wide ? 5400 : all ? 520 : 264, d, d};
          for (const Mask& mask : {kNone, kBottomRight}) {
            if (mask.mask == TANDEM_MASK_CAUSAL && (wide || !all)) continue;
            tandem_problem p = problem(TANDEM_FORWARD, dtype, shape, mask);
            set_bias(p, dtype, 1, 2, p.seq_q);
            check_filled(p, pattern.name, [&](Case& test) {
              fill_overlay(test, Role::bias, [&](int64_t i, int64_t j) {
                return pattern.hides(i, wide ? j % 4600 : j) ? hidden : some(i, j);
              });
            });
          }
        }
      }
}

// Whatever a mask hides may be anything, in rows that other rows share a tile with.
TEST_CASE("regression: a bias without numbers where a mask hides the key") {
  const double infinity = std::numeric_limits<double>::infinity(),
               anything[] = {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()};
  const auto value = [&](int64_t i, int64_t j, bool hides) {
    return hides && j > i && (i + j) % 5 == 0 ? anything[(i + j) / 5 % 3]
                                              : double((i * 5 + j) % 7) / 4;
  };
  const bool all = at_least(Tier::ci);
  for (tandem_dtype dtype : {TANDEM_BF16, TANDEM_F16})
    for (int64_t last : {329, 64}) {
      if (!all && (dtype == TANDEM_F16 || last != 64)) continue;
      tandem_problem p = problem(TANDEM_FORWARD, dtype,
                                 {1, 2, 1, all ? 328 : 136, all ? 328 : 136, 64, 64}, kTopLeft);
      set_bias(p, dtype, 1, 2, p.seq_q);
      check_filled(p, "anything", [&](Case& test) {
        fill_overlay(test, Role::bias, [&](int64_t i, int64_t j) { return value(i, j, j < last); });
      });
    }
  if (!at_least(Tier::device)) return;
  // More heads than a GPU has SMs, so that an SM has two.
  tandem_problem p = problem(TANDEM_FORWARD, TANDEM_BF16, {1, 264, 264, 80, 80, 64, 64}, kTopLeft);
  set_bias(p, TANDEM_BF16, 1, 264, p.seq_q);
  check_filled(p, "anything, later", [&](Case& test) {
    HostTensor& t = test.input(Role::bias);
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t i = 0; i < t.dims.s; ++i)
        for (int64_t j = 0; j < t.dims.d; ++j) t.set(0, h, i, j, value(i, j, h >= 132));
  });
}

TEST_CASE("regression: alibi with Sq != Sk, and a bias per batch entry" *
          doctest::skip(!at_least(Tier::ci))) {
  for (const Mask& mask : {kNone, kTopLeft, kBottomRight, kWindowRight}) {
    tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {2, 4, 2, 60, 130, 32, 32}, mask);
    p.alibi = 1;
    set_bias(p, TANDEM_F16, 2, 1, 1);
    p.gradients |= TANDEM_GRAD_SLOPE | TANDEM_GRAD_BIAS;
    check(p, seed_of("alibi"), sparse());
    p.align = p.align == TANDEM_TOP_LEFT ? TANDEM_BOTTOM_RIGHT : TANDEM_TOP_LEFT;
    check(p, seed_of("alibi other end"), sparse());
  }
}

// delta of softmax is <d_o, o> on cuda.sm90, and a sum over keys elsewhere, as d_slope needs those
// sums. Dropout makes o of a row with one key round.
TEST_CASE("regression: alibi and dropout where rows see one key") {
  check_lines({"bwd f16 b1 hq16 hk16 sq64 sk1 d64 dv64 alibi dropout=0.3 grads=qkva",
               "bwd bf16 b1 hq16 hk16 sq64 sk1 d64 dv64 alibi dropout=0.3 grads=a"});
}
