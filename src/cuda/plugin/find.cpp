// SPDX-License-Identifier: MIT OR Apache-2.0
// The side of libtandem: opens libtandem_cuda, beside its own file or as the system finds it.
#include <atomic>

#include "base/shared_library.h"
#include "plugin.h"

namespace tandem {
namespace {

constexpr char kFile[] = TANDEM_CUDA_FILE;  // such as libtandem_cuda.so.0
// Whether this build made that file, too.
constexpr const char* kNotMade =
    TANDEM_CUDA_MADE ? "" : "; this library's build left CUDA out and made no such file";

constexpr CudaHost kHost = {host_allocate, host_release, HostScope::is_open};

Status check_head(const CudaPluginHead& head, const String& path) {
  const CudaPluginHead& own = kCudaPluginHead;
  if (head.version != own.version)
    return fail(TANDEM_ERROR_NO_BACKEND,
                "%s is of Tandem %u.%u.%u, and this library of %d.%d.%d: both must be of one build",
                path.c_str(), head.version >> 22, head.version >> 12 & 0x3ff, head.version & 0xfff,
                TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR, TANDEM_VERSION_PATCH);
  if (head.layout != own.layout)
    return fail(TANDEM_ERROR_NO_BACKEND,
                "%s is of another build of Tandem %d.%d.%d than this library (layouts %08x and "
                "%08x): both must be of one build",
                path.c_str(), TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR, TANDEM_VERSION_PATCH,
                head.layout, own.layout);
  return Status();
}

Status open_plugin(const CudaPlugin** plugin) {
  const String folder = own_folder();
  String path = folder + kFile, beside, anywhere;
  void* library = folder.empty() ? nullptr : open_shared_library(path, &beside);
  if (folder.empty()) beside = "the folder of this library is not known";
  if (!library) library = open_shared_library(path = kFile, &anywhere);
  if (!library)
    return fail(TANDEM_ERROR_NO_BACKEND,
                "%s, which holds the CUDA backend, could not be opened: beside this library: %s; "
                "by the system's search: %s%s",
                kFile, beside.c_str(), anywhere.c_str(), kNotMade);
  const auto entry = reinterpret_cast<decltype(&tandem_cuda_plugin)>(
      find_in_shared_library(library, "tandem_cuda_plugin"));
  if (!entry)
    return fail(TANDEM_ERROR_NO_BACKEND,
                "%s was opened, but is not Tandem's: it has no function tandem_cuda_plugin",
                path.c_str());
  *plugin = entry();
  TANDEM_TRY(check_head((*plugin)->head, path));
  stay_loaded();  // the other library keeps kHost
  if ((*plugin)->borrow(&kHost)) return Status();
  return fail(TANDEM_ERROR_NO_BACKEND, "too many copies of this library in one process use %s",
              path.c_str());
}

}  // namespace

Status find_cuda_backend(const CudaBackend** backend) {
  // Several threads may open it at once: all of them get the same one.
  static std::atomic<const CudaBackend*> found{nullptr};
  *backend = found.load(std::memory_order_acquire);
  if (*backend) return Status();
  const CudaPlugin* plugin = nullptr;
  TANDEM_TRY(open_plugin(&plugin));
  found.store(*backend = plugin->backend, std::memory_order_release);
  return Status();
}

}  // namespace tandem
