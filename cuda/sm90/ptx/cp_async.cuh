// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies to shared memory that bypass the registers (cp.async), for rows that no TMA box has. They
// are writes of the generic proxy: the thread waits for its own and then executes
// fence_proxy_async_shared(), before wgmma reads them. One instruction a function; PTX ISA 7.0.
// Without a CUDA compiler, tests/cuda/emulated/warp_emulator.h gives them a meaning in C++.
#ifndef TANDEM_CUDA_SM90_PTX_CP_ASYNC_CUH
#define TANDEM_CUDA_SM90_PTX_CP_ASYNC_CUH
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

#if defined(__CUDACC__)

// Copies 16 bytes, of which only `bytes` are read; the others become zeros.
TANDEM_DEVICE void cp_async_16(uint to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
TANDEM_DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most LEFT of this thread's groups are in flight.
template <int LEFT>
TANDEM_DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#else
using simt::hopper::cp_async_16;
using simt::hopper::cp_async_commit_group;
using simt::hopper::cp_async_wait_group;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
