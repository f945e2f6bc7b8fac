// SPDX-License-Identifier: MIT OR Apache-2.0
// One row of scores, and what its weights may be: the intervals of magnitudes.h.
#ifndef TANDEM_HARNESS_MAGNITUDE_ROW_H
#define TANDEM_HARNESS_MAGNITUDE_ROW_H
#include <cstdint>
#include <vector>

#include "problem/problem.h"

namespace tandem::harness {

struct Interval {
  double lo = 0, hi = 0;
};

// A row's visible keys, by terms in double.
struct ScoreTerms {
  std::vector<int64_t> key;
  // Of scale <q, k>: the value and the sum of magnitudes. score: the whole one, summed in double in
  // the order of cpu.ref, which under a mask of 1e15 keeps eighths of the product. f32: as a plain
  // chain forms it.
  std::vector<double> product, product_size;
  std::vector<double> score, f32, terms;  // terms: magnitudes of all that was added to the product
  std::vector<double> added;              // and its value
  std::vector<double> bend, bend_error;   // of softcap: its derivative
  double sink = 0;
  bool has_sink = false;
};

struct RowWeights {
  bool sees = false;
  double lse = 0, lse_error = 0;   // or the threshold
  std::vector<double> p, p_error;  // softmax, entmax: weights; elastic: softmax before tau
  std::vector<Interval> range;     // of p
  double p_sink = 0, p_sink_error = 0;
  // In the backward all weights may have a common factor 1 +- common beside this: of lse's rounding
  // where the row is not far, otherwise of scores formed in two ways.
  double common = 0;
  // entmax: by how much the sum of the weights is off for the rounding of a threshold near 0.
  double threshold_moves = 0;
};

RowWeights weigh(const Problem& problem, const ScoreTerms& row);

}  // namespace tandem::harness
#endif
