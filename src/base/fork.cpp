// SPDX-License-Identifier: MIT OR Apache-2.0
#include "fork.h"

#include <atomic>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define TANDEM_FORKS 1
#else
#define TANDEM_FORKS 0
#endif

namespace tandem {

struct ForkHooks {
  std::mutex mutex;  // held during a fork
  ForkHook* first = nullptr;
  std::mutex watch_mutex;
  bool watched = false;
  std::atomic<uint64_t> count{0};

  // Never destroyed: an application may destroy devices at exit.
  static ForkHooks& all() noexcept {
    alignas(ForkHooks) static unsigned char room[sizeof(ForkHooks)];
    static ForkHooks* hooks = new (room) ForkHooks;
    return *hooks;
  }
  void add(ForkHook* hook) noexcept {
    const std::lock_guard<std::mutex> lock(mutex);
    hook->later_ = first;
    if (first) first->earlier_ = hook;
    first = hook;
  }
  void remove(ForkHook* hook) noexcept {
    const std::lock_guard<std::mutex> lock(mutex);
    (hook->earlier_ ? hook->earlier_->later_ : first) = hook->later_;
    if (hook->later_) hook->later_->earlier_ = hook->earlier_;
  }
  template <typename Tell>
  void each(Tell tell) noexcept {
    for (ForkHook* hook = first; hook; hook = hook->later_) tell(*hook);
  }

#if TANDEM_FORKS
  static void prepare() {
    all().mutex.lock();
    all().each([](ForkHook& hook) { hook.before_fork(); });
  }
  static void in_parent() {
    all().each([](ForkHook& hook) { hook.after_fork_in_parent(); });
    all().mutex.unlock();
  }
  static void in_child() {
    all().count.fetch_add(1, std::memory_order_relaxed);
    all().each([](ForkHook& hook) { hook.after_fork_in_child(); });
    all().mutex.unlock();
  }
#endif
};

uint64_t fork_count() noexcept { return ForkHooks::all().count.load(std::memory_order_relaxed); }

void watch_forks() {
#if TANDEM_FORKS
  ForkHooks& hooks = ForkHooks::all();
  const std::lock_guard<std::mutex> lock(hooks.watch_mutex);
  if (hooks.watched) return;
  if (pthread_atfork(ForkHooks::prepare, ForkHooks::in_parent, ForkHooks::in_child) != 0)
    throw std::bad_alloc();
  hooks.watched = true;
#endif
}

void ForkHook::watch() noexcept { ForkHooks::all().add(this); }
void ForkHook::unwatch() noexcept { ForkHooks::all().remove(this); }

}  // namespace tandem
