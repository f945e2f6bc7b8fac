// SPDX-License-Identifier: MIT OR Apache-2.0
// Grids on an emulated GPU: blocks on SMs, one each, side by side and in turn; clusters
// of blocks; grids one behind the other, of which one may begin before the one before it has ended
// (programmatic dependent launch).
#ifndef TANDEM_TESTS_CUDA_EMULATED_GRID_EMULATOR_H
#define TANDEM_TESTS_CUDA_EMULATED_GRID_EMULATOR_H
#include <deque>
#include <functional>

#include "block_emulator.h"

namespace simt {

struct Grid {
  std::string name;
  std::function<void()> body;  // of every thread
  Dim size, threads;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks of one, along x
  bool early = false;    // may begin when all blocks of the grid before it say so
  // How far it is, in blocks.
  unsigned begun = 0, telling = 0, ended = 0;
  std::vector<std::function<void()>> at_end;  // what its threads wrote and did not wait for
  unsigned blocks() const { return size.x * size.y; }
};

// Blocks that see each other's shared memory.
struct Cluster {
  std::vector<Block*> blocks;
  unsigned arrived = 0, generation = 0;
  unsigned live() const {
    unsigned n = 0;
    for (const Block* b : blocks) n += b->live();
    return n;
  }
  void release() {
    if (arrived > 0 && arrived == live()) arrived = 0, ++generation;
  }
};

class Machine {
 public:
  // Behind those that were launched before. A grid that may not begin early waits for them here.
  void launch(std::unique_ptr<Grid> grid);
  void finish();  // all that were launched
  // Whether all grids before it have ended, and can be seen to have.
  bool is_first(const Grid& grid) const { return !grids_.empty() && grids_.front().get() == &grid; }
  uint64_t clock() { return clock_ += 20; }

 private:
  void begin_blocks();
  void round();
  void end_blocks();
  [[noreturn]] void stuck(const char* why) const;

  std::deque<std::unique_ptr<Grid>> grids_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<std::unique_ptr<Block>> blocks_;
  unsigned busy_ = 0;  // SMs
  uint64_t clock_ = 0, rate_ = 1;
};
Machine& machine();

template <typename P>
std::string name_of() {  // of a kernel, by its parameters
  const std::string all = __PRETTY_FUNCTION__;
  const size_t at = all.find("P = ");
  return "the kernel of " + all.substr(at + 4, all.find_first_of(";]", at) - at - 4);
}
template <typename P>
std::unique_ptr<Grid> make_grid(void (*kernel)(P), Dim size, Dim threads, size_t shared_bytes,
                                const P& params) {
  auto grid = std::make_unique<Grid>();
  // Parameters lie where their type wants them, until the grid has ended.
  const std::shared_ptr<P> kept(new P(params));
  grid->body = [=] { kernel(*kept); };
  grid->name = name_of<P>();
  grid->size = size, grid->threads = threads, grid->shared_bytes = shared_bytes;
  return grid;
}

}  // namespace simt
#endif
