// SPDX-License-Identifier: MIT OR Apache-2.0
// Loads and stores of shared memory by 32-bit addresses, where the kernels place their data themselves, and words of global
// memory by which workgroups hear of each other. One instruction a function; volatile, so that they stay where they are
// written. Without a CUDA compiler they mean what tests/cuda_emulated/hopper_emulator.h says.
#ifndef TANDEM_CUDA_SM90_WORDS_CUH
#define TANDEM_CUDA_SM90_WORDS_CUH
#include <cstdint>

#include "ptx.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

#if defined(__CUDACC__)

// The block's dynamic shared memory, which begins at a multiple of 1,024 bytes here: panels lie in it.
TANDEM_DEVICE unsigned char* panel_memory() {
  extern __shared__ __align__(1024) unsigned char panels[];
  return panels;
}

// ---- shared memory -----------------------------------------------------------------------------------

TANDEM_DEVICE uint shared_word(uint at) {
  uint x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE uint2 shared_pair(uint at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE uint4 shared_words(uint at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
TANDEM_DEVICE int shared_int(uint at) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE int4 shared_ints(uint at) {
  int4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
TANDEM_DEVICE float shared_float(uint at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE float2 shared_float2(uint at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
  return x;
}
// The 16 bits of an element.
TANDEM_DEVICE ushort shared_half(uint at) {
  ushort x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(at) : "memory");
  return x;
}

TANDEM_DEVICE void put_shared(uint at, uint x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
TANDEM_DEVICE void put_shared(uint at, int x) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
TANDEM_DEVICE void put_shared(uint at, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
TANDEM_DEVICE void put_shared(uint at, int x, int y, int z, int w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
TANDEM_DEVICE void put_shared(uint at, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}
TANDEM_DEVICE void or_shared(uint at, uint bits) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(at), "r"(bits) : "memory");
}
// x at the end of a list, which then ends STEP bytes further, if it is above the bound.
template <int STEP>
TANDEM_DEVICE void append_above(uint& end, float x, float bound) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.gt.f32 p, %1, %2;\n@p st.shared.f32 [%0], %1;\n"
      "@p add.u32 %0, %0, %3;\n}"
      : "+r"(end)
      : "f"(x), "f"(bound), "n"(STEP)
      : "memory");
}
// A word of a workgroup of the cluster, as cluster_address() says; its 4 bytes arrive at a barrier of the same workgroup.
TANDEM_DEVICE void cluster_tell(uint at, uint x, uint barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(at),
      "r"(x), "r"(barrier)
      : "memory");
}

// ---- words between workgroups, in global memory ------------------------------------------------------

TANDEM_DEVICE uint acquire_word(const uint* at) {
  uint x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
TANDEM_DEVICE uint64_t acquire_word(uint64_t address) {
  uint64_t x;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(x) : "l"(address) : "memory");
  return x;
}
TANDEM_DEVICE void release_word(uint64_t address, uint64_t x) {
  asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(address), "l"(x) : "memory");
}
// Returns what was there.
TANDEM_DEVICE uint64_t exchange_word(uint64_t address, uint64_t x) {
  uint64_t was;
  asm volatile("atom.acquire.gpu.global.exch.b64 %0, [%1], %2;"
               : "=l"(was)
               : "l"(address), "l"(x)
               : "memory");
  return was;
}
TANDEM_DEVICE void release_add(uint* at, uint by) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(by) : "memory");
}
// Acquires and releases; returns what was there before.
TANDEM_DEVICE uint count_up(uint64_t address, uint by) {
  uint before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(address), "r"(by)
               : "memory");
  return before;
}

#else
using simt::hopper::acquire_word;
using simt::hopper::append_above;
using simt::hopper::cluster_tell;
using simt::hopper::count_up;
using simt::hopper::exchange_word;
using simt::hopper::or_shared;
using simt::hopper::panel_memory;
using simt::hopper::put_shared;
using simt::hopper::release_add;
using simt::hopper::release_word;
using simt::hopper::shared_float;
using simt::hopper::shared_float2;
using simt::hopper::shared_half;
using simt::hopper::shared_int;
using simt::hopper::shared_ints;
using simt::hopper::shared_pair;
using simt::hopper::shared_word;
using simt::hopper::shared_words;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
