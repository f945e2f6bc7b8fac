// SPDX-License-Identifier: MIT OR Apache-2.0
// Bugs that attention kernels have had elsewhere, by name. Each would have been caught by its test
// here.
#include <algorithm>
#include <cmath>

#include "parity.h"

using namespace parity;

TEST_CASE("regression: d_o with other strides than q (only head 0 right)") {
  for (Layout layout : {Layout::bshd, Layout::gapped}) {
    tandem_problem p =
        problem(TANDEM_BACKWARD, TANDEM_F16, {2, 4, 2, 40, 51, 32, 32}, kBottomRight);
    set_layout(p, Role::d_o, layout);
    check(p, seed_of("d_o strides", uint64_t(layout)));
  }
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {1, 4, 4, 40, 40, 32, 64}, kTopLeft);
  // Every tensor in an order of its own.
  const Layout layouts[] = {Layout::bshd, Layout::gapped4,    Layout::bhsd,   Layout::gapped,
                            Layout::bhsd, Layout::transposed, Layout::gapped, Layout::bshd};
  for (int n = 0; n < 8; ++n) set_layout(p, kRoles[n], layouts[n]);
  check(p, seed_of("own strides"));
}

TEST_CASE("regression: lse tail store past the row count") {
  // The lse of the heads after the first was overwritten where S is no multiple of the tile; lse is
  // judged in every case, and its guards lie right behind it.
  for (int64_t s : {1, 17, 63, 64, 65, 120, 127, 128, 129, 255, 513}) {
    if (s > 500 && !at_least(Tier::ci)) continue;
    const tandem_direction direction =
        s == 65 || at_least(Tier::ci) ? TANDEM_BACKWARD : TANDEM_FORWARD;
    check(problem(direction, TANDEM_F16, {1, 3, 1, s, s, 32, 32}, kTopLeft),
          seed_of("lse tail", uint64_t(s)), sparse());
  }
  for (int64_t s : {63, 65})
    check(problem(TANDEM_FORWARD, TANDEM_F32, {2, 2, 2, s, 40, 32, 32}),
          seed_of("lse tail batch", uint64_t(s)));
}

TEST_CASE("regression: lse tail store past the row count: rest" *
          doctest::skip(!at_least(Tier::ci))) {
  check(problem(TANDEM_BACKWARD, TANDEM_F16, {1, 3, 1, 4001, 4001, 32, 32}, kTopLeft),
        seed_of("lse tail", 4001), sparse());
}

TEST_CASE(
    "regression: all keys share one v (what is left of d_k are the roundings of o in a row or "
    "two)") {
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_BF16, {1, 8, 2, 40, 65, 160, 16});
  p.v.stride[2] = 0;
  p.scale = 0x1.5p-2f;  // steep: a few keys have the weight, and o is off by half an ulp
  for (uint32_t gradients : {uint32_t(TANDEM_GRAD_K), uint32_t(TANDEM_GRAD_QKV)}) {
    p.gradients = gradients;
    if (gradients != TANDEM_GRAD_K && !at_least(Tier::ci)) continue;
    check(p, 46274, sparse());
  }
}

// cuda.sm90: a workgroup has several tiles, of whose keys some of its warpgroups see a part or
// none. A warpgroup that ran ahead waited for a phase of a barrier that was over.
TEST_CASE("regression: keys for a part of a tile's rows, and more tiles than workgroups" *
          doctest::skip(!at_least(Tier::device))) {
  for (const Mask& mask : {kNone, kTopLeft, kBottomRight, kWindow, kWindowRight})
    for (int64_t keys : {300, 390})
      check(
          problem(TANDEM_FORWARD, TANDEM_BF16, {2, 70, 35, 330, keys, 64, 64}, mask, Layout::bshd),
          seed_of("keys for a part", uint64_t(keys)), sparse());
  for (const Mask& mask : {kTopLeft, kWindow, kWindowRight})  // that see few of many keys
    check(
        problem(TANDEM_FORWARD, TANDEM_BF16, {2, 70, 35, 330, 2100, 128, 128}, mask, Layout::bshd),
        seed_of("keys for a part", 128), sparse());
}

// cuda.sm90 with heads over 128, where two warpgroups share stages of keys and values, and each has
// a stage of its own for q: tiles of one step, steps that one of the two skips, rows behind the
// last one, tiles without keys between others.
TEST_CASE(
    "regression: wide heads, keys for a part of a tile's rows, and more tiles than workgroups" *
    doctest::skip(!at_least(Tier::ci))) {
  const int64_t heads = at_least(Tier::device) ? 68 : 9;
  const int64_t widths[][2] = {{256, 256}, {192, 128}, {192, 192}};
  for (const auto& width : widths)
    for (const Mask& mask : {kNone, kTopLeft, kBottomRight, kWindow, kWindowRight})
      for (int64_t keys : {70, 390}) {
        if (keys == 390 && width[0] == width[1] && width[0] == 192) continue;
        check(problem(TANDEM_FORWARD, TANDEM_BF16, {1, heads, heads, 330, keys, width[0], width[1]},
                      mask, Layout::bshd),
              seed_of("wide heads", uint64_t(width[1] + keys)), sparse());
        // Only one of the two has rows in the last tile. It waited for the other for ever.
        if (keys == 390)
          check(problem(TANDEM_FORWARD, TANDEM_F16, {1, 3, 1, 300, keys, width[0], width[1]}, mask),
                seed_of("rows of one", uint64_t(width[1])), sparse());
      }
  // More steps than a tile's q has boxes to be asked for ahead.
  for (const Mask& mask : {kNone, kTopLeft})
    check(problem(TANDEM_FORWARD, TANDEM_F16, {1, heads, heads, 200, 1700, 256, 256}, mask),
          seed_of("wide heads", 1700), sparse());
}

// cuda.sm90: a workgroup has a tile to store, and then skips tiles without visible keys. The
// skipped tiles overwrote the work-tile descriptor before the epilogue had read it.
TEST_CASE("regression: with a bias, a tile with keys before many without" *
          doctest::skip(!at_least(Tier::ci))) {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  for (int64_t width : {64, 128})
    for (const Mask& mask : {kBottomRight, kWindow}) {
      tandem_problem p =
          problem(TANDEM_FORWARD, TANDEM_BF16, {2, 40, 40, 1024, 104, width, width}, mask);
      set_bias(p, TANDEM_BF16, 1, p.heads_q, p.seq_q);
      check(p, seed_of("many without", uint64_t(width)), expect);
    }
}

// cuda.sm90 with a bias, heads over 64, tiles of 192 rows
// (cuda/sm90/fwd/main_loop_bias_192_rows.cuh): each warpgroup has stages of its own for q and the
// bias, and skips tiles where it has no rows, between others as well; tiles of one step, and tiles
// without keys.
TEST_CASE("regression: with a bias, three warpgroups of which some have no rows" *
          doctest::skip(!at_least(Tier::ci))) {
  Expect expect = sparse();
  expect.gpu_only = expect.may_refuse = true;
  expect.takes = "sm90";
  const int64_t heads = at_least(Tier::device) ? 68 : 9;
  for (const Mask& mask : {kNone, kTopLeft, kBottomRight, kWindow, kWindowRight})
    for (int64_t rows : {330, 450, 200})
      for (int64_t keys : {72, 392}) {
        if (keys == 72 && rows == 450) continue;
        tandem_problem p =
            problem(TANDEM_FORWARD, rows == 330 ? TANDEM_F16 : TANDEM_BF16,
                    {2, heads, heads, rows, keys, 128, rows == 450 ? 72 : 128}, mask, Layout::bshd);
        set_bias(p, tandem_dtype(p.q.dtype), rows == 330 ? 2 : 1, p.heads_q, p.seq_q);
        p.tile_rows = 192, p.tile_cols = 128;
        check(p, seed_of("three warpgroups", uint64_t(rows + keys)), expect);
      }
  // Enough tiles for a plan to take the kernel: tiles of few rows, which come last, and stream-K.
  expect.may_refuse = false;
  const bool many = at_least(Tier::device);
  for (int64_t rows : {400, 390, 384}) {
    tandem_problem p = problem(TANDEM_FORWARD, TANDEM_BF16,
                               {2, many ? 140 : 9, many ? 70 : 3, rows, 520, 128, 128}, kNone);
    set_bias(p, TANDEM_BF16, 1, p.heads_q, p.seq_q);
    check(p, seed_of("three warpgroups", uint64_t(rows)), expect);
  }
}

// cuda.sm90: clusters of two that take the batch in passes have some tiles of keys
// (src/plan/sm90/bwd_cluster_schedule.h), and sums of d_q of most heads get their zeros in the same
// kernel (cuda/sm90/bwd/dq_lazy_zero.cuh). Few queries, as the reference takes its time, of many
// tiles of keys, without which there are no clusters.
TEST_CASE("regression: a bias of the whole batch and its gradient, of many heads" *
          doctest::skip(!at_least(Tier::ci))) {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  for (bool grouped : {false, true}) {
    tandem_problem p =
        grouped ? problem(TANDEM_BACKWARD, TANDEM_F16, {4, 64, 32, 70, 1024, 64, 64}, kNone,
                          Layout::bshd)
                : problem(TANDEM_BACKWARD, TANDEM_BF16, {4, 48, 48, 99, 640, 128, 128}, kNone);
    set_bias(p, tandem_dtype(p.q.dtype), 1, p.heads_q, p.seq_q);
    p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_BIAS;
    check(p, seed_of("many heads", grouped), expect);
  }
}

// cuda.sm90: workgroups that go on from one tile of keys to the next
// (cuda/sm90/bwd/persistent.cuh), as there are four for each SM of an H100. Heads of
// odd lengths; tiles of keys that no query sees; two query heads of a head of keys.
TEST_CASE("regression: many tiles of keys for each SM" * doctest::skip(!at_least(Tier::ci))) {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  int n = 0;
  struct Case {
    int64_t width;
    const Mask& mask;
    bool in_order;
  };
  for (const Case& c : {Case{64, kNone, false}, Case{96, kTopLeft, true}, Case{128, kNone, true},
                        Case{128, kTopLeft, false}}) {
    const int64_t heads = n % 2 ? 48 : 96;
    tandem_problem p = problem(TANDEM_BACKWARD, n % 3 ? TANDEM_BF16 : TANDEM_F16,
                               {4, heads, 48, 70 + 60 * (n % 2), 300, c.width, c.width}, c.mask);
    if (c.in_order) p.flags |= TANDEM_FLAG_DETERMINISTIC;
    check(p, seed_of("go on", uint64_t(n++)), expect);
  }
}

// The same in short, for the few SMs of cuda_emulated.
TEST_CASE("regression: some tiles of keys for each SM" * doctest::skip(!at_least(Tier::ci))) {
  Expect expect = sparse();
  expect.gpu_only = true;
  int n = 0;
  for (int64_t width : {64, 128})
    for (uint32_t flags : {0u, uint32_t(TANDEM_FLAG_DETERMINISTIC)}) {
      tandem_problem p = problem(TANDEM_BACKWARD, n % 2 ? TANDEM_BF16 : TANDEM_F16,
                                 {2, 10, 5, 150, 300, width, width}, n % 3 ? kTopLeft : kNone);
      p.flags |= flags;
      check(p, seed_of("go on, in short", uint64_t(n++)), expect);
    }
}

// Many heads with a bias in short, for devices of few SMs, as cuda_emulated has:
// clusters of two beside those of four, and more heads than bwd_dot zeroes sums of, by either of
// its kernels; heads of one tile of keys, and of two.
TEST_CASE("regression: a bias of the whole batch and its gradient, of short heads" *
          doctest::skip(!at_least(Tier::ci))) {
  Expect expect = sparse();
  expect.gpu_only = true;
  for (bool wide : {false, true}) {
    tandem_problem p =
        wide ? problem(TANDEM_BACKWARD, TANDEM_BF16, {4, 36, 36, 60, 200, 128, 128}, kNone)
             : problem(TANDEM_BACKWARD, TANDEM_BF16, {4, 72, 72, 60, 128, 64, 64}, kNone);
    if (wide) set_layout(p, Role::o, Layout::gapped);
    set_bias(p, tandem_dtype(p.q.dtype), 1, p.heads_q, p.seq_q);
    p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_BIAS;
    check(p, seed_of("short heads", 72), expect);
  }
}

// cuda.sm90 sums d_bias over clusters (cuda/sm90/bwd/dbias_reduce.cuh): of every size, of one
// entry, too, whole tiles and some that end early, which have a loop of their own, into rows that
// do and do not begin at 16 bytes, of either type.
namespace {
// rest: the half that is left out on the emulator.
void check_clusters(bool rest) {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  int n = 0;
  for (int64_t batch : {1, 2, 3, 4, 5, 6, 7, 8})
    for (int64_t width : {64, 128})
      for (bool whole : {true, false})
        for (bool wide : {true, false}) {
          if ((++n % 2 == batch % 2) != rest) continue;
          tandem_problem p =
              problem(TANDEM_BACKWARD, n % 3 ? TANDEM_BF16 : TANDEM_F16,
                      {batch, 2, 1, whole ? 256 : 150, whole ? 128 : 200, width, width},
                      n % 7 < 4 ? kNone : kTopLeft);
          set_bias(p, tandem_dtype(p.q.dtype), 1, p.heads_q, p.seq_q,
                   wide ? TANDEM_F32 : tandem_dtype(p.q.dtype));
          p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_BIAS;
          if (n % 5 == 3) set_layout(p, Role::d_bias, Layout::gapped);
          if (n % 5 == 4) set_layout(p, Role::d_bias, Layout::transposed);
          check(p, seed_of("clusters", uint64_t(n)), expect);
        }
}
}  // namespace
TEST_CASE("regression: d_bias over clusters of every size" * doctest::skip(!at_least(Tier::ci))) {
  check_clusters(false);
}
TEST_CASE("regression: d_bias over clusters of every size: rest" *
          doctest::skip(!at_least(Tier::ci))) {
  check_clusters(true);
}

// cuda.sm90 sums d_bias over more entries than a cluster has workgroups in slices of the batch
// (trait::slices): of few and of many passes, of whole passes and with workgroups that have no
// entry, tiles of queries that see nothing, in a fixed order, into rows of odd lengths.
TEST_CASE("regression: d_bias over slices of the batch" * doctest::skip(!at_least(Tier::ci))) {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  int n = 0;
  for (int64_t batch : {9, 12, 16, 35, 100})
    for (int64_t width : {32, 64, 128}) {
      if (batch > 16 && width != 32) continue;
      const bool whole = n % 2 == 0;
      tandem_problem p = problem(TANDEM_BACKWARD, n % 3 ? TANDEM_BF16 : TANDEM_F16,
                                 {batch, 2, n % 4 ? 1 : 2, whole ? 128 : 70,
                                  batch > 16 ? 64
                                  : whole    ? 128
                                             : 200,
                                  width, width},
                                 n % 4 == 1   ? kTopLeft
                                 : n % 4 == 3 ? kWindow
                                              : kNone);
      if (n % 3 == 2) p.flags |= TANDEM_FLAG_DETERMINISTIC;
      set_bias(p, tandem_dtype(p.q.dtype), 1, p.heads_q, p.seq_q,
               n % 5 < 3 ? tandem_dtype(p.q.dtype) : TANDEM_F32);
      p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_BIAS;
      if (n % 5 == 3) set_layout(p, Role::d_bias, Layout::gapped);
      if (n % 5 == 4) set_layout(p, Role::d_bias, Layout::transposed);
      check(p, seed_of("slices", uint64_t(n++)), expect);
    }
}

// cuda.sm90: several workgroups share a tile of keys (bwd_parts.h), each with a part of the query
// heads and query tiles: few kv heads and few keys, parts that begin and end within a head, unequal
// numbers of parts with masks, each form of the dQ postprocess, sinks, both orders.
namespace {
void check_shared_tiles(bool rest) {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  const struct {
    int64_t batch, heads_q, heads_kv, seq_q, seq_kv;
  } sizes[] = {{1, 71, 1, 130, 200}, {1, 8, 1, 515, 77},  {2, 8, 8, 300, 77}, {1, 16, 2, 333, 390},
               {3, 6, 2, 128, 128},  {1, 1, 1, 900, 130}, {1, 7, 7, 640, 129}};
  const Mask masks[] = {kNone, kTopLeft, kBottomRight, kWindow, kWindowRight};
  const int64_t widths[] = {40, 64, 96, 128, 80};
  uint64_t n = 0;
  for (const auto& size : sizes)
    for (const Mask& mask : masks) {
      if ((++n % 6 > 2) != rest) continue;
      const int64_t width = widths[(n + n / 5) % 5];
      tandem_problem p = problem(
          TANDEM_BACKWARD, n % 2 ? TANDEM_BF16 : TANDEM_F16,
          {size.batch, size.heads_q, size.heads_kv, size.seq_q, size.seq_kv, width, width}, mask);
      if (n % 3 == 1) p.flags |= TANDEM_FLAG_DETERMINISTIC;
      if (n % 4 == 2) {
        p.sink = 1;
        p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_SINK;
      }
      if (n % 7 == 3) p.gradients = TANDEM_GRAD_Q | TANDEM_GRAD_V;
      check(p, seed_of("parts", n), expect);
    }
}
}  // namespace
TEST_CASE("regression: workgroups that share a tile of keys" * doctest::skip(!at_least(Tier::ci))) {
  check_shared_tiles(false);
}
TEST_CASE("regression: workgroups that share a tile of keys: rest" *
          doctest::skip(!at_least(Tier::ci))) {
  check_shared_tiles(true);
}

// What passes through shared memory does so here, by few and small pipelines: the validation
// layer's check for races takes its time for each.
namespace {
void check_turns(float dropout) {
  for (Layout layout : {Layout::bhsd, Layout::transposed}) {
    tandem_problem p =
        problem(TANDEM_BACKWARD, TANDEM_F16, {1, 2, 1, 70, 101, 8, 8}, kBottomRight, layout);
    p.dropout = dropout;
    check(p, seed_of("turns", uint64_t(layout)), sparse());
  }
}
}  // namespace

TEST_CASE("regression: tiles in turns (one is overwritten while it is read)") { check_turns(0); }

TEST_CASE("regression: dropped tiles in turns") { check_turns(0.25f); }

namespace {
// bwd_row_sums, and d_bias summed over the batch; or bias first, and d_bias of each entry.
void check_biases_in_turns(int64_t rows, int64_t keys, bool elastic) {
  tandem_problem p =
      problem(TANDEM_BACKWARD, TANDEM_F16, {2, 2, 1, rows, keys, 8, 8}, kBottomRight);
  set_bias(p, TANDEM_F16, elastic ? 1 : p.batch, p.heads_q, p.seq_q, TANDEM_F16);
  if (elastic) p.normalizer = TANDEM_ELASTIC;
  p.gradients |= TANDEM_GRAD_BIAS;
  check(p, seed_of("biases in turns", uint64_t(rows)), sparse());
}
}  // namespace

TEST_CASE("regression: rows and sums in turns") { check_biases_in_turns(70, 96, true); }

TEST_CASE("regression: biases in turns") { check_biases_in_turns(64, 96, false); }

// Not for the layer's check for races: with it lavapipe (Mesa 26.1) crashes on the kernels that
// take a bias by element.
TEST_CASE("regression: odd rows and sums in turns") { check_biases_in_turns(70, 101, true); }

// d_bias summed over the batch by bwd_dq, two entries at once: with bias by blocks or, of odd rows,
// by chunks, and of two entries or more. 32 heads, as bwd_dq sums only where heads and tiles
// keep a device busy. coopmat takes one entry at a time here. No other kernel with matrices:
// drivers take long to compile one, and most with checks.
namespace {
void check_entries(int64_t batch, int64_t rows, tandem_dtype bias) {
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16, {batch, 32, 32, rows, 48, 16, 16});
  set_bias(p, bias, 1, p.heads_q, p.seq_q, bias);
  p.gradients = TANDEM_GRAD_Q | TANDEM_GRAD_BIAS;
  static const std::unique_ptr<Session> reference = Session::open("cpu/ref");
  Expect expect = sparse();
  expect.options.forward = reference.get();
  check(p, seed_of("entries at once", uint64_t(batch)), expect);
}
}  // namespace

TEST_CASE("regression: entries at once") {
  check_entries(4, 40, TANDEM_F16);
  check_entries(4, 40, TANDEM_F32);
  check_entries(2, 69, TANDEM_F16);
}

// Rows that come and go by tensor addressing, on the devices that have it: rows that end inside a
// tile and features inside a matrix, rows behind a length, parts of splits, and rows that no 16
// bytes begin. Small heads: where TANDEM_DISABLE leaves them no other tile.
TEST_CASE("regression: rows by tensor addressing") {
  for (const char* line :
       {"fwd f16 b2 hq2 hk1 sq70 sk45 d24 dv40 causal_bottom_right q_padded kv_padded",
        "fwd f16 sq70 sk45 d24 splits=2", "fwd f16 sq70 sk20 d19 dv21"}) {
    const tandem_problem p = parse(line);
    bool any = false;
    for (const Target& t : targets())
      any |= explain(t.session->device(), p).find("taken (fwd256t)") != std::string::npos;
    if (any) check(p, seed_of(line), sparse());
  }
}

// A sink takes the weight, and what is left is below what f16 has: a weight of 2^-25 was lost
// beside a number of 3.6, which the limit of elements did not know. Not on the other paths, whose
// pipelines take long to compile and would show nothing more.
TEST_CASE("regression: weights of half the smallest number of f16") {
  const uint64_t seed = 63981;
  Expect expect = sparse();
  expect.options = random_options(seed);
  Case test(parse("bwd f16 b1 hq1 hk1 sq15 sk483 d72 dv192 causal_bottom_right scale=0x1.2p-3 "
                  "softcap=0x1.ep+4 bias:f32:1x1x15 dist=483 alibi keep:1x1x1 sink dropout=0x1p-2 "
                  "q_padded grads=qkvbdas d_bias:f32 bias=7245,483,483,1 keep=498,491,486,1"),
            seed, expect.options);
  for (Target& target : targets())
    if (target.backend == "cuda") check_on(target, test, expect);
}

TEST_CASE("regression: reference tensors that alias (a comparison of a tensor with itself)") {
  // A judge that looks at the same memory twice takes anything. Here one element is spoiled: the
  // judge must fail, and blame the right tensor; and the reference must be what it was before.
  Target& target = targets()[0];
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 33, 40, 32, 32}, kTopLeft);
  if (!takes(target, p)) p = in_f16(p);
  Case test(p, seed_of("alias"));
  Outputs good;
  const CaseResult result = test.run_and_judge(*target.session, &good);
  REQUIRE_MESSAGE(result.ok, result.message);
  const std::vector<double> before = test.reference(Role::d_k);
  for (Role role : {Role::o, Role::d_q, Role::d_k, Role::d_v}) {
    Outputs spoiled = good;
    HostTensor& t = role == Role::o ? spoiled.o : spoiled.gradient(role);
    t.set(0, 0, 20, 5, t.get(0, 0, 20, 5) + 0.01);
    CaseResult judged;
    judged.ok = true;
    test.judge(spoiled, &judged);
    CHECK_MESSAGE(!judged.ok, role_name(role) << " was spoiled and passed");
    for (const Judgement& j : judged.judgements) CHECK(j.ok == (j.tensor != role_name(role)));
    CHECK(judged.message.find("row 20 column 5") != std::string::npos);
  }
  Outputs spoiled = good;
  spoiled.lse[40] += 0.001f;
  CaseResult judged;
  judged.ok = true;
  test.judge(spoiled, &judged);
  CHECK(!judged.ok);
  for (double bad : {std::nan(""), double(INFINITY)}) {
    spoiled = good;
    spoiled.d_v.set(0, 0, 3, 1, bad);
    judged = CaseResult();
    judged.ok = true;
    test.judge(spoiled, &judged);
    CHECK(!judged.ok);
  }
  // All zero, which is what a kernel that never ran leaves in a cleared buffer.
  spoiled = good;
  spoiled.d_q.set_dense(std::vector<double>(size_t(spoiled.d_q.dims.count()), 0.0));
  CHECK(!vacuous(spoiled).empty());
  CHECK(test.reference(Role::d_k) == before);
}

TEST_CASE("regression: scale missing in d_k") {
  for (float scale : {0.01f, 3.0f, -0.5f, 1.0f}) {
    if (!at_least(Tier::ci) && scale != 0.01f && scale != -0.5f) continue;
    tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 40, 70, 32, 32}, kTopLeft);
    p.scale = scale;
    check(p, seed_of("scale", uint64_t(int64_t(scale * 100))), sparse());
  }
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 40, 70, 32, 32}, kTopLeft);
  p.scale = 0;  // every weight the same; d_q and d_k exactly zero
  check(p, seed_of("scale zero"), sparse());
}

TEST_CASE("regression: causal with Sq != Sk in the backward") {
  const int64_t lengths[][2] = {{5, 100}, {100, 5}, {33, 130}, {130, 33}};
  for (const auto& length : lengths)
    for (const Mask& mask : {kTopLeft, kBottomRight})
      check(problem(TANDEM_BACKWARD, TANDEM_BF16, {1, 2, 2, length[0], length[1], 32, 32}, mask),
            seed_of("causal", uint64_t(length[0])), sparse());
}

TEST_CASE("regression: all heads get gradients") {
  for (const auto& heads : {std::pair<int, int>{4, 4}, {8, 2}, {6, 1}}) {
    const tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16,
                                     {2, heads.first, heads.second, 8, 8, 16, 16}, kTopLeft);
    Case test(p, seed_of("heads", uint64_t(heads.first)));
    for (Target& target : targets()) {
      Outputs outputs;
      if (check_on(target, test, {}, &outputs) > 0) continue;
      for (Role role : {Role::d_q, Role::d_k, Role::d_v}) {
        const HostTensor& t = outputs.gradient(role);
        for (int64_t b = 0; b < t.dims.b; ++b)
          for (int64_t h = 0; h < t.dims.h; ++h) {
            double largest = 0;
            for (int64_t s = 0; s < t.dims.s; ++s)
              for (int64_t d = 0; d < t.dims.d; ++d)
                largest = std::max(largest, std::fabs(t.get(b, h, s, d)));
            CHECK_MESSAGE(largest > 1e-3, target.name << ": " << role_name(role) << " of b" << b
                                                      << " h" << h << " is zero");
          }
      }
    }
  }
}

TEST_CASE("regression: d_o expanded with stride 0 (a sum loss)") {
  for (int kind = 0; kind < 3; ++kind) {
    tandem_problem p =
        problem(TANDEM_BACKWARD, TANDEM_F16, {2, 4, 2, 40, 51, 32, 32}, kBottomRight);
    if (kind == 0) std::fill(p.d_o.stride, p.d_o.stride + 4, 0);
    if (kind == 1) p.d_o.stride[3] = 0;                    // the same over features
    if (kind == 2) p.d_o.stride[1] = p.d_o.stride[2] = 0;  // the same over heads and rows
    check(p, seed_of("sum loss", uint64_t(kind)));
  }
  // Keys and values shared by a batch, and by all heads.
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {2, 4, 2, 40, 51, 32, 32}, kNone);
  p.k.stride[0] = p.v.stride[1] = 0;
  p.q.stride[0] = 0;
  check(p, seed_of("shared keys"));
}

TEST_CASE("rows that see no key: zeros and -inf, never NaN") {
  // Bottom right with more queries than keys: the first rows see nothing, and a whole tile of them.
  for (const auto& length : {std::pair<int64_t, int64_t>{100, 20}, {40, 39}})
    for (tandem_dtype dtype : {TANDEM_F32, TANDEM_BF16})
      check(problem(TANDEM_BACKWARD, dtype, {1, 2, 1, length.first, length.second, 32, 32},
                    kBottomRight),
            seed_of("blind", uint64_t(length.first)), sparse());
  // A window that ends before the first key, and keys that no query reaches.
  const Mask early = {"early window", TANDEM_MASK_NONE, TANDEM_TOP_LEFT, 3, 0};
  check(problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 20, 200, 32, 32}, early), seed_of("unseen"),
        sparse());
  check(problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 200, 20, 32, 32}, early), seed_of("beyond"),
        sparse());
}

TEST_CASE("large and small scores: no overflow, no lost maximum") {
  for (double size : {0.0, 1e-3, 30.0}) {
    Expect expect = sparse();
    expect.options.input_scale = size;
    check(problem(TANDEM_BACKWARD, TANDEM_F32, {1, 2, 1, 70, 90, 32, 32}, kTopLeft),
          seed_of("size", uint64_t(size * 1000)), expect);
  }
}

TEST_CASE("tensors that start anywhere, addresses, forward without lse") {
  for (int64_t lead : {0, 1, 2, 3}) {
    Expect expect;
    expect.options.any_address = true;
    expect.options.lead = lead;
    expect.options.addresses = lead == 2;
    check(problem(TANDEM_BACKWARD, lead == 1 ? TANDEM_F16 : TANDEM_F32, {1, 2, 1, 40, 66, 32, 32}),
          seed_of("lead", uint64_t(lead)), expect);
  }
  Expect expect;
  expect.options.no_lse = true;
  check(problem(TANDEM_FORWARD, TANDEM_F16, {1, 2, 1, 40, 66, 32, 32}), seed_of("no lse"), expect);
}

TEST_CASE("sizes of 0 on every target") {
  const Shape shapes[] = {{0, 2, 1, 5, 6, 16, 16},
                          {1, 0, 2, 5, 6, 16, 16},
                          {1, 2, 1, 0, 6, 16, 16},
                          {1, 2, 1, 5, 0, 16, 16},
                          {1, 0, 0, 5, 6, 16, 16}};
  for (const Shape& shape : shapes)
    check(problem(TANDEM_BACKWARD, TANDEM_F32, shape), seed_of("zero"), sparse());
}

TEST_CASE("repeats give the same bits") {
  const bool device = at_least(Tier::device);
  for (tandem_direction direction : {TANDEM_FORWARD, TANDEM_BACKWARD}) {
    Expect expect;
    const int many = direction == TANDEM_FORWARD ? 1000 : 250;
    expect.options.repeats = device ? many : at_least(Tier::ci) ? 20 : 3;
    expect.gpu_only = device;
    const int64_t s = device ? 512 : 130;
    tandem_problem p = problem(direction, TANDEM_BF16, {1, 4, 2, s, s + 7, 64, 64}, kBottomRight);
    p.flags = TANDEM_FLAG_DETERMINISTIC;
    check(p, seed_of("repeats"), expect);
  }
}
