// SPDX-License-Identifier: MIT OR Apache-2.0
// The CUDA driver API, for test programs that are linked with neither it nor the runtime: opened at
// run time.
#ifndef TANDEM_TESTS_CUDA_CUDA_DRIVER_H
#define TANDEM_TESTS_CUDA_CUDA_DRIVER_H
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "tandem/tandem.h"

namespace cuda_driver {

// cuda.h renames functions to their newest version, as cuMemAlloc to cuMemAlloc_v2; the names of
// the members follow.
#define TANDEM_CU_FUNCTIONS(X)       \
  X(cuInit)                          \
  X(cuDeviceGetCount)                \
  X(cuDeviceGet)                     \
  X(cuDeviceGetName)                 \
  X(cuDeviceGetUuid)                 \
  X(cuDevicePrimaryCtxRetain)        \
  X(cuDevicePrimaryCtxRelease)       \
  X(cuCtxDestroy)                    \
  X(cuCtxGetCurrent)                 \
  X(cuCtxPushCurrent)                \
  X(cuCtxPopCurrent)                 \
  X(cuMemAlloc)                      \
  X(cuMemFree)                       \
  X(cuMemcpyHtoD)                    \
  X(cuMemcpyDtoH)                    \
  X(cuMemsetD8)                      \
  X(cuMemsetD8Async)                 \
  X(cuStreamCreate)                  \
  X(cuStreamDestroy)                 \
  X(cuStreamSynchronize)             \
  X(cuEventCreate)                   \
  X(cuEventDestroy)                  \
  X(cuEventElapsedTime)              \
  X(cuImportExternalMemory)          \
  X(cuExternalMemoryGetMappedBuffer) \
  X(cuDestroyExternalMemory)         \
  X(cuImportExternalSemaphore)       \
  X(cuDestroyExternalSemaphore)      \
  X(cuSignalExternalSemaphoresAsync) \
  X(cuWaitExternalSemaphoresAsync)

struct Functions {
#define TANDEM_CU_MEMBER(name) decltype(&::name) name = nullptr;
  TANDEM_CU_FUNCTIONS(TANDEM_CU_MEMBER)
#undef TANDEM_CU_MEMBER
  CUresult (*create_context)(CUcontext*, unsigned flags, CUdevice) = nullptr;  // cuCtxCreate_v2

  // The number of GPUs; 0, with a sentence in reason, where there is no driver.
  int open(const char** reason) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return *reason = "no NVIDIA driver: libcuda.so.1 could not be opened", 0;
    bool all = find(library, "cuCtxCreate_v2", &create_context);
#define TANDEM_CU_TEXT(name) #name
#define TANDEM_CU_NAME(name) TANDEM_CU_TEXT(name)
#define TANDEM_CU_FIND(name) all = find(library, TANDEM_CU_NAME(name), &this->name) && all;
    TANDEM_CU_FUNCTIONS(TANDEM_CU_FIND)
#undef TANDEM_CU_FIND
#undef TANDEM_CU_NAME
#undef TANDEM_CU_TEXT
    if (!all) return *reason = "the NVIDIA driver is too old for this program", 0;
    int count = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
      return *reason = "no CUDA device on this machine", 0;
    return count;
  }

 private:
  template <typename F>
  static bool find(void* library, const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(library, name));
    if (!*function) std::printf("libcuda has no %s\n", name);
    return *function != nullptr;
  }
};

inline Functions cu;

[[noreturn]] inline void fail(const char* what, const char* why) {
  std::fprintf(stderr, "FAILED: %s: %s\n", what, why);
  std::exit(1);
}
inline void need(bool ok, const char* what) {
  if (!ok) fail(what, "is not so");
}
inline void need(CUresult result, const char* what) {
  char code[32];
  std::snprintf(code, sizeof code, "CUresult %d", int(result));
  if (result != CUDA_SUCCESS) fail(what, code);
}
inline void need(tandem_status status, const char* what) {
  if (status != TANDEM_OK) fail(what, tandem_last_message());
}
#define NEED(call) cuda_driver::need(call, #call)

// A context is current in a scope.
class In {
 public:
  explicit In(CUcontext context) { NEED(cu.cuCtxPushCurrent(context)); }
  ~In() {
    CUcontext out = nullptr;
    cu.cuCtxPopCurrent(&out);
  }
  In(const In&) = delete;
  In& operator=(const In&) = delete;
};

}  // namespace cuda_driver
#endif
