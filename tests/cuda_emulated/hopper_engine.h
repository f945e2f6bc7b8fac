// SPDX-License-Identifier: MIT OR Apache-2.0
// What Hopper has beside threads: barriers in shared memory that count arrivals and bytes, an engine that copies boxes of tensors,
// matrix products of a warpgroup, clusters. What is asynchronous there happens early or late here, by lot: a copy may arrive at once,
// or when nobody can go on without it; a product may read its operands at once, or when it is waited for. Until something has arrived
// its place holds NaN. So a wait that is missing, or a place that is given back too early, gives wrong numbers.
// Not here: that ordinary stores need a fence before the copy engine or a product sees them.
#ifndef TANDEM_TESTS_HOPPER_ENGINE_H
#define TANDEM_TESTS_HOPPER_ENGINE_H
#include <cuda.h>

#include "grid_emulator.h"

namespace simt {
namespace hopper {

enum class Type { half, bfloat };

// ---- barriers -----------------------------------------------------------------------------------------

void barrier_init(unsigned barrier, int arrivals);
void barrier_arrive(unsigned barrier);
void barrier_expect(unsigned barrier, int bytes);
void barrier_wait(unsigned barrier, int parity);

// ---- copies -------------------------------------------------------------------------------------------

void copy_box(unsigned to, const CUtensorMap* map, unsigned barrier, int d, int s, int h, int b);
void store_box(const CUtensorMap* map, unsigned from, int d, int s, int h, int b);
void copy_flat(unsigned to, const void* from, unsigned barrier, int bytes);
void add_flat(float* to, unsigned from, int bytes);
void store_flat(unsigned long to, unsigned from, int bytes);
void bulk_commit();
void bulk_wait(unsigned left, bool read);  // read: until shared memory has been read

// Copies to shared memory that are on their way arrive: some, or all. Returns whether any did.
bool arrive(bool all);

// ---- clusters -----------------------------------------------------------------------------------------

void cluster_sync();
// Memory of a workgroup of the cluster, its own if the address does not say which.
unsigned char* cluster_at(unsigned address, size_t bytes);
void cluster_arrive(unsigned barrier);
void cluster_tell(unsigned at, unsigned x, unsigned barrier);

// ---- products -----------------------------------------------------------------------------------------

struct Operands {  // of a product of a warpgroup, the same for all its threads
  Type type;
  int width;
  bool from_registers, a_across, b_across, adds;
  uint64_t a, b;
  bool operator==(const Operands& x) const {
    return type == x.type && width == x.width && from_registers == x.from_registers &&
           a_across == x.a_across && b_across == x.b_across && adds == x.adds && a == x.a &&
           b == x.b;
  }
};
// d: of the thread, width / 2; registers: its part of A, if it is there.
void multiply(float* d, const Operands& operands, const unsigned* registers);
void commit();
void wait(unsigned left);

// ---- others ---------------------------------------------------------------------------------------------

void set_registers(int count, bool gives);
void launch_dependents();
void wait_kernel_before();

// ---- for block_emulator.h ---------------------------------------------------------------------------

void thread_ends(Block& block, Thread& thread);
void block_ends(Block& block);
std::string report(const Block& block);

}  // namespace hopper
}  // namespace simt
#endif
