// SPDX-License-Identifier: MIT OR Apache-2.0
//
// tandem.hpp - the C API with destructors. C++17, header only; adds no feature and hides none:
// every class gives out its C handle with get().
//
// Errors    Every call that can fail exists twice, as in std::filesystem. Without a status argument
//           it throws tandem::Error. With one (a tandem_status&, the last argument) it never throws
//           and leaves its result empty on failure. Built without exceptions, only the second form
//           exists.
// Lifetime  A Device must outlive its Plans, as in tandem.h.
#ifndef TANDEM_TANDEM_HPP
#define TANDEM_TANDEM_HPP
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem.h"

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#include <stdexcept>
#define TANDEM_HPP_EXCEPTIONS 1
#else
#define TANDEM_HPP_EXCEPTIONS 0
#endif

namespace tandem {
// Inline and versioned, so that these names never meet the library's own in a static link.
inline namespace v0 {

#if TANDEM_HPP_EXCEPTIONS
class Error : public std::runtime_error {
 public:
  Error(tandem_status status, const char* message)
      : std::runtime_error(std::string(tandem_status_string(status)) + ": " + message),
        status_(status) {}
  tandem_status status() const noexcept { return static_cast<tandem_status>(status_); }

 private:
  std::intptr_t status_;  // as wide as a pointer: no padding
};

// Throws the calling thread's last message unless status is TANDEM_OK.
inline void check(tandem_status status) {
  if (status != TANDEM_OK) throw Error(status, tandem_last_message());
}
#endif

// A view of contiguous memory: from a pointer and a count, an array, or anything with data() and
// size().
template <typename T>
class Span {
 public:
  constexpr Span() noexcept = default;
  constexpr Span(T* data, size_t size) noexcept : data_(data), size_(size) {}
  template <size_t N>
  constexpr Span(T (&array)[N]) noexcept : data_(array), size_(N) {}
  template <typename Container,
            typename = decltype(static_cast<T*>(std::declval<Container&>().data()))>
  constexpr Span(Container&& c) noexcept : data_(c.data()), size_(c.size()) {}
  constexpr T* data() const noexcept { return data_; }
  constexpr size_t size() const noexcept { return size_; }
  constexpr T& operator[](size_t i) const { return data_[i]; }
  constexpr T* begin() const noexcept { return data_; }
  constexpr T* end() const noexcept { return data_ + size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// Host memory as the CPU device takes it, from element `first` on.
template <typename T>
tandem_buffer host_buffer(Span<T> memory, size_t first = 0) noexcept {
  return {uint64_t(reinterpret_cast<uintptr_t>(memory.data())), uint64_t(first * sizeof(T))};
}
template <typename T>
tandem_buffer host_buffer(T* memory, size_t first = 0) noexcept {
  return host_buffer(Span<T>(memory, 0), first);
}

namespace detail {
template <typename Fill>
std::string text(Fill fill) {
  std::string s(fill(nullptr, 0), '\0');
  if (!s.empty()) {
    fill(&s[0], s.size());
    s.pop_back();  // the final NUL
  }
  return s;
}
}  // namespace detail

class Device {
 public:
  Device() = default;
  // Takes over a device that tandem_vk_device_create() or tandem_cuda_device_create() has made.
  explicit Device(tandem_device* adopted) noexcept : handle_(adopted) {}

  static Device cpu(const tandem_device_options* options, tandem_status& status) noexcept {
    tandem_device* made = nullptr;
    status = tandem_cpu_device_create(options, &made);
    return Device(made);
  }
  tandem_device_info info(tandem_status& status) const noexcept {
    tandem_device_info info{};
    info.struct_size = uint32_t(sizeof info);
    status = tandem_device_get_info(get(), &info);
    return info;
  }
  std::vector<uint8_t> cache(tandem_status& status) const {
    std::vector<uint8_t> blob;
    size_t size = 0;
    status = tandem_device_get_cache(get(), &size, nullptr);
    if (status != TANDEM_OK) return blob;
    blob.resize(size);
    status = tandem_device_get_cache(get(), &size, blob.data());
    blob.resize(status == TANDEM_OK ? size : 0);
    return blob;
  }
  void set_cache(Span<const uint8_t> blob, tandem_status& status) noexcept {
    status = tandem_device_set_cache(get(), blob.size(), blob.data());
  }
  std::string describe() const {
    return detail::text([&](char* s, size_t n) { return tandem_device_describe(get(), s, n); });
  }
  uint64_t least_workspace(const tandem_problem& problem, tandem_status& status) const noexcept {
    uint64_t bytes = 0;
    status = tandem_least_workspace(get(), &problem, &bytes);
    return bytes;
  }
  std::string explain(const tandem_problem& problem) const {
    return detail::text([&](char* s, size_t n) { return tandem_explain(get(), &problem, s, n); });
  }

#if TANDEM_HPP_EXCEPTIONS
  static Device cpu(const tandem_device_options* options = nullptr) {
    tandem_status status;
    Device device = cpu(options, status);
    check(status);
    return device;
  }
  tandem_device_info info() const {
    tandem_status status;
    const tandem_device_info result = info(status);
    check(status);
    return result;
  }
  uint64_t least_workspace(const tandem_problem& problem) const {
    tandem_status status;
    const uint64_t bytes = least_workspace(problem, status);
    check(status);
    return bytes;
  }
  std::vector<uint8_t> cache() const {
    tandem_status status;
    std::vector<uint8_t> blob = cache(status);
    check(status);
    return blob;
  }
  void set_cache(Span<const uint8_t> blob) {
    tandem_status status;
    set_cache(blob, status);
    check(status);
  }
#endif

  tandem_device* get() const noexcept { return handle_.get(); }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  struct Destroy {
    void operator()(tandem_device* device) const noexcept { tandem_device_destroy(device); }
  };
  std::unique_ptr<tandem_device, Destroy> handle_;
};

class Plan {
 public:
  Plan() = default;
  explicit Plan(tandem_plan* adopted) noexcept : handle_(adopted) {}
  Plan(tandem_device* device, const tandem_problem& problem, tandem_status& status) noexcept {
    tandem_plan* made = nullptr;
    status = tandem_plan_create(device, &problem, &made);
    handle_.reset(made);
  }
  Plan(const Device& device, const tandem_problem& problem, tandem_status& status) noexcept
      : Plan(device.get(), problem, status) {}

  tandem_plan_info info(tandem_status& status) const noexcept {
    tandem_plan_info info{};
    info.struct_size = uint32_t(sizeof info);
    status = tandem_plan_get_info(get(), &info);
    return info;
  }
  void execute(tandem_stream stream, const tandem_args& args,
               tandem_status& status) const noexcept {
    status = tandem_execute(get(), stream, &args);
  }
  tandem_slices slices(double operations, tandem_status& status) const noexcept {
    tandem_slices slices{};
    slices.struct_size = uint32_t(sizeof slices);
    status = tandem_plan_get_slices(get(), operations, &slices);
    return slices;
  }
  void execute_slice(tandem_stream stream, const tandem_args& args, const tandem_slices& slices,
                     uint32_t index, tandem_status& status) const noexcept {
    status = tandem_execute_slice(get(), stream, &args, &slices, index);
  }

#if TANDEM_HPP_EXCEPTIONS
  Plan(tandem_device* device, const tandem_problem& problem) {
    tandem_plan* made = nullptr;
    check(tandem_plan_create(device, &problem, &made));
    handle_.reset(made);
  }
  Plan(const Device& device, const tandem_problem& problem) : Plan(device.get(), problem) {}
  tandem_plan_info info() const {
    tandem_status status;
    const tandem_plan_info result = info(status);
    check(status);
    return result;
  }
  void execute(tandem_stream stream, const tandem_args& args) const {
    check(tandem_execute(get(), stream, &args));
  }
  tandem_slices slices(double operations) const {
    tandem_status status;
    const tandem_slices result = slices(operations, status);
    check(status);
    return result;
  }
  void execute_slice(tandem_stream stream, const tandem_args& args, const tandem_slices& slices,
                     uint32_t index) const {
    check(tandem_execute_slice(get(), stream, &args, &slices, index));
  }
#endif

  tandem_plan* get() const noexcept { return handle_.get(); }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  struct Destroy {
    void operator()(tandem_plan* plan) const noexcept { tandem_plan_destroy(plan); }
  };
  std::unique_ptr<tandem_plan, Destroy> handle_;
};

inline tandem_problem make_problem() noexcept {
  tandem_problem problem;
  tandem_problem_init(&problem);
  return problem;
}
inline tandem_args make_args() noexcept { return TANDEM_ARGS_INIT; }

inline std::string print(const tandem_problem& problem) {
  return detail::text([&](char* s, size_t n) { return tandem_problem_print(&problem, s, n); });
}
inline tandem_problem parse(const char* line, tandem_status& status) noexcept {
  tandem_problem problem = make_problem();
  status = tandem_problem_parse(line, &problem);
  return problem;
}
#if TANDEM_HPP_EXCEPTIONS
inline tandem_problem parse(const char* line) {
  tandem_status status;
  const tandem_problem problem = parse(line, status);
  check(status);
  return problem;
}
#endif

}  // namespace v0
}  // namespace tandem
#endif
