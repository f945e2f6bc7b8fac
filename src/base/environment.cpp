// SPDX-License-Identifier: MIT OR Apache-2.0
#include "environment.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <cstdlib>
#endif

namespace tandem {

#if defined(_WIN32)

// A C library reads a copy of the environment that it made when it was loaded. An application with
// another C library, or one that calls SetEnvironmentVariable(), does not change that copy.
const char* environment_value(const char* name, String* room) {
  DWORD size = GetEnvironmentVariableA(name, nullptr, 0);  // with the final NUL
  if (size == 0) return nullptr;
  do {  // another thread may set a longer one meanwhile
    room->resize(size);
    size = GetEnvironmentVariableA(name, &(*room)[0], DWORD(room->size()));
  } while (size > room->size());
  return room->c_str();
}

#else

const char* environment_value(const char* name, String*) { return std::getenv(name); }

#endif

}  // namespace tandem
