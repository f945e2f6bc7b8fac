// SPDX-License-Identifier: MIT OR Apache-2.0
// The C border, in which every fallible entry point of the API runs its body.
#ifndef TANDEM_SRC_API_BORDER_H
#define TANDEM_SRC_API_BORDER_H
#include <exception>
#include <new>

#include "base/status.h"

namespace tandem {

// Stores the message of a failure for tandem_last_message(), and returns the code.
tandem_status report(const Status& status) noexcept;
tandem_status report(tandem_status code, const char* sentence) noexcept;

// Turns every exception into a status. What follows an exception must not allocate, as there may be
// no memory left.
template <typename Body>
tandem_status border(Body body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(TANDEM_ERROR_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& e) {
    char sentence[256];
    std::snprintf(sentence, sizeof sentence, "unexpected: %s", e.what());
    return report(TANDEM_ERROR_BACKEND, sentence);
  } catch (...) {
  }
  return report(TANDEM_ERROR_BACKEND, "unexpected exception");
}

}  // namespace tandem
#endif
