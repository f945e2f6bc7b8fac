// SPDX-License-Identifier: MIT OR Apache-2.0
// What the tests of the Hopper kernels share: device memory that frees itself, launches, and tensor
// maps.
#ifndef TANDEM_TESTS_CUDA_SM90_DEVICE_H
#define TANDEM_TESTS_CUDA_SM90_DEVICE_H
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace sm90_test {

// What was launched last; an error that stays says nothing more than that.
inline const char*& doing() {
  static const char* what = "";
  return what;
}

inline void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s (%s): %s\n", what, doing(), cudaGetErrorString(error));
  std::exit(1);
}

// Whether there is a device that the kernels run on.
inline bool has_hopper() {
  int count = 0, major = 0, minor = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "attribute");
  must(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "attribute");
  return major == 9 && minor == 0;
}

template <typename T>
class Memory {
 public:
  explicit Memory(size_t count) : count_(count) {
    must(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    must(cudaMemset(data_, 0xff, count * sizeof(T)), "cudaMemset");  // NaN
  }
  explicit Memory(const std::vector<T>& from) : Memory(from.size()) {
    must(cudaMemcpy(data_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  T* get() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> to(count_);
    must(cudaDeviceSynchronize(), "kernel");
    must(cudaMemcpy(to.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return to;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// kernel<<<blocks, threads, bytes>>>(arguments...), on a GPU or on the emulator. cluster: blocks of
// one, which on a GPU is the kernel's attribute.
template <typename... P, typename... A>
void launch_clusters([[maybe_unused]] unsigned cluster, void (*kernel)(P...), unsigned blocks,
                     unsigned threads, size_t bytes, const A&... arguments) {
#if defined(__CUDACC__)
  kernel<<<blocks, threads, bytes>>>(arguments...);
  must(cudaGetLastError(), "launch");
#else
  auto grid = std::make_unique<simt::Grid>();
  grid->body = [=] { kernel(arguments...); };
  grid->name = doing();
  grid->size = {blocks, 1, 1}, grid->threads = {threads, 1, 1}, grid->shared_bytes = bytes;
  grid->cluster = cluster;
  simt::machine().launch(std::move(grid));
#endif
}
template <typename... P, typename... A>
void launch(void (*kernel)(P...), unsigned blocks, unsigned threads, size_t bytes,
            const A&... arguments) {
  launch_clusters(1, kernel, blocks, threads, bytes, arguments...);
}

struct Shape4 {  // feature, row, head, batch; strides of the last three in elements
  uint64_t size[4], stride[3];
};

inline CUtensorMap make_map(const void* data, const Shape4& shape, int rows, bool bf16 = true) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  must(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                        &result),
       "cudaGetDriverEntryPointByVersion");
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  CUtensorMap map;
  const cuuint64_t size[4] = {shape.size[0], shape.size[1], shape.size[2], shape.size[3]};
  const cuuint64_t stride[3] = {shape.stride[0] * 2, shape.stride[1] * 2, shape.stride[2] * 2};
  const cuuint32_t box[4] = {64, cuuint32_t(rows), 1, 1}, step[4] = {1, 1, 1, 1};
  const CUresult error =
      encode(&map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
             const_cast<void*>(data), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled: CUresult %d\n", int(error));
    std::exit(1);
  }
  return map;
}

}  // namespace sm90_test
#endif
