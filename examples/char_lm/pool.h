// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads for the example's own arithmetic. They sleep between jobs, so that the attention device
// has the cores to itself while it works.
#ifndef TANDEM_EXAMPLES_CHAR_LM_POOL_H
#define TANDEM_EXAMPLES_CHAR_LM_POOL_H
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace char_lm {

class Pool {
 public:
  explicit Pool(unsigned threads = std::thread::hardware_concurrency());
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Cuts [0, size) into one piece per thread, each a multiple of grain but for the last, and runs
  // body(begin, end) on all of them. Returns when all are done. The cuts depend on size, grain and
  // the number of threads only.
  void run(long size, long grain, const std::function<void(long, long)>& body);

 private:
  void work(unsigned index);
  void piece(unsigned index) const;

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable start_, finished_;
  const std::function<void(long, long)>* body_ = nullptr;
  long size_ = 0, step_ = 0;
  unsigned long job_ = 0;
  unsigned busy_ = 0;
  bool quit_ = false;
};

}  // namespace char_lm
#endif
