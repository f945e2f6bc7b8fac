// SPDX-License-Identifier: MIT OR Apache-2.0
// Instructions of sm_90a that belong to no group of their own: thread index, elect.sync, registers
// of a warpgroup, programmatic dependent launch, approximate arithmetic and optimisation barriers.
// One instruction a function; PTX ISA 8.0. Without a CUDA compiler,
// tests/cuda/emulated/hopper_emulator.h gives them a meaning in C++.
#ifndef TANDEM_CUDA_SM90_PTX_BASE_CUH
#define TANDEM_CUDA_SM90_PTX_BASE_CUH
#include <cuda.h>

#include <cstdint>

#include "../../parts/simt.cuh"
#if !defined(__CUDACC__)
#include "hopper_emulator.h"
#endif

namespace tandem {
namespace cuda {
namespace sm90 {

using uint = unsigned;

#if defined(__CUDACC__)

// Whether this lane is the elected one of a converged warp. The same lane is elected every time.
TANDEM_DEVICE bool elect_one() {
  uint chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(chosen));
  return chosen != 0;
}
// threadIdx.x, read from the special register again. Where registers are short, a kernel reads it
// at each use rather than keep it.
TANDEM_DEVICE int read_tid_x() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// ---- optimisation barriers ----------------------------------------------------------------------

// x, as a value that the compiler knows nothing about. Otherwise the compiler would keep whatever
// it derives from x, for which there are no registers.
TANDEM_DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
TANDEM_DEVICE uint opaque(uint x) {
  asm volatile("" : "+r"(x));
  return x;
}
TANDEM_DEVICE float opaque(float x) {
  asm volatile("" : "+f"(x));
  return x;
}
// x in another register, as a value that the compiler knows nothing about.
TANDEM_DEVICE uint opaque_copy(uint x) {
  uint y;
  asm volatile("mov.u32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// ---- programmatic dependent launch --------------------------------------------------------------

// Allows the dependent grid to start once every workgroup of this grid has called it. Only a kernel
// that was launched with programmatic stream serialisation starts so early.
TANDEM_DEVICE void launch_dependent_grids() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Waits until the grid that this one depends on has ended and its writes are visible.
TANDEM_DEVICE void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- registers of a warpgroup -------------------------------------------------------------------

// Lowers the register budget of each thread of the warpgroup to COUNT.
template <int COUNT>
TANDEM_DEVICE void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
// Raises the register budget of each thread of the warpgroup to COUNT. Waits until the workgroup
// has that many registers to spare.
template <int COUNT>
TANDEM_DEVICE void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- arithmetic ---------------------------------------------------------------------------------

TANDEM_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TANDEM_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The bits of x. Not __float_as_int(): the compiler would then carry loop values as integers, and
// move them while a matrix product still writes them.
TANDEM_DEVICE int float_bits(float x) {
  int y;
  asm("mov.b32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

#else
using simt::hopper::elect_one;
using simt::hopper::exp2_fast;
using simt::hopper::float_bits;
using simt::hopper::grid_dependency_wait;
using simt::hopper::launch_dependent_grids;
using simt::hopper::opaque;
using simt::hopper::opaque_copy;
using simt::hopper::read_tid_x;
using simt::hopper::reciprocal;
using simt::hopper::warpgroup_reg_alloc;
using simt::hopper::warpgroup_reg_dealloc;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
