// SPDX-License-Identifier: MIT OR Apache-2.0
#include "host_memory.h"

#include <new>

namespace tandem {
namespace {

thread_local const HostMemory* scope = nullptr;

// Header before each block.
struct Header {
  void (*release)(void* user, void* memory);  // nullptr: operator delete
  void* user;
  void* start;  // address that was returned by the allocator
};

constexpr size_t kPlain = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

HostScope::HostScope(const HostMemory& memory) noexcept : memory_(memory), before_(scope) {
  scope = &memory_;
}
HostScope::~HostScope() { scope = before_; }
HostMemory HostScope::current() noexcept { return scope ? *scope : HostMemory(); }
bool HostScope::is_open() noexcept { return scope != nullptr; }

void* host_allocate(size_t size, size_t alignment) {
  if (alignment < kPlain) alignment = kPlain;
  const size_t before = (sizeof(Header) + alignment - 1) / alignment * alignment;
  if (size > size_t(-1) - before) throw std::bad_alloc();
  Header header{nullptr, nullptr, nullptr};
  if (scope && scope->allocate) {
    header = {scope->release, scope->user, scope->allocate(scope->user, before + size, alignment)};
    if (!header.start) throw std::bad_alloc();
  } else if (alignment > kPlain) {
    // Room for the alignment, so that one operator delete suffices.
    header.start = ::operator new(before + size + alignment);
  } else {
    header.start = ::operator new(before + size);
  }
  const size_t address = reinterpret_cast<size_t>(header.start) + before;
  void* block = reinterpret_cast<void*>((address + alignment - 1) / alignment * alignment);
  static_cast<Header*>(block)[-1] = header;
  return block;
}

void host_release(void* block) noexcept {
  if (!block) return;
  const Header header = static_cast<Header*>(block)[-1];
  if (header.release)
    header.release(header.user, header.start);
  else
    ::operator delete(header.start);
}

}  // namespace tandem
