// SPDX-License-Identifier: MIT OR Apache-2.0
// Products of a warpgroup: D[64 x N] (+)= A[64 x 16] B[16 x N], f32 accumulators over f16 or bf16 operands. B lies in
// shared memory, A there or in registers. Issued now, done when wait() says so; until then nobody touches what they use.
//
// A tile in shared memory is a row of panels: 64 features (128 bytes) of all its rows, each row's eight 16-byte pieces
// in the order that SWIZZLE_128B of the copy engine leaves, piece ^ (row & 7). Panels begin at multiples of 1,024 bytes.
//
// Of D, lane l of warp w of the group has for each 8 columns j: d[4 j], d[4 j + 1] of row 16 w + l / 4 at the columns
// 8 j + 2 (l % 4) and one more, and d[4 j + 2], d[4 j + 3] of the row 8 further down. Rounded to 16 bits in pairs, the
// accumulators of 16 columns are the A operand of the next product as they lie: {d[8k], d[8k+1]}, {d[8k+2], d[8k+3]},
// {d[8k+4], d[8k+5]}, {d[8k+6], d[8k+7]}.
#ifndef TANDEM_CUDA_SM90_WGMMA_CUH
#define TANDEM_CUDA_SM90_WGMMA_CUH
#include <cstdint>

#include "ptx.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr int kPanel = 64;        // features of a panel
constexpr int kPanelBytes = 128;  // of one of its rows

// Byte of a panel where the 16-byte piece `piece` (0..7) of a row is.
TANDEM_DEVICE uint panel_at(int row, int piece) {
  return uint(row * kPanelBytes + ((piece ^ (row & 7)) << 4));
}

// Where an operand lies. Along: its rows are the product's rows (A) or columns (B), and k runs along the features: S and
// dP take all theirs so. Across: its rows are k, the features are the product's rows or columns.
//   along:  16 features further are 32 bytes further, inside a panel; the next panel is panel rows x 128 bytes away.
//   across: 16 rows further are 2,048 bytes further; panels (64 columns of the product) are panel_stride apart.
TANDEM_DEVICE uint64_t along(uint at) {
  return uint64_t((at & 0x3ffffu) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}
TANDEM_DEVICE uint64_t across(uint at, int panel_stride) {
  return uint64_t((at & 0x3ffffu) >> 4) | uint64_t(uint(panel_stride) >> 4) << 16 |
         uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// The same, some bytes further. The upper half never changes: nothing is carried.
TANDEM_DEVICE uint64_t further(uint64_t descriptor, int bytes) {
  return (descriptor & 0xffffffff00000000u) | (uint(descriptor) + (uint(bytes) >> 4));
}

#if defined(__CUDACC__)

// Before the first product of a group whose registers were touched, accumulators or A; else ptxas puts one in (C7519).
TANDEM_DEVICE void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TANDEM_DEVICE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most LEFT groups are still on their way.
template <int LEFT>
TANDEM_DEVICE void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Rounded to 16 bits, as a pair; positive: 0 for what is negative.
TANDEM_DEVICE uint pack_half(float low, float high) {
  uint r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TANDEM_DEVICE uint pack_half_positive(float low, float high) {
  uint r;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TANDEM_DEVICE uint pack_bfloat(float low, float high) {
  uint r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TANDEM_DEVICE uint pack_bfloat_positive(float low, float high) {
  uint r;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TANDEM_DEVICE uint multiply_bfloats(uint x, uint y) {
  asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(x) : "r"(y));
  return x;
}
// Two elements as f32, and a product, put where another number was: as that is an operand, too, the compiler keeps to its register. Else
// what accumulators begin as is a number of its own beside those that are still wanted: 480 bytes of spills in fwd with a bias at D 64.
TANDEM_DEVICE void put_bfloats(float& low, float& high, uint x) {
  asm volatile(
      "{\n.reg .b32 t;\nshl.b32 t, %2, 16;\nmov.b32 %0, t;\nand.b32 t, %2, 0xffff0000;\n"
      "mov.b32 %1, t;\n}"
      : "+f"(low), "+f"(high)
      : "r"(x));
}
TANDEM_DEVICE void put_product(float& to, float x, float y) {
  asm volatile("mul.f32 %0, %1, %2;" : "+f"(to) : "f"(x), "f"(y));
}

#else
using simt::hopper::commit;
using simt::hopper::fence;
using simt::hopper::multiply_bfloats;
using simt::hopper::pack_bfloat;
using simt::hopper::pack_bfloat_positive;
using simt::hopper::pack_half;
using simt::hopper::pack_half_positive;
using simt::hopper::put_bfloats;
using simt::hopper::put_product;
using simt::hopper::wait;
#endif

// Computes x here, in source order with what is volatile, in particular not further down.
template <int N>
TANDEM_DEVICE void settle(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = fresh(x[i]);
}

// Lane n of a quad gives x[m] to lane m, whose x[n] it becomes: of the words of four chunks that accumulators are, rounded, each lane
// then has a whole chunk.
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
  static TANDEM_DEVICE uint pack_positive(float low, float high) {  // 0 for what is negative
    return pack_half_positive(low, high);
  }
  static TANDEM_DEVICE float low(uint r) { return __half2float(__ushort_as_half(ushort(r))); }
  static TANDEM_DEVICE float high(uint r) {
    return __half2float(__ushort_as_half(ushort(r >> 16)));
  }
  static TANDEM_DEVICE void put_times(float& to_low, float& to_high, uint r, float factor) {
    put_product(to_low, low(r), factor);
    put_product(to_high, high(r), factor);
  }
};
struct Bfloat {
  static TANDEM_DEVICE uint pack(float low, float high) { return pack_bfloat(low, high); }
  static TANDEM_DEVICE uint pack_positive(float low, float high) {  // 0 for what is negative
    return pack_bfloat_positive(low, high);
  }
  static TANDEM_DEVICE float low(uint r) { return __uint_as_float(r << 16); }
  static TANDEM_DEVICE float high(uint r) { return __uint_as_float(r & 0xffff0000u); }
  static TANDEM_DEVICE uint times(uint x, uint y) { return multiply_bfloats(x, y); }
  static TANDEM_DEVICE void put(float& to_low, float& to_high, uint r) {
    put_bfloats(to_low, to_high, r);
  }
  static TANDEM_DEVICE void put_times(float& to_low, float& to_high, uint r, float factor) {
    put_product(to_low, low(r), factor);
    put_product(to_high, high(r), factor);
  }
};

// N as the accumulators' count tells: N / 2 registers a thread.
//   Product<T, N>::from_shared<A_ACROSS, B_ACROSS>(d, a, b, add)   a, b: along() or across()
//   Product<T, N>::from_registers<B_ACROSS>(d, a0, a1, a2, a3, b, add)
// add: 0, D is overwritten.
template <typename T, int N>
struct Product;

#if defined(__CUDACC__)

// Per width: the accumulators in the instruction, as operands of the statement, and the numbers that follow.
// clang-format off
#define TANDEM_D8(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), \
                     "+f"(d[n + 4]), "+f"(d[n + 5]), "+f"(d[n + 6]), "+f"(d[n + 7])
#define TANDEM_REGISTERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define TANDEM_ACCUMULATORS_32 TANDEM_D8(0), TANDEM_D8(8)
#define TANDEM_OPERANDS_32 "%16", "%17", "%18", "%19", "%20", "%21", "%22"
#define TANDEM_REGISTERS_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define TANDEM_ACCUMULATORS_64 TANDEM_D8(0), TANDEM_D8(8), TANDEM_D8(16), TANDEM_D8(24)
#define TANDEM_OPERANDS_64 "%32", "%33", "%34", "%35", "%36", "%37", "%38"
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

// o0 to o6: the operands behind the accumulators, by number.
#define TANDEM_PRODUCT(T, type, N, o0, o1, o2, o3, o4, o5, o6)                                  \
  template <>                                                                                   \
  struct Product<T, N> {                                                                        \
    template <int A_ACROSS, int B_ACROSS>                                                       \
    static TANDEM_DEVICE void from_shared(float (&d)[N / 2], uint64_t a, uint64_t b, int add) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " o2                                       \
                   ", 0;\n"                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type              \
                   " {" TANDEM_REGISTERS_##N o0 ", " o1 ", p, 1, 1, " o3 ", " o4 ";\n}"         \
                   : TANDEM_ACCUMULATORS_##N                                                    \
                   : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS));                   \
    }                                                                                           \
    template <int B_ACROSS>                                                                     \
    static TANDEM_DEVICE void from_registers(float (&d)[N / 2], uint a0, uint a1, uint a2,      \
                                             uint a3, uint64_t b, int add) {                    \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " o5                                       \
                   ", 0;\n"                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type              \
                   " {" TANDEM_REGISTERS_##N "{" o0 ", " o1 ", " o2 ", " o3 "}, " o4            \
                                             ", p, 1, 1, " o6 ";\n}"                            \
                   : TANDEM_ACCUMULATORS_##N                                                    \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(B_ACROSS));      \
    }                                                                                           \
  };
#define TANDEM_PRODUCTS(N, ...)               \
  TANDEM_PRODUCT(Half, "f16", N, __VA_ARGS__) \
  TANDEM_PRODUCT(Bfloat, "bf16", N, __VA_ARGS__)
#define TANDEM_WIDTH(N) TANDEM_WIDTH_(N, TANDEM_OPERANDS_##N)
#define TANDEM_WIDTH_(N, ...) TANDEM_PRODUCTS(N, __VA_ARGS__)
TANDEM_WIDTH(32)
TANDEM_WIDTH(64)
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
struct Product<Half, N> : simt::hopper::Product<simt::hopper::Type::half, N> {};
template <int N>
struct Product<Bfloat, N> : simt::hopper::Product<simt::hopper::Type::bfloat, N> {};
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
