// SPDX-License-Identifier: MIT OR Apache-2.0
// The threads of a CPU device and their scratch memory. One job runs at a time, on all threads,
// including the caller's.
#ifndef TANDEM_SRC_CPU_POOL_H
#define TANDEM_SRC_CPU_POOL_H
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define TANDEM_PTHREADS 1
#else
#include <thread>
#define TANDEM_PTHREADS 0
#endif

#include "base/host_memory.h"

namespace tandem {

class Pool {
 public:
  explicit Pool(unsigned threads);  // 0: one per hardware thread
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  unsigned threads() const { return unsigned(workers_.size()) + 1; }

  // Makes every thread's scratch at least this large; throws std::bad_alloc.
  void reserve(size_t scratch_bytes);

  // Calls work(unit, scratch) for every unit below units, started in ascending order. Returns when
  // all are done, and rethrows the first exception. scratch is 64-byte aligned and belongs to the
  // thread. alone: runs on the calling thread only, for jobs not worth waking the others.
  using Work = FunctionRef<void(int64_t unit, void* scratch)>;
  void run(int64_t units, const Work& work, bool alone = false);

 private:
  struct Scratch {
    Vec<unsigned char> bytes;
    void* data() const;
  };
  void serve(unsigned slot);
  void drain(unsigned slot);
  void stop();

  // std::thread allocates, and cannot be given an allocator.
  struct Worker {
    Pool* pool;
    unsigned slot;
#if TANDEM_PTHREADS
    pthread_t thread;
    void start();
    void join() { pthread_join(thread, nullptr); }
#else
    std::thread thread;
    void start();
    void join() { thread.join(); }
#endif
    void serve() const;
  };

  Vec<Worker> workers_;   // those that run
  Vec<Scratch> scratch_;  // one per thread, the caller's last
  size_t scratch_bytes_ = 0;
  const HostMemory memory_ = HostScope::current();  // of the workers

  std::mutex turn_;  // held while a job runs
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  uint64_t job_ = 0;  // incremented by every job
  unsigned busy_ = 0;
  bool quit_ = false;
  const Work* work_ = nullptr;
  int64_t units_ = 0;
  std::atomic<int64_t> next_{0};
  std::exception_ptr error_;
};

}  // namespace tandem
#endif
