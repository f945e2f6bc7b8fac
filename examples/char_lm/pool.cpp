// SPDX-License-Identifier: MIT OR Apache-2.0
#include "pool.h"

#include <algorithm>

namespace char_lm {

Pool::Pool(unsigned threads) {
  for (unsigned i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    quit_ = true;
  }
  start_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Pool::piece(unsigned index) const {
  const long begin = std::min(size_, long(index) * step_);
  const long end = std::min(size_, begin + step_);
  if (begin < end) (*body_)(begin, end);
}

void Pool::work(unsigned index) {
  unsigned long seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    start_.wait(lock, [&] { return quit_ || job_ != seen; });
    if (quit_) return;
    seen = job_;
    lock.unlock();
    piece(index);
    lock.lock();
    if (--busy_ == 0) finished_.notify_one();
  }
}

void Pool::run(long size, long grain, const std::function<void(long, long)>& body) {
  const long pieces = long(threads_.size()) + 1;
  const long grains = (size + grain - 1) / grain;
  const long step = (grains + pieces - 1) / pieces * grain;
  if (pieces == 1 || grains <= 1) {
    if (size > 0) body(0, size);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    body_ = &body;
    size_ = size;
    step_ = step;
    busy_ = unsigned(threads_.size());
    ++job_;
  }
  start_.notify_all();
  piece(0);
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [&] { return busy_ == 0; });
}

}  // namespace char_lm
