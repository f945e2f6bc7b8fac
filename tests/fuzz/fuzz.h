// SPDX-License-Identifier: MIT OR Apache-2.0
// What the fuzz targets share: numbers and problems from an input's bytes, recorded devices, and
// checks. Each target is a program of libFuzzer (fuzz.cmake).
#ifndef TANDEM_TESTS_FUZZ_FUZZ_H
#define TANDEM_TESTS_FUZZ_FUZZ_H
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "plan/caps.h"
#include "tandem/tandem.h"

// Ends the program, as a sanitizer does, where a condition does not hold; with a sentence, or a
// problem line, that says of what.
#define FUZZ_CHECK_OF(condition, of)                                     \
  do {                                                                   \
    if (!(condition)) ::fuzz::die(__FILE__, __LINE__, #condition, (of)); \
  } while (false)
#define FUZZ_CHECK(condition) FUZZ_CHECK_OF(condition, "")

namespace fuzz {

[[noreturn]] void die(const char* file, int line, const char* condition, const std::string& more);
// The bytes of an input, read from front to back; behind its end, zeros.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), left_(size) {}
  size_t left() const { return left_; }
  template <typename T>
  T value() {
    T read{};
    const size_t n = left_ < sizeof(T) ? left_ : sizeof(T);
    if (n > 0) std::memcpy(&read, at_, n);
    at_ += n, left_ -= n;
    return read;
  }
  uint8_t byte() { return value<uint8_t>(); }
  bool one_of(uint8_t n) { return byte() % n == 0; }
  int64_t below(int64_t n) { return int64_t(value<uint16_t>() % uint64_t(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  template <typename T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[size_t(byte()) % from.size()];
  }
  // A number at which something may overflow, a small one, or any.
  int64_t awkward();

 private:
  const uint8_t* at_;
  size_t left_;
};

// A problem as random ones and those of models are, with up to a few members spoiled: most are
// legal, and all members may have any bits.
tandem_problem draw_problem(Bytes& bytes);

std::string line_of(const tandem_problem& problem);

// The devices of tests/plan/profiles.inc. Executes on them compute what kernels would get, from
// arguments that may be any numbers.
size_t recorded_count();
tandem_device* recorded_device(size_t index);
const tandem::Caps& recorded_caps(size_t index);
// A device like those, with any capabilities. The first form must succeed.
tandem_device* open_recorded(const tandem::Caps& caps);
tandem_status open_recorded(const tandem::Caps& caps, const tandem_device_options* options,
                            tandem_device** device);

// Whether the scratch of the CPU's threads is a few megabytes. It grows with these sizes, and with
// the largest that are legal it is more than machines have: the plan is OUT_OF_MEMORY.
inline bool is_small_on_cpu(const tandem_problem& p) {
  const int64_t most = int64_t(1) << 18;
  return p.batch <= most && p.heads_q <= most && p.seq_kv <= most && p.parts <= most;
}

// Whether a plan may be refused so: never for a reason of the machine's, or an unforeseen one.
bool is_refusal(const tandem_problem& problem, tandem_status status);

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
#endif
