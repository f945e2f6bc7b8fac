// SPDX-License-Identifier: MIT OR Apache-2.0
// What a block has beside threads and shared memory, for hopper_engine.cpp and hopper_products.cpp.
#ifndef TANDEM_TESTS_CUDA_EMULATED_HOPPER_STATE_H
#define TANDEM_TESTS_CUDA_EMULATED_HOPPER_STATE_H
#include <deque>
#include <functional>

#include "hopper_engine.h"

namespace simt {
namespace hopper {

struct Store {  // of shared memory to a tensor or to sums
  const unsigned char* memory;
  unsigned bytes;
  std::function<void(const unsigned char*)> write;
  std::vector<unsigned char> data;
  bool has_read, has_written;
};

// Accumulators of a warpgroup between the first product that has them and the wait for the last
// one. Meanwhile the threads' own hold NaN.
struct Accumulators {
  int width = 0, threads = 0;  // how many threads still have them
  std::vector<float> x;        // 64 rows
};
struct Multiplication {
  Operands operands;
  std::shared_ptr<Accumulators> to;
  int came = 0;  // threads
  bool early = false;
  std::vector<unsigned> registers;  // of A: four words a thread
};
struct Held {  // a thread's own accumulators
  float* d;
  std::shared_ptr<Accumulators> x;
  uint64_t last;  // the last product that adds to them
};
struct Lane {  // of a thread
  std::vector<Store> open;
  std::deque<std::vector<Store>> stores;
  uint64_t given = 0;  // products
  std::deque<uint64_t>
      groups;  // of each group that was not waited for: how many were given at its end
  std::vector<Held> held;
};
struct Warpgroup {
  uint64_t first = 0;  // the number of products.front()
  std::deque<Multiplication> products;
  uint64_t come = 0,
           done = 0;  // how many all threads have given, and how many have been carried out
};

struct State {
  explicit State(unsigned threads)
      : lanes(threads),
        groups((threads + 127) / 128),
        registers((threads + 31) / 32, int(std::min(65536 / threads / 8 * 8, 255u / 8 * 8))) {}
  std::vector<Lane> lanes;
  std::vector<Warpgroup> groups;
  std::vector<unsigned> barriers;
  std::vector<int> registers;  // of a thread of each warp
  int free_registers = 0;      // those that warps have given back, of a thread of each
  int on_their_way = 0;        // copies
};
State& state_of(Block& block);
State& state();  // of the running thread's block
void products_end(const Block& block, const Thread& thread);

}  // namespace hopper
}  // namespace simt
#endif
