// SPDX-License-Identifier: MIT OR Apache-2.0
// `tandem check`, for other commands.
#ifndef TANDEM_TOOLS_CHECK_H
#define TANDEM_TOOLS_CHECK_H
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
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
  int per_kernels = 0;         // problems with the same kernels; 0: by the number of cases
  int lead = -1;               // CaseOptions::lead; -1: by the problem's seed
  std::string magnitudes;      // of --repro; and "all" or "none" of what is drawn
  uint64_t from = 0;           // problems of the seed that are passed over
  bool quiet = false;          // prints failures alone
  std::function<bool()> stop;  // asked before each problem
};

// What ran on a device with one of its paths.
struct CheckTotals {
  std::string path, device, driver;  // "vulkan:0/scalar"; as the driver names them
  int64_t runs = 0, refused = 0, failures = 0;
  double worst = -1;  // error ratio
  std::string repro;  // of the worst one
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

// Devices that stay open from one run to the next.
class Checker {
 public:
  explicit Checker(std::FILE* out);
  ~Checker();
  CheckResult run(const CheckOptions& options);
  // Of all runs so far.
  std::vector<CheckTotals> totals() const;
  std::vector<std::string> failures() const;  // "tandem check --repro ..." of each
  int64_t pairs() const;                      // failures of a pair of devices

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// `tandem check --soak FILE`: runs until it is stopped, until `seconds` are over, or until the file
// counts `problems` (0: no limit). Returns the exit status.
struct SoakOptions {
  std::string file;
  int64_t problems = 0;
  CheckOptions check;
};
int run_soak(const SoakOptions& options);

}  // namespace tandem::tool
#endif
