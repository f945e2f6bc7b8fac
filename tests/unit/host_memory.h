// SPDX-License-Identifier: MIT OR Apache-2.0
// Host memory that is counted and that fails on demand: the program's operator new, and callbacks
// as an application gives them to a device. For one file of a program.
#ifndef TANDEM_TESTS_UNIT_HOST_MEMORY_H
#define TANDEM_TESTS_UNIT_HOST_MEMORY_H
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace {

enum class From { operator_new, callbacks };
std::atomic<From> failing{From::operator_new};
std::atomic<int64_t> live_blocks[2];  // of each
std::atomic<int64_t> new_calls{0};    // of operator new, from the program's own code
std::atomic<int64_t> callbacks{0};    // calls of allocate
std::atomic<int64_t> countdown{-1};   // allocations that still succeed; below 0: all do
std::atomic<bool> lasting{false};     // whether those after the failed one fail, too
std::atomic<int64_t> failures{0};

// Of the one that fails: a driver may keep what operator new gave it.
int64_t live() { return live_blocks[int(failing.load())]; }

bool fails(From from) {
  if (failing != from) return false;
  int64_t left = countdown.load();
  while (left >= 0) {
    const int64_t next = left > 0 ? left - 1 : lasting ? 0 : -1;
    if (!countdown.compare_exchange_weak(left, next)) continue;
    if (left > 0) return false;
    ++failures;
    return true;
  }
  return false;
}

void* allocate(From from, size_t size, size_t alignment) noexcept {
  const size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded > 0 ? rounded : alignment);
  if (p) ++live_blocks[int(from)];
  return p;
}
void release(From from, void* p) noexcept {
  if (p) --live_blocks[int(from)];
  std::free(p);
}

// Drivers, and the C++ library on their behalf, come here as well, from shared libraries of their
// own.
#if defined(__linux__)
extern "C" char __executable_start, etext;
bool own(const void* caller) {
  return caller >= static_cast<const void*>(&__executable_start) &&
         caller < static_cast<const void*>(&etext);
}
#else
bool own(const void*) { return true; }
#endif
constexpr size_t kAlign = alignof(std::max_align_t);

void* new_or_null(size_t size, size_t alignment, const void* caller) noexcept {
  if (own(caller)) ++new_calls;
  return fails(From::operator_new) ? nullptr : allocate(From::operator_new, size, alignment);
}
void* new_or_throw(size_t size, size_t alignment, const void* caller) {
  if (void* p = new_or_null(size, alignment, caller)) return p;
  throw std::bad_alloc();
}

}  // namespace

#define TANDEM_CALLER __builtin_return_address(0)
void* operator new(size_t n) { return new_or_throw(n, kAlign, TANDEM_CALLER); }
void* operator new[](size_t n) { return new_or_throw(n, kAlign, TANDEM_CALLER); }
void* operator new(size_t n, std::align_val_t a) {
  return new_or_throw(n, size_t(a), TANDEM_CALLER);
}
void* operator new[](size_t n, std::align_val_t a) {
  return new_or_throw(n, size_t(a), TANDEM_CALLER);
}
void* operator new(size_t n, const std::nothrow_t&) noexcept {
  return new_or_null(n, kAlign, TANDEM_CALLER);
}
void* operator new[](size_t n, const std::nothrow_t&) noexcept {
  return new_or_null(n, kAlign, TANDEM_CALLER);
}
void operator delete(void* p) noexcept { release(From::operator_new, p); }
void operator delete[](void* p) noexcept { release(From::operator_new, p); }
void operator delete(void* p, size_t) noexcept { release(From::operator_new, p); }
void operator delete[](void* p, size_t) noexcept { release(From::operator_new, p); }
void operator delete(void* p, std::align_val_t) noexcept { release(From::operator_new, p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(From::operator_new, p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { release(From::operator_new, p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept {
  release(From::operator_new, p);
}

namespace {

int callback_user;

void use_callbacks(tandem_device_options* options) {
  options->memory_user = &callback_user;
  options->allocate = [](void* user, size_t size, size_t alignment) -> void* {
    if (user != &callback_user || size == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0)
      std::abort();
    ++callbacks;
    return fails(From::callbacks) ? nullptr : allocate(From::callbacks, size, alignment);
  };
  options->release = [](void* user, void* memory) {
    if (user != &callback_user || !memory) std::abort();
    release(From::callbacks, memory);
  };
}

// A problem to try, without some paths, and how its plan ends with enough memory.
struct Line {
  const char* what;
  const char* disable;
  const char* line;
  tandem_status status;
};

[[maybe_unused]] tandem_problem parse(const char* line) {
  tandem_problem problem;
  const tandem_status status = tandem_problem_parse(line, &problem);
  INFO(line << ": " << tandem_last_message());
  REQUIRE(status == TANDEM_OK);
  return problem;
}

[[maybe_unused]] tandem_device_options options_of(const char* disable) {
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.threads = 2;  // what fails on a worker's thread has to come back
  options.disable = disable;
  options.log = [](void*, tandem_log_level, const char*) {};
  if (failing == From::callbacks) use_callbacks(&options);
  return options;
}

// All buffers of an execute.
[[maybe_unused]] constexpr tandem_buffer tandem_args::*kBuffers[] = {
#define TANDEM_ARG(name) &tandem_args::name,
#include "../../src/kernels/args.inc"
};

tandem_device* const kNoDevice = reinterpret_cast<tandem_device*>(uintptr_t(0x5a5a));
tandem_plan* const kNoPlan = reinterpret_cast<tandem_plan*>(uintptr_t(0x5a5a));

// Runs call, which says how it ended and leaves nothing behind, until no allocation fails in it.
// usual is how it ends with enough memory. untouched, called after each failure, says whether its
// results are as they were. With callbacks, nothing else is asked for memory.
int64_t fail_each(const std::string& what, const std::function<tandem_status()>& call,
                  tandem_status usual, const std::function<bool()>& untouched) {
  CAPTURE(what);
  int64_t most = 0;
  for (bool all_after : {false, true}) {
    lasting = all_after;
    for (int64_t i = 0;; ++i) {
      failures = 0;
      const int64_t before = live(), others = new_calls;
      countdown = i;
      const tandem_status status = call();
      countdown = -1;
      const int64_t failed = failures, after = live();
      if (failing == From::callbacks) REQUIRE(new_calls == others);
      if (failed == 0) {
        CHECK(status == usual);
        most = i > most ? i : most;
        break;
      }
      CAPTURE(i);
      CAPTURE(all_after);
      REQUIRE(after == before);
      // A failure that was on its way already may lose its sentence, not its number.
      if (usual == TANDEM_OK || status != usual) REQUIRE(status == TANDEM_ERROR_OUT_OF_MEMORY);
      REQUIRE(std::strlen(tandem_last_message()) > 0);
      REQUIRE(untouched());
    }
  }
  return most;
}

// What is asked of a device about a problem, and of a plan, in the same way; info then has the
// plan's.
[[maybe_unused]] void fail_each_explain(tandem_device* device, const tandem_problem& problem) {
  std::vector<char> text(20000, 'x');
  fail_each(
      "explain",
      [&] {
        text[0] = 'x';
        return tandem_explain(device, &problem, text.data(), text.size()) > 0
                   ? TANDEM_OK
                   : TANDEM_ERROR_OUT_OF_MEMORY;
      },
      TANDEM_OK, [&] { return text[0] == 'x'; });
}
[[maybe_unused]] void fail_each_info(const tandem_plan* plan, tandem_plan_info* info) {
  *info = {};
  info->struct_size = sizeof *info;
  fail_each(
      "plan info",
      [&] {
        info->backend[0] = info->name[0] = 0;
        return tandem_plan_get_info(plan, info);
      },
      TANDEM_OK, [&] { return info->backend[0] == 0 && info->name[0] == 0; });
}

}  // namespace
#endif
