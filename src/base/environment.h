// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef TANDEM_SRC_BASE_ENVIRONMENT_H
#define TANDEM_SRC_BASE_ENVIRONMENT_H
#include "host_memory.h"

namespace tandem {

// The value of a variable of the process's environment; nullptr: it is not set. It may lie in room.
const char* environment_value(const char* name, String* room);

}  // namespace tandem

#endif
