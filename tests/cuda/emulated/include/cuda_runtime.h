// SPDX-License-Identifier: MIT OR Apache-2.0
// A CUDA runtime without hardware, of one device or of as many as a test says: what src/cuda and
// harness/cuda_session.cpp call, on top of simt_emulator.h. Device memory is host memory. A launch
// has run when it returns; on an emulated Hopper when something waits for it, as the next one may
// begin before it ends. But for running kernels it uses no operator new, so that tests can count
// what the library allocates.
#ifndef TANDEM_TESTS_CUDA_EMULATED_INCLUDE_CUDA_RUNTIME_H
#define TANDEM_TESTS_CUDA_EMULATED_INCLUDE_CUDA_RUNTIME_H
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <mutex>

#include "cuda.h"
#include "simt_emulator.h"

#define CUDART_VERSION 13000
#define cudaEnableDefault 0

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorCudartUnloading = 4,
  cudaErrorStubLibrary = 34,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorContextIsDestroyed = 709,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorSystemDriverMismatch = 803
};
typedef struct CUstream_st* cudaStream_t;
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1
};
enum cudaSharedCarveout { cudaSharedmemCarveoutMaxShared = 100 };
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
struct cudaFuncAttributes {
  size_t sharedSizeBytes = 0;
  int ptxVersion = 90;
};
struct cudaDeviceProp {
  char name[256];
  size_t sharedMemPerBlockOptin, sharedMemPerMultiprocessor, reservedSharedMemPerBlock;
  int maxThreadsPerBlock, maxGridSize[3], warpSize, multiProcessorCount, major, minor;
};

// A kernel as one context has it.
struct CUfunc_st {
  CUfunc_st* next;
  CUcontext context;
  void (*kernel)();
  std::unique_ptr<simt::Grid> (*make_grid)(void (*kernel)(), dim3 grid, dim3 threads, size_t shared,
                                           const void* params);
};

namespace simt {
class Contexts {  // current on a thread, the last one on top
 public:
  Contexts() = default;
  Contexts(std::initializer_list<CUcontext> all) {
    for (CUcontext c : all) push(c);
  }
  bool empty() const { return size_ == 0; }
  CUcontext top() const { return empty() ? nullptr : at_[size_ - 1]; }
  void clear() { size_ = 0; }
  void push(CUcontext context) {
    if (size_ == kMost) die("contexts are pushed and not popped");
    at_[size_++] = context;
  }
  void pop() {
    if (empty()) die("a context is popped that was not pushed");
    --size_;
  }
  friend bool operator==(const Contexts& a, const Contexts& b) {
    return a.size_ == b.size_ && std::equal(a.at_, a.at_ + a.size_, b.at_);
  }

 private:
  static constexpr int kMost = 8;
  CUcontext at_[kMost] = {};
  int size_ = 0;
};
inline Contexts& contexts() {
  static thread_local Contexts stack;
  return stack;
}

// Devices are numbered from 0; their contexts are 1000 times that and more.
constexpr int kMostDevices = 4;
inline int& devices() {
  static int count = 1;
  return count;
}
inline CUcontext context_of(int device, int n) {
  return reinterpret_cast<CUcontext>(uintptr_t(1000 * device + n));
}
inline int device_of(CUcontext context) { return int(reinterpret_cast<uintptr_t>(context) / 1000); }
inline CUcontext primary(int device = 0) { return context_of(device, 1); }
// A stream of a context; nullptr is one of each.
inline cudaStream_t stream_of(CUcontext context) { return reinterpret_cast<cudaStream_t>(context); }

inline std::atomic<int>& retained(int device = 0) {
  static std::atomic<int> count[kMostDevices];
  return count[device];
}
// What the next launch answers, and the runtime's record of it.
inline cudaError_t& next_launch() {
  static cudaError_t error = cudaSuccess;
  return error;
}
inline cudaError_t& last_error() {
  static thread_local cudaError_t error = cudaSuccess;
  return error;
}
// Where kernels may be launched; nullptr: in each context.
inline CUcontext& launches_in() {
  static CUcontext context = nullptr;
  return context;
}
// How many were in each device; and whether they ran.
inline std::atomic<int>& launches(int device = 0) {
  static std::atomic<int> count[kMostDevices];
  return count[device];
}
inline bool& runs_kernels() {
  static bool runs = true;
  return runs;
}

inline CUresult device_of_current(CUdevice* device) {
  if (contexts().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return *device = device_of(contexts().top()), CUDA_SUCCESS;
}
inline CUresult device_get(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= devices()) return CUDA_ERROR_INVALID_DEVICE;
  return *device = ordinal, CUDA_SUCCESS;
}
inline CUresult retain(CUcontext* context, CUdevice device) {
  return *context = primary(device), ++retained(device), CUDA_SUCCESS;
}
inline CUresult release(CUdevice device) { return --retained(device), CUDA_SUCCESS; }
inline CUresult current(CUcontext* context) { return *context = contexts().top(), CUDA_SUCCESS; }
inline CUresult push(CUcontext context) { return contexts().push(context), CUDA_SUCCESS; }
inline CUresult pop(CUcontext* context) {
  return *context = contexts().top(), contexts().pop(), CUDA_SUCCESS;
}

inline std::mutex& mutex() {
  static std::mutex m;
  return m;
}
// In the current context. Functions are never unloaded.
inline CUfunction& first_function() {
  static CUfunction first = nullptr;
  return first;
}
inline CUfunction find_function(void (*kernel)()) {
  CUfunction f = first_function();
  while (f && !(f->kernel == kernel && f->context == contexts().top())) f = f->next;
  return f;
}
template <typename P>
cudaError_t function_of(void (*kernel)(P), CUfunction* function) {
  CUfunction& first = first_function();
  const auto plain = reinterpret_cast<void (*)()>(kernel);
  const std::lock_guard<std::mutex> lock(mutex());
  CUfunction f = find_function(plain);
  if (!f) {
    f = static_cast<CUfunc_st*>(std::malloc(sizeof(CUfunc_st)));
    *f = {first, contexts().top(), plain,
          [](void (*k)(), dim3 grid, dim3 threads, size_t shared, const void* params) {
            return make_grid(reinterpret_cast<void (*)(P)>(k), {grid.x, grid.y, grid.z},
                             {threads.x, 1, 1}, shared, *static_cast<const P*>(params));
          }};
    first = f;
  }
  return *function = f, contexts().empty() ? cudaErrorDeviceUninitialized : cudaSuccess;
}
// cluster: blocks of one; early: it may begin before what was launched last has ended.
inline CUresult launch_grid(CUfunction function, dim3 size, unsigned threads, size_t shared,
                            CUstream stream, const void* params, unsigned cluster, bool early) {
  const CUcontext context = contexts().top();
  if (!context || function->context != context || (launches_in() && launches_in() != context))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (stream && stream != stream_of(context)) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard<std::mutex> lock(mutex());  // of the emulator
  if (next_launch() != cudaSuccess) {
    const auto result = CUresult(next_launch());
    return next_launch() = cudaSuccess, result;
  }
  ++launches(device_of(context));
  if (!runs_kernels()) return CUDA_SUCCESS;
  std::unique_ptr<Grid> grid =
      function->make_grid(function->kernel, size, dim3(threads), shared, params);
  grid->cluster = cluster, grid->early = early;
  machine().launch(std::move(grid));
  return CUDA_SUCCESS;
}
inline CUresult launch_kernel(CUfunction function, unsigned x, unsigned y, unsigned z,
                              unsigned threads, unsigned, unsigned, unsigned shared,
                              CUstream stream, void** arguments, void**) {
  return launch_grid(function, dim3(x, y, z), threads, shared, stream, arguments[0], 1, false);
}
inline void finish() {
  const std::lock_guard<std::mutex> lock(mutex());
  machine().finish();
}
}  // namespace simt

inline cudaError_t cudaGetLastError() {
  const cudaError_t error = simt::last_error();
  return simt::last_error() = cudaSuccess, error;
}
inline const char* cudaGetErrorString(cudaError_t) { return "an error that the test asked for"; }
inline cudaError_t cudaRuntimeGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = simt::devices(), cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {"emulated", 232448, 233472, 1024, 1024, {0x7fffffff, 65535, 65535}, 32, 1, 8, 0};
  p->multiProcessorCount = simt::device().sms;
  if (simt::device().hopper) p->major = 9;
  return cudaSuccess;
}
enum cudaDeviceAttr {
  cudaDevAttrClockRate = 13,
  cudaDevAttrMemoryClockRate = 36,
  cudaDevAttrGlobalMemoryBusWidth = 37,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
};
inline cudaError_t cudaDeviceGetAttribute(int* x, cudaDeviceAttr attribute, int) {
  const int major = simt::device().hopper ? 9 : 8;
  return *x = attribute == cudaDevAttrComputeCapabilityMajor ? major : 0, cudaSuccess;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** pointer, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* found) {
  const struct {
    const char* name;
    void* pointer;
  } known[] = {{"cuCtxGetDevice", reinterpret_cast<void*>(&simt::device_of_current)},
               {"cuDeviceGet", reinterpret_cast<void*>(&simt::device_get)},
               {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&simt::retain)},
               {"cuDevicePrimaryCtxRelease", reinterpret_cast<void*>(&simt::release)},
               {"cuCtxGetCurrent", reinterpret_cast<void*>(&simt::current)},
               {"cuCtxPushCurrent", reinterpret_cast<void*>(&simt::push)},
               {"cuCtxPopCurrent", reinterpret_cast<void*>(&simt::pop)},
               {"cuLaunchKernel", reinterpret_cast<void*>(&simt::launch_kernel)},
               {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(&cuTensorMapEncodeTiled)},
               {"cuTensorMapReplaceAddress", reinterpret_cast<void*>(&cuTensorMapReplaceAddress)}};
  *found = cudaDriverEntryPointSymbolNotFound;
  for (const auto& k : known)
    if (std::strcmp(k.name, name) == 0) *pointer = k.pointer, *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*)(P...), cudaFuncAttribute, int) {
  return cudaSuccess;
}

inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                                 size_t) {
  return *blocks = 2, cudaSuccess;
}

// ---- launches with attributes ----
enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
struct cudaLaunchAttributeValue {
  struct {
    unsigned x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
namespace simt {
inline unsigned cluster_of(const cudaLaunchConfig_t& config) {
  for (unsigned n = 0; n < config.numAttrs; ++n)
    if (config.attrs[n].id == cudaLaunchAttributeClusterDimension)
      return config.attrs[n].val.clusterDim.x;
  return 1;
}
}  // namespace simt
inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments) {
  bool early = false;
  for (unsigned n = 0; n < config->numAttrs; ++n)
    if (config->attrs[n].id == cudaLaunchAttributeProgrammaticStreamSerialization)
      early = config->attrs[n].val.programmaticStreamSerializationAllowed != 0;
  CUfunction function = nullptr;
  {
    const std::lock_guard<std::mutex> lock(simt::mutex());
    function = simt::find_function(reinterpret_cast<void (*)()>(const_cast<void*>(kernel)));
  }
  if (!function) return cudaErrorInvalidDeviceFunction;
  return cudaError_t(simt::launch_grid(function, config->gridDim, config->blockDim.x,
                                       config->dynamicSmemBytes, config->stream, arguments[0],
                                       simt::cluster_of(*config), early));
}
inline cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*,
                                                  const cudaLaunchConfig_t* config) {
  *clusters = max(1, simt::device().sms / int(simt::cluster_of(*config)));
  return cudaSuccess;
}

// ---- what a caller of the library needs: harness/cuda_session.cpp ----
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
typedef struct CUevent_st {
  std::chrono::steady_clock::time_point at;
} * cudaEvent_t;
#define cudaStreamNonBlocking 1u

inline cudaError_t cudaSetDevice(int device) {
  return simt::contexts() = {simt::primary(device)}, cudaSuccess;
}
namespace simt {
// How often device memory was asked for. There is no other function for it here.
inline std::atomic<int>& allocations() {
  static std::atomic<int> count{0};
  return count;
}
}  // namespace simt
template <typename T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  ++simt::allocations();
  *p = static_cast<T*>(std::aligned_alloc(256, (bytes + 511) / 256 * 256));
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* p) { return simt::finish(), std::free(p), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return simt::finish(), std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemset(void* p, int byte, size_t bytes) {
  return simt::finish(), std::memset(p, byte, bytes), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* p, int byte, size_t bytes, cudaStream_t) {
  return cudaMemset(p, byte, bytes);
}
inline cudaError_t cudaDeviceSynchronize() { return simt::finish(), cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = nullptr, cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return simt::finish(), cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return *event = new CUevent_st, cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  return simt::finish(), event->at = std::chrono::steady_clock::now(), cudaSuccess;
}
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
#define cudaEventRecordDefault 0u
#define cudaEventRecordExternal 1u
inline cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
#endif
