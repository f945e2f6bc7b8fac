// SPDX-License-Identifier: MIT OR Apache-2.0
#include "files.h"

#include <filesystem>

namespace tandem::harness {

namespace fs = std::filesystem;

bool make_folder(const std::string& name) {
  std::error_code failed;
  fs::create_directories(fs::u8path(name), failed);
  return !failed;
}

// std::rename() replaces no file on Windows.
bool replace_file(const std::string& from, const std::string& to) {
  std::error_code failed;
  fs::rename(fs::u8path(from), fs::u8path(to), failed);
  return !failed;
}

}  // namespace tandem::harness
