// SPDX-License-Identifier: MIT OR Apache-2.0
// The C border: what every exported function does with its body's status.
#ifndef TANDEM_SRC_BORDER_H
#define TANDEM_SRC_BORDER_H
#include <exception>
#include <new>

#include "status.h"

namespace tandem {

// Stores the message of a failure for this thread and returns the code (api.cpp). The other two want no memory:
// a sentence that lives as long as the program, and an exception's.
tandem_status report(const Status& status) noexcept;
tandem_status report(tandem_status code, const char* sentence) noexcept;
tandem_status report(const std::exception& unexpected) noexcept;

// Runs a fallible body; nothing gets past this but a status.
template <typename Body>
tandem_status border(Body body) {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(TANDEM_ERROR_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& e) {
    return report(e);
  } catch (...) {
    return report(TANDEM_ERROR_BACKEND, "unexpected exception");
  }
}

}  // namespace tandem
#endif
