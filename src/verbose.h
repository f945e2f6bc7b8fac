// SPDX-License-Identifier: MIT OR Apache-2.0
// TANDEM_VERBOSE: a line on stderr for what the library does. docs/bug-reports.md has the grammar.
#ifndef TANDEM_SRC_VERBOSE_H
#define TANDEM_SRC_VERBOSE_H
#include <chrono>
#include <cstdint>

#include "status.h"

namespace tandem {

enum class Verbose : uint32_t { error = 1, device = 2, plan = 4, execute = 8 };

// The words of TANDEM_VERBOSE as bits. Pure, for tests.
Status parse_verbose(const char* words, uint32_t* bits);

// What is wrong with the environment's TANDEM_VERBOSE. Read once, at the first question.
const Status& verbose_status();
bool verbose(Verbose word) noexcept;

// Microseconds since it was made, if anybody wants to know.
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

// Allocates nothing. us below 0, an empty backend: "-".
void verbose_line(Verbose word, const char* backend, double us, const char* text,
                  const char* more = "") noexcept;

}  // namespace tandem
#endif
