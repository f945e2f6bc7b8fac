// SPDX-License-Identifier: MIT OR Apache-2.0
// A session on a device that is not there: plans are those of a recorded device (profiles.inc), and
// an execute does nothing. It shows which kernels the cases of a suite would run.
#ifndef TANDEM_TESTS_RECORDED_SESSION_H
#define TANDEM_TESTS_RECORDED_SESSION_H
#include "support/support.h"

namespace tandem::support {

// The backend of a profile; "" if there is no such profile.
std::string recorded_backend(const std::string& profile);
std::unique_ptr<Session> open_recorded(const std::string& profile, const SessionOptions& options);

}  // namespace tandem::support
#endif
