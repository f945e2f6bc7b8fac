// SPDX-License-Identifier: MIT OR Apache-2.0
// TMA: tensor copies by boxes, copies of contiguous bytes (cp.async.bulk), and the fences between
// the generic and the async proxy. An address of shared memory is a 32-bit number. One instruction
// a function; PTX ISA 8.0.
// Without a CUDA compiler, tests/cuda/emulated/hopper_emulator.h gives them a meaning in C++.
#ifndef TANDEM_CUDA_SM90_PTX_TMA_CUH
#define TANDEM_CUDA_SM90_PTX_TMA_CUH
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

#if defined(__CUDACC__)

// Loads a box of a tensor of four dimensions (feature, row, head, batch) into shared memory.
// Elements outside the tensor become 0. The mbarrier counts the bytes.
TANDEM_DEVICE void tma_load(uint to, const CUtensorMap* map, uint barrier, int d, int s, int h,
                            int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(d), "r"(s), "r"(h), "r"(b)
      : "memory");
}
// The same into the workgroups of the cluster whose bits `to_ranks` has, at the same addresses of
// each. The mbarrier of each of them counts the bytes.
TANDEM_DEVICE void tma_load_multicast(uint to, const CUtensorMap* map, uint barrier, int d, int s,
                                      int h, int b, uint to_ranks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(d), "r"(s), "r"(h), "r"(b), "h"(ushort(to_ranks))
      : "memory");
}
// Loads a TMA box into the L2 cache.
TANDEM_DEVICE void tma_prefetch(const CUtensorMap* map, int d, int s, int h, int b) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map),
               "r"(d), "r"(s), "r"(h), "r"(b)
               : "memory");
}
// Stores a box from shared memory. What lies beyond the tensor's end is left out in units of 16
// bytes, so sizes are multiples of 8 elements. The box may not begin before the first row: that is
// an illegal instruction on an H100 (driver 580.159.04).
TANDEM_DEVICE void tma_store(const CUtensorMap* map, uint from, int d, int s, int h, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(from), "r"(d), "r"(s), "r"(h), "r"(b)
      : "memory");
}
TANDEM_DEVICE void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Loads contiguous bytes, a multiple of 16. The mbarrier counts them.
TANDEM_DEVICE void bulk_load(uint to, const void* from, uint barrier, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];" ::
          "r"(to),
      "l"(from), "r"(barrier), "r"(bytes)
      : "memory");
}
// Adds contiguous f32 values of shared memory to global memory.
TANDEM_DEVICE void bulk_reduce_add(float* to, uint from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
// Stores contiguous bytes of shared memory to global memory.
TANDEM_DEVICE void bulk_store(uint64_t to, uint from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
TANDEM_DEVICE void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most LEFT of this thread's bulk groups have yet to read shared memory.
template <int LEFT>
TANDEM_DEVICE void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}
// Waits until at most LEFT of this thread's bulk groups are incomplete. The writes of the others
// are then visible.
template <int LEFT>
TANDEM_DEVICE void bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(LEFT) : "memory");
}
// Orders this thread's ordinary stores to shared memory before accesses of the async proxy. Each
// thread that stored executes it before the barrier behind which wgmma or TMA reads.
TANDEM_DEVICE void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The same for global memory, too.
TANDEM_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

#else
using simt::hopper::bulk_commit_group;
using simt::hopper::bulk_load;
using simt::hopper::bulk_reduce_add;
using simt::hopper::bulk_store;
using simt::hopper::bulk_wait_group;
using simt::hopper::bulk_wait_group_read;
using simt::hopper::fence_proxy_async;
using simt::hopper::fence_proxy_async_shared;
using simt::hopper::prefetch_tensor_map;
using simt::hopper::tma_load;
using simt::hopper::tma_load_multicast;
using simt::hopper::tma_prefetch;
using simt::hopper::tma_store;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
