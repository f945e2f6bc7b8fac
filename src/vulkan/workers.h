// SPDX-License-Identifier: MIT OR Apache-2.0
// Units of work on threads that live as long as the call.
#ifndef TANDEM_SRC_VULKAN_WORKERS_H
#define TANDEM_SRC_VULKAN_WORKERS_H
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/host_memory.h"
#include "base/status.h"

namespace tandem {

// Calls work(unit), a Status, for each unit below `units`, on at most `threads` threads: the
// calling one and others, which allocate from the same host memory. Once a unit fails no other
// begins. Returns the failure of the lowest unit that failed, and throws what the first unit that
// threw did. One thread, or one unit: all on the calling thread, in order.
template <typename Work>
Status run_on_threads(size_t units, unsigned threads, const Work& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;  // of the three below
  std::exception_ptr thrown;
  size_t failed = units;
  Status failure;
  const auto stop = [&] { next = units; };
  const auto serve = [&] {
    for (size_t unit; (unit = next.fetch_add(1)) < units;) {
      try {
        Status status = work(unit);
        if (status.ok()) continue;
        stop();
        const std::lock_guard<std::mutex> lock(mutex);
        if (unit < failed) failed = unit, failure = std::move(status);
      } catch (...) {
        stop();
        const std::lock_guard<std::mutex> lock(mutex);
        if (!thrown) thrown = std::current_exception();
      }
    }
  };
  constexpr size_t kMost = 64;
  std::thread others[kMost];
  const size_t wanted = std::min({size_t(threads), units, kMost});
  const HostMemory memory = HostScope::current();
  for (size_t n = 0; n + 1 < wanted; ++n) {
    try {
      others[n] = std::thread([&] {
        const HostScope scope(memory);
        serve();
      });
    } catch (const std::system_error&) {
      break;  // the system has no more threads: those that there are do all
    } catch (const std::bad_alloc&) {
      break;
    }
  }
  serve();
  for (std::thread& t : others)
    if (t.joinable()) t.join();
  if (thrown) std::rethrow_exception(thrown);
  return failure;
}

}  // namespace tandem
#endif
