// SPDX-License-Identifier: MIT OR Apache-2.0
// Host memory. Every allocation of the library goes through host_allocate(): by the containers of
// this header in place of std's, and by HostObject, the base of objects made with new. It calls the
// callbacks of the HostScope that the thread is in. Each entry of the C API, and each worker of a
// CPU device, opens the scope of its device. A block stores what releases it.
#ifndef TANDEM_SRC_BASE_HOST_MEMORY_H
#define TANDEM_SRC_BASE_HOST_MEMORY_H
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "tandem/tandem.h"

namespace tandem {

struct HostMemory {  // an application's callbacks; none: operator new and delete
  void* (*allocate)(void* user, size_t size, size_t alignment) = nullptr;
  void (*release)(void* user, void* memory) = nullptr;
  void* user = nullptr;
  HostMemory() = default;
  explicit HostMemory(const tandem_device_options& o)
      : allocate(o.allocate), release(o.release), user(o.memory_user) {}
};

// Source of this thread's allocations during its lifetime.
class HostScope {
 public:
  explicit HostScope(const HostMemory& memory) noexcept;
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;
  static HostMemory current() noexcept;  // of this thread
  static bool is_open() noexcept;        // whether this thread is in one

 private:
  const HostMemory memory_;
  const HostMemory* const before_;
};

void* host_allocate(size_t size, size_t alignment);  // throws std::bad_alloc
void host_release(void* memory) noexcept;

template <typename T>
struct HostAllocator {
  using value_type = T;
  HostAllocator() = default;
  template <typename U>
  HostAllocator(const HostAllocator<U>&) noexcept {}
  T* allocate(size_t n) {
    if (n > size_t(-1) / 2 / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(host_allocate(n * sizeof(T), alignof(T)));
  }
  void deallocate(T* p, size_t) noexcept { host_release(p); }
  template <typename U>
  bool operator==(const HostAllocator<U>&) const noexcept {
    return true;
  }
  template <typename U>
  bool operator!=(const HostAllocator<U>&) const noexcept {
    return false;
  }
};

using String = std::basic_string<char, std::char_traits<char>, HostAllocator<char>>;
template <typename T>
using Vec = std::vector<T, HostAllocator<T>>;
template <typename Key, typename T>
using Map = std::map<Key, T, std::less<Key>, HostAllocator<std::pair<const Key, T>>>;
template <typename T, typename... Args>
std::shared_ptr<T> make_host_shared(Args&&... args) {
  return std::allocate_shared<T>(HostAllocator<T>(), std::forward<Args>(args)...);
}

struct HostObject {
  static void* operator new(size_t size) { return host_allocate(size, alignof(std::max_align_t)); }
  static void* operator new(size_t size, std::align_val_t alignment) {
    return host_allocate(size, size_t(alignment));
  }
  static void operator delete(void* memory) noexcept { host_release(memory); }
};

// A callable that owns its state; movable, not copyable. As std::function, which takes no
// allocator.
template <typename Signature>
class Function;
template <typename Result, typename... Args>
class Function<Result(Args...)> {
 public:
  Function() = default;
  template <typename Callable,
            typename = std::enable_if_t<!std::is_same<std::decay_t<Callable>, Function>::value>>
  Function(Callable&& callable)
      : held_(new Holds<std::decay_t<Callable>>(std::forward<Callable>(callable))) {}
  Result operator()(Args... args) const { return held_->call(std::forward<Args>(args)...); }

 private:
  struct Held : HostObject {
    virtual ~Held() = default;
    virtual Result call(Args... args) = 0;
  };
  template <typename Callable>
  struct Holds final : Held {
    Callable callable;
    template <typename From>
    explicit Holds(From&& from) : callable(std::forward<From>(from)) {}
    Result call(Args... args) override { return callable(std::forward<Args>(args)...); }
  };
  std::unique_ptr<Held> held_;
};

// A reference to the caller's callable, for the length of a call.
template <typename Signature>
class FunctionRef;
template <typename Result, typename... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <typename Callable,
            typename = std::enable_if_t<!std::is_same<std::decay_t<Callable>, FunctionRef>::value>>
  FunctionRef(const Callable& callable)
      : object_(&callable), call_([](const void* object, Args... args) -> Result {
          return (*static_cast<const Callable*>(object))(std::forward<Args>(args)...);
        }) {}
  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  const void* object_;
  Result (*call_)(const void*, Args...);
};

}  // namespace tandem
#endif
