// SPDX-License-Identifier: MIT OR Apache-2.0
// The vector instructions of this x86-64 processor that its system lets programs use. The processor
// is asked: __builtin_cpu_supports() asks the compiler's runtime library, and Zig's says no.
#ifndef TANDEM_CPU_X86_H
#define TANDEM_CPU_X86_H
#include <cpuid.h>

#include <cstdint>

namespace tandem {

struct X86Vectors {
  bool avx2 = false;         // with FMA and F16C
  bool avx512 = false;       // F, BW, VL and DQ, with those of avx2
  bool avx512_bf16 = false;  // with those of avx512
};

inline X86Vectors x86_vectors() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return {};
  const auto all = [](uint32_t word, uint32_t bits) { return (word & bits) == bits; };
  constexpr uint32_t kFma = 1u << 12, kSystemSaves = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  if (!all(c, kFma | kSystemSaves | kAvx | kF16c)) return {};
  uint32_t saved, high;  // which registers the system saves (XCR0)
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  constexpr uint32_t kYmm = 0x06, kZmm = 0xe6;
  if (!all(saved, kYmm) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  constexpr uint32_t kAvx2 = 1u << 5;
  constexpr uint32_t kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  X86Vectors has;
  has.avx2 = all(b, kAvx2);
  has.avx512 = has.avx2 && all(b, kAvx512) && all(saved, kZmm);
  if (has.avx512 && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
    has.avx512_bf16 = all(a, 1u << 5);
  return has;
}

}  // namespace tandem
#endif
