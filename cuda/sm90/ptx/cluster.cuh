// SPDX-License-Identifier: MIT OR Apache-2.0
// Clusters: workgroups that access each other's shared memory. One instruction a function; PTX ISA
// 8.0. Without a CUDA compiler, tests/cuda/emulated/hopper_emulator.h gives them a meaning in C++.
#ifndef TANDEM_CUDA_SM90_PTX_CLUSTER_CUH
#define TANDEM_CUDA_SM90_PTX_CLUSTER_CUH
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

#if defined(__CUDACC__)

TANDEM_DEVICE uint cluster_size() {
  uint n;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
}
TANDEM_DEVICE uint cluster_rank() {
  uint n;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
  return n;
}
// Synchronises all threads of the cluster that have not exited.
TANDEM_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// The address in workgroup `rank` of what lies at `at` in this workgroup. For ld_cluster_v4_u32(),
// st_async_cluster() and mbarrier_arrive_remote().
TANDEM_DEVICE uint cluster_address(uint at, uint rank) {
  uint there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}
TANDEM_DEVICE uint4 ld_cluster_v4_u32(uint at) {
  uint4 x;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
// Stores a 32-bit word to a workgroup of the cluster. The mbarrier, of the same workgroup, counts
// the 4 bytes.
TANDEM_DEVICE void st_async_cluster(uint at, uint x, uint barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(at),
      "r"(x), "r"(barrier)
      : "memory");
}
// Stores four f32 values likewise.
TANDEM_DEVICE void st_async_cluster(uint at, float x, float y, float z, float w, uint barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(at),
      "f"(x), "f"(y), "f"(z), "f"(w), "r"(barrier)
      : "memory");
}
// Copies contiguous bytes of this workgroup's shared memory, a multiple of 16, to a workgroup of
// the cluster. The mbarrier, of that workgroup, counts them. They are read when it has.
TANDEM_DEVICE void bulk_copy_cluster(uint to, uint from, int bytes, uint barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

#else
using simt::hopper::bulk_copy_cluster;
using simt::hopper::cluster_address;
using simt::hopper::cluster_rank;
using simt::hopper::cluster_size;
using simt::hopper::cluster_sync;
using simt::hopper::ld_cluster_v4_u32;
using simt::hopper::st_async_cluster;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
