// SPDX-License-Identifier: MIT OR Apache-2.0
// Words of global memory by which workgroups synchronise, and sums in global memory: acquire,
// release and atomic operations at the scope of the device. One instruction a function. Without a
// CUDA compiler, tests/cuda/emulated/hopper_emulator.h gives them a meaning in C++.
#ifndef TANDEM_CUDA_SM90_PTX_GLOBAL_MEMORY_CUH
#define TANDEM_CUDA_SM90_PTX_GLOBAL_MEMORY_CUH
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

#if defined(__CUDACC__)

TANDEM_DEVICE uint ld_acquire(const uint* at) {
  uint x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
TANDEM_DEVICE uint64_t ld_acquire(uint64_t address) {
  uint64_t x;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(x) : "l"(address) : "memory");
  return x;
}
TANDEM_DEVICE void st_release(uint64_t address, uint64_t x) {
  asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(address), "l"(x) : "memory");
}
// Returns the previous value.
TANDEM_DEVICE uint64_t atom_exchange_acquire(uint64_t address, uint64_t x) {
  uint64_t was;
  asm volatile("atom.acquire.gpu.global.exch.b64 %0, [%1], %2;"
               : "=l"(was)
               : "l"(address), "l"(x)
               : "memory");
  return was;
}
TANDEM_DEVICE void red_add_release(uint* at, uint by) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(by) : "memory");
}
// Returns the previous value.
TANDEM_DEVICE uint atom_add_acq_rel(uint64_t address, uint by) {
  uint before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(address), "r"(by)
               : "memory");
  return before;
}

// Adds two floats, each atomically. address: a multiple of 8.
TANDEM_DEVICE void red_add_v2_f32(uint64_t address, float x, float y) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(x), "f"(y)
               : "memory");
}
// Adds four floats, each atomically. address: a multiple of 16.
TANDEM_DEVICE void red_add_v4_f32(uint64_t address, float4 by) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
               "f"(by.x), "f"(by.y), "f"(by.z), "f"(by.w)
               : "memory");
}

#else
using simt::hopper::atom_add_acq_rel;
using simt::hopper::atom_exchange_acquire;
using simt::hopper::ld_acquire;
using simt::hopper::red_add_release;
using simt::hopper::red_add_v2_f32;
using simt::hopper::red_add_v4_f32;
using simt::hopper::st_release;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
