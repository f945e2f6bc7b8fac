// SPDX-License-Identifier: MIT OR Apache-2.0
// Cases judged by harness/magnitudes.h, for the suite and its regressions.
#ifndef TANDEM_TESTS_PARITY_MAGNITUDES_H
#define TANDEM_TESTS_PARITY_MAGNITUDES_H
#include "harness/magnitudes.h"
#include "parity.h"

namespace parity {

// A case whose inputs are filled, on one target. The repro is what the message tells. Returns what
// was wrong.
int check_on(Target& target, Case& test, const MagnitudeRules& rules, const std::string& repro,
             Outputs* outputs = nullptr);
// A problem with inputs of all magnitudes on every target, in f16 where a path does not take its
// type; twice, for equal bits.
void check_magnitudes(const tandem_problem& problem, const Magnitudes& m, uint64_t seed,
                      const CaseOptions& options = {});
// cpu.ref: a device that every forward can run on.
Session& another_device();

inline Magnitudes with_scores(Magnitudes::Scores scores, double size) {
  Magnitudes m;
  m.scores = scores;
  m.score = size;
  return m;
}
inline Magnitudes with_bias(Magnitudes::Bias bias, double value) {
  Magnitudes m;
  m.bias = bias;
  m.bias_value = value;
  return m;
}

}  // namespace parity
#endif
