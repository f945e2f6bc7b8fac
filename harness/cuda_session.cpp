// SPDX-License-Identifier: MIT OR Apache-2.0
// Sessions on CUDA devices, over the statically linked CUDA runtime. Without an NVIDIA driver the
// runtime reports so, and that sentence is the reason that users see.
#include <cstring>

#include "backends.h"

#if TANDEM_WITH_CUDA
#include <cuda_runtime_api.h>

#include "tandem/tandem_cuda.h"
#endif

namespace tandem::harness {

#if TANDEM_WITH_CUDA
namespace {

void cu(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // a sticky error would be reported again by the next call
  const tandem_status code =
      error == cudaErrorMemoryAllocation ? TANDEM_ERROR_DEVICE_OUT_OF_MEMORY : TANDEM_ERROR_BACKEND;
  throw Error(code, std::string(what) + ": " + cudaGetErrorString(error));
}
#define CU(call) cu(call, #call)

// The runtime's device is the calling thread's, and sessions of several GPUs share a thread: each
// operation names its own.
class CudaMemory : public Memory {
 public:
  CudaMemory(int ordinal, size_t bytes) : ordinal_(ordinal) {
    CU(cudaSetDevice(ordinal_));
    CU(cudaMalloc(&base_, bytes));
  }
  ~CudaMemory() override {
    cudaSetDevice(ordinal_);
    cudaFree(base_);
  }
  void write(const void* data, size_t bytes, size_t offset) override {
    CU(cudaSetDevice(ordinal_));
    CU(cudaMemcpy(at(offset), data, bytes, cudaMemcpyHostToDevice));
    // The copy returns once pageable memory has been read, not once the device has it, and the
    // session's stream does not wait for the default one. Without this wait a kernel can read what
    // was there before (seen on an H100 with uploads of 3 MB).
    CU(cudaStreamSynchronize(nullptr));
  }
  void read(void* data, size_t bytes, size_t offset) override {
    CU(cudaSetDevice(ordinal_));
    CU(cudaMemcpy(data, at(offset), bytes, cudaMemcpyDeviceToHost));
  }
  void set(uint8_t byte, size_t bytes, size_t offset) override {
    CU(cudaSetDevice(ordinal_));
    CU(cudaMemset(at(offset), byte, bytes));
    CU(cudaStreamSynchronize(nullptr));  // as above
  }
  tandem_buffer handle(size_t offset) const override {
    return {uint64_t(reinterpret_cast<uintptr_t>(base_)), offset};
  }
  tandem_buffer address(size_t offset) const override { return handle(offset); }

 private:
  char* at(size_t offset) const { return static_cast<char*>(base_) + offset; }
  const int ordinal_;
  void* base_ = nullptr;
};

class CudaSession : public Session {
 public:
  CudaSession(int ordinal, const SessionOptions& options) : ordinal_(ordinal) {
    name_ = "cuda:" + std::to_string(ordinal);
    const tandem_device_options o = device_options(options);
    tandem_device* device = nullptr;
    check(tandem_cuda_device_create(ordinal, &o, &device));
#ifdef TANDEM_CUDA_EMULATED  // tests/cuda/emulated
    takes_host_memory_ = true;
#endif
    adopt(device, options);
    try {
      CU(cudaSetDevice(ordinal));
      CU(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
      CU(cudaEventCreate(&begin_));
      CU(cudaEventCreate(&end_));
    } catch (...) {
      release();
      throw;
    }
  }
  ~CudaSession() override { release(); }

  void submit(const std::function<void(tandem_stream)>& record) override {
    CU(cudaSetDevice(ordinal_));
    record(tandem_cuda_stream(stream_));
    CU(cudaStreamSynchronize(stream_));
  }

 protected:
  std::unique_ptr<Memory> allocate(size_t bytes) override {
    return std::make_unique<CudaMemory>(ordinal_, bytes);
  }
  double measure(const std::function<void(tandem_stream)>& record, int times) override {
    CU(cudaSetDevice(ordinal_));
    CU(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < times; ++i) record(tandem_cuda_stream(stream_));
    CU(cudaEventRecord(end_, stream_));
    CU(cudaEventSynchronize(end_));
    float ms = 0;
    CU(cudaEventElapsedTime(&ms, begin_, end_));
    return 1e-3 * double(ms);
  }
  const char* clock() const override { return "events"; }

 private:
  void release() {
    cudaSetDevice(ordinal_);
    if (begin_) cudaEventDestroy(begin_);
    if (end_) cudaEventDestroy(end_);
    if (stream_) cudaStreamDestroy(stream_);
    close();
  }
  const int ordinal_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

void list_cuda(std::vector<DeviceName>* devices) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    DeviceName none;
    none.name = "cuda";
    none.reason = error == cudaSuccess || error == cudaErrorNoDevice
                      ? "no CUDA device on this machine"
                      : std::string("no usable NVIDIA driver: ") + cudaGetErrorString(error);
    devices->push_back(none);
    return;
  }
  for (int i = 0; i < count; ++i) {
    DeviceName d;
    d.name = "cuda:" + std::to_string(i);
    cudaDeviceProp properties;
    const cudaError_t e = cudaGetDeviceProperties(&properties, i);
    if (e == cudaSuccess)
      d.human = properties.name;
    else
      d.reason = cudaGetErrorString(e);
    devices->push_back(d);
  }
}

std::unique_ptr<Session> open_cuda(int index, const SessionOptions& options) {
  return std::make_unique<CudaSession>(index, options);
}

#else  // the build has no CUDA

namespace {
constexpr const char* kNotBuilt = "this build has no CUDA (TANDEM_CUDA=OFF)";
}

void list_cuda(std::vector<DeviceName>* devices) {
  DeviceName none;
  none.name = "cuda";
  none.reason = kNotBuilt;
  devices->push_back(none);
}

std::unique_ptr<Session> open_cuda(int, const SessionOptions&) {
  throw Error(TANDEM_ERROR_NO_BACKEND, kNotBuilt);
}

#endif

}  // namespace tandem::harness
