// SPDX-License-Identifier: MIT OR Apache-2.0
// The exact suite: it decides correctness. Forward outputs equal to the last bit, gradients to half
// a rounding of their dtype, over masks, Sq != Sk, grouped heads, layouts and dtypes.
#include <cmath>
#include <limits>

#include "exact_inputs.h"
#include "parity.h"

namespace parity {
namespace {

struct Sum {
  long cases = 0, elements = 0, nonzero = 0;
  long left_out = 0;  // targets that are for neither the problem nor its f16 version
};

std::string place(const Dims& dims, size_t at) {
  const auto n = int64_t(at);
  return "b" + std::to_string(n / dims.d / dims.s / dims.h) + " h" +
         std::to_string(n / dims.d / dims.s % dims.h) + " row " +
         std::to_string(n / dims.d % dims.s) + " column " + std::to_string(n % dims.d);
}

// "" or the first element outside what the exact values allow, and how many there are.
std::string compare(const char* name, const Dims& dims, uint32_t dtype, const Exact& want,
                    const std::vector<double>& got, bool equal_bits, Sum* sum) {
  size_t wrong = 0, first = 0;
  for (size_t n = 0; n < got.size(); ++n) {
    // Beyond half a rounding: the device's exp and log, 2^-18 of the terms at most, and the weights
    // below 2^-45 of the keys that are not hit.
    const double allowed =
        equal_bits ? 0 : ulp(want.value[n], dtype) / 2 + 0x1p-18 * want.magnitude[n] + 1e-7;
    const double error = std::fabs(got[n] - want.value[n]);
    if (!(error <= allowed) && wrong++ == 0) first = n;
    ++sum->elements;
    sum->nonzero += want.value[n] != 0;
  }
  if (wrong == 0) return "";
  char text[200];
  std::snprintf(text, sizeof(text),
                "%s: %zu of %zu elements are wrong, the first at %s: got %.9g, want %.9g", name,
                wrong, got.size(), place(dims, first).c_str(), got[first], want.value[first]);
  return text;
}

std::string compare_lse(const tandem_problem& p, const Hits& hits, const std::vector<float>& got) {
  for (size_t n = 0; n < got.size(); ++n) {
    const Hit& hit = hits.rows[n];
    const double want = hit.count == 0   ? -std::numeric_limits<double>::infinity()
                        : hit.count == 1 ? hit.score
                                         : hit.score + std::log(2.0);
    // A row that hits one key has l = 1 and lse = m; in double the keys that are not hit can show.
    const double allowed = hit.count == 2 ? 1e-6 * std::max(1.0, std::fabs(want)) : 1e-11;
    if (double(got[n]) != want && !(std::fabs(double(got[n]) - want) <= allowed))
      return "lse: " + place({p.batch, p.heads_q, p.seq_q, 1}, n) + ": got " +
             std::to_string(got[n]) + ", want " + std::to_string(want);
  }
  return "";
}

bool fits(const tandem_problem& p, const Exact& e) {
  for (double x : e.value)
    if (p.q.dtype == TANDEM_F16 && std::fabs(x) > 60000) return false;
  return true;
}

}  // namespace

// retyped: the problem in its own type, of which this is the f16 version, for the targets that do
// not take that.
void check_exact(tandem_problem p, Fill fill, uint64_t seed, Sum* sum,
                 const tandem_problem* retyped = nullptr) {
  if (!mine(retyped ? *retyped : p) || !exact_possible(p, fill)) return;
  p.scale = kExactScale;
  const bool backward = p.direction == TANDEM_BACKWARD;
  CaseOptions options;
  options.repeats = 2;
  Case test(p, seed, options);
  const Hits hits = make_exact(test, fill, backward, seed);
  const Exact o = exact_o(test, hits);
  Exact d_q, d_k, d_v;
  if (backward) {
    exact_gradients(test, hits, &d_q, &d_k, &d_v);
    if (retyped && !fits(p, d_k)) return;
    REQUIRE(fits(p, d_k));
  }
  bool refused = false;
  for (Target& target : targets()) {
    const bool own = takes(target, p);
    refused |= !own;
    if (!own || (retyped && takes(target, *retyped))) continue;
    Outputs outputs;
    const CaseResult result = test.run(*target.session, &outputs);
    const std::string where = target.name + ": exact inputs, fill " + fill_name(fill) + ", " +
                              print(p) + ", seed " + std::to_string(seed);
    CHECK_MESSAGE(result.ok, where << "\n  " << result.message);
    if (!result.ok) continue;
    CHECK_MESSAGE(result.path == target.path, where << ": ran path " << result.path);
    count(result.kernels);
    ++sum->cases;
    const uint32_t dtype = p.q.dtype;
    auto note = [&](const char* tensor, const std::string& wrong) {
      CHECK_MESSAGE(wrong.empty(), where << "\n  " << wrong);
      if (!wrong.empty()) blame(target, "exact", tensor);
    };
    note("o", compare("o", dims_of(p, Role::o), dtype, o, outputs.o.dense(), true, sum));
    note("lse", compare_lse(p, hits, outputs.lse));
    if (backward) {
      const struct {
        Role role;
        const Exact& want;
      } rows[] = {{Role::d_q, d_q}, {Role::d_k, d_k}, {Role::d_v, d_v}};
      for (const auto& row : rows)
        if (is_output(p, row.role))
          for (const auto& [tensor, run] : outputs.written(row.role)) {
            const std::string wrong = compare(role_name(row.role), dims_of(p, row.role), dtype,
                                              row.want, tensor->dense(), false, sum);
            note(role_name(row.role), wrong.empty() ? wrong : run + wrong);
          }
    }
  }
  if (!refused || retyped) return;
  const tandem_problem half = in_f16(p);
  for (Target& target : targets())
    if (!takes(target, p) && !takes(target, half)) ++sum->left_out;
  check_exact(half, fill, seed, sum, &p);
}

}  // namespace parity

using namespace parity;

namespace {

void run_exact(tandem_direction direction, const Shape& shape, const Mask& mask, tandem_dtype dtype,
               Layout layout, Fill fill, Sum* sum, uint32_t splits = 0) {
  tandem_problem p = problem(direction, dtype, shape, mask, layout);
  p.splits = splits;
  check_exact(p, fill, seed_of("exact", uint64_t(shape.sq * 131 + shape.sk * 17 + shape.d)), sum);
}

void check_sum(const Sum& sum, long cases) {
  if (sharded()) return;
  CHECK(sum.cases + sum.left_out >= cases * long(targets().size()));
  // Gradients of rows that hit a single key are zero; most else is not.
  if (sum.cases > 0) CHECK(sum.nonzero * 5 > sum.elements);
}

}  // namespace

TEST_CASE("exact: forward, every fill and mask") {
  Sum sum;
  const Shape shape = {1, 4, 2, 70, 101, 32, 32};
  int n = 0;
  for (const Mask& mask : kMasks)
    for (Fill fill : kFills)
      run_exact(TANDEM_FORWARD, shape, mask, kDtypes[n++ % 3], Layout::bhsd, fill, &sum);
  check_sum(sum, 24);
}

// Where each split has a tile or two, and where most have none. A pair is mostly of two splits.
TEST_CASE("exact: splits, all fills and masks") {
  Sum sum;
  const Shape shape = {1, 4, 2, 70, 101, 32, 32}, decode = {1, 4, 2, 3, 150, 32, 32};
  int n = 0;
  for (const Mask& mask : kMasks)
    for (Fill fill : kFills) {
      const bool few = at_least(Tier::ci) && n % 3 == 2;
      run_exact(TANDEM_FORWARD, few ? decode : shape, mask, kDtypes[n % 3], Layout::bhsd, fill,
                &sum, n % 2 ? 2 : 5);
      ++n;
    }
  check_sum(sum, 24);
}

TEST_CASE("exact: backward, every fill and mask") {
  Sum sum;
  const Shape shape = {1, 4, 2, 70, 101, 32, 32};
  int n = 0;
  for (const Mask& mask : kMasks)
    for (Fill fill : {Fill::pair, Fill::decoy, Fill::random})
      run_exact(TANDEM_BACKWARD, shape, mask, kDtypes[n++ % 3], Layout::bhsd, fill, &sum);
  check_sum(sum, 18);
}

// In a fixed order of sums cuda.sm80 has other kernels.
TEST_CASE("exact: backward in a fixed order, every fill") {
  Sum sum;
  int n = 0;
  for (const Mask& mask : {kNone, kTopLeft})
    for (Fill fill : {Fill::pair, Fill::decoy, Fill::random}) {
      tandem_problem p =
          problem(TANDEM_BACKWARD, kDtypes[n++ % 3], {1, 4, 2, 70, 101, 32, 32}, mask);
      p.flags |= TANDEM_FLAG_DETERMINISTIC;
      check_exact(p, fill, seed_of("exact", uint64_t(n)), &sum);
    }
  check_sum(sum, 6);
}

// Pipelines take longer to compile than these problems to run where the driver compiles for a CPU.
// The smoke tier keeps to few combinations of dtype, width of access and tile; ci and device have
// them all.
namespace {
tandem_dtype dtype_of(int n, bool wide) {
  return at_least(Tier::ci) ? kDtypes[n % 3] : wide ? TANDEM_F16 : TANDEM_F32;
}
}  // namespace

TEST_CASE("exact: lengths on both sides of a tile, both ways") {
  Sum sum;
  const int64_t lengths[][2] = {{1, 1}, {1, 65}, {64, 64}, {65, 63}, {129, 33}, {31, 128}};
  int n = 0;
  for (const auto& length : lengths)
    for (const Mask& mask : {kTopLeft, kBottomRight}) {
      const Shape shape = {2, 2, 1, length[0], length[1], 32, 32};
      run_exact(TANDEM_BACKWARD, shape, mask, dtype_of(n, false), Layout::gapped, Fill::pair, &sum);
      run_exact(TANDEM_BACKWARD, shape, mask, dtype_of(++n, true), Layout::bshd, Fill::decoy, &sum);
    }
  check_sum(sum, 24);
}

TEST_CASE("exact: head sizes, small and odd ones by their own codes") {
  Sum sum;
  const int64_t dims[][2] = {{1, 3}, {5, 7},  {16, 16}, {72, 40},
                             {3, 1}, {4, 40}, {40, 24}, {96, 128}};
  const int count = at_least(Tier::ci) ? 8 : 4;
  for (int n = 0; n < count; ++n) {
    const Shape shape = {1, 2, 1, 67, 66, dims[n][0], dims[n][1]};
    for (Fill fill : {Fill::pair, Fill::decoy, Fill::last})
      run_exact(TANDEM_BACKWARD, shape, kBottomRight, dtype_of(n, dims[n][0] % 8 == 0),
                Layout::bhsd, fill, &sum);
  }
  if (!sharded()) CHECK(sum.cases + sum.left_out >= (3 * count - 3) * long(targets().size()));
}

TEST_CASE("exact: wide heads" * doctest::skip(!at_least(Tier::ci))) {
  Sum sum;
  for (int64_t d : {128, 192, 255, 256})
    for (tandem_dtype dtype : kDtypes)
      for (Fill fill : {Fill::pair, Fill::decoy})
        run_exact(TANDEM_BACKWARD, {1, 2, 2, 70, 45, d, d}, kTopLeft, dtype, Layout::bhsd, fill,
                  &sum);
  check_sum(sum, 24);
}

TEST_CASE("exact: heads over 256" * doctest::skip(!at_least(Tier::ci))) {
  Sum sum;
  for (int64_t d : {257, 512, 576})
    for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16})  // bf16 has no bits for so many signs
      for (Fill fill : {Fill::pair, Fill::last})
        run_exact(TANDEM_BACKWARD, {1, 2, 1, 70, 45, d, d == 576 ? 512 : d}, kTopLeft, dtype,
                  Layout::bhsd, fill, &sum);
  check_sum(sum, 12);
}

// Parts of a tile or two; parts of rows that see keys, without any themselves.
TEST_CASE("exact: splits of heads over 256" * doctest::skip(!at_least(Tier::ci))) {
  Sum sum;
  int n = 0;
  for (int64_t d : {320, 384, 512, 576})
    for (const Mask& mask : {kNone, kTopLeft})
      for (Fill fill : {Fill::pair, Fill::decoy, Fill::last}) {
        run_exact(TANDEM_FORWARD, {1, 2, 1, n % 2 ? 150 : 50, 700, d, d == 576 ? 512 : d}, mask,
                  TANDEM_F16, Layout::bhsd, fill, &sum, uint32_t(2 + n % 5));
        ++n;
      }
  check_sum(sum, 24);
}

TEST_CASE("exact: forward of heads over 256" * doctest::skip(!at_least(Tier::ci))) {
  Sum sum;
  for (int64_t d : {320, 384, 512, 576})
    for (Fill fill : {Fill::pair, Fill::decoy, Fill::last})
      run_exact(TANDEM_FORWARD, {1, 2, 1, 150, 200, d, d == 384 ? 512 : d}, kTopLeft, TANDEM_F16,
                Layout::bhsd, fill, &sum);
  check_sum(sum, 12);
}
