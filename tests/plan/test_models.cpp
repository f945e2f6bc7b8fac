// SPDX-License-Identifier: MIT OR Apache-2.0
// Attention of real models (harness/models.inc): every case has a plan on an H100, by CUDA and by
// Vulkan, and which path it takes is printed. `tandem_tests -tc=models*` shows the list.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "compare.h"
#include "models.h"
#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

// Forward, and backward where the model is trained.
std::vector<std::string> lines_of(const harness::Model& m) {
  const std::string line = m.line, words = line.substr(line.find(' '));
  if (line.rfind("fwd", 0) == 0) return {line};
  return {"fwd" + words.substr(0, words.find(" d_bias")), line};
}

// "cuda.sm80 64x64 fwd; cuda.sm90: its operands are f16 or bf16": paths that refused have a reason.
std::string summary(const Plan& plan) {
  std::string s = std::string(plan.name()) + " " + stems(plan);
  for (const Refusal& r : plan.refusals)
    if (r.candidate.find(' ') == String::npos)
      s += "; " + std::string(r.candidate) + ": " + std::string(r.reason);
  return s;
}

}  // namespace

TEST_CASE("models: every case has a plan on an H100") {
  for (const char* device : {"h100_cuda", "h100_vulkan"}) {
    const Caps caps = caps_of(device);
    for (const harness::Model& m : harness::models())
      for (const std::string& line : lines_of(m)) {
        CAPTURE(line);
        Plan plan;
        const Status status = make_plan(problem_of(line), caps, &plan);
        CHECK_MESSAGE(status.ok(), m.name << ": " << status.message());
        if (status.ok())
          std::printf("%-12s %-27s %s %s\n", device, m.name, line.substr(0, 3).c_str(),
                      summary(plan).c_str());
      }
  }
}

TEST_CASE("models: names, lengths and masks of the table") {
  std::set<std::string> names;
  for (const harness::Model& m : harness::models()) {
    CAPTURE(m.name);
    CHECK(names.insert(m.name).second);
    const tandem_problem p = harness::parse(m.line);
    // A line says itself, so that a result's line is found in the table.
    CHECK(harness::print(harness::parse(harness::print(p))) == harness::print(p));
    for (bool kv : {false, true}) {
      const uint32_t kind = kv ? p.lengths_kv : p.lengths_q;
      if (kind == TANDEM_LENGTHS_FULL) continue;
      const std::vector<int64_t> lengths = harness::model_lengths(p, kv);
      REQUIRE(int64_t(lengths.size()) == p.batch);
      const int64_t size = kv ? p.seq_kv : p.seq_q;
      CHECK(*std::min_element(lengths.begin(), lengths.end()) >= size / 4);
      CHECK(*std::max_element(lengths.begin(), lengths.end()) <= size);
      if (kind == TANDEM_LENGTHS_PACKED)
        CHECK(std::accumulate(lengths.begin(), lengths.end(), int64_t(0)) ==
              (kv ? p.total_kv : p.total_q));
    }
    if (!p.keep.dtype) continue;
    const harness::Dims keep = harness::dims_of(p, harness::Role::keep);
    for (int64_t b = 0; b < std::min<int64_t>(keep.b, 4); ++b)
      for (int64_t i = 0; i < keep.s; ++i) {
        int64_t seen = 0;
        for (int64_t j = 0; j < keep.d; ++j) seen += harness::model_keep(keep, b, i, j);
        CHECK(seen > keep.d / 3);
        CHECK((seen == keep.d) == (keep.s == 1 ? b == 0 : b != 3));
      }
  }
  CHECK(names.size() >= 60);
}

TEST_CASE("models: random problems keep the kind and the limit of work") {
  const size_t count = harness::models().size();
  std::set<std::string> kinds;
  for (uint64_t group = 0; group < count; ++group) {
    const int64_t limit = group % 2 ? 4000000 : 200000;
    std::string kind;
    for (uint64_t n = 0; n < 3; ++n) {
      const tandem_problem p =
          harness::random_model_problem(group * harness::kSameKernels + n, limit);
      const std::string line = harness::print(p);
      CAPTURE(line);
      CHECK(problem_of(line).batch >= 1);
      CHECK(p.batch * p.heads_q * p.seq_q * p.seq_kv * (p.head_dim + p.head_dim_v) <= limit);
      std::string words = line.substr(0, 3) + std::to_string(p.q.dtype);
      for (int64_t number :
           {p.head_dim, p.head_dim_v, int64_t(p.mask), int64_t(p.align), int64_t(p.bias.dtype),
            int64_t(p.d_bias.dtype), int64_t(p.keep.dtype), int64_t(p.gradients),
            int64_t(p.lengths_q), int64_t(p.lengths_kv), int64_t(p.window_left >= 0),
            int64_t(p.softcap), int64_t(p.dropout * 10), int64_t(p.sink), int64_t(p.alibi)})
        words += " " + std::to_string(number);
      CHECK((kind.empty() || words == kind));
      kind = words;
    }
    kinds.insert(kind);
  }
  // As many as the table has: every model was drawn.
  std::set<std::string> table;
  for (const harness::Model& m : harness::models()) {
    const tandem_problem p = harness::parse(m.line);
    table.insert(std::to_string(p.head_dim) + " " + std::to_string(p.q.dtype));
  }
  CHECK(kinds.size() > table.size());
}
