// SPDX-License-Identifier: MIT OR Apache-2.0
// One element in memory: f32, f16, bf16, f64, loaded exactly and stored rounded to nearest even.
// Everything is static, because the per-ISA kernels include this too: the linker must not replace
// all copies of an inline function by the one compiled for AVX-512.
#ifndef TANDEM_SRC_CPU_ELEMENT_H
#define TANDEM_SRC_CPU_ELEMENT_H
#include <cstdint>
#include <cstring>

#include "tandem/tandem.h"

namespace tandem {

static inline uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
static inline float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

static inline float bf16_to_float(uint16_t h) { return bits_float(uint32_t(h) << 16); }

static inline uint16_t float_to_bf16(float x) {
  const uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u)
    return uint16_t(u >> 16 | 0x40u);  // NaN stays NaN, made quiet
  return uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float f16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return bits_float(sign | ((magnitude << 13) + (112u << 23)));
  const float x = float(magnitude) * 0x1p-24f;  // subnormal
  return sign ? -x : x;
}

static inline uint16_t float_to_f16(float x) {
  const uint32_t u = float_bits(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // from 65520 on: infinity
  if (magnitude >= 0x38800000u)
    return uint16_t(sign | (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
  // Subnormal: 0.5 has an ulp of 2^-24, so the addition rounds to nearest even where f16 has to.
  return uint16_t(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u));
}

// A float that rounds to a shorter type as the double would directly. Inexact values get an odd
// last bit, so the first rounding makes no tie.
static inline float float_to_odd(double x) {
  const float f = float(x);
  if (double(f) == x || x != x) return f;
  uint32_t u = float_bits(f);
  if ((u & 1u) == 0) {
    const double magnitude = x < 0 ? -x : x, rounded = f < 0 ? -double(f) : double(f);
    u = rounded > magnitude ? u - 1 : u + 1;
  }
  return bits_float(u);
}

static inline double load_element(const void* base, int64_t index, tandem_dtype dtype) {
  switch (dtype) {
    case TANDEM_F16:
      return f16_to_float(static_cast<const uint16_t*>(base)[index]);
    case TANDEM_BF16:
      return bf16_to_float(static_cast<const uint16_t*>(base)[index]);
    case TANDEM_F64:
      return static_cast<const double*>(base)[index];
    default:
      return static_cast<const float*>(base)[index];
  }
}

static inline void store_element(void* base, int64_t index, tandem_dtype dtype, double x) {
  switch (dtype) {
    case TANDEM_F16:
      static_cast<uint16_t*>(base)[index] = float_to_f16(float_to_odd(x));
      break;
    case TANDEM_BF16:
      static_cast<uint16_t*>(base)[index] = float_to_bf16(float_to_odd(x));
      break;
    case TANDEM_F64:
      static_cast<double*>(base)[index] = x;
      break;
    default:
      static_cast<float*>(base)[index] = float(x);
  }
}

// x as it would be after a store and a load.
static inline float round_element(float x, tandem_dtype dtype) {
  switch (dtype) {
    case TANDEM_F16:
      return f16_to_float(float_to_f16(x));
    case TANDEM_BF16:
      return bf16_to_float(float_to_bf16(x));
    default:
      return x;
  }
}
static inline double round_element(double x, tandem_dtype dtype) {
  switch (dtype) {
    case TANDEM_F16:
      return f16_to_float(float_to_f16(float_to_odd(x)));
    case TANDEM_BF16:
      return bf16_to_float(float_to_bf16(float_to_odd(x)));
    case TANDEM_F64:
      return x;
    default:
      return double(float(x));
  }
}

}  // namespace tandem
#endif
