// SPDX-License-Identifier: MIT OR Apache-2.0
// Names of files are UTF-8: see tandem_utf8() in CMakeLists.txt.
#ifndef TANDEM_HARNESS_FILES_H
#define TANDEM_HARNESS_FILES_H
#include <string>

namespace tandem::harness {

// With those above it. False: it is not there, and cannot be made.
bool make_folder(const std::string& name);

// Gives a file the name of another, which may be there. False: failed.
bool replace_file(const std::string& from, const std::string& to);

}  // namespace tandem::harness

#endif
