// SPDX-License-Identifier: MIT OR Apache-2.0
#include "shared_library.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#include <unistd.h>
#endif

namespace tandem {
namespace {

const char kInThisFile = 0;  // its address is

String folder_of(const String& file, const char* separators) {
  const size_t end = file.find_last_of(separators);
  return end == String::npos ? String() : file.substr(0, end + 1);
}

}  // namespace

#if defined(_WIN32)

String own_folder() {
  HMODULE own = nullptr;
  const DWORD flags =
      GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  if (!GetModuleHandleExA(flags, &kInThisFile, &own)) return "";
  String name(32768, '\0');
  const DWORD size = GetModuleFileNameA(own, &name[0], DWORD(name.size()));
  if (size == 0 || size == name.size()) return "";
  name.resize(size);
  return folder_of(name, "\\/");
}

void* open_shared_library(const String& path, String* why) {
  // Beside the library, its own needs are looked for in its folder, too. A bare name is not looked
  // for in the current folder, where any program may have put a file.
  const bool bare = path.find_first_of("\\/") == String::npos;
  const DWORD flags = bare ? LOAD_LIBRARY_SEARCH_DEFAULT_DIRS : LOAD_WITH_ALTERED_SEARCH_PATH;
  HMODULE library = LoadLibraryExA(path.c_str(), nullptr, flags);
  if (!library) *why = path + ": Windows error " + std::to_string(GetLastError()).c_str();
  return reinterpret_cast<void*>(library);
}

void* find_in_shared_library(void* library, const char* symbol) noexcept {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), symbol));
}

#else

String own_folder() {
  Dl_info info{};
  if (!dladdr(&kInThisFile, &info) || !info.dli_fname) return "";
  const String folder = folder_of(info.dli_fname, "/");
  if (!folder.empty()) return folder;
  // A program that was found by PATH has its bare name.
  String name(4096, '\0');
  const ssize_t size = readlink("/proc/self/exe", &name[0], name.size());
  if (size <= 0 || size_t(size) == name.size()) return "";
  name.resize(size_t(size));
  return folder_of(name, "/");
}

void* open_shared_library(const String& path, String* why) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library) return library;
  const char* error = dlerror();
  *why = error ? error : path.c_str();
  return nullptr;
}

void* find_in_shared_library(void* library, const char* symbol) noexcept {
  return dlsym(library, symbol);
}

#endif

}  // namespace tandem
