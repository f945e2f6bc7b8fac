// SPDX-License-Identifier: MIT OR Apache-2.0
// The error of a problem that is too large to be computed in double: some rows of some heads are.
#ifndef TANDEM_TOOLS_BENCH_SAMPLE_H
#define TANDEM_TOOLS_BENCH_SAMPLE_H
#include <array>
#include <string>
#include <vector>

#include "compare.h"

namespace tandem::tool {

struct BenchTensors {  // inputs, and outputs as a device wrote them
  std::array<harness::HostTensor, harness::kRoleCount> of;
  std::vector<float> lse;
  harness::HostTensor& operator[](harness::Role role) { return of[size_t(role)]; }
  const harness::HostTensor& operator[](harness::Role role) const { return of[size_t(role)]; }
};

// The outputs of a problem's direction that have no sample. Rows of the bias and of heads
// sum over too much to be computed in double by the way; with dropout or lengths nothing is
// sampled; of a normaliser other than softmax, d_k and d_v only of causal problems, where few
// queries see the last keys.
std::vector<std::string> not_sampled(const tandem_problem& problem);

// Worst error ratio (harness/compare.h) of sampled rows of o and lse. infinity: wrong in some other
// way.
double forward_ratio(const tandem_problem& problem, const BenchTensors& t);

// The same of d_q, d_k and d_v where the problem asks for them, as functions of the device's own o
// and lse, whose rows forward_ratio() judges.
double backward_ratio(const tandem_problem& problem, const BenchTensors& t);

}  // namespace tandem::tool
#endif
