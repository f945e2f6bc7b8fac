// SPDX-License-Identifier: MIT OR Apache-2.0
// mbarriers: barriers of 8 bytes in shared memory that count arrivals and bytes. An address of
// shared memory is a 32-bit number. One instruction a function; PTX ISA 8.0. Without a CUDA
// compiler, tests/cuda/emulated/hopper_emulator.h gives them a meaning in C++.
#ifndef TANDEM_CUDA_SM90_PTX_MBARRIER_CUH
#define TANDEM_CUDA_SM90_PTX_MBARRIER_CUH
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

#if defined(__CUDACC__)

// A phase of the mbarrier completes after this many arrivals.
TANDEM_DEVICE void mbarrier_init(uint barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes initialised mbarriers visible to TMA. It comes after the inits and before the
// __syncthreads() that makes them visible to the other threads.
TANDEM_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
TANDEM_DEVICE void mbarrier_arrive(uint barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and makes the phase wait for this many more bytes.
TANDEM_DEVICE void mbarrier_arrive_expect_tx(uint barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Waits until the phase of this parity has completed. A new mbarrier counts as having completed a
// phase of parity 1, so a producer that first waits for an empty stage waits for parity 1 and
// passes.
TANDEM_DEVICE void mbarrier_wait(uint barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Arrives at an mbarrier of another workgroup of the cluster, at an address from cluster_address().
// It orders shared memory only, as mbarrier_arrive() does: a release to the cluster would also wait
// for stores to global memory.
TANDEM_DEVICE void mbarrier_arrive_remote(uint barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

#else
using simt::hopper::fence_mbarrier_init;
using simt::hopper::mbarrier_arrive;
using simt::hopper::mbarrier_arrive_expect_tx;
using simt::hopper::mbarrier_arrive_remote;
using simt::hopper::mbarrier_init;
using simt::hopper::mbarrier_wait;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
