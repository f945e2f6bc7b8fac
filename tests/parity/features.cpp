// SPDX-License-Identifier: MIT OR Apache-2.0
// The optional inputs by the rules of the error-ratio suite: each alone, every two together, and
// the tiles that keep and entmax leave out.
#include <algorithm>
#include <cstring>
#include <functional>

#include "parity.h"

using namespace parity;

namespace {

// Optional inputs of which a problem has at most one of a kind.
struct Feature {
  const char* name;
  const char* kind;
  std::function<void(tandem_problem&)> add;
};

void normalize(tandem_problem& p, tandem_normalizer normalizer, float alpha) {
  p.normalizer = uint32_t(normalizer);
  p.entmax_alpha = alpha;
}

const std::vector<Feature>& features() {
  using P = tandem_problem;
  static const std::vector<Feature> list = {
      {"elastic", "normalizer", [](P& p) { normalize(p, TANDEM_ELASTIC, 0); }},
      {"entmax 1.5", "normalizer", [](P& p) { normalize(p, TANDEM_ENTMAX, 1.5f); }},
      {"entmax 2", "normalizer", [](P& p) { normalize(p, TANDEM_ENTMAX, 2); }},
      {"entmax 1.25", "normalizer", [](P& p) { normalize(p, TANDEM_ENTMAX, 1.25f); }},
      {"softcap", "softcap", [](P& p) { p.softcap = 2; }},
      {"bias", "bias", [](P& p) { set_bias(p, TANDEM_F32, p.batch, p.heads_q, p.seq_q); }},
      {"bias of kv heads, one row", "bias",
       [](P& p) { set_bias(p, TANDEM_BF16, 1, p.heads_kv, 1, TANDEM_F32); }},
      {"dist_bias", "dist", [](P& p) { p.dist_window = 24; }},
      {"alibi", "alibi", [](P& p) { p.alibi = 1; }},
      {"keep", "keep", [](P& p) { set_keep(p, p.batch, 1, p.seq_q); }},
      {"spans", "spans", [](P& p) { set_spans(p, 1, p.batch, 1); }},
      {"block lists", "keep", [](P& p) { set_blocks(p, 64, 64, 3, 2, 1, 1); }},
      {"two spans of kv heads", "spans", [](P& p) { set_spans(p, 2, 1, p.heads_kv); }},
      {"table", "bias", [](P& p) { set_table(p, 60, TANDEM_U8, 1); }},
      {"sink", "sink", [](P& p) { p.sink = 1; }},
      {"dropout", "dropout", [](P& p) { p.dropout = 0.25f; }},
      {"padded", "lengths",
       [](P& p) { set_lengths(p, TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PADDED); }},
      {"packed", "lengths",
       [](P& p) {
         set_lengths(p, TANDEM_LENGTHS_PACKED, TANDEM_LENGTHS_PACKED, p.batch * p.seq_q * 3 / 5,
                     p.batch * p.seq_kv * 2 / 3);
       }},
      {"gapped", "lengths", [](P& p) {
         set_lengths(p, TANDEM_LENGTHS_GAPPED, TANDEM_LENGTHS_GAPPED, p.batch * p.seq_q * 4 / 5,
                     p.batch * p.seq_kv * 3 / 4);
       }}};
  return list;
}

bool together(const Feature& a, const Feature& b) {
  const auto is = [&](const Feature& f, const char* name) {
    return std::string(f.name).rfind(name, 0) == 0;
  };
  if ((is(a, "sink") && is(b, "entmax")) || (is(b, "sink") && is(a, "entmax"))) return false;
  return std::string(a.kind) != b.kind;
}

const Feature& feature(const std::string& name) {
  for (const Feature& f : features())
    if (name == f.name) return f;
  FAIL("no feature " << name);
  return features()[0];
}

// Gradients of all that is there.
void want_all(tandem_problem& p) {
  p.gradients = TANDEM_GRAD_QKV;
  if (p.bias.dtype) p.gradients |= TANDEM_GRAD_BIAS;
  if (p.bias_table_size) p.gradients |= TANDEM_GRAD_BIAS_TABLE;
  if (p.dist_window) p.gradients |= TANDEM_GRAD_DIST_BIAS;
  if (p.alibi) p.gradients |= TANDEM_GRAD_SLOPE;
  if (p.normalizer == TANDEM_ELASTIC) p.gradients |= TANDEM_GRAD_TAU;
  if (p.sink) p.gradients |= TANDEM_GRAD_SINK;
}

tandem_problem with(std::initializer_list<const char*> names, tandem_dtype dtype,
                    const Shape& shape, const Mask& mask,
                    tandem_direction direction = TANDEM_BACKWARD) {
  tandem_problem p = problem(direction, dtype, shape, mask);
  for (const char* name : names) feature(name).add(p);
  if (direction == TANDEM_BACKWARD) want_all(p);
  return p;
}

}  // namespace

// The smoke tier: every feature once, several at a time, because each combination is a set of
// pipelines. Beside them it has only what they do not show.
TEST_CASE("features: a few combinations with all of them") {
  const Shape shape = {2, 4, 2, 70, 101, 32, 32};
  check(with({"elastic", "bias", "dist_bias"}, TANDEM_F32, shape, kBottomRight), seed_of("few", 1),
        sparse());
  check(with({"entmax 1.5", "keep", "spans", "packed"}, TANDEM_F16, shape, kBottomRight),
        seed_of("few", 2), sparse());
  check(with({"softcap", "alibi", "sink", "dropout", "padded"}, TANDEM_BF16, shape, kNone),
        seed_of("few", 3), sparse());
  check(with({"block lists", "table", "gapped"}, TANDEM_BF16, shape, kNone), seed_of("few", 4),
        sparse());
}

// What CUDA has kernels of its own for (trait::fixed).
TEST_CASE("features: elastic softmax and a distance bias alone") {
  check(with({"elastic", "dist_bias"}, TANDEM_F16, {2, 4, 2, 70, 101, 32, 32}, kBottomRight),
        seed_of("fixed", 1), sparse());
  // Forward on Hopper: exponentials that are kept, rows that see nothing, rows that fill no tile.
  bool hopper = at_least(Tier::device);
  for (const Target& t : targets()) hopper |= t.path == "sm90";
  if (!hopper) return;
  const auto forward = [](std::initializer_list<const char*> names, tandem_dtype dtype,
                          const Shape& shape, const Mask& mask, uint64_t seed) {
    check(with(names, dtype, shape, mask, TANDEM_FORWARD), seed_of("fixed", seed), sparse());
  };
  forward({"elastic"}, TANDEM_F16, {1, 2, 2, 330, 330, 72, 72}, kTopLeft, 2);
  forward({"elastic", "dist_bias"}, TANDEM_BF16, {2, 4, 2, 300, 364, 32, 32}, kBottomRight, 3);
  forward({"elastic", "dist_bias"}, TANDEM_F16, {1, 2, 1, 330, 266, 128, 64}, kBottomRight, 4);
  forward({"elastic", "dist_bias"}, TANDEM_F16, {1, 2, 1, 270, 301, 64, 64}, kBottomRight, 5);
}

// What cuda.sm90 alone has kernels of its own for; elsewhere the combinations above reach all that
// runs here.
TEST_CASE("features: entmax alone") {
  bool hopper = at_least(Tier::ci);
  for (const Target& t : targets()) hopper |= t.path == "sm90";
  if (!hopper) return;
  check(with({"entmax 1.5"}, TANDEM_F16, {2, 4, 2, 70, 101, 32, 32}, kBottomRight),
        seed_of("alone", 1), sparse());
  // Where dQ may be summed in any order, the backward gathers rows: of several tiles of 64, and of
  // two query heads.
  check(with({"entmax 1.5"}, TANDEM_BF16, {1, 2, 1, 330, 300, 72, 64}, kTopLeft),
        seed_of("alone", 2), sparse());
  tandem_problem p = with({"entmax 1.5"}, TANDEM_F16, {1, 2, 1, 70, 101, 32, 32}, kBottomRight);
  p.flags |= TANDEM_FLAG_DETERMINISTIC;
  check(p, seed_of("alone", 3), sparse());
  p = with({"entmax 1.25"}, TANDEM_BF16, {1, 2, 1, 70, 101, 32, 32}, kNone);
  p.flags |= TANDEM_FLAG_DETERMINISTIC;
  check(p, seed_of("alone", 4), sparse());
  // The forward forms o from lists of candidates where rows see many keys and few are in their
  // support, and by products elsewhere: in the first rows, and of the flatter scores.
  for (const float scale : {0.125f, 1.f})
    for (const int64_t d : {64, 128}) {
      p = with({"entmax 1.5"}, TANDEM_BF16, {1, 2, 1, 400, 700, d, d}, kTopLeft, TANDEM_FORWARD);
      p.scale = scale;
      check(p, seed_of("alone", 5));
    }
  // Warps, or warpgroups, with long lists beside those with short ones.
  for (const int64_t d : {64, 128})
    for (const int64_t rows : {16, 64}) {
      p = with({"entmax 1.5"}, TANDEM_F16, {1, 1, 1, 200, 700, d, d}, kBottomRight, TANDEM_FORWARD);
      p.scale = 1;
      Case test(p, seed_of("alone", 6));
      HostTensor& q = test.input(Role::q);
      for (int64_t i = 0; i < p.seq_q; ++i)
        if (i / rows % 2 == 0)
          for (int64_t c = 0; c < d; ++c) q.set(0, 0, i, c, q.get(0, 0, i, c) / 20);
      check_case(test, {});
    }
}

// 16-byte rows of bias and d_bias, which the matrix paths take by 8 elements. d_bias where each of
// its elements has one reader, and where it is a sum, of bwd_dbias and, with rows enough for the
// device, of bwd_dq; no other test of the smoke tier has any of them.
TEST_CASE("features: biases by 8 elements") {
  const Shape shape = {2, 4, 2, 72, 96, 8, 8};
  tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F16, shape, kBottomRight);
  set_bias(p, TANDEM_BF16, p.batch, p.heads_q, p.seq_q, TANDEM_BF16);
  p.gradients = TANDEM_GRAD_Q | TANDEM_GRAD_K | TANDEM_GRAD_BIAS;
  check(p, seed_of("chunks", 1), sparse());
  set_bias(p, TANDEM_F16, 1, p.heads_kv, p.seq_q, TANDEM_F16);
  feature("keep").add(p);
  p.gradients = TANDEM_GRAD_BIAS;
  check(p, seed_of("chunks", 2), sparse());
  p = problem(TANDEM_BACKWARD, TANDEM_F16, {2, 16, 8, 136, 40, 16, 16}, kBottomRight);
  set_bias(p, TANDEM_F16, 1, p.heads_q, p.seq_q, TANDEM_F16);
  p.gradients = TANDEM_GRAD_Q | TANDEM_GRAD_BIAS;
  check(p, seed_of("chunks", 100), sparse());
  if (!at_least(Tier::ci)) return;
  int n = 2;
  for (tandem_dtype dtype : kDtypes)
    for (const Mask& mask : {kNone, kWindow})
      for (int64_t rows : {int64_t(1), int64_t(200)})
        for (int64_t batch : {1, 3}) {
          p = problem(TANDEM_BACKWARD, n % 2 ? TANDEM_F16 : TANDEM_BF16,
                      {3, 2, 1, 200, 328, n % 3 ? 8 : 72, 16}, mask);
          set_bias(p, dtype, batch, p.heads_q, rows, n % 2 ? dtype : TANDEM_F32);
          if (n % 3 == 0) feature("padded").add(p);
          if (n % 4 == 0) feature("dropout").add(p);
          if (n % 5 == 0) feature("elastic").add(p);
          want_all(p);
          check(p, seed_of("chunks", uint64_t(++n)), sparse());
        }
}

TEST_CASE("features: each alone" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (const Feature& f : features())
    for (const Mask& mask : {kNone, kBottomRight, kCausalWindow}) {
      const tandem_dtype dtype = kDtypes[n++ % 3];
      check(with({f.name}, dtype, {2, 4, 2, 70, 101, 32, 32}, mask), seed_of(f.name, uint64_t(n)),
            sparse());
      check(with({f.name}, dtype, {1, 2, 2, 45, 33, 40, 24}, mask, TANDEM_FORWARD),
            seed_of(f.name, uint64_t(n)), sparse());
    }
}

TEST_CASE("features: every two together" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (size_t a = 0; a < features().size(); ++a)
    for (size_t b = a + 1; b < features().size(); ++b) {
      if (!together(features()[a], features()[b])) continue;
      const tandem_dtype dtype = kDtypes[n++ % 3];
      check(with({features()[a].name, features()[b].name}, dtype, {2, 2, 1, 40, 53, 16, 16},
                 n % 2 ? kBottomRight : kNone),
            seed_of("two", uint64_t(n)), sparse());
    }
}

TEST_CASE("features: as many as fit at once" * doctest::skip(!at_least(Tier::ci))) {
  const Shape shape = {3, 4, 2, 66, 90, 32, 48};
  int n = 0;
  for (const char* normalizer : {"elastic", "entmax 1.5", "entmax 1.25"})
    for (const char* lengths : {"padded", "packed"}) {
      ++n;
      check(with({normalizer, "softcap", "bias", "dist_bias", "keep", lengths}, kDtypes[n % 3],
                 shape, kBottomRight),
            seed_of("many", uint64_t(n)), sparse());
    }
  check(with({"softcap", "bias", "dist_bias", "alibi", "keep", "sink", "dropout"}, TANDEM_F32,
             shape, kBottomRight),
        seed_of("many", 7), sparse());
  // Everything: a device with few push constants may refuse, and says why.
  Expect expect = sparse();
  expect.may_refuse = true;
  check(with({"elastic", "softcap", "bias", "dist_bias", "alibi", "keep", "sink", "dropout",
              "padded"},
             TANDEM_F32, shape, kBottomRight),
        seed_of("many", 8), expect);
}

TEST_CASE("features: every subset of gradients has what it needs" *
          doctest::skip(!at_least(Tier::ci))) {
  const Shape shape = {2, 2, 1, 40, 53, 16, 16};
  tandem_problem p =
      with({"elastic", "bias", "dist_bias", "alibi", "sink"}, TANDEM_F32, shape, kNone);
  const uint32_t all = p.gradients;
  Random r(seed_of("subsets"));
  for (int n = 0; n < (at_least(Tier::device) ? 96 : 40); ++n) {
    // The single ones first.
    p.gradients = n < 8 ? 1u << n : uint32_t(r.next()) & all;
    if (p.gradients) check(p, seed_of("subsets", uint64_t(n)), sparse());
  }
  tandem_problem soft = with({"bias", "alibi", "sink"}, TANDEM_BF16, shape, kTopLeft);
  for (uint32_t set : {TANDEM_GRAD_BIAS, TANDEM_GRAD_SLOPE, TANDEM_GRAD_SINK,
                       TANDEM_GRAD_BIAS | TANDEM_GRAD_V, TANDEM_GRAD_SINK | TANDEM_GRAD_K}) {
    soft.gradients = set;
    check(soft, seed_of("soft subsets", set), sparse());
  }
}

// Entries that end in the middle of a tile, at its end, and before it, for tiles of up to 192 rows.
TEST_CASE("features: lengths over several tiles" * doctest::skip(!at_least(Tier::ci))) {
  check(with({"softcap", "alibi", "sink", "packed"}, TANDEM_F16, {3, 2, 1, 200, 290, 64, 64},
             kBottomRight),
        seed_of("tiles", 1), sparse());
  check(with({"padded"}, TANDEM_BF16, {3, 2, 1, 200, 290, 128, 128}, kNone), seed_of("tiles", 2),
        sparse());
}

TEST_CASE("features: sides with different lengths" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  constexpr tandem_lengths kAll[] = {TANDEM_LENGTHS_FULL, TANDEM_LENGTHS_PADDED,
                                     TANDEM_LENGTHS_PACKED, TANDEM_LENGTHS_GAPPED};
  for (tandem_lengths q : kAll)
    for (tandem_lengths kv : kAll)
      for (const Mask& mask : {kNone, kTopLeft, kBottomRight, kWindowRight}) {
        tandem_problem p =
            problem(TANDEM_BACKWARD, kDtypes[n++ % 3], {4, 2, 1, 40, 70, 32, 32}, mask);
        set_lengths(p, q, kv, 71, 130);
        if (n % 3 == 0) set_layout(p, Layout::bshd);
        check(p, seed_of("sides", uint64_t(n)), sparse());
      }
}

TEST_CASE("features: random combinations" * doctest::skip(!at_least(Tier::ci))) {
  RandomLimits limits;
  limits.max_work = at_least(Tier::device) ? 4000000 : 500000;
  limits.max_seq = at_least(Tier::device) ? 600 : 200;
  const int groups = at_least(Tier::device) ? 40 : 12;
  for (int n = 0; n < groups; ++n)
    for (uint64_t k = 0; k < 3; ++k) {
      const uint64_t seed = seed_of("groups", uint64_t(n)) / kSameKernels * kSameKernels + k;
      Expect expect = sparse();
      expect.may_refuse = true;
      expect.options = random_options(seed);
      check(random_problem(seed, limits), seed, expect);
    }
}

namespace {

// The outputs with and without TANDEM_FLAG_VISIT_ALL, which must have the same bits. Where a plan
// sums d_q in any order, those of d_q are compared in a fixed order.
void check_skipped(tandem_problem p, uint64_t seed) {
  tandem_problem all = p;
  all.flags |= TANDEM_FLAG_VISIT_ALL;
  Case skipping(p, seed), visiting(all, seed);
  bool any_order = false;
  for (Target& target : targets()) {
    if (lacks(target, p)) continue;
    Outputs a, b;
    if (check_on(target, skipping, sparse(), &a) + check_on(target, visiting, sparse(), &b) > 0)
      continue;
    INFO(target.name << ": " << repro(p, seed));
    CHECK(a.lse.size() == b.lse.size());
    CHECK((a.lse.empty() ||
           std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0));
    const auto orders = [&](const tandem_problem& of) {
      return !takes(target, of) ||
             (Plan(*target.session, of).info().unordered & TANDEM_GRAD_Q) == 0;
    };
    const bool ordered = orders(p) && orders(all);
    any_order |= !ordered;
    for (Role role : kOutputs)
      if (ordered || role != Role::d_q)
        CHECK_MESSAGE(a.tensor(role).bytes == b.tensor(role).bytes, role_name(role));
  }
  if (!any_order) return;
  p.flags |= TANDEM_FLAG_DETERMINISTIC;
  check_skipped(p, seed);
}

}  // namespace

TEST_CASE("features: skipped tiles leave every bit as it is") {
  const Shape shape = {1, 2, 1, 200, 260, 32, 32};
  const bool full = at_least(Tier::ci);
  check_skipped(with({"keep"}, TANDEM_F32, shape, kNone, full ? TANDEM_BACKWARD : TANDEM_FORWARD),
                seed_of("skip", 1));
  // For the matrix paths: small, as a CPU's driver takes long to compile them.
  check_skipped(with({"keep"}, TANDEM_F16, {1, 2, 1, 150, 260, 8, 8}, kNone,
                     full ? TANDEM_BACKWARD : TANDEM_FORWARD),
                seed_of("skip", 9));
  if (!full) return;
  check_skipped(with({"elastic", "keep", "bias"}, TANDEM_F16, {1, 2, 1, 150, 264, 8, 8}, kTopLeft),
                seed_of("skip", 10));
  check_skipped(with({"entmax 1.5"}, TANDEM_F32, shape, kBottomRight), seed_of("skip", 2));
  check_skipped(with({"entmax 2", "keep"}, TANDEM_F16, shape, kBottomRight), seed_of("skip", 3));
  check_skipped(with({"entmax 1.25", "bias"}, TANDEM_F32, shape, kNone), seed_of("skip", 4));
  check_skipped(with({"elastic", "keep", "dist_bias"}, TANDEM_BF16, shape, kTopLeft),
                seed_of("skip", 5));
  check_skipped(with({"keep", "bias of kv heads, one row", "packed"}, TANDEM_F32,
                     {3, 2, 1, 130, 150, 32, 32}, kBottomRight),
                seed_of("skip", 6));
  check_skipped(with({"keep", "dropout", "sink", "alibi"}, TANDEM_F32, shape, kWindow),
                seed_of("skip", 7));
  // Sharp scores: entmax has a small support, and most tiles have none of it.
  tandem_problem sharp =
      with({"entmax 1.5", "dist_bias"}, TANDEM_F32, {1, 2, 1, 300, 400, 64, 64}, kNone);
  sharp.scale = 2;
  check_skipped(sharp, seed_of("skip", 8));
  // Long enough for kernels that keep candidates, and flat enough to have more of them than are
  // kept.
  for (const float scale : {2.f, 0.02f}) {
    tandem_problem p = with({"entmax 1.5"}, TANDEM_F16, {1, 2, 1, 300, 700, 64, 64}, kBottomRight);
    p.scale = scale;
    p.flags |= TANDEM_FLAG_DETERMINISTIC;
    check_skipped(p, seed_of("skip", scale > 1 ? 11 : 12));
  }
}
