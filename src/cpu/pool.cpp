// SPDX-License-Identifier: MIT OR Apache-2.0
#include "pool.h"

#include <new>
#include <thread>

namespace tandem {

constexpr size_t kAlign = 64;

void* Pool::Scratch::data() const {
  const uintptr_t p = reinterpret_cast<uintptr_t>(bytes.data());
  return reinterpret_cast<void*>((p + kAlign - 1) / kAlign * kAlign);
}

Pool::Pool(unsigned threads) {
  if (threads == 0) threads = std::thread::hardware_concurrency();
  if (threads == 0) threads = 1;
  scratch_.resize(threads);
  workers_.reserve(threads - 1);
  try {
    for (unsigned slot = 0; slot + 1 < threads; ++slot) {
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

Pool::~Pool() { stop(); }

void Pool::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (Worker& w : workers_) w.join();
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

void Pool::serve(unsigned slot) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (uint64_t seen = 0;;) {
    wake_.wait(lock, [&] { return quit_ || job_ != seen; });
    if (quit_) return;
    seen = job_;
    lock.unlock();
    drain(slot);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

void Pool::run(int64_t units, const Work& work, bool alone) {
  if (units <= 0) return;
  std::lock_guard<std::mutex> turn(turn_);
  alone = alone || units == 1 || workers_.empty();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    units_ = units;
    next_.store(0, std::memory_order_relaxed);
    error_ = nullptr;
    if (!alone) {
      busy_ = unsigned(workers_.size());
      ++job_;
    }
  }
  if (!alone) wake_.notify_all();
  drain(unsigned(workers_.size()));
  std::unique_lock<std::mutex> lock(mutex_);
  if (!alone) done_.wait(lock, [&] { return busy_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace tandem
