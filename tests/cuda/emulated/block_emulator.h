// SPDX-License-Identifier: MIT OR Apache-2.0
// A block of threads on a CPU. Each thread is a fiber that runs until it has to wait; what it waits
// for is asked by who runs the block, so that a thread which cannot go on costs no switch. Several
// blocks may be alive at once (grid_emulator.h).
#ifndef TANDEM_TESTS_CUDA_EMULATED_BLOCK_EMULATOR_H
#define TANDEM_TESTS_CUDA_EMULATED_BLOCK_EMULATOR_H
#include <setjmp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace simt {

// Says why, which thread it was, and ends the process.
[[noreturn]] void die(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The order in which threads, and blocks that are alive at once, go on. A kernel that lacks a
// barrier gives other results in another order.
enum class Order { forward, backward, shuffled };
struct Settings {
  Order order = Order::forward;
  unsigned long long blocks_run = 0;
};
Settings& settings();

// The emulated device, by the environment variable TANDEM_EMULATED: sm90x7 has compute
// capability 9.0 and 7 SMs; sm90x7#3 also shuffles threads, and what arrives when, by
// the seed 3. Without it: compute capability 8.0, one SM.
struct Device {
  bool hopper = false;
  int sms = 1;
  unsigned seed = 0;
};
Device& device();

// What is left to chance: whether something asynchronous happens early or late.
std::minstd_rand& random();
inline bool lot(unsigned of) { return random()() / 16 % of == 0; }

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

// A thread's copies on their way to shared memory, in groups (cp.async).
struct Copies {
  struct Chunk {
    unsigned char* to;
    unsigned char data[16];
    size_t bytes = 16;
  };
  std::vector<Chunk> open;
  std::vector<std::vector<Chunk>> groups;
};

struct Fiber;
class Block;
struct Grid;
struct Cluster;
namespace hopper {
struct State;  // what a block has of Hopper's: hopper_engine.h
}

// What a thread waits for, as a format of two numbers.
struct Waiting {
  const char* what;
  unsigned a, b;
};

struct Thread {
  Block* block = nullptr;
  unsigned index = 0;
  Fiber* fiber = nullptr;
  bool done = false;
  bool looks = false;    // has found what it found before: a loop that waits for a word
  bool in_warp = false;  // waits for its own warp
  // Null: it can go on. Else whether it can.
  bool (*ready)(const void*) = nullptr;
  const void* what = nullptr;
  Waiting waiting{};
  // The last words of global memory that it looked at, and what they were.
  struct Seen {
    const void* at = nullptr;
    uint64_t x = 0;
  } seen[4];
  unsigned next_seen = 0;
  Copies copies;
};
inline Thread*& running() {
  static Thread* thread = nullptr;
  return thread;
}

// How often something has happened that others may wait for: more than looking at words that do not
// change, and lanes of a warp meeting each other, as they do in a loop that looks at words.
inline unsigned long long& progress() {
  static unsigned long long count = 0;
  return count;
}

// Back to who runs the block.
void leave();

// Until ready() says so.
template <typename Ready>
void wait_until(const Ready& ready, const char* what, unsigned a = 0, unsigned b = 0) {
  if (ready()) return;
  Thread& t = *running();
  t.ready = [](const void* p) { return (*static_cast<const Ready*>(p))(); };
  t.what = &ready;
  t.waiting = {what, a, b};
  leave();
}
// Lets the others go on.
inline void pause() {
  running()->looks = true;
  leave();
}

class Block {
 public:
  static constexpr int kNamed = 16;
  Block(Grid& grid, unsigned x, unsigned y);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Every thread that can go on does, for a while. Returns whether any could, but for looks at a
  // word that has not changed.
  bool step();
  bool done() const { return live_ == 0; }
  std::string report() const;  // who waits for what

  // ---- for the running thread ----
  void barrier();  // of all threads that have not left
  int barrier_or(int x);
  // What all lanes of the warp brought, once they have; to be read before the next exchange but
  // one.
  template <typename T>
  const T* exchange(const T& mine, const char* what) {
    static_assert(sizeof(T) <= kSlot, "a lane's share");
    return static_cast<const T*>(exchange(&mine, sizeof(T), what));
  }
  // Of barrier `id`, for so many threads; whether any of those that came has x, if it waits.
  bool named(unsigned id, unsigned threads, bool x, bool waits);

  Grid& grid() const { return grid_; }
  Dim index() const { return index_; }
  unsigned threads() const { return unsigned(threads_.size()); }
  unsigned live() const { return live_; }
  size_t shared_bytes() const { return shared_bytes_; }
  unsigned char* shared() const { return shared_; }
  // An array beside the dynamic memory, the same for all threads who come with this key.
  void* array(size_t bytes, const void* key);
  // So many bytes of shared memory at an address, which is a multiple of that (of 16 at most).
  unsigned char* at(unsigned address, size_t bytes, size_t aligned = 0) {
    if (aligned == 0) aligned = bytes;
    if (address % aligned != 0) die("a misaligned address of shared memory: 0x%x", address);
    if (address + bytes > shared_bytes_ &&
        !(address >= statics() && address + bytes <= statics_end_))
      die("an address outside the block's shared memory: 0x%x", address);
    return shared_ + address;
  }
  unsigned address(const void* p) const {
    const ptrdiff_t at = static_cast<const unsigned char*>(p) - shared_;
    if (at < 0 || at > ptrdiff_t(statics() + kStatics)) die("not an address of shared memory");
    return unsigned(at);
  }
  std::shared_ptr<hopper::State> hopper;
  Cluster* cluster = nullptr;
  unsigned rank = 0;   // in the cluster
  bool tells = false;  // has let dependent grids begin

  static Block& current() { return *running()->block; }

 private:
  static constexpr size_t kGuard = 4096, kStatics = 49152, kSlot = 64;
  struct Warp {
    alignas(16) unsigned char value[2][32 * kSlot];
    const char* what = nullptr;
    size_t size = 0;
    unsigned arrived = 0, generation = 0;
  };
  struct Named {
    unsigned arrived = 0, threads = 0, generation = 0;
    bool any[2] = {};
  };
  static void start();  // of each thread
  bool step_warp(unsigned warp);
  void release();
  void ended(Thread& thread);
  const void* exchange(const void* mine, size_t bytes, const char* what);
  size_t statics() const { return (shared_bytes_ + kGuard + 15) / 16 * 16; }

  Grid& grid_;
  Dim index_;
  size_t shared_bytes_;
  std::unique_ptr<unsigned char[]> memory_;
  unsigned char* shared_;
  size_t statics_end_;
  std::vector<std::pair<const void*, unsigned>> arrays_;  // by key
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> warp_order_, lane_order_;
  unsigned live_, arrived_ = 0;
  unsigned long long generation_ = 0;
  int any_[2] = {};
  Named named_[kNamed];
};

}  // namespace simt
#endif
