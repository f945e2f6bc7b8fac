// SPDX-License-Identifier: MIT OR Apache-2.0
// wgmma: asynchronous matrix products of a warpgroup, D[64 x N] (+)= A[64 x 16] B[16 x N], with f32
// accumulators and f16 or bf16 operands. B lies in shared memory, A in shared memory or in
// registers. Until wgmma_wait_group() says that a product is complete, its registers and operands
// stay untouched.
//
// A tile in shared memory is a row of panels. A panel holds 64 features (128 bytes) of all rows of
// the tile, in the layout SWIZZLE_128B of TMA: 16-byte chunk c of a row lies at chunk c ^ (row &
// 7). A panel begins at a multiple of 1,024 bytes.
//
// Layout of D: lane l of warp w of the warpgroup has, for each 8 columns j, d[4 j] and d[4 j + 1]
// of row 16 w + l / 4 at columns 8 j + 2 (l % 4) and the next one, and d[4 j + 2] and d[4 j + 3] of
// the row 8 further down. Rounded to 16 bits in pairs, the accumulators of 16 columns are the A
// operand of a following product: {d[8k], d[8k+1]}, {d[8k+2], d[8k+3]}, {d[8k+4], d[8k+5]},
// {d[8k+6], d[8k+7]}.
#ifndef TANDEM_CUDA_SM90_PTX_WGMMA_CUH
#define TANDEM_CUDA_SM90_PTX_WGMMA_CUH
#include <cstdint>

#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr int kPanel = 64;        // features of a panel
constexpr int kPanelBytes = 128;  // of a row of a panel

// Offset in bytes, within a panel, of 16-byte chunk `piece` (0..7) of a row.
TANDEM_DEVICE uint swizzle_128b(int row, int piece) {
  return uint(row * kPanelBytes + ((piece ^ (row & 7)) << 4));
}

// Shared-memory matrix descriptors of an operand. K-major: the rows of the tile are the rows (A) or
// the columns (B) of the product, and k runs along the features. MN-major: the rows of the tile are
// k, and its features are the rows or columns of the product.
//   K-major:  the next 16 of k are 32 bytes further within a panel; the next panel is (rows of the
//             tile) x 128 bytes further.
//   MN-major: the next 16 of k are 2,048 bytes further; the next panel, of 64 columns,
//             is panel_stride bytes further.
TANDEM_DEVICE uint64_t k_major(uint at) {
  return uint64_t((at & 0x3ffffu) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}
TANDEM_DEVICE uint64_t mn_major(uint at, int panel_stride) {
  return uint64_t((at & 0x3ffffu) >> 4) | uint64_t(uint(panel_stride) >> 4) << 16 |
         uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// The descriptor `bytes` bytes further. The upper half of a descriptor never changes: nothing is
// carried.
TANDEM_DEVICE uint64_t advance(uint64_t descriptor, int bytes) {
  return (descriptor & 0xffffffff00000000u) | (uint(descriptor) + (uint(bytes) >> 4));
}

#if defined(__CUDACC__)

// Orders register accesses before wgmma. It comes before the first product of a group whose
// accumulators or A registers were written; otherwise ptxas inserts one (C7519).
TANDEM_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TANDEM_DEVICE void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most LEFT groups of products are incomplete.
template <int LEFT>
TANDEM_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Two f32 values rounded to 16 bits, as a pair. The relu forms turn negative values into 0.
TANDEM_DEVICE uint pack_half(float low, float high) {
  uint r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TANDEM_DEVICE uint pack_half_relu(float low, float high) {
  uint r;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TANDEM_DEVICE uint pack_bfloat(float low, float high) {
  uint r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TANDEM_DEVICE uint pack_bfloat_relu(float low, float high) {
  uint r;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TANDEM_DEVICE uint multiply_bfloats(uint x, uint y) {
  asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(x) : "r"(y));
  return x;
}
// Two elements as f32, and a product, written over a register that is also an operand, so that the
// compiler stays in that register. Otherwise the initial value of an accumulator is a value of its
// own beside those that are still live: 480 bytes of spills in fwd with a bias at D 64.
TANDEM_DEVICE void unpack_bfloats_into(float& low, float& high, uint x) {
  asm volatile(
      "{\n.reg .b32 t;\nshl.b32 t, %2, 16;\nmov.b32 %0, t;\nand.b32 t, %2, 0xffff0000;\n"
      "mov.b32 %1, t;\n}"
      : "+f"(low), "+f"(high)
      : "r"(x));
}
TANDEM_DEVICE void multiply_into(float& to, float x, float y) {
  asm volatile("mul.f32 %0, %1, %2;" : "+f"(to) : "f"(x), "f"(y));
}

#else
using simt::hopper::multiply_bfloats;
using simt::hopper::multiply_into;
using simt::hopper::pack_bfloat;
using simt::hopper::pack_bfloat_relu;
using simt::hopper::pack_half;
using simt::hopper::pack_half_relu;
using simt::hopper::unpack_bfloats_into;
using simt::hopper::wgmma_commit_group;
using simt::hopper::wgmma_fence;
using simt::hopper::wgmma_wait_group;
#endif

// Makes each element of x opaque to the compiler. The elements are computed here, in source order
// with volatile instructions, and not later.
template <int N>
TANDEM_DEVICE void optimization_barrier(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = opaque(x[i]);
}

// Transposes 4 x 4 words within a quad: lane n gives x[m] to lane m and receives that lane's x[n].
// Of the words of four chunks that rounded accumulators are, each lane then has a whole chunk.
TANDEM_DEVICE void transpose_quad(uint (&x)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint other = __shfl_xor_sync(kAllLanes, odd ? x[i] : x[i + 1], 1);
    (odd ? x[i] : x[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint other = __shfl_xor_sync(kAllLanes, high ? x[i] : x[i + 2], 2);
    (high ? x[i] : x[i + 2]) = other;
  }
}

struct Half {
  static TANDEM_DEVICE uint pack(float low, float high) { return pack_half(low, high); }
  static TANDEM_DEVICE uint pack_relu(float low, float high) {  // 0 for what is negative
    return pack_half_relu(low, high);
  }
  static TANDEM_DEVICE float low(uint r) { return __half2float(__ushort_as_half(ushort(r))); }
  static TANDEM_DEVICE float high(uint r) {
    return __half2float(__ushort_as_half(ushort(r >> 16)));
  }
  static TANDEM_DEVICE void put_times(float& to_low, float& to_high, uint r, float factor) {
    multiply_into(to_low, low(r), factor);
    multiply_into(to_high, high(r), factor);
  }
};
struct Bfloat {
  static TANDEM_DEVICE uint pack(float low, float high) { return pack_bfloat(low, high); }
  static TANDEM_DEVICE uint pack_relu(float low, float high) {  // 0 for what is negative
    return pack_bfloat_relu(low, high);
  }
  static TANDEM_DEVICE float low(uint r) { return __uint_as_float(r << 16); }
  static TANDEM_DEVICE float high(uint r) { return __uint_as_float(r & 0xffff0000u); }
  static TANDEM_DEVICE uint times(uint x, uint y) { return multiply_bfloats(x, y); }
  static TANDEM_DEVICE void put(float& to_low, float& to_high, uint r) {
    unpack_bfloats_into(to_low, to_high, r);
  }
  static TANDEM_DEVICE void put_times(float& to_low, float& to_high, uint r, float factor) {
    multiply_into(to_low, low(r), factor);
    multiply_into(to_high, high(r), factor);
  }
};

// The wgmma instruction of N columns; a thread has N / 2 accumulators.
//   Wgmma<T, N>::ss<A_MN_MAJOR, B_MN_MAJOR>(d, a, b, add)   A and B in shared memory, by descriptor
//   Wgmma<T, N>::rs<B_MN_MAJOR>(d, a0, a1, a2, a3, b, add)  A in registers
// add: 0 overwrites D, 1 adds to it.
template <typename T, int N>
struct Wgmma;

#if defined(__CUDACC__)

// For each N: the accumulators in the instruction, the accumulators as operands of the asm
// statement, and the operand numbers that follow.
// clang-format off
#define TANDEM_D8(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), \
                     "+f"(d[n + 4]), "+f"(d[n + 5]), "+f"(d[n + 6]), "+f"(d[n + 7])
#define TANDEM_REGISTERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define TANDEM_ACCUMULATORS_32 TANDEM_D8(0), TANDEM_D8(8)
#define TANDEM_OPERANDS_32 "%16", "%17", "%18", "%19", "%20", "%21", "%22"
#define TANDEM_REGISTERS_48 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23}, "
#define TANDEM_ACCUMULATORS_48 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16)
#define TANDEM_OPERANDS_48 "%24", "%25", "%26", "%27", "%28", "%29", "%30"
#define TANDEM_REGISTERS_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define TANDEM_ACCUMULATORS_64 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24)
#define TANDEM_OPERANDS_64 "%32", "%33", "%34", "%35", "%36", "%37", "%38"
#define TANDEM_REGISTERS_72 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35}, "
#define TANDEM_ACCUMULATORS_72 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24), \
                               "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define TANDEM_OPERANDS_72 "%36", "%37", "%38", "%39", "%40", "%41", "%42"
#define TANDEM_REGISTERS_80 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39}, "
#define TANDEM_ACCUMULATORS_80 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24), TANDEM_D8(32)
#define TANDEM_OPERANDS_80 "%40", "%41", "%42", "%43", "%44", "%45", "%46"
#define TANDEM_REGISTERS_96 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
#define TANDEM_ACCUMULATORS_96 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24), TANDEM_D8(32), TANDEM_D8(40)
#define TANDEM_OPERANDS_96 "%48", "%49", "%50", "%51", "%52", "%53", "%54"
#define TANDEM_REGISTERS_112 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55}, "
#define TANDEM_ACCUMULATORS_112 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24), TANDEM_D8(32), TANDEM_D8(40), TANDEM_D8(48)
#define TANDEM_OPERANDS_112 "%56", "%57", "%58", "%59", "%60", "%61", "%62"
#define TANDEM_REGISTERS_128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define TANDEM_ACCUMULATORS_128 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24), TANDEM_D8(32), TANDEM_D8(40), TANDEM_D8(48), TANDEM_D8(56)
#define TANDEM_OPERANDS_128 "%64", "%65", "%66", "%67", "%68", "%69", "%70"
#define TANDEM_REGISTERS_160 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
#define TANDEM_ACCUMULATORS_160 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24), TANDEM_D8(32), TANDEM_D8(40), TANDEM_D8(48), TANDEM_D8(56), TANDEM_D8(64), TANDEM_D8(72)
#define TANDEM_OPERANDS_160 "%80", "%81", "%82", "%83", "%84", "%85", "%86"
#define TANDEM_REGISTERS_176 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87}, "
#define TANDEM_ACCUMULATORS_176 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24), TANDEM_D8(32), TANDEM_D8(40), TANDEM_D8(48), TANDEM_D8(56), TANDEM_D8(64), TANDEM_D8(72), TANDEM_D8(80)
#define TANDEM_OPERANDS_176 "%88", "%89", "%90", "%91", "%92", "%93", "%94"
#define TANDEM_REGISTERS_192 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
#define TANDEM_ACCUMULATORS_192 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24), TANDEM_D8(32), TANDEM_D8(40), TANDEM_D8(48), TANDEM_D8(56), TANDEM_D8(64), TANDEM_D8(72), TANDEM_D8(80), TANDEM_D8(88)
#define TANDEM_OPERANDS_192 "%96", "%97", "%98", "%99", "%100", "%101", "%102"
#define TANDEM_REGISTERS_256 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
#define TANDEM_ACCUMULATORS_256 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24), TANDEM_D8(32), TANDEM_D8(40), TANDEM_D8(48), TANDEM_D8(56), TANDEM_D8(64), TANDEM_D8(72), TANDEM_D8(80), TANDEM_D8(88), TANDEM_D8(96), TANDEM_D8(104), TANDEM_D8(112), TANDEM_D8(120)
#define TANDEM_OPERANDS_256 "%128", "%129", "%130", "%131", "%132", "%133", "%134"
// clang-format on

// o0 to o6: numbers of the operands that follow the accumulators.
#define TANDEM_WGMMA(T, type, N, o0, o1, o2, o3, o4, o5, o6)                                 \
  template <>                                                                                \
  struct Wgmma<T, N> {                                                                       \
    template <int A_MN_MAJOR, int B_MN_MAJOR>                                                \
    static TANDEM_DEVICE void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " o2                                    \
                   ", 0;\n"                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type           \
                   " {" TANDEM_REGISTERS_##N o0 ", " o1 ", p, 1, 1, " o3 ", " o4 ";\n}"      \
                   : TANDEM_ACCUMULATORS_##N                                                 \
                   : "l"(a), "l"(b), "r"(add), "n"(A_MN_MAJOR), "n"(B_MN_MAJOR));            \
    }                                                                                        \
    template <int B_MN_MAJOR>                                                                \
    static TANDEM_DEVICE void rs(float (&d)[N / 2], uint a0, uint a1, uint a2, uint a3,      \
                                 uint64_t b, int add) {                                      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " o5                                    \
                   ", 0;\n"                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type           \
                   " {" TANDEM_REGISTERS_##N "{" o0 ", " o1 ", " o2 ", " o3 "}, " o4         \
                                             ", p, 1, 1, " o6 ";\n}"                         \
                   : TANDEM_ACCUMULATORS_##N                                                 \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(B_MN_MAJOR)); \
    }                                                                                        \
  };
#define TANDEM_WGMMAS(N, ...)               \
  TANDEM_WGMMA(Half, "f16", N, __VA_ARGS__) \
  TANDEM_WGMMA(Bfloat, "bf16", N, __VA_ARGS__)
#define TANDEM_WIDTH(N) TANDEM_WIDTH_(N, TANDEM_OPERANDS_##N)
#define TANDEM_WIDTH_(N, ...) TANDEM_WGMMAS(N, __VA_ARGS__)
TANDEM_WIDTH(32)
TANDEM_WIDTH(48)
TANDEM_WIDTH(64)
TANDEM_WIDTH(72)
TANDEM_WIDTH(80)
TANDEM_WIDTH(96)
TANDEM_WIDTH(112)
TANDEM_WIDTH(128)
TANDEM_WIDTH(160)
TANDEM_WIDTH(176)
TANDEM_WIDTH(192)
TANDEM_WIDTH(256)

#else
template <int N>
struct Wgmma<Half, N> : simt::hopper::Wgmma<simt::hopper::Type::half, N> {};
template <int N>
struct Wgmma<Bfloat, N> : simt::hopper::Wgmma<simt::hopper::Type::bfloat, N> {};
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
