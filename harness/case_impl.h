// SPDX-License-Identifier: MIT OR Apache-2.0
// What a Case holds; case.cpp judges with it, case_run.cpp runs it, inputs.cpp fills it.
#ifndef TANDEM_HARNESS_CASE_IMPL_H
#define TANDEM_HARNESS_CASE_IMPL_H
#include <array>

#include "compare.h"
#include "cpu/reference.h"
#include "problem/problem.h"

namespace tandem::harness {

struct Case::Impl {
  tandem_problem problem;
  uint64_t seed = 0;
  CaseOptions options;
  std::array<HostTensor, kRoleCount> inputs;
  bool judged = false;
  Reference truth;
  double f32_roundings = 0;
  std::array<Bounds, kRoleCount> bounds;

  bool backward() const { return problem.direction == TANDEM_BACKWARD; }
};

}  // namespace tandem::harness
#endif
