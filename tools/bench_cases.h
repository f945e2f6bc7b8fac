// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef TANDEM_TOOLS_BENCH_CASES_H
#define TANDEM_TOOLS_BENCH_CASES_H
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace tandem::tool {

struct BenchCase {
  std::string name;
  tandem_problem problem;  // direction is set when it is run
  bool forward_only = false;
  bool model = false;  // of the preset models: lengths and keep as harness/models.h has them
};

std::vector<std::string> preset_names();
// Throws harness::Error on a name that is none.
std::vector<BenchCase> preset_cases(const std::string& preset);

}  // namespace tandem::tool
#endif
