// SPDX-License-Identifier: MIT OR Apache-2.0
#include "shared_library.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <link.h>
#endif
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

namespace {

// Names are UTF-8 here, and UTF-16 there. "": no such text.
Vec<wchar_t> to_windows(const String& name) {
  const int given = int(name.size()) + 1;
  const int size =
      MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, name.c_str(), given, nullptr, 0);
  Vec<wchar_t> wide(size_t(size > 0 ? size : 1));
  MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, name.c_str(), given, wide.data(), size);
  return wide;
}
String from_windows(const wchar_t* name, int given) {
  const int size = WideCharToMultiByte(CP_UTF8, 0, name, given, nullptr, 0, nullptr, nullptr);
  String text(size_t(size > 0 ? size : 0), '\0');
  WideCharToMultiByte(CP_UTF8, 0, name, given, &text[0], size, nullptr, nullptr);
  return text;
}

HMODULE own_library(DWORD flags) {
  HMODULE own = nullptr;
  flags |= GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS;
  const auto address = reinterpret_cast<const wchar_t*>(&kInThisFile);
  return GetModuleHandleExW(flags, address, &own) ? own : nullptr;
}

}  // namespace

String own_folder() {
  Vec<wchar_t> name(32768);
  const HMODULE own = own_library(GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT);
  const DWORD size = own ? GetModuleFileNameW(own, name.data(), DWORD(name.size())) : 0;
  if (size == 0 || size == name.size()) return "";
  return folder_of(from_windows(name.data(), int(size)), "\\/");
}

void stay_loaded() { own_library(GET_MODULE_HANDLE_EX_FLAG_PIN); }

void* open_shared_library(const String& path, String* why) {
  // Beside the library, its own needs are looked for in its folder, too. A bare name is not looked
  // for in the current folder, where any program may have put a file.
  const bool bare = path.find_first_of("\\/") == String::npos;
  const DWORD flags = bare ? LOAD_LIBRARY_SEARCH_DEFAULT_DIRS : LOAD_WITH_ALTERED_SEARCH_PATH;
  const HMODULE library = LoadLibraryExW(to_windows(path).data(), nullptr, flags);
  const DWORD error = GetLastError();  // before anything else can change it
  if (!library) *why = path + ": Windows error " + std::to_string(error).c_str();
  return reinterpret_cast<void*>(library);
}

void* find_in_shared_library(void* library, const char* symbol) noexcept {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), symbol));
}

#else

namespace {

String program_folder() {
  String name(4096, '\0');
  const ssize_t size = readlink("/proc/self/exe", &name[0], name.size());
  if (size <= 0 || size_t(size) == name.size()) return "";
  name.resize(size_t(size));
  return folder_of(name, "/");
}

#if defined(__GLIBC__)
// The name that this code's file was loaded by; "": it is the program.
const char* own_name() {
  Dl_info info{};
  link_map* own = nullptr;
  void** const to = reinterpret_cast<void**>(&own);
  return dladdr1(&kInThisFile, &info, to, RTLD_DL_LINKMAP) && own ? own->l_name : "";
}

// The folder of a library that was loaded by a name relative to the folder that was current then.
// It need not be current any more, and another folder may have a hostile file by the same name.
String folder_when_loaded(const char* name) {
  void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return "";
  String folder(65536, '\0');  // glibc does not say how much it writes: the path of a folder
  const bool known = dlinfo(library, RTLD_DI_ORIGIN, &folder[0]) == 0;
  dlclose(library);
  if (!known || folder[0] != '/') return "";
  return folder.c_str() + String("/");
}
#endif

}  // namespace

String own_folder() {
#if defined(__GLIBC__)
  // dladdr() gives argv[0] for the program, which is what its caller likes it to be.
  const char* const name = own_name();
  if (!*name) return program_folder();
  return *name == '/' ? folder_of(name, "/") : folder_when_loaded(name);
#else
  Dl_info info{};
  if (!dladdr(&kInThisFile, &info) || !info.dli_fname) return "";
  const String folder = folder_of(info.dli_fname, "/");
  return folder.empty() ? program_folder() : folder[0] == '/' ? folder : "";
#endif
}

void stay_loaded() {
#if defined(__GLIBC__)
  const char* const name = own_name();
#else
  Dl_info info{};
  const char* const name = dladdr(&kInThisFile, &info) && info.dli_fname ? info.dli_fname : "";
#endif
  if (*name) dlopen(name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
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
