// SPDX-License-Identifier: MIT OR Apache-2.0
// What a device has already warned of, so that a reason is logged once.
#ifndef TANDEM_SRC_API_WARNED_H
#define TANDEM_SRC_API_WARNED_H
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/fork.h"
#include "base/host_memory.h"

namespace tandem {

class Warned {
 public:
  static constexpr size_t kReasons = 64;  // a device tells no more of them
  // Whether a reason was not told before, and may be told now.
  bool tells(const String& reason) noexcept {
    uint64_t hash = 0xcbf29ce484222325u;
    for (char c : reason) hash = (hash ^ uint8_t(c)) * 0x100000001b3u;
    const std::lock_guard<ForkMutex> lock(mutex_);
    for (size_t n = 0; n < count_; ++n)
      if (hashes_[n] == hash) return false;
    if (count_ == kReasons) return false;
    hashes_[count_++] = hash;
    return true;
  }

 private:
  ForkMutex mutex_;
  uint64_t hashes_[kReasons] = {};
  size_t count_ = 0;
};

}  // namespace tandem
#endif
