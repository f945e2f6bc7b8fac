// SPDX-License-Identifier: MIT OR Apache-2.0
#include "pool.h"

#include <algorithm>
#include <new>
#include <thread>

#include "base/usable_threads.h"

namespace tandem {

constexpr size_t kAlign = 64;

void* Pool::Scratch::data() const {
  const uintptr_t p = reinterpret_cast<uintptr_t>(bytes.data());
  return reinterpret_cast<void*>((p + kAlign - 1) / kAlign * kAlign);
}

Pool::Pool(unsigned threads) {
  if (threads == 0) threads = usable_threads();
  scratch_.resize(threads);
  workers_.reserve(threads - 1);
  start();
  watch();
}

void Pool::start() {
  try {
    for (auto slot = unsigned(workers_.size()); slot + 1 < threads(); ++slot) {
      workers_.push_back({this, slot, {}});
      try {
        workers_.back().start();
      } catch (...) {
        workers_.pop_back();
        throw;
      }
    }
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() {
  unwatch();
  stop();
}

// The workers are not there, and what they and other callers had locked stays locked. The scratch
// memory is kept.
void Pool::after_fork_in_child() noexcept {
  workers_.clear();  // joins nothing
  new (&turn_) std::mutex;
  new (&mutex_) std::mutex;
  new (&wake_) std::condition_variable;
  new (&done_) std::condition_variable;
  new (&error_) std::exception_ptr;
  seats_ = wakes_ = busy_ = 0;
}

void Pool::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (Worker& w : workers_) w.join();
  workers_.clear();
  quit_ = false;
}

void Pool::Worker::serve() const {
  const HostScope scope(pool->memory_);
  pool->serve(slot);
}

// workers_ has reserved its room, so this is not moved.
void Pool::Worker::start() {
#if TANDEM_PTHREADS
  const auto entry = [](void* worker) -> void* {
    static_cast<const Worker*>(worker)->serve();
    return nullptr;
  };
  if (pthread_create(&thread, nullptr, entry, this) != 0) throw std::bad_alloc();
#else
  thread = std::thread([this] { serve(); });
#endif
}

void Pool::reserve(size_t scratch_bytes) {
  std::lock_guard<std::mutex> turn(turn_);
  if (scratch_bytes <= scratch_bytes_) return;
  Vec<Scratch> larger(scratch_.size());
  for (Scratch& s : larger) s.bytes.resize(scratch_bytes + kAlign);
  const std::lock_guard<ForkMutex> change(scratch_mutex_);
  scratch_.swap(larger);  // only when all exist, as plans built earlier rely on the old size
  scratch_bytes_ = scratch_bytes;
}

void Pool::drain(unsigned slot) {
  void* scratch = scratch_[slot].data();
  for (;;) {
    const int64_t unit = next_.fetch_add(1, std::memory_order_relaxed);
    if (unit >= units_) return;
    try {
      (*work_)(unit, scratch);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_.store(units_, std::memory_order_relaxed);
    }
  }
}

// With the mutex locked: how many workers this thread is to wake. Each thread wakes two, so that
// waking many takes the caller no longer than waking a few.
unsigned Pool::take_wakes() {
  const unsigned count = std::min(wakes_, 2u);
  wakes_ -= count;
  return count;
}

void Pool::wake(unsigned count) {
  for (unsigned n = 0; n < count; ++n) wake_.notify_one();
}

void Pool::serve(unsigned slot) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return quit_ || seats_ > 0; });
    if (quit_) return;
    --seats_;
    ++busy_;
    const unsigned wakes = take_wakes();
    lock.unlock();
    wake(wakes);
    drain(slot);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

void Pool::run(int64_t units, const Work& work, unsigned most) {
  if (units <= 0) return;
  std::lock_guard<std::mutex> turn(turn_);
  const auto others =
      unsigned(std::min({units, int64_t(std::max(most, 1u)), int64_t(threads())}) - 1);
  if (others > 0 && workers_.empty()) start();
  std::unique_lock<std::mutex> lock(mutex_);
  work_ = &work;
  units_ = units;
  next_.store(0, std::memory_order_relaxed);
  error_ = nullptr;
  seats_ = wakes_ = others;
  const unsigned wakes = take_wakes();
  lock.unlock();
  wake(wakes);
  drain(unsigned(scratch_.size() - 1));
  lock.lock();
  seats_ = wakes_ = 0;
  done_.wait(lock, [&] { return busy_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace tandem
