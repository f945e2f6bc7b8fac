// SPDX-License-Identifier: MIT OR Apache-2.0
// Shared libraries that are opened at run time, and stay open.
#ifndef TANDEM_SRC_BASE_SHARED_LIBRARY_H
#define TANDEM_SRC_BASE_SHARED_LIBRARY_H
#include "host_memory.h"

namespace tandem {

// The folder of the file that this code is in, a library or a program, with its final separator.
// "": not known.
String own_folder();
// Keeps that file loaded until the process ends.
void stay_loaded();

// path: with a folder that file, without one what the system finds by that name. nullptr: failed,
// and *why says why.
void* open_shared_library(const String& path, String* why);

// nullptr: the library has no such symbol.
void* find_in_shared_library(void* library, const char* symbol) noexcept;

}  // namespace tandem
#endif
