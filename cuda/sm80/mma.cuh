// SPDX-License-Identifier: MIT OR Apache-2.0
// Ampere instructions that CUDA C++ does not have: matrix products of a warp (mma), loads of 8 x 8
// matrices (ldmatrix), copies that bypass the registers (cp.async). One instruction a function; PTX
// ISA 7.0, sm_80. Addresses of shared memory are 32-bit numbers, as these instructions take them.
// tests/cuda/emulated/warp_emulator.h has their meaning in C++.
#ifndef TANDEM_CUDA_SM80_MMA_CUH
#define TANDEM_CUDA_SM80_MMA_CUH
#include "../parts/tensor.cuh"
#if !defined(__CUDACC__)
#include "hopper_engine.h"
#include "warp_emulator.h"
#endif

namespace tandem {
namespace cuda {
namespace sm80 {

#if defined(__CUDACC__)
// Address of the block's dynamic shared memory.
TANDEM_DEVICE uint shared_start() { return uint(__cvta_generic_to_shared(shared_memory())); }

// Read again at the end of a kernel, so that it takes no register meanwhile.
TANDEM_DEVICE uint block_number() {
  uint x, y, columns;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(columns));
  return y * columns + x;
}
TANDEM_DEVICE int thread_number() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// ---- programmatic dependent launch --------------------------------------------------------------

// Waits until the grid before this one has ended, and its writes are visible. A kernel reads
// nothing that another one may have written before it has called this. Neither of the two does
// anything on devices before 9.0, or where the grids were launched without it.
TANDEM_DEVICE void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Allows the next grid to start once every workgroup of this one has called it or has ended.
TANDEM_DEVICE void launch_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- products -----------------------------------------------------------------------------------

// d += a b: 16 x 8 += (16 x 16) (16 x 8). With g = lane / 4, t = lane % 4 a lane holds of
//   d     rows g, g + 8 (d[0], d[1]; d[2], d[3]), columns 2 t, 2 t + 1
//   a     rows g, g + 8, columns 2 t, 2 t + 1 (a[0]; a[1]) and 8 more (a[2]; a[3])
//   b     rows 2 t, 2 t + 1 (b0) and 8 more (b1), column g
template <typename T>
TANDEM_DEVICE void multiply(float (&d)[4], const uint (&a)[4], uint b0, uint b1) {
  if constexpr (std::is_same<T, F16>::value)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with 8 columns of a and rows of b in TF32, which ignores the last 13 bits of an f32
// number:
//   a     rows g, g + 8, column t (a[0]; a[1]) and 4 more (a[2]; a[3])
//   b     row t (b0) and 4 more (b1), column g
TANDEM_DEVICE void multiply_tf32(float (&d)[4], const uint (&a)[4], uint b0, uint b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Packs two numbers, rounded to nearest even, with low in the low half.
template <typename T>
TANDEM_DEVICE uint pack(float low, float high) {
  uint r;
  if constexpr (std::is_same<T, F16>::value)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// ---- shared memory ------------------------------------------------------------------------------

// Loads four 8 x 8 matrices of 16-bit elements. Lane n gives the address of row n % 8 of matrix
// n / 8, and gets row n / 4, columns 2 (n % 4) and the next one, of each matrix. The second
// function gives the same of the transposes.
TANDEM_DEVICE void load_matrices(uint (&r)[4], uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
TANDEM_DEVICE void load_matrices_transposed(uint (&r)[4], uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
TANDEM_DEVICE void put_word(uint at, uint x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
TANDEM_DEVICE void put_pair(uint at, uint x, uint y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}
TANDEM_DEVICE void put_chunk(uint at, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
TANDEM_DEVICE uint4 get_chunk(uint at) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
TANDEM_DEVICE uint get_word(uint at) {
  uint x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE void put_number(uint at, float x) { put_word(at, __float_as_uint(x)); }
TANDEM_DEVICE void get_numbers(float (&x)[2], uint at) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(at) : "memory");
}

// Copies 16 bytes, of which only `bytes` are read; the others become zeros. This thread sees them
// once wait<>() has returned, other threads after a barrier that follows.
TANDEM_DEVICE void copy_chunk(uint to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// Copies 16 bytes, or zeros for all of them. It takes a fourth of the instructions.
TANDEM_DEVICE void copy_chunk(uint to, const void* from, bool there) {
  asm volatile(
      "{ .reg .pred zeros; setp.eq.u32 zeros, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, "
      "zeros; }" ::"r"(to),
      "l"(from), "r"(uint(there))
      : "memory");
}
TANDEM_DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most LEFT of this thread's groups are in flight.
template <int LEFT>
TANDEM_DEVICE void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// ---- numbers ------------------------------------------------------------------------------------

TANDEM_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The same number, which the compiler takes for another one each time: nothing that is computed of
// it leaves a loop.
TANDEM_DEVICE uint opaque(uint x) {
  asm volatile("" : "+r"(x));
  return x;
}
TANDEM_DEVICE bool any_of_warp(bool x) { return __any_sync(kAllLanes, x) != 0; }
TANDEM_DEVICE void sync_warp() { __syncwarp(); }
// Synchronises an even warp and the next one.
TANDEM_DEVICE void sync_two_warps() {
  asm volatile("bar.sync %0, 64;" ::"r"(1 + threadIdx.x / 64) : "memory");
}
TANDEM_DEVICE uint swap_words(uint x, int lanes) { return __shfl_xor_sync(kAllLanes, x, lanes); }
#else
using simt::hopper::grid_dependency_wait;
using simt::hopper::launch_dependent_grids;
using simt::warp::any_of_warp;
using simt::warp::commit;
using simt::warp::copy_chunk;
using simt::warp::exp2_fast;
using simt::warp::get_chunk;
using simt::warp::get_numbers;
using simt::warp::get_word;
using simt::warp::load_matrices;
using simt::warp::load_matrices_transposed;
using simt::warp::multiply_tf32;
using simt::warp::put_chunk;
using simt::warp::put_number;
using simt::warp::put_pair;
using simt::warp::put_word;
using simt::warp::swap_words;
using simt::warp::sync_two_warps;
using simt::warp::sync_warp;
using simt::warp::wait;
inline void copy_chunk(uint to, const void* from, bool there) {
  simt::warp::copy_chunk(to, from, there ? 16 : 0);
}
inline uint opaque(uint x) { return x; }
inline uint shared_start() { return 0; }
inline int thread_number() { return int(threadIdx.x); }
inline uint block_number() { return blockIdx.y * gridDim.x + blockIdx.x; }
template <typename T>
void multiply(float (&d)[4], const uint (&a)[4], uint b0, uint b1) {
  simt::warp::multiply<T>(d, a, b0, b1);
}
template <typename T>
uint pack(float low, float high) {
  return uint(T::from_float(low)) | uint(T::from_float(high)) << 16;
}
#endif

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
