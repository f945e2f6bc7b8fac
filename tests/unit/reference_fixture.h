// SPDX-License-Identifier: MIT OR Apache-2.0
// Problems with optional inputs, for the tests of the reference. Include doctest first.
#ifndef TANDEM_TESTS_UNIT_REFERENCE_FIXTURE_H
#define TANDEM_TESTS_UNIT_REFERENCE_FIXTURE_H
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cpu/reference.h"

namespace tandem_tests {

using namespace tandem;

inline Problem checked(const std::string& line) {
  tandem_problem p;
  Status status = parse_problem(line.c_str(), &p);
  REQUIRE_MESSAGE(status.ok(), status.message());
  Problem problem;
  status = make_problem(&p, &problem);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return problem;
}

// Inputs for all that p switches on; tau around the number given.
inline RefInputs draw(const Problem& p, uint32_t seed, double tau = -0.7) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  const auto fill = [&](bool wanted, int64_t count) {
    std::vector<double> x(size_t(wanted ? count : 0), 0.0);
    for (double& e : x) e = normal(engine);
    return x;
  };
  RefInputs in;
  in.q = fill(true, p.batch * p.heads_q * p.seq_q * p.head_dim);
  in.k = fill(true, p.batch * p.heads_kv * p.seq_kv * p.head_dim);
  in.v = fill(true, p.batch * p.heads_kv * p.seq_kv * p.head_dim_v);
  in.d_o = fill(true, p.batch * p.heads_q * p.seq_q * p.head_dim_v);
  in.bias = fill(bool(p.bias), p.bias.batch * p.bias.heads * p.bias.rows * p.seq_kv);
  in.dist_bias = fill(true, p.heads_q * p.dist_window);
  in.slope = fill(p.alibi, p.slopes_batch * p.heads_q);
  in.sink = fill(p.sink, p.sinks_batch * p.heads_q);
  in.tau = fill(p.normalizer == Normalizer::elastic, p.heads_q);
  for (double& x : in.slope) x = std::fabs(x) / 4;
  for (double& x : in.tau) x = tau + x / 8;
  in.keep.resize(size_t(p.keep ? p.keep.batch * p.keep.heads * p.keep.rows * p.seq_kv : 0));
  for (uint8_t& x : in.keep) x = engine() % 4 != 0 ? 1 + engine() % 255 : 0;
  in.spans.resize(size_t(p.spans.batch * p.spans.heads * p.seq_kv * 2 * p.spans.count));
  for (size_t n = 0; n < in.spans.size(); ++n)  // some of them empty
    in.spans[n] = int32_t(engine() % uint64_t(p.seq_q)) + (n % 2 ? 1 : 0);
  in.d_lse = fill(p.d_lse, p.batch * p.heads_q * p.seq_q);
  in.bias_table = fill(bool(p.table), p.heads_q * p.table.size);
  in.bias_index.resize(size_t(p.table.batch * p.seq_q * p.seq_kv));
  for (int32_t& x : in.bias_index)  // some are no entry
    x = engine() % 6 == 0 ? (engine() % 2 ? -1 : 70000)
                          : int32_t(engine() % uint64_t(p.table.size));
  // A row without a kept key, and lengths of 0, in the middle and at the end.
  if (p.keep.rows > 2) std::fill_n(in.keep.begin() + p.seq_kv, p.seq_kv, uint8_t(0));
  const auto lengths = [&](Lengths mode, int64_t size, bool empty, std::vector<int64_t>* to) {
    for (int64_t b = 0; mode != Lengths::full && b < p.batch; ++b)
      to->push_back(b == 0 ? size - 1 : b == 1 && empty ? 0 : size - b % 3);
  };
  lengths(p.lengths_q, p.seq_q, p.batch > 2, &in.lengths_q);
  lengths(p.lengths_kv, p.seq_kv, p.batch > 3, &in.lengths_kv);
  if (p.dropout > 0) in.dropout_seed = 0x123456789abcdefULL + seed, in.dropout_offset = seed;
  return in;
}

}  // namespace tandem_tests
#endif
