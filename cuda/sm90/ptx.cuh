// SPDX-License-Identifier: MIT OR Apache-2.0
// Hopper's words that CUDA C++ does not have: mbarriers, bulk tensor copies, named barriers, register budgets, and
// moves of 8 x 8 matrices. One instruction a function; PTX ISA 8.0, sm_90a. The matrix products are in wgmma.cuh.
// Addresses of shared memory are 32-bit numbers, as these instructions take them. Without a CUDA compiler they mean what
// tests/cuda_emulated/hopper_emulator.h says.
#ifndef TANDEM_CUDA_SM90_PTX_CUH
#define TANDEM_CUDA_SM90_PTX_CUH
#include <cuda.h>

#include "../simt.cuh"
#if !defined(__CUDACC__)
#include "hopper_emulator.h"
#endif

namespace tandem {
namespace cuda {
namespace sm90 {

using uint = unsigned;

#if defined(__CUDACC__)

TANDEM_DEVICE uint shared_address(const void* p) { return uint(__cvta_generic_to_shared(p)); }

// One lane of a warp whose lanes are together; the same one every time.
TANDEM_DEVICE bool elect_one() {
  uint chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(chosen));
  return chosen != 0;
}

// threadIdx.x, asked for anew: where registers are short it is not kept.
TANDEM_DEVICE int fresh_thread() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// What the compiler is not to know from before: else it would keep what follows from it, and registers are short.
TANDEM_DEVICE int fresh(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
TANDEM_DEVICE uint fresh(uint x) {
  asm volatile("" : "+r"(x));
  return x;
}
TANDEM_DEVICE float fresh(float x) {
  asm volatile("" : "+f"(x));
  return x;
}
// The same in another register.
TANDEM_DEVICE uint moved_word(uint x) {
  uint y;
  asm volatile("mov.u32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// ---- mbarriers: 8 bytes of shared memory -----------------------------------------------------------

TANDEM_DEVICE void barrier_init(uint barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// After the inits, before the __syncthreads() that shows them to the others and to the copy engine.
TANDEM_DEVICE void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
TANDEM_DEVICE void barrier_arrive(uint barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and bytes have yet to be copied before the phase ends.
TANDEM_DEVICE void barrier_expect(uint barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Until the phase of this parity is over. A fresh barrier counts as having ended a phase of parity 1, so whoever fills
// an empty place first waits for parity 1 and passes.
TANDEM_DEVICE void barrier_wait(uint barrier, int parity) {
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

// ---- bulk copies -----------------------------------------------------------------------------------

// A box of a tensor of four dimensions (feature, row, head, batch) into shared memory; elements outside the tensor
// become 0. The barrier is told of the bytes.
TANDEM_DEVICE void copy_box(uint to, const CUtensorMap* map, uint barrier, int d, int s, int h,
                            int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(d), "r"(s), "r"(h), "r"(b)
      : "memory");
}
// Such a box, but into the second-level cache.
TANDEM_DEVICE void prefetch_box(const CUtensorMap* map, int d, int s, int h, int b) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map),
               "r"(d), "r"(s), "r"(h), "r"(b)
               : "memory");
}
// The other way; what lies behind the tensor's end is left out, by whole 16 bytes: sizes of 8 elements. It may not begin
// before the first row: that is an illegal instruction on an H100 (580.159.04).
TANDEM_DEVICE void store_box(const CUtensorMap* map, uint from, int d, int s, int h, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(from), "r"(d), "r"(s), "r"(h), "r"(b)
      : "memory");
}
TANDEM_DEVICE void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// A flat piece, a multiple of 16 bytes.
TANDEM_DEVICE void copy_flat(uint to, const void* from, uint barrier, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];" ::
          "r"(to),
      "l"(from), "r"(barrier), "r"(bytes)
      : "memory");
}
// Adds f32 numbers of shared memory to global memory.
TANDEM_DEVICE void add_flat(float* to, uint from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
// Copies shared memory to global memory.
TANDEM_DEVICE void store_flat(uint64_t to, uint from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
TANDEM_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most LEFT of this thread's groups still have to read shared memory ...
template <int LEFT>
TANDEM_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}
// ... or, beyond that, until what they wrote can be seen.
template <int LEFT>
TANDEM_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(LEFT) : "memory");
}
// By each thread that wrote shared memory by ordinary stores, before the barrier behind which matrix products or bulk
// copies read it.
TANDEM_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same for global memory, too.
TANDEM_DEVICE void fence_proxies() { asm volatile("fence.proxy.async;" ::: "memory"); }

// ---- clusters: workgroups that see each other's shared memory -----------------------------------------

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
// All threads of the cluster that have not left.
TANDEM_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// Where workgroup `rank` has what lies at `at` here; for the three functions below.
TANDEM_DEVICE uint cluster_address(uint at, uint rank) {
  uint there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}
TANDEM_DEVICE uint4 cluster_words(uint at) {
  uint4 x;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
// At a barrier of another workgroup. Orders shared memory alone, as barrier_arrive() does: a release to the cluster would
// also wait for what was stored to global memory.
TANDEM_DEVICE void cluster_arrive(uint barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// ---- named barriers: ID 0 is __syncthreads() ---------------------------------------------------------

template <int ID>
TANDEM_DEVICE void named_sync(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "r"(threads) : "memory");
}
template <int ID>
TANDEM_DEVICE void named_arrive(int threads) {
  asm volatile("bar.arrive %0, %1;" ::"n"(ID), "r"(threads) : "memory");
}
// With an id of run time the compiler reserves all 16.
TANDEM_DEVICE void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TANDEM_DEVICE void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Whether any of the threads has x.
TANDEM_DEVICE bool named_any(int id, int threads, bool x) {
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
TANDEM_DEVICE bool named_any(bool x) {
  int any;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred p, %2, %3, p;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(any)
      : "r"(int(x)), "n"(ID), "n"(THREADS)
      : "memory");
  return any != 0;
}

// ---- kernels that begin early -------------------------------------------------------------------------

// A kernel that is launched so may begin when all workgroups of the one before it have called the first; the second one waits until
// that one has ended, and what it wrote can be seen.
TANDEM_DEVICE void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
TANDEM_DEVICE void wait_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- registers of a warpgroup ----------------------------------------------------------------------

template <int COUNT>
TANDEM_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
TANDEM_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- four 8 x 8 matrices of 16-bit elements between a warp's registers and shared memory ------------

TANDEM_DEVICE void load_matrices(uint (&r)[4], uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
TANDEM_DEVICE void load_matrices_transposed(uint (&r)[4], uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
TANDEM_DEVICE void store_matrices(uint at, const uint (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
TANDEM_DEVICE void store_matrices_transposed(uint at, const uint (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// ---- numbers -----------------------------------------------------------------------------------------

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
// Its word. Not by __float_as_int(): what loops carry from one product to the next would become words, moved while it is on
// its way.
TANDEM_DEVICE int word_of(float x) {
  int y;
  asm("mov.b32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

#else
using simt::hopper::add_flat;
using simt::hopper::barrier_arrive;
using simt::hopper::barrier_expect;
using simt::hopper::barrier_init;
using simt::hopper::barrier_init_done;
using simt::hopper::barrier_wait;
using simt::hopper::bulk_commit;
using simt::hopper::bulk_wait;
using simt::hopper::bulk_wait_read;
using simt::hopper::cluster_address;
using simt::hopper::cluster_arrive;
using simt::hopper::cluster_rank;
using simt::hopper::cluster_size;
using simt::hopper::cluster_sync;
using simt::hopper::cluster_words;
using simt::hopper::copy_box;
using simt::hopper::copy_flat;
using simt::hopper::elect_one;
using simt::hopper::exp2_fast;
using simt::hopper::fence_async;
using simt::hopper::fence_proxies;
using simt::hopper::fresh;
using simt::hopper::fresh_thread;
using simt::hopper::give_registers;
using simt::hopper::launch_dependents;
using simt::hopper::load_matrices;
using simt::hopper::load_matrices_transposed;
using simt::hopper::moved_word;
using simt::hopper::named_any;
using simt::hopper::named_arrive;
using simt::hopper::named_sync;
using simt::hopper::prefetch_box;
using simt::hopper::prefetch_map;
using simt::hopper::reciprocal;
using simt::hopper::shared_address;
using simt::hopper::store_box;
using simt::hopper::store_flat;
using simt::hopper::store_matrices;
using simt::hopper::store_matrices_transposed;
using simt::hopper::take_registers;
using simt::hopper::wait_kernel_before;
using simt::hopper::word_of;
#endif

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
