// SPDX-License-Identifier: MIT OR Apache-2.0
// `tandem check`, for other commands.
#ifndef TANDEM_TOOLS_CHECK_H
#define TANDEM_TOOLS_CHECK_H
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace tandem::tool {

struct CheckOptions {
  int cases = 100;
  uint64_t seed = 1;
  std::vector<std::string> devices;
  std::vector<std::string> first;  // problem lines that run ahead of the random ones
  std::string repro;
  std::string disable;
  std::string preset;
  int64_t work = 4000000;
  double seconds = 0;  // 0: no limit
  std::string shard;   // "K/N"
  int repeats = 0;  // runs of each problem that must give the same bits; 0: by the problem's seed
  int per_kernels = 0;     // problems with the same kernels; 0: by the number of cases
  int lead = -1;           // CaseOptions::lead; -1: by the problem's seed
  std::string magnitudes;  // of --repro; and "all" or "none" of what is drawn
};

struct CheckResult {
  bool ok = false;  // something ran, and nothing failed
  int runs = 0, problems = 0, failures = 0;
  int kernels = 0;    // of each device and path, that ran
  double worst = -1;  // error ratio
  double seconds = 0;
};

// Called before each problem with its number, how many there are at most, and the seconds so far;
// and at the end with at == of.
using CheckProgress = std::function<void(int at, int of, double seconds)>;

// Writes to `out` what `tandem check` prints.
CheckResult run_check(const CheckOptions& options, std::FILE* out, const CheckProgress& progress);

}  // namespace tandem::tool
#endif
