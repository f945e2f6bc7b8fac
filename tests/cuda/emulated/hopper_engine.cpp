// SPDX-License-Identifier: MIT OR Apache-2.0
// hopper_engine.h, but for the products: barriers, copies, clusters, registers.
#include "hopper_engine.h"

#include <cstdio>

#include "hopper_state.h"

namespace simt {
namespace hopper {

State& state_of(Block& block) {
  if (!block.hopper) block.hopper = std::make_shared<State>(block.threads());
  return *block.hopper;
}
State& state() { return state_of(Block::current()); }

// ---- barriers -----------------------------------------------------------------------------------

// In the 8 bytes of shared memory that a barrier has, so that who writes over it is found out: 20
// bits of arrivals that are still missing, 20 of all, 22 of bytes that are still to come, with a
// bias, as they may come before they are expected; the phase.
namespace {

struct Barrier {
  int missing, all, bytes;
  bool phase;
};
constexpr int kBias = 1 << 21;

Barrier read(const unsigned char* at, unsigned address) {
  uint64_t x;
  std::memcpy(&x, at, 8);
  const Barrier b{int(x & 0xfffff), int(x >> 20 & 0xfffff), int(x >> 40 & 0x3fffff) - kBias,
                  (x >> 62 & 1) != 0};
  if (x >> 63 || b.all == 0 || b.missing > b.all)
    die("no barrier at 0x%x of shared memory", address);
  return b;
}
void write(unsigned char* at, const Barrier& b) {
  const uint64_t x = uint64_t(b.missing) | uint64_t(b.all) << 20 | uint64_t(b.bytes + kBias) << 40 |
                     uint64_t(b.phase) << 62;
  std::memcpy(at, &x, 8);
}
void end_phase(Barrier& b) {
  if (b.missing == 0 && b.bytes == 0) b.missing = b.all, b.phase = !b.phase;
}
void arrive_at(unsigned char* at, unsigned address, int bytes) {
  Barrier b = read(at, address);
  if (b.missing == 0)
    die("an arrival too many at the barrier at 0x%x, which has %d", address, b.all);
  b.bytes += bytes;
  if (b.bytes >= 1 << 20) die("more bytes than a barrier counts");
  --b.missing;
  end_phase(b);
  write(at, b);
}
void bytes_came(unsigned char* at, unsigned address, int bytes) {
  Barrier b = read(at, address);
  b.bytes -= bytes;
  if (b.bytes <= -(1 << 20)) die("more bytes than a barrier counts");
  end_phase(b);
  write(at, b);
}

}  // namespace

void mbarrier_init(unsigned barrier, int arrivals) {
  if (arrivals <= 0 || arrivals >= 1 << 20) die("a barrier of %d arrivals", arrivals);
  auto& all = state().barriers;
  if (std::find(all.begin(), all.end(), barrier) != all.end())
    die("a barrier is made anew where there is one, at 0x%x", barrier);
  all.push_back(barrier);
  write(Block::current().at(barrier, 8), {arrivals, arrivals, 0, false});
}
void mbarrier_arrive(unsigned barrier) { arrive_at(Block::current().at(barrier, 8), barrier, 0); }
void mbarrier_arrive_expect_tx(unsigned barrier, int bytes) {
  arrive_at(Block::current().at(barrier, 8), barrier, bytes);
}
void mbarrier_wait(unsigned barrier, int parity) {
  if (parity != 0 && parity != 1) die("a phase has parity 0 or 1, not %d", parity);
  const unsigned char* at = Block::current().at(barrier, 8);
  wait_until([&] { return read(at, barrier).phase != (parity != 0); },
             "the barrier at 0x%x to end a phase of parity %u", barrier, unsigned(parity));
}

// ---- copies to shared memory --------------------------------------------------------------------

namespace {

const CUtensorMap& checked(const CUtensorMap* map) {
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || map->made != kTensorMapMade)
    die("no tensor map");
  return *map;
}
// Of a row of 128 bytes in shared memory, where its 16-byte piece is: as the addresses' bits say.
unsigned swizzled(unsigned address) { return address ^ (address >> 3 & 0x70); }

// Calls piece(bytes of shared memory, bytes of the tensor or null, 16-byte pieces' elements inside)
// for each piece of a box.
template <typename Piece>
void each_piece(const CUtensorMap& map, unsigned at, const int (&from)[4], const Piece& piece) {
  for (unsigned b = 0; b < map.box[3]; ++b)
    for (unsigned h = 0; h < map.box[2]; ++h)
      for (unsigned s = 0; s < map.box[1]; ++s) {
        const int64_t row = from[1] + int64_t(s), head = from[2] + int64_t(h),
                      batch = from[3] + int64_t(b);
        const bool there = row >= 0 && row < int64_t(map.size[1]) && head >= 0 &&
                           head < int64_t(map.size[2]) && batch >= 0 &&
                           batch < int64_t(map.size[3]);
        unsigned char* line = there ? map.base + row * int64_t(map.step[0]) +
                                          head * int64_t(map.step[1]) + batch * int64_t(map.step[2])
                                    : nullptr;
        for (int p = 0; p < 8; ++p, at += 16) {
          const int each = 16 / int(map.element);
          const int64_t element = from[0] + each * p;
          const int64_t inside = std::min<int64_t>(each, int64_t(map.size[0]) - element);
          const bool has = line && element >= 0 && inside > 0;
          piece(swizzled(at), has ? line + map.element * element : nullptr, has ? int(inside) : 0);
        }
      }
}

// A copy on its way, in the order in which they were given.
struct Arrival {
  Block* block;
  unsigned barrier;
  int bytes;
  std::function<void()> carry_out;
  bool soon;
};
std::vector<Arrival>& arrivals() {
  static std::vector<Arrival> all;
  return all;
}
void arrive_now(const Arrival& a) {
  a.carry_out();
  bytes_came(a.block->at(a.barrier, 8), a.barrier, a.bytes);
}
void send(Block& block, unsigned barrier, int bytes, std::function<void()> carry_out) {
  read(block.at(barrier, 8), barrier);
  Arrival a{&block, barrier, bytes, std::move(carry_out), lot(2)};
  if (lot(4)) return arrive_now(a);
  ++state_of(block).on_their_way;
  arrivals().push_back(std::move(a));
}

}  // namespace

bool arrive(bool all) {
  std::vector<Arrival>& waiting = arrivals();
  if (waiting.empty()) return false;
  std::vector<Arrival> now;
  for (size_t n = 0; n < waiting.size();) {
    if (all || lot(waiting[n].soon ? 2 : 16)) {
      now.push_back(std::move(waiting[n]));
      waiting.erase(waiting.begin() + ptrdiff_t(n));
    } else {
      ++n;
    }
  }
  for (const Arrival& a : now) {
    --state_of(*a.block).on_their_way;
    arrive_now(a);
    ++progress();
  }
  return !now.empty();
}

static void load_box(Block& block, unsigned to, const CUtensorMap* map, unsigned barrier, int d,
                     int s, int h, int b) {
  const CUtensorMap& m = checked(map);
  const unsigned bytes = 128 * m.box[1] * m.box[2] * m.box[3];
  unsigned char* memory = block.at(to, bytes, 128) - to;
  std::memset(memory + to, 0xff, bytes);
  send(block, barrier, int(bytes), [=, &m] {
    each_piece(m, to, {d, s, h, b}, [&](unsigned at, const unsigned char* from, int inside) {
      std::memset(memory + at, 0, 16);
      if (from) std::memcpy(memory + at, from, size_t(inside) * m.element);
    });
  });
}
void tma_load(unsigned to, const CUtensorMap* map, unsigned barrier, int d, int s, int h, int b) {
  load_box(Block::current(), to, map, barrier, d, s, h, b);
}
void tma_load_multicast(unsigned to, const CUtensorMap* map, unsigned barrier, int d, int s, int h,
                        int b, unsigned to_ranks) {
  const Block& here = Block::current();
  if (!here.cluster || to_ranks >> here.cluster->blocks.size() != 0 || to_ranks == 0)
    die("a copy to workgroups that are none of the cluster");
  for (unsigned rank = 0; to_ranks >> rank != 0; ++rank) {
    if ((to_ranks >> rank & 1) == 0) continue;
    Block& there = *here.cluster->blocks[rank];
    if (there.done()) die("a copy to workgroup %u of the cluster, which has left", rank);
    load_box(there, to, map, barrier, d, s, h, b);
  }
}
void bulk_load(unsigned to, const void* from, unsigned barrier, int bytes) {
  if (bytes <= 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    die("a flat copy of %d bytes, or from a misaligned address", bytes);
  unsigned char* memory = Block::current().at(to, size_t(bytes), 16);
  std::memset(memory, 0xff, size_t(bytes));
  send(Block::current(), barrier, bytes, [=] { std::memcpy(memory, from, size_t(bytes)); });
}

// ---- copies to global memory --------------------------------------------------------------------

// A thread's, in groups: first shared memory is read, then what was read is written.
namespace {

void read_now(Store& s) {
  if (s.has_read) return;
  s.data.assign(s.memory, s.memory + s.bytes);
  s.has_read = true;
}
void write_now(Store& s) {
  read_now(s);
  if (!s.has_written) s.write(s.data.data());
  s.has_written = true;
}
void give(unsigned from, unsigned bytes, unsigned aligned,
          std::function<void(const unsigned char*)> write) {
  Store s{Block::current().at(from, bytes, aligned), bytes, std::move(write), {}, false, false};
  if (lot(3)) write_now(s);
  if (lot(2)) read_now(s);
  state().lanes[running()->index].open.push_back(std::move(s));
}

}  // namespace

void tma_store(const CUtensorMap* map, unsigned from, int d, int s, int h, int b) {
  const CUtensorMap& m = checked(map);
  if (s < 0) die("a box is stored from row %d on: an illegal instruction", s);
  const unsigned bytes = 128 * m.box[1] * m.box[2] * m.box[3];
  give(from, bytes, 128, [=, &m](const unsigned char* data) {
    // By whole pieces, those at the end of a row, too.
    each_piece(m, from, {d, s, h, b}, [&](unsigned at, unsigned char* to, int) {
      if (to) std::memcpy(to, data + (at - from), 16);
    });
  });
}
void bulk_reduce_add(float* to, unsigned from, int bytes) {
  if (bytes <= 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0)
    die("a sum of %d bytes, or to a misaligned address", bytes);
  give(from, unsigned(bytes), 16, [=](const unsigned char* data) {
    for (int n = 0; n < bytes / 4; ++n) {
      float x;
      std::memcpy(&x, data + 4 * n, 4);
      to[n] += x;
    }
  });
}
void bulk_store(unsigned long to, unsigned from, int bytes) {
  if (bytes <= 0 || bytes % 16 != 0 || to % 16 != 0)
    die("a copy of %d bytes, or to a misaligned address", bytes);
  give(from, unsigned(bytes), 16, [=](const unsigned char* data) {
    std::memcpy(reinterpret_cast<void*>(to), data, size_t(bytes));
  });
}
void bulk_commit_group() {
  Lane& lane = state().lanes[running()->index];
  lane.stores.push_back(std::move(lane.open));
  lane.open.clear();
}
void bulk_wait_group(unsigned left, bool read) {
  Lane& lane = state().lanes[running()->index];
  for (size_t n = 0; n + left < lane.stores.size(); ++n)
    for (Store& s : lane.stores[n]) read ? read_now(s) : write_now(s);
  if (read) return;
  while (lane.stores.size() > left) lane.stores.pop_front();
}

// ---- clusters -----------------------------------------------------------------------------------

void cluster_sync() {
  Cluster& c = *Block::current().cluster;
  const unsigned now = c.generation;
  ++c.arrived;
  c.release();
  wait_until([&] { return c.generation != now; }, "all threads of the cluster");
}
namespace {
Block& of_cluster(unsigned address) {
  const unsigned rank = address >> 24;
  Block& here = Block::current();
  if (rank == 0) return here;
  if (!here.cluster || rank > here.cluster->blocks.size()) die("no workgroup of the cluster");
  Block& there = *here.cluster->blocks[rank - 1];
  if (there.done()) die("the memory of workgroup %u of the cluster, which has left", rank - 1);
  return there;
}
}  // namespace
unsigned char* cluster_at(unsigned address, size_t bytes) {
  return of_cluster(address).at(address & 0xffffff, bytes);
}
void st_async_cluster(unsigned at, unsigned x, unsigned barrier) {
  if (at >> 24 != barrier >> 24) die("a word and its barrier are of two workgroups");
  std::memcpy(cluster_at(at, 4), &x, 4);
  bytes_came(cluster_at(barrier, 8), barrier & 0xffffff, 4);
}
void st_async_cluster(unsigned at, float x, float y, float z, float w, unsigned barrier) {
  if (at >> 24 != barrier >> 24) die("words and their barrier are of two workgroups");
  if (at % 16 != 0) die("four words to a misaligned address");
  struct Words {
    float x[4];
  } const words{{x, y, z, w}};
  unsigned char* const to = cluster_at(at, 16);
  std::memset(to, 0xff, 16);
  send(of_cluster(barrier), barrier & 0xffffff, 16, [=] { std::memcpy(to, &words, 16); });
}
void bulk_copy_cluster(unsigned to, unsigned from, int bytes, unsigned barrier) {
  if (to >> 24 != barrier >> 24) die("a copy and its barrier are of two workgroups");
  if (bytes <= 0 || bytes % 16 != 0) die("a flat copy of %d bytes", bytes);
  const unsigned char* const source = Block::current().at(from, size_t(bytes), 16);
  unsigned char* const target = cluster_at(to, size_t(bytes));
  std::memset(target, 0xff, size_t(bytes));
  send(of_cluster(barrier), barrier & 0xffffff, bytes,
       [=] { std::memcpy(target, source, size_t(bytes)); });
}
void mbarrier_arrive_remote(unsigned barrier) {
  arrive_at(cluster_at(barrier, 8), barrier & 0xffffff, 0);
}

// ---- registers, and grids that begin early ------------------------------------------------------

// A warpgroup's warps go one by one. What the block has at launch is what its threads have
// together; the kernels are compiled for one block an SM.
void set_registers(int count, bool gives) {
  if (count < 24 || count > 256 || count % 8 != 0) die("setmaxnreg takes no %d", count);
  State& s = state();
  const unsigned warp = running()->index / 32;
  Block::current().exchange(count, "setmaxnreg");
  if (running()->index % 32 == 0) {
    int& has = s.registers[warp];
    if (gives ? count > has : count < has)
      die("setmaxnreg from %d to %d registers in the wrong direction", has, count);
    const int more = count - has;
    wait_until([&] { return s.free_registers >= more; },
               "%u more registers a thread (%u has been given back)", unsigned(std::max(more, 0)),
               unsigned(s.free_registers));
    s.free_registers -= more, has = count;
  }
  Block::current().exchange(count, "setmaxnreg");
}

void launch_dependent_grids() {
  Block& b = Block::current();
  if (!b.tells) b.tells = true, ++b.grid().telling, ++progress();
}
void grid_dependency_wait() {
  const Grid& grid = Block::current().grid();
  wait_until([&] { return machine().is_first(grid); }, "the kernel before it to end");
}

// ---- ends ---------------------------------------------------------------------------------------

void thread_ends(Block& block, Thread& thread) {
  Lane& lane = block.hopper->lanes[thread.index];
  if (!lane.open.empty()) die("a thread ends with TMA copies in no group");
  for (auto& group : lane.stores)
    for (Store& s : group) {
      if (!s.has_read) die("a thread ends while TMA copies of its own still read shared memory");
      if (s.has_written) continue;
      const auto kept = std::make_shared<Store>(std::move(s));
      block.grid().at_end.push_back([kept] { write_now(*kept); });
    }
  products_end(block, thread);
}
void block_ends(Block& block) {
  if (block.hopper->on_their_way > 0)
    die("a workgroup ends while copies to its memory are on their way");
}

std::string report(const Block& block) {
  std::string text;
  for (const unsigned address : block.hopper->barriers) {
    uint64_t x;
    std::memcpy(&x, block.shared() + address, 8);
    char line[160];
    std::snprintf(
        line, sizeof line,
        "    barrier at 0x%x: phase of parity %d, %d of %d arrivals and %d bytes missing\n",
        address, int(x >> 62 & 1), int(x & 0xfffff), int(x >> 20 & 0xfffff),
        int(x >> 40 & 0x3fffff) - kBias);
    text += line;
  }
  return text;
}

}  // namespace hopper
}  // namespace simt
