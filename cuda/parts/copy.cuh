// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies from global to shared memory that bypass the registers (cp.async, sm_80). GPUs before that
// load and store at once. A thread sees what it has copied once wait_copies() has returned, other
// threads after a barrier that follows.
#ifndef TANDEM_CUDA_PARTS_COPY_CUH
#define TANDEM_CUDA_PARTS_COPY_CUH
#include "simt.cuh"
#if !defined(__CUDACC__)
#include "warp_emulator.h"
#endif

namespace tandem {
namespace cuda {

#if !defined(__CUDACC__)
using simt::warp::commit_copies;
using simt::warp::copy_quad;
using simt::warp::copy_word;
using simt::warp::wait_copies;
#else
#if __CUDA_ARCH__ >= 800
TANDEM_DEVICE uint shared_address(const void* p) { return uint(__cvta_generic_to_shared(p)); }
#endif

// 4 bytes, or a zero.
TANDEM_DEVICE void copy_word(float* to, const float* from, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 4 : 0)
               : "memory");
#else
  *to = there ? __ldg(from) : 0.f;
#endif
}
// 16 bytes, or zeros.
TANDEM_DEVICE void copy_quad(float* to, const float* from, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
#else
  *reinterpret_cast<float4*>(to) =
      there ? __ldg(reinterpret_cast<const float4*>(from)) : make_float4(0.f, 0.f, 0.f, 0.f);
#endif
}
TANDEM_DEVICE void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most LEFT of this thread's groups are in flight.
template <int LEFT>
TANDEM_DEVICE void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
#endif

}  // namespace cuda
}  // namespace tandem
#endif
