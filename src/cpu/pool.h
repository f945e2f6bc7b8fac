// SPDX-License-Identifier: MIT OR Apache-2.0
// The threads of a CPU device and their scratch memory. Callers take turns: one job runs at a time, on all
// threads, the caller's own included.
#ifndef TANDEM_SRC_CPU_POOL_H
#define TANDEM_SRC_CPU_POOL_H
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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

  // work(unit, scratch) for every unit below units, in ascending order of start. Returns when all are
  // done; the first exception is thrown again here. scratch is 64-byte aligned and the thread's own.
  // alone: on the calling thread only, for jobs not worth waking the others.
  using Work = std::function<void(int64_t unit, void* scratch)>;
  void run(int64_t units, const Work& work, bool alone = false);

 private:
  struct Scratch {
    std::vector<unsigned char> bytes;
    void* data() const;
  };
  void serve(unsigned slot);
  void drain(unsigned slot);
  void stop();

  std::vector<std::thread> workers_;
  std::vector<Scratch> scratch_;  // one per thread, the caller's last
  size_t scratch_bytes_ = 0;

  std::mutex turn_;  // held while a job runs
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  uint64_t job_ = 0;  // counts up with every job
  unsigned busy_ = 0;
  bool quit_ = false;
  const Work* work_ = nullptr;
  int64_t units_ = 0;
  std::atomic<int64_t> next_{0};
  std::exception_ptr error_;
};

}  // namespace tandem
#endif
