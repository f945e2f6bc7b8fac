// SPDX-License-Identifier: MIT OR Apache-2.0
// Loads and stores of shared memory. An address is a 32-bit number, and kernels lay out their
// shared memory themselves. One instruction a function. Each is volatile, so it stays where it is
// written. Without a CUDA compiler, tests/cuda/emulated/hopper_emulator.h gives them a meaning in
// C++.
#ifndef TANDEM_CUDA_SM90_PTX_SHARED_MEMORY_CUH
#define TANDEM_CUDA_SM90_PTX_SHARED_MEMORY_CUH
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

#if defined(__CUDACC__)

// The 32-bit address of an object in shared memory.
TANDEM_DEVICE uint shared_address(const void* p) { return uint(__cvta_generic_to_shared(p)); }
// The workgroup's dynamic shared memory. It begins at a multiple of 1,024 bytes, as swizzled panels
// require.
TANDEM_DEVICE unsigned char* aligned_shared_memory() {
  extern __shared__ __align__(1024) unsigned char panels[];
  return panels;
}

TANDEM_DEVICE uint ld_shared_u32(uint at) {
  uint x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE uint2 ld_shared_v2_u32(uint at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE uint4 ld_shared_v4_u32(uint at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
TANDEM_DEVICE int ld_shared_s32(uint at) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE int4 ld_shared_v4_s32(uint at) {
  int4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
TANDEM_DEVICE float ld_shared_f32(uint at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE float2 ld_shared_v2_f32(uint at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE ushort ld_shared_u16(uint at) {
  ushort x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(at) : "memory");
  return x;
}

TANDEM_DEVICE void st_shared_u16(uint at, uint x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(ushort(x)) : "memory");
}
TANDEM_DEVICE void st_shared(uint at, uint x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
TANDEM_DEVICE void st_shared(uint at, int x) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
TANDEM_DEVICE void st_shared(uint at, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
TANDEM_DEVICE void st_shared(uint at, int x, int y, int z, int w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
TANDEM_DEVICE void st_shared(uint at, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}
TANDEM_DEVICE void red_shared_or(uint at, uint bits) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(at), "r"(bits) : "memory");
}
// Appends x to a list if it is above the bound. The end of the list then moves by STEP bytes.
template <int STEP>
TANDEM_DEVICE void append_above(uint& end, float x, float bound) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.gt.f32 p, %1, %2;\n@p st.shared.f32 [%0], %1;\n"
      "@p add.u32 %0, %0, %3;\n}"
      : "+r"(end)
      : "f"(x), "f"(bound), "n"(STEP)
      : "memory");
}
// Appends x likewise, and 16 bits of word to a second list, half as far behind words as x is behind
// address 0.
template <int STEP>
TANDEM_DEVICE void append_above(uint& end, float x, float bound, uint words, uint word) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .u32 at;\nsetp.gt.f32 p, %1, %2;\nshr.u32 at, %0, 1;\n"
      "add.u32 at, at, %4;\n@p st.shared.f32 [%0], %1;\n@p st.shared.u16 [at], %5;\n"
      "@p add.u32 %0, %0, %3;\n}"
      : "+r"(end)
      : "f"(x), "f"(bound), "n"(STEP), "r"(words), "h"(ushort(word))
      : "memory");
}

// ---- four 8 x 8 matrices of 16-bit elements between a warp's registers and shared memory --------

TANDEM_DEVICE void ldmatrix_x4(uint (&r)[4], uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
TANDEM_DEVICE void ldmatrix_x4_trans(uint (&r)[4], uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
TANDEM_DEVICE void stmatrix_x4(uint at, const uint (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
TANDEM_DEVICE void stmatrix_x4_trans(uint at, const uint (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

#else
using simt::hopper::aligned_shared_memory;
using simt::hopper::append_above;
using simt::hopper::ld_shared_f32;
using simt::hopper::ld_shared_s32;
using simt::hopper::ld_shared_u16;
using simt::hopper::ld_shared_u32;
using simt::hopper::ld_shared_v2_f32;
using simt::hopper::ld_shared_v2_u32;
using simt::hopper::ld_shared_v4_s32;
using simt::hopper::ld_shared_v4_u32;
using simt::hopper::ldmatrix_x4;
using simt::hopper::ldmatrix_x4_trans;
using simt::hopper::red_shared_or;
using simt::hopper::shared_address;
using simt::hopper::st_shared;
using simt::hopper::st_shared_u16;
using simt::hopper::stmatrix_x4;
using simt::hopper::stmatrix_x4_trans;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
