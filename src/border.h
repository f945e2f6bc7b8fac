// SPDX-License-Identifier: MIT OR Apache-2.0
// The C border: what every exported function does with its body's status.
#ifndef TANDEM_SRC_BORDER_H
#define TANDEM_SRC_BORDER_H
#include <exception>
#include <new>

#include "status.h"

namespace tandem {

// Stores the message of a failure for this thread and returns the code (api.cpp).
tandem_status report(const Status& status);

// Runs a fallible body; nothing gets past this but a status.
template <typename Body>
tandem_status border(Body body) {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(Status(TANDEM_ERROR_OUT_OF_MEMORY, "out of host memory"));
  } catch (const std::exception& e) {
    return report(Status(TANDEM_ERROR_BACKEND, std::string("unexpected: ") + e.what()));
  } catch (...) {
    return report(Status(TANDEM_ERROR_BACKEND, "unexpected exception"));
  }
}

}  // namespace tandem
#endif
