// SPDX-License-Identifier: MIT OR Apache-2.0
// The error of a problem that is too large to be computed in double: some rows of some heads are.
#ifndef TANDEM_TOOLS_BENCH_SAMPLE_H
#define TANDEM_TOOLS_BENCH_SAMPLE_H
#include "compare.h"

namespace tandem::tool {

struct BenchTensors {  // inputs, and outputs as a device wrote them
  support::HostTensor q, k, v, o, d_o, d_q, d_k, d_v;
  std::vector<float> lse;
};

// Worst error ratio (support/compare.h) of sampled rows of o and lse. infinity: wrong in some other way.
double forward_ratio(const tandem_problem& problem, const BenchTensors& t);

// The same of the gradients that the problem asks for, as functions of the device's own o and lse: the
// rows of these that matter are judged by forward_ratio().
double backward_ratio(const tandem_problem& problem, const BenchTensors& t);

}  // namespace tandem::tool
#endif
