// SPDX-License-Identifier: MIT OR Apache-2.0
// The side of libtandem_cuda: what it exports, and host memory by way of libtandem, in place of
// base/host_memory.cpp.
#include "plugin.h"

#include <atomic>

namespace tandem {
namespace {

// In the order in which they came; then null.
std::atomic<const CudaHost*> hosts[16];

bool borrow(const CudaHost* host) {
  for (std::atomic<const CudaHost*>& place : hosts) {
    const CudaHost* there = nullptr;
    if (place.compare_exchange_strong(there, host) || there == host) return true;
  }
  return false;
}

const CudaHost& host_of_thread() {
  for (const std::atomic<const CudaHost*>& place : hosts) {
    const CudaHost* host = place.load(std::memory_order_acquire);
    if (!host) break;
    if (host->is_in_scope()) return *host;
  }
  return *hosts[0].load(std::memory_order_acquire);
}

}  // namespace

void* host_allocate(size_t size, size_t alignment) {
  return host_of_thread().allocate(size, alignment);
}

// A block stores what releases it, so any copy will do.
void host_release(void* memory) noexcept {
  if (memory) hosts[0].load(std::memory_order_acquire)->release(memory);
}

}  // namespace tandem

const tandem::CudaPlugin* tandem_cuda_plugin() {
  static constexpr tandem::CudaPlugin kPlugin = {tandem::kCudaPluginHead, &tandem::kCudaBackend,
                                                 tandem::borrow};
  return &kPlugin;
}
