// SPDX-License-Identifier: MIT OR Apache-2.0
// What Hopper has beside threads: mbarriers, which count arrivals and bytes, TMA, wgmma and
// clusters. Asynchronous operations complete early or late here, by lot: a TMA load may arrive at
// once, or when no thread can continue without it; a product may read its operands at once, or when
// it is waited for. Until data has arrived, its stage holds NaN. So a missing wait, or a stage that
// is released too early, gives wrong numbers. Not emulated: that ordinary stores need a proxy fence
// before TMA or wgmma sees them.
#ifndef TANDEM_TESTS_CUDA_EMULATED_HOPPER_ENGINE_H
#define TANDEM_TESTS_CUDA_EMULATED_HOPPER_ENGINE_H
#include <cuda.h>

#include "grid_emulator.h"

namespace simt {
namespace hopper {

enum class Type { half, bfloat };

// ---- barriers -----------------------------------------------------------------------------------

void mbarrier_init(unsigned barrier, int arrivals);
void mbarrier_arrive(unsigned barrier);
void mbarrier_arrive_expect_tx(unsigned barrier, int bytes);
void mbarrier_wait(unsigned barrier, int parity);

// ---- copies -------------------------------------------------------------------------------------

void tma_load(unsigned to, const CUtensorMap* map, unsigned barrier, int d, int s, int h, int b);
void tma_load_multicast(unsigned to, const CUtensorMap* map, unsigned barrier, int d, int s, int h,
                        int b, unsigned to_ranks);
void tma_store(const CUtensorMap* map, unsigned from, int d, int s, int h, int b);
void bulk_load(unsigned to, const void* from, unsigned barrier, int bytes);
void bulk_reduce_add(float* to, unsigned from, int bytes);
void bulk_store(unsigned long to, unsigned from, int bytes);
void bulk_commit_group();
void bulk_wait_group(unsigned left, bool read);  // read: until shared memory has been read

// Copies to shared memory that are on their way arrive: some, or all. Returns whether any did.
bool arrive(bool all);

// ---- clusters -----------------------------------------------------------------------------------

void cluster_sync();
// Memory of a workgroup of the cluster, its own if the address does not say which.
unsigned char* cluster_at(unsigned address, size_t bytes);
void mbarrier_arrive_remote(unsigned barrier);
void st_async_cluster(unsigned at, unsigned x, unsigned barrier);
void st_async_cluster(unsigned at, float x, float y, float z, float w, unsigned barrier);
void bulk_copy_cluster(unsigned to, unsigned from, int bytes, unsigned barrier);

// ---- products -----------------------------------------------------------------------------------

struct Operands {  // of a product of a warpgroup, the same for all its threads
  Type type;
  int width;
  bool rs, a_mn_major, b_mn_major, adds;
  uint64_t a, b;
  bool operator==(const Operands& x) const {
    return type == x.type && width == x.width && rs == x.rs && a_mn_major == x.a_mn_major &&
           b_mn_major == x.b_mn_major && adds == x.adds && a == x.a && b == x.b;
  }
};
// d: of the thread, width / 2; registers: its part of A, if it is there.
void multiply(float* d, const Operands& operands, const unsigned* registers);
void wgmma_commit_group();
void wgmma_wait_group(unsigned left);

// ---- others -------------------------------------------------------------------------------------

void set_registers(int count, bool gives);
void launch_dependent_grids();
void grid_dependency_wait();

// ---- for block_emulator.h -----------------------------------------------------------------------

void thread_ends(Block& block, Thread& thread);
void block_ends(Block& block);
std::string report(const Block& block);

}  // namespace hopper
}  // namespace simt
#endif
