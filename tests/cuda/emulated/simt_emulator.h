// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs the sources in cuda/ as plain C++: CUDA's words, on the blocks and grids of block_emulator.h
// and grid_emulator.h. Slow, exact, and without a GPU: wrong indices, missing barriers and
// divergent barriers show here. What it cannot show: timing, registers, memory ordering.
#ifndef TANDEM_TESTS_CUDA_EMULATED_SIMT_EMULATOR_H
#define TANDEM_TESTS_CUDA_EMULATED_SIMT_EMULATOR_H
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "grid_emulator.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)

using std::max;
using std::min;
typedef unsigned uint;
typedef unsigned short ushort;

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace simt {

// What reads as threadIdx.x and the like.
template <unsigned (*FIND)()>
struct Number {
  operator unsigned() const { return FIND(); }
};
inline unsigned thread_index() { return running()->index; }
inline unsigned block_x() { return Block::current().index().x; }
inline unsigned block_y() { return Block::current().index().y; }
inline unsigned grid_x() { return Block::current().grid().size.x; }
inline unsigned grid_y() { return Block::current().grid().size.y; }
inline unsigned block_threads() { return Block::current().threads(); }
inline void* shared() { return Block::current().shared(); }
inline void* shared_array(size_t bytes, const void* key) {
  return Block::current().array(bytes, key);
}

// What lane `lane` of the warp has. All lanes come: the kernels name no others.
template <typename T>
T of_lane(unsigned mask, T x, unsigned lane) {
  if (mask != ~0u) die("a shuffle of some lanes");
  return Block::current().exchange(x, "a shuffle")[lane % 32];
}
// f over the lanes of the warp.
template <typename T, typename F>
T over_lanes(unsigned mask, T x, const char* what, const F& f) {
  if (mask != ~0u) die("%s of some lanes", what);
  const T* all = Block::current().exchange(x, what);
  T y = all[0];
  const unsigned lanes = min(32u, Block::current().threads() - running()->index / 32 * 32);
  for (unsigned n = 1; n < lanes; ++n) y = f(y, all[n]);
  return y;
}

}  // namespace simt

constexpr struct { simt::Number<simt::thread_index> x{}; } threadIdx{};
constexpr struct {
  simt::Number<simt::block_x> x{};
  simt::Number<simt::block_y> y{};
} blockIdx{};
constexpr struct {
  simt::Number<simt::grid_x> x{};
  simt::Number<simt::grid_y> y{};
} gridDim{};
constexpr struct { simt::Number<simt::block_threads> x{}; } blockDim{};
#define __syncthreads() (::simt::Block::current().barrier())
#define __syncthreads_or(x) (::simt::Block::current().barrier_or(x))
inline void __syncwarp() { simt::Block::current().exchange(char(), "__syncwarp()"); }

template <typename T>
T __shfl_xor_sync(unsigned mask, T x, int lanes) {
  return simt::of_lane(mask, x, simt::running()->index % 32 ^ unsigned(lanes));
}
template <typename T>
T __shfl_sync(unsigned mask, T x, int lane) {
  return simt::of_lane(mask, x, unsigned(lane));
}
// The lanes whose x is that of this one, as bits.
inline unsigned __match_any_sync(unsigned mask, unsigned x) {
  if (mask != ~0u) simt::die("__match_any_sync() of some lanes");
  const unsigned* all = simt::Block::current().exchange(x, "__match_any_sync()");
  const unsigned first = simt::running()->index / 32 * 32;
  unsigned bits = 0;
  for (unsigned n = 0; n < 32 && first + n < simt::Block::current().threads(); ++n)
    bits |= unsigned(all[n] == x) << n;
  return bits;
}
inline bool __any_sync(unsigned mask, bool x) {
  return simt::over_lanes(mask, x, "__any_sync()", [](bool a, bool b) { return a || b; });
}
inline bool __all_sync(unsigned mask, bool x) {
  return simt::over_lanes(mask, x, "__all_sync()", [](bool a, bool b) { return a && b; });
}
inline unsigned __ballot_sync(unsigned mask, bool x) {
  return simt::over_lanes(mask, unsigned(x) << simt::running()->index % 32, "__ballot_sync()",
                          [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned x) {
  return simt::over_lanes(mask, x, "__reduce_or_sync()",
                          [](unsigned a, unsigned b) { return a | b; });
}
template <typename T>
T __reduce_max_sync(unsigned mask, T x) {
  return simt::over_lanes(mask, x, "__reduce_max_sync()", [](T a, T b) { return max(a, b); });
}
template <typename T>
T __reduce_add_sync(unsigned mask, T x) {
  return simt::over_lanes(mask, x, "__reduce_add_sync()", [](T a, T b) { return a + b; });
}

// ---- memory ----
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, T x) {
  *p = x;
}
template <typename T>
void __stcg(T* p, T x) {
  *p = x;
}
template <typename T>
T atomicAdd(T* p, T x) {
  ++simt::progress();
  return *p += x, *p - x;
}
template <typename T>
T atomicMax(T* p, T x) {
  const T before = *p;
  *p = max(before, x);
  return before;
}
template <typename T>
T atomicMin(T* p, T x) {
  const T before = *p;
  *p = min(before, x);
  return before;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- time ----
inline long long clock64() { return static_cast<long long>(simt::machine().clock()); }
inline void __nanosleep(unsigned) { simt::pause(); }

// ---- numbers ----
inline float __fmul_rn(float x, float y) {
  volatile float r = x * y;  // volatile: no contraction with what follows
  return r;
}
inline float __fadd_rn(float x, float y) {
  volatile float r = x + y;
  return r;
}
inline float __fsub_rn(float x, float y) {
  volatile float r = x - y;
  return r;
}
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __uint_as_float(unsigned u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline unsigned __float_as_uint(float f) {
  unsigned u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline int __float_as_int(float f) { return int(__float_as_uint(f)); }
inline float __int_as_float(int i) { return __uint_as_float(unsigned(i)); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __log2f(float x) { return std::log2(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned((uint64_t(high) << 32 | low) >> by % 32);
}
inline int __vimax3_s32(int a, int b, int c) { return max(a, max(b, c)); }
inline int __vimin3_s32(int a, int b, int c) { return min(a, min(b, c)); }

// ---- 16-bit types as bits, rounded to nearest even ----
struct __half {
  unsigned short bits;
};
struct __nv_bfloat16 {
  unsigned short bits;
};
inline __half __ushort_as_half(unsigned short u) { return {u}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
inline float __half2float(__half h) {
  const int exponent = h.bits >> 10 & 31, fraction = h.bits & 1023;
  float x;
  if (exponent == 31)
    x = fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else
    x = exponent ? std::ldexp(float(1024 + fraction), exponent - 25)
                 : std::ldexp(float(fraction), -24);
  return h.bits & 0x8000 ? -x : x;
}
inline __half __float2half_rn(float x) {
  const unsigned sign = __float_as_uint(x) >> 16 & 0x8000;
  const float a = std::fabs(x);
  unsigned bits;
  if (a != a)
    bits = 0x7fff;
  else if (a >= 65520.f)
    bits = 0x7c00;
  else if (a < 6.103515625e-05f)  // subnormal: nearbyint rounds to even
    bits = unsigned(std::nearbyint(std::ldexp(a, 24)));
  else {
    int exponent;
    const float fraction = std::frexp(a, &exponent);  // [0.5, 1): 11 bits are kept
    bits = unsigned(std::nearbyint(std::ldexp(fraction, 11))) + (unsigned(exponent + 13) << 10);
  }
  return {static_cast<unsigned short>(sign | bits)};
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  unsigned u = __float_as_uint(x);
  if (x != x) return {0x7fff};
  u += 0x7fff + (u >> 16 & 1);
  return {static_cast<unsigned short>(u >> 16)};
}
#endif
