// SPDX-License-Identifier: MIT OR Apache-2.0
// Named barriers of a workgroup. ID 0 is __syncthreads(). One instruction a function; PTX ISA 8.0.
// Without a CUDA compiler, tests/cuda/emulated/hopper_emulator.h gives them a meaning in C++.
#ifndef TANDEM_CUDA_SM90_PTX_NAMED_BARRIER_CUH
#define TANDEM_CUDA_SM90_PTX_NAMED_BARRIER_CUH
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

#if defined(__CUDACC__)

// Waits until `threads` threads have arrived.
template <int ID>
TANDEM_DEVICE void named_barrier_sync(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "r"(threads) : "memory");
}
// Arrives without waiting.
template <int ID>
TANDEM_DEVICE void named_barrier_arrive(int threads) {
  asm volatile("bar.arrive %0, %1;" ::"n"(ID), "r"(threads) : "memory");
}
// With an id that is known only at run time, the compiler reserves all 16 barriers.
TANDEM_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TANDEM_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Waits likewise, and returns whether x is true in any of the threads.
TANDEM_DEVICE bool named_barrier_any(int id, int threads, bool x) {
  int any;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\nbar.red.or.pred p, %1, %2, p;\n"
      "selp.s32 %0, 1, 0, p;\n}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(int(x))
      : "memory");
  return any != 0;
}
template <int ID, int THREADS>
TANDEM_DEVICE bool named_barrier_any(bool x) {
  int any;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred p, %2, %3, p;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(any)
      : "r"(int(x)), "n"(ID), "n"(THREADS)
      : "memory");
  return any != 0;
}

#else
using simt::hopper::named_barrier_any;
using simt::hopper::named_barrier_arrive;
using simt::hopper::named_barrier_sync;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
