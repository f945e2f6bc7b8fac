// SPDX-License-Identifier: MIT OR Apache-2.0
#include "guard_pages.h"

#include <cstdlib>

#if !defined(_WIN32)
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#endif

namespace tandem::harness {

GuardPages guard_pages() {
  const char* word = std::getenv("TANDEM_GUARD_PAGES");
  if (!word || !*word) return GuardPages::off;
#if !defined(_WIN32)
  if (std::strcmp(word, "first") == 0) return GuardPages::first;
  if (std::strcmp(word, "last") == 0) return GuardPages::last;
  throw Error(TANDEM_ERROR_INVALID_ARGUMENT,
              std::string("TANDEM_GUARD_PAGES is '") + word + "', must be first or last");
#else
  throw Error(TANDEM_ERROR_UNSUPPORTED, "TANDEM_GUARD_PAGES is not for Windows");
#endif
}

#if defined(_WIN32)

size_t whole_pages(size_t bytes) { return bytes; }
std::unique_ptr<Memory> memory_between_pages(size_t, const char*, size_t, size_t) { return {}; }
void name_case_of_faults(const std::string&) {}

#else
namespace {

size_t page_size() {
  static const auto size = size_t(sysconf(_SC_PAGESIZE));
  return size;
}

// A mapping: a page, those of the memory, a page.
struct Mapping {
  size_t size;
  const char* data;  // the buffer
  size_t bytes;
  std::string name;
};

// Never destroyed, as a fault may come late. A fault reads them without the lock.
struct Known {
  std::mutex mutex;
  std::map<const char*, Mapping> mappings;
  std::string repeat = "no case was named";
  struct sigaction before {};
};
Known& known() {
  static Known* k = new Known;
  return *k;
}

const char* access_of(const void* context) {
#if defined(__linux__) && defined(__x86_64__)
  const auto* c = static_cast<const ucontext_t*>(context);
  return (c->uc_mcontext.gregs[REG_ERR] & 2) != 0 ? "written" : "read";
#else
  (void)context;
  return "accessed";
#endif
}

void on_fault(int number, siginfo_t* info, void* context) {
  Known& k = known();
  const auto* at = static_cast<const char*>(info->si_addr);
  auto next = k.mappings.upper_bound(at);
  if (next == k.mappings.begin() || at >= (--next)->first + next->second.size) {
    sigaction(number, &k.before, nullptr);  // another fault, which comes again
    return;
  }
  const Mapping& m = next->second;
  char text[2048];
  const int length =
      std::snprintf(text, sizeof(text), "guard pages: %s was %s at byte %td of its %zu; %s\n",
                    m.name.c_str(), access_of(context), at - m.data, m.bytes, k.repeat.c_str());
  const ssize_t written = write(2, text, std::min(size_t(length), sizeof(text) - 1));
  _exit(written > 0 ? 1 : 2);
}

// Test frameworks have handlers of their own for each case, so it is seen to with each buffer.
void take_faults() {
  struct sigaction own {};
  own.sa_sigaction = on_fault;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK;
  struct sigaction was {};
  sigaction(SIGSEGV, nullptr, &was);
  if ((was.sa_flags & SA_SIGINFO) != 0 && was.sa_sigaction == on_fault) return;
  known().before = was;
  sigaction(SIGSEGV, &own, nullptr);
}

class PagedMemory final : public HostMemory {
 public:
  PagedMemory(size_t room, const char* name, size_t front, size_t bytes)
      : size_(whole_pages(room) + 2 * page_size()) {
    void* mapped = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
      throw Error(TANDEM_ERROR_OUT_OF_MEMORY, "no pages for a buffer between guard pages");
    begin_ = static_cast<char*>(mapped);
    base_ = static_cast<uint8_t*>(mapped) + page_size();
    if (room > 0 && mprotect(base_, whole_pages(room), PROT_READ | PROT_WRITE) != 0) {
      munmap(begin_, size_);
      throw Error(TANDEM_ERROR_OUT_OF_MEMORY, "no pages for a buffer between guard pages");
    }
    take_faults();
    Known& k = known();
    const std::lock_guard<std::mutex> lock(k.mutex);
    k.mappings[begin_] = {size_, begin_ + page_size() + front, bytes, name};
  }
  ~PagedMemory() override {
    Known& k = known();
    const std::lock_guard<std::mutex> lock(k.mutex);
    k.mappings.erase(begin_);
    munmap(begin_, size_);
  }
  // Vulkan's form, which the other backends take too.
  tandem_buffer handle(size_t offset) const override {
    return {0, uint64_t(reinterpret_cast<uintptr_t>(base_ + offset))};
  }
  tandem_buffer address(size_t offset) const override { return handle(offset); }

 private:
  const size_t size_;
  char* begin_;
};

}  // namespace

size_t whole_pages(size_t bytes) { return (bytes + page_size() - 1) / page_size() * page_size(); }

std::unique_ptr<Memory> memory_between_pages(size_t room, const char* name, size_t front,
                                             size_t bytes) {
  return std::make_unique<PagedMemory>(room, name, front, bytes);
}

void name_case_of_faults(const std::string& repeat) { known().repeat = repeat; }

#endif
}  // namespace tandem::harness
