// SPDX-License-Identifier: MIT OR Apache-2.0
// TANDEM_VERBOSE: lines on stderr about what the library does. docs/guide/bug-reports.md has the
// grammar.
#ifndef TANDEM_SRC_API_VERBOSE_H
#define TANDEM_SRC_API_VERBOSE_H
#include <chrono>
#include <cstdint>

#include "base/status.h"

namespace tandem {

enum class Verbose : uint32_t { error = 1, device = 2, plan = 4, execute = 8 };

// The words of TANDEM_VERBOSE as bits. A pure function, for tests.
Status parse_verbose(const char* words, uint32_t* bits);

// Status of the environment's TANDEM_VERBOSE, which is read once, at the first call.
const Status& verbose_status();
bool verbose(Verbose word) noexcept;

// Microseconds since construction, if TANDEM_VERBOSE asks for timings.
class VerboseClock {
 public:
  explicit VerboseClock(Verbose word) : on_(verbose(word)) {
    if (on_) start_ = Clock::now();
  }
  bool on() const { return on_; }
  double us() const {
    return std::chrono::duration<double, std::micro>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool on_;
  Clock::time_point start_;
};

// Allocates nothing. us below 0, or an empty backend, is printed as "-".
void verbose_line(Verbose word, const char* backend, double us, const char* text,
                  const char* more = "") noexcept;

}  // namespace tandem
#endif
