// SPDX-License-Identifier: MIT OR Apache-2.0
// What the parts of the CUDA backend share: errors as statuses, the driver's functions, contexts, launches made ready.
#ifndef TANDEM_SRC_CUDA_RUNTIME_H
#define TANDEM_SRC_CUDA_RUNTIME_H
#include <cuda.h>
#include <cuda_runtime.h>

#include "args.h"
#include "status.h"

namespace tandem {

// Also takes the error off the runtime's per-thread record: the caller's next cudaGetLastError() is to
// find only the caller's own.
Status failed(const char* call, cudaError_t error);

#define TANDEM_CUDA_TRY(call, expression)                           \
  do {                                                              \
    const cudaError_t try_error_ = (expression);                    \
    if (try_error_ != cudaSuccess) return failed(call, try_error_); \
  } while (false)

// A function of the driver, which nothing is linked with.
template <typename F>
Status find_driver_function(const char* name, F* function) {
  void* pointer = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  TANDEM_CUDA_TRY(
      name, cudaGetDriverEntryPointByVersion(name, &pointer, 12000, cudaEnableDefault, &found));
#else
  TANDEM_CUDA_TRY(name, cudaGetDriverEntryPoint(name, &pointer, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess || !pointer)
    return fail(TANDEM_ERROR_BACKEND, "the NVIDIA driver has no %s", name);
  *function = reinterpret_cast<F>(pointer);
  return Status();
}

// The driver's context functions. cudaSetDevice cannot put back what the calling thread had: a context
// that is not a primary one, or none at all.
struct Driver {
  CUresult (*of_current)(CUdevice*) = nullptr;
  CUresult (*get)(CUdevice*, int) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*release)(CUdevice) = nullptr;
  CUresult (*current)(CUcontext*) = nullptr;
  CUresult (*push)(CUcontext) = nullptr;
  CUresult (*pop)(CUcontext*) = nullptr;

  Status load() {
    TANDEM_TRY(find_driver_function("cuCtxGetDevice", &of_current));
    TANDEM_TRY(find_driver_function("cuDeviceGet", &get));
    TANDEM_TRY(find_driver_function("cuDevicePrimaryCtxRetain", &retain));
    TANDEM_TRY(find_driver_function("cuDevicePrimaryCtxRelease", &release));
    TANDEM_TRY(find_driver_function("cuCtxGetCurrent", &current));
    TANDEM_TRY(find_driver_function("cuCtxPushCurrent", &push));
    return find_driver_function("cuCtxPopCurrent", &pop);
  }
};

// Makes a context current for a scope and leaves the thread as it was.
class Current {
 public:
  Current(const Driver& driver, CUcontext context) : driver_(driver) {
    CUcontext now = nullptr;
    if (driver_.current(&now) == CUDA_SUCCESS && now == context) return;
    result_ = driver_.push(context);
    pushed_ = result_ == CUDA_SUCCESS;
  }
  ~Current() {
    CUcontext ours = nullptr;
    if (pushed_) driver_.pop(&ours);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  Status status() const {
    if (result_ == CUDA_SUCCESS) return Status();
    return fail(TANDEM_ERROR_BACKEND, "cuCtxPushCurrent of the device's context: CUresult %d",
                int(result_));
  }

 private:
  const Driver& driver_;
  CUresult result_ = CUDA_SUCCESS;
  bool pushed_ = false;
};

// Records one launch of a plan.
using Recorder = Function<cudaError_t(cudaStream_t, const Addresses&)>;

struct SharedMemory {
  size_t a_multiprocessor = 0, reserved_a_block = 0;
};

// Loads the kernel: the runtime would do so at its first launch, which may be inside a stream capture,
// where loading is not allowed.
Status prepare_kernel(const void* kernel, int threads, size_t shared, const SharedMemory& memory);

}  // namespace tandem
#endif
