// SPDX-License-Identifier: MIT OR Apache-2.0
// What a child of fork() finds: one thread, mutexes as other threads of its parent held them, and
// GPU drivers that do not work any more.
#ifndef TANDEM_SRC_BASE_FORK_H
#define TANDEM_SRC_BASE_FORK_H
#include <cstdint>
#include <mutex>

namespace tandem {

// Forks between this process and the one that first called watch_forks(). Where another number was
// noted, an ancestor noted it.
uint64_t fork_count() noexcept;

// Throws std::bad_alloc. Forks from here on count, and call the hooks.
void watch_forks();

// Is told of forks from watch() to unwatch(), on the thread that forks. Allocates nothing then.
class ForkHook {
 public:
  ForkHook() = default;
  ForkHook(const ForkHook&) = delete;
  ForkHook& operator=(const ForkHook&) = delete;
  virtual void before_fork() noexcept {}
  virtual void after_fork_in_parent() noexcept {}
  virtual void after_fork_in_child() noexcept = 0;

 protected:
  ~ForkHook() = default;
  // When the object is whole: the last thing of a constructor, and the first of a destructor.
  void watch() noexcept;
  void unwatch() noexcept;

 private:
  friend struct ForkHooks;
  ForkHook *earlier_ = nullptr, *later_ = nullptr;
};

// A mutex for short times, that a child of fork() finds unlocked, with what it guards whole. What
// holds one may not lock another one, nor fork.
class ForkMutex final : private ForkHook {
 public:
  ForkMutex() noexcept { watch(); }
  ~ForkMutex() { unwatch(); }
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override { mutex_.unlock(); }
  std::mutex mutex_;
};

}  // namespace tandem
#endif
