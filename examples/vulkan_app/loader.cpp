// SPDX-License-Identifier: MIT OR Apache-2.0
// A file of its own, as windows.h has macros by the names of some of Vulkan's functions.
#include "loader.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <stdexcept>

PFN_vkGetInstanceProcAddr open_loader() {
#ifdef _WIN32
  const HMODULE library =
      LoadLibraryExW(L"vulkan-1.dll", nullptr, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
  void* const found =
      library ? reinterpret_cast<void*>(GetProcAddress(library, "vkGetInstanceProcAddr")) : nullptr;
#else
  void* const library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = library ? dlsym(library, "vkGetInstanceProcAddr") : nullptr;
#endif
  if (!found) throw std::runtime_error("no Vulkan loader on this machine");
  return reinterpret_cast<PFN_vkGetInstanceProcAddr>(found);
}
