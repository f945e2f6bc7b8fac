// SPDX-License-Identifier: MIT OR Apache-2.0
// A CUDA runtime of one device without hardware: what src/cuda/device.cpp and support/cuda_session.cpp
// call, on top of simt_emulator.h. Device memory is host memory; a launch has run when it returns.
#ifndef TANDEM_TESTS_EMULATED_CUDA_RUNTIME_H
#define TANDEM_TESTS_EMULATED_CUDA_RUNTIME_H
#include <chrono>

#include "cuda.h"
#include "simt_emulator.h"

#define CUDART_VERSION 13000
#define cudaEnableDefault 0

enum cudaError_t {
  cudaSuccess = 0,
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
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
struct cudaFuncAttributes {};
struct cudaDeviceProp {
  char name[256];
  size_t sharedMemPerBlockOptin, sharedMemPerMultiprocessor, reservedSharedMemPerBlock;
  int maxThreadsPerBlock, maxGridSize[3], warpSize, multiProcessorCount, major, minor;
};

namespace simt {
// Contexts current on the thread, as the driver keeps them: the test looks at it.
inline std::vector<CUcontext>& contexts() {
  static std::vector<CUcontext> stack;
  return stack;
}
inline int& retained() {
  static int count = 0;
  return count;
}
// What the next launch answers, and the runtime's record of it.
inline cudaError_t& next_launch() {
  static cudaError_t error = cudaSuccess;
  return error;
}
inline cudaError_t& last_error() {
  static cudaError_t error = cudaSuccess;
  return error;
}
inline CUcontext primary() { return reinterpret_cast<CUcontext>(uintptr_t(1)); }
// Where kernels may be launched now.
inline CUcontext& launches_in() {
  static CUcontext context = primary();
  return context;
}
// There is device 0; contexts from 1000 on are of a device that is not there.
inline CUresult device_of_current(CUdevice* device) {
  if (contexts().empty()) return CUresult(201);
  return *device = reinterpret_cast<uintptr_t>(contexts().back()) >= 1000, CUDA_SUCCESS;
}
inline CUresult device_get(CUdevice* device, int ordinal) {
  return *device = ordinal, CUDA_SUCCESS;
}
inline CUresult retain(CUcontext* context, CUdevice) {
  return *context = primary(), ++retained(), CUDA_SUCCESS;
}
inline CUresult release(CUdevice) { return --retained(), CUDA_SUCCESS; }
inline CUresult current(CUcontext* context) {
  return *context = contexts().empty() ? nullptr : contexts().back(), CUDA_SUCCESS;
}
inline CUresult push(CUcontext context) { return contexts().push_back(context), CUDA_SUCCESS; }
inline CUresult pop(CUcontext* context) {
  return *context = contexts().back(), contexts().pop_back(), CUDA_SUCCESS;
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
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {"emulated", 232448, 233472, 1024, 1024, {0x7fffffff, 65535, 65535}, 32, 1, 9, 0};
  return cudaSuccess;
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
               {"cuCtxPopCurrent", reinterpret_cast<void*>(&simt::pop)}};
  *found = cudaDriverEntryPointSymbolNotFound;
  for (const auto& k : known)
    if (std::strcmp(k.name, name) == 0) *pointer = k.pointer, *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                                 size_t) {
  return *blocks = 2, cudaSuccess;
}

template <typename P>
cudaError_t cudaLaunchKernel(void (*kernel)(P), dim3 grid, dim3 threads, void** arguments,
                             size_t shared_bytes, cudaStream_t) {
  CUcontext context = nullptr;
  simt::current(&context);
  if (context != simt::launches_in()) return simt::last_error() = cudaErrorInvalidDeviceFunction;
  if (simt::next_launch() != cudaSuccess) {
    simt::last_error() = simt::next_launch();
    simt::next_launch() = cudaSuccess;
    return simt::last_error();
  }
  simt::launch(kernel, grid, threads, shared_bytes, *static_cast<const P*>(arguments[0]));
  return cudaSuccess;
}

// ---- what a caller of the library needs: support/cuda_session.cpp ----
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
typedef struct CUevent_st {
  std::chrono::steady_clock::time_point at;
} * cudaEvent_t;
#define cudaStreamNonBlocking 1u

inline cudaError_t cudaSetDevice(int) {
  return simt::contexts().assign(1, simt::primary()), cudaSuccess;
}
template <typename T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  *p = static_cast<T*>(std::aligned_alloc(256, (bytes + 511) / 256 * 256));
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* p) { return std::free(p), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemset(void* p, int byte, size_t bytes) {
  return std::memset(p, byte, bytes), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* p, int byte, size_t bytes, cudaStream_t) {
  return std::memset(p, byte, bytes), cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = nullptr, cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return *event = new CUevent_st, cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  return event->at = std::chrono::steady_clock::now(), cudaSuccess;
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
