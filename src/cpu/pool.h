// SPDX-License-Identifier: MIT OR Apache-2.0
// The threads of a CPU device and their scratch memory. One job runs at a time, on the caller's
// thread and on as many others as it is worth. A job does not wait for threads that wake when its
// work is begun, so it is no slower where others keep the processors busy.
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

#include "base/fork.h"
#include "base/host_memory.h"

namespace tandem {

class Pool final : private ForkHook {
 public:
  explicit Pool(unsigned threads);  // 0: usable_threads()
  ~Pool();

  unsigned threads() const { return unsigned(scratch_.size()); }

  // Makes every thread's scratch at least this large; throws std::bad_alloc.
  void reserve(size_t scratch_bytes);

  // Calls work(unit, scratch) for every unit below units, started in ascending order. Returns when
  // all are done, and rethrows the first exception. scratch is 64-byte aligned and belongs to the
  // thread. most: threads that the job is worth, the caller's included.
  using Work = FunctionRef<void(int64_t unit, void* scratch)>;
  void run(int64_t units, const Work& work, unsigned most = ~0u);

 private:
  struct Scratch {
    Vec<unsigned char> bytes;
    void* data() const;
  };
  void start();
  void serve(unsigned slot);
  void drain(unsigned slot);
  unsigned take_wakes();
  void wake(unsigned count);
  void stop();
  void after_fork_in_child() noexcept override;

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

  Vec<Worker> workers_;   // those that run: all, or none in a child of fork() before its first job
  Vec<Scratch> scratch_;  // one per thread, the caller's last
  size_t scratch_bytes_ = 0;
  ForkMutex scratch_mutex_;                         // of both while they change
  const HostMemory memory_ = HostScope::current();  // of the workers

  std::mutex turn_;  // held while a job runs
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  // Of the job: workers that may still join it, those of them that no thread has set out to wake,
  // and workers that have joined and are not done.
  unsigned seats_ = 0, wakes_ = 0, busy_ = 0;
  bool quit_ = false;
  const Work* work_ = nullptr;
  int64_t units_ = 0;
  std::atomic<int64_t> next_{0};
  std::exception_ptr error_;
};

}  // namespace tandem
#endif
