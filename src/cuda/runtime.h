// SPDX-License-Identifier: MIT OR Apache-2.0
// What the files of the CUDA backend share: errors as statuses, the driver's functions, contexts,
// prepared launches.
#ifndef TANDEM_SRC_CUDA_RUNTIME_H
#define TANDEM_SRC_CUDA_RUNTIME_H
#include <cuda.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "base/status.h"
#include "cuda/function_of.h"
#include "kernels/args.h"

namespace tandem {

// Makes a status of an error, and removes the error from the runtime's per-thread record, as the
// caller's next cudaGetLastError() should find only the caller's own.
Status failed(const char* call, cudaError_t error);

#define TANDEM_CUDA_TRY(call, expression)                           \
  do {                                                              \
    const cudaError_t try_error_ = (expression);                    \
    if (try_error_ != cudaSuccess) return failed(call, try_error_); \
  } while (false)

// A function of the driver, which is not linked.
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

// The driver's context functions. cudaSetDevice cannot restore a context that is not a primary one,
// or none at all. Also its launch, which skips what the runtime looks up each time.
struct Driver {
  CUresult (*of_current)(CUdevice*) = nullptr;
  CUresult (*get)(CUdevice*, int) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*release)(CUdevice) = nullptr;
  CUresult (*current)(CUcontext*) = nullptr;
  CUresult (*push)(CUcontext) = nullptr;
  CUresult (*pop)(CUcontext*) = nullptr;
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     unsigned, CUstream, void**, void**) = nullptr;

  Status load() {
    TANDEM_TRY(find_driver_function("cuCtxGetDevice", &of_current));
    TANDEM_TRY(find_driver_function("cuDeviceGet", &get));
    TANDEM_TRY(find_driver_function("cuDevicePrimaryCtxRetain", &retain));
    TANDEM_TRY(find_driver_function("cuDevicePrimaryCtxRelease", &release));
    TANDEM_TRY(find_driver_function("cuCtxGetCurrent", &current));
    TANDEM_TRY(find_driver_function("cuCtxPushCurrent", &push));
    TANDEM_TRY(find_driver_function("cuCtxPopCurrent", &pop));
    return find_driver_function("cuLaunchKernel", &launch);
  }
};

// Makes a context current for a scope, and restores the thread's context afterwards.
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

// Where a launch goes: a stream, and in a slice of an execute a range of the launch's workgroups.
struct LaunchOn {
  LaunchOn(cudaStream_t to) : stream(to) {}  // NOLINT: a stream alone takes all workgroups
  operator cudaStream_t() const { return stream; }
  cudaStream_t stream;
  uint32_t first_group = 0, groups = 0;  // 0 groups: all
};
// Records one launch of a plan.
using Recorder = Function<cudaError_t(const LaunchOn&, const Addresses&)>;

template <typename P, typename = void>
struct HasFirstGroup : std::false_type {};
template <typename P>
struct HasFirstGroup<P, std::void_t<decltype(P::first_group)>> : std::true_type {};

// What launches on a device need.
struct Launching {
  decltype(Driver::launch) launch = nullptr;
  size_t shared_of_sm = 0, reserved_a_block = 0, most_a_block = 0;  // bytes of shared memory
};

// Launches a kernel with programmatic dependent launch.
cudaError_t launch_programmatic(const void* kernel, dim3 grid, unsigned threads, size_t shared,
                                void** arguments, cudaStream_t stream);
// Prepares a kernel for that. Returns nullptr in *waits where its code is of a device that does not
// know it.
Status prepare_programmatic(const void* kernel, const void** waits);

// A kernel with its grid, prepared for launches. P: type of its only parameter.
template <typename P>
class Launcher {
 public:
  // Loads the kernel. The driver would do so at the first launch, which may be inside a stream
  // capture, where loading is not allowed.
  Status prepare(void (*kernel)(P), const Launching& with, dim3 grid, int threads, size_t shared);
  void set_grid(dim3 grid) { grid_ = grid; }
  // Programmatic dependent launch from now on, if the kernel's code waits for the grid before it.
  Status make_programmatic(void (*kernel)(P));
  cudaError_t operator()(P* params, const LaunchOn& on) const {
    void* arguments[] = {params};
    dim3 grid = grid_;
    if (on.groups > 0) {
      // Kernels that are cut number their workgroups from first_group on.
      if constexpr (HasFirstGroup<P>::value)
        params->first_group = on.first_group;
      else
        return cudaErrorInvalidValue;
      grid = dim3(on.groups);
    }
    if (programmatic_ && on.groups == 0)
      return launch_programmatic(programmatic_, grid, threads_, shared_, arguments, on.stream);
    // The runtime numbers errors as the driver does.
    return static_cast<cudaError_t>(launch_(function_, grid.x, grid.y, 1, threads_, 1, 1, shared_,
                                            on.stream, arguments, nullptr));
  }

 private:
  decltype(Driver::launch) launch_ = nullptr;
  CUfunction function_ = nullptr;
  dim3 grid_;
  unsigned threads_ = 0, shared_ = 0;
  const void* programmatic_ = nullptr;  // the kernel
};

Status prepare_kernel(const void* kernel, int threads, size_t shared, const Launching& with);

template <typename P>
Status Launcher<P>::prepare(void (*kernel)(P), const Launching& with, dim3 grid, int threads,
                            size_t shared) {
  TANDEM_TRY(prepare_kernel(reinterpret_cast<const void*>(kernel), threads, shared, with));
  TANDEM_CUDA_TRY("cudaGetFuncBySymbol", function_of(kernel, &function_));
  launch_ = with.launch;
  grid_ = grid;
  threads_ = unsigned(threads);
  shared_ = unsigned(shared);
  return Status();
}

template <typename P>
Status Launcher<P>::make_programmatic(void (*kernel)(P)) {
  return prepare_programmatic(reinterpret_cast<const void*>(kernel), &programmatic_);
}

// The kernel of a launch was not built.
inline Status no_kernel(const Launch& launch) {
  return fail(TANDEM_ERROR_BACKEND, "no CUDA kernel %s for tile %s", stem_name(launch.stem),
              launch.tile.name ? launch.tile.name : "-");
}

// The same for a launch of a plan. Fails if the kernel was not built.
template <typename P>
Status prepare_launch(void (*kernel)(P), const Launch& launch, const Launching& with,
                      Launcher<P>* launcher) {
  if (!kernel) return no_kernel(launch);
  return launcher->prepare(kernel, with, dim3(launch.groups_x, launch.groups_y),
                           launch.invocations(), launch.shared_bytes);
}

}  // namespace tandem
#endif
