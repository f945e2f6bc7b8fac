// SPDX-License-Identifier: MIT OR Apache-2.0
// Which pipelines a gate compiles, and for which problems: gates.cpp compiles and judges them.
#ifndef TANDEM_TESTS_VULKAN_COMPILED_GATES_H
#define TANDEM_TESTS_VULKAN_COMPILED_GATES_H
#include <vector>

#include "plan/plan.h"

namespace gates {

using namespace tandem;

// One pipeline.
struct Job {
  String line;  // of its problem, and kLifted behind it
  Plan plan;    // with its launch alone
  bool lifted;  // of a plan that only a device without quirks has
};
constexpr const char* kLifted = " [no quirks]";

// The launches of the plans for this device, each combination of module, constants and subgroup
// size once. Where a quirk keeps a problem off the matrix paths, those of a plan without quirks
// follow: kernels that would run once the quirk ends. part: those that are compiled for every
// change.
std::vector<Job> jobs_for(const Caps& caps, bool part);

// Kernels of the jobs' paths that no job has: "coopmat.bwd_row_sums".
std::vector<String> missing_kernels(const std::vector<Job>& jobs);

// Capabilities, and what the planner says of the problems of which `tandem info` tells.
std::vector<String> plans_for(const Caps& caps);

Plan plan_of(const String& line, const Caps& caps);  // throws std::runtime_error

}  // namespace gates
#endif
