// SPDX-License-Identifier: MIT OR Apache-2.0
// The side of libtandem_cuda: what it exports, and host memory by way of libtandem, in place of
// base/host_memory.cpp.
#include "plugin.h"

#include <atomic>

namespace tandem {
namespace {
std::atomic<const CudaHost*> lender{nullptr};  // set before anything else is called
}

void* host_allocate(size_t size, size_t alignment) {
  return lender.load(std::memory_order_relaxed)->allocate(size, alignment);
}

void host_release(void* memory) noexcept {
  if (memory) lender.load(std::memory_order_relaxed)->release(memory);
}

}  // namespace tandem

const tandem::CudaPlugin* tandem_cuda_plugin(const tandem::CudaHost* host) {
  static constexpr tandem::CudaPlugin kPlugin = {tandem::kCudaPluginHead, &tandem::kCudaBackend};
  tandem::lender.store(host);
  return &kPlugin;
}
