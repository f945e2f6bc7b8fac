// SPDX-License-Identifier: MIT OR Apache-2.0
// What the functions of cuda/sm90/ptx.cuh, words.cuh and wgmma.cuh mean in C++, by the same names. The machinery behind them is
// hopper_engine.h.
#ifndef TANDEM_TESTS_HOPPER_EMULATOR_H
#define TANDEM_TESTS_HOPPER_EMULATOR_H
#include "hopper_engine.h"
#include "warp_emulator.h"

namespace simt {
namespace hopper {

// ---- ptx.cuh ------------------------------------------------------------------------------------------

inline unsigned shared_address(const void* p) { return Block::current().address(p); }
inline bool elect_one() {
  Block::current().exchange(char(), "elect.sync");
  return running()->index % 32 == 0;
}
inline int fresh_thread() { return int(running()->index); }
template <typename T>
T fresh(T x) {
  return x;
}
inline unsigned moved_word(unsigned x) { return x; }

inline void barrier_init_done() {}
inline void prefetch_map(const CUtensorMap*) {}
inline void prefetch_box(const CUtensorMap*, int, int, int, int) {}
template <int LEFT>
void bulk_wait_read() {
  bulk_wait(LEFT, true);
}
template <int LEFT>
void bulk_wait() {
  bulk_wait(LEFT, false);
}
inline void fence_async() {}
inline void fence_proxies() {}

inline unsigned cluster_size() { return Block::current().grid().cluster; }
inline unsigned cluster_rank() { return Block::current().rank; }
inline unsigned cluster_address(unsigned at, unsigned rank) {
  if (rank >= cluster_size()) die("workgroup %u of a cluster of %u", rank, cluster_size());
  return (at & 0xffffff) | (rank + 1) << 24;
}
inline uint4 cluster_words(unsigned at) {
  uint4 x;
  std::memcpy(&x, cluster_at(at, 16), 16);
  return x;
}

inline void named_sync(int id, int threads) {
  Block::current().named(unsigned(id), unsigned(threads), false, true);
}
inline void named_arrive(int id, int threads) {
  Block::current().named(unsigned(id), unsigned(threads), false, false);
}
inline bool named_any(int id, int threads, bool x) {
  return Block::current().named(unsigned(id), unsigned(threads), x, true);
}
template <int ID>
void named_sync(int threads) {
  named_sync(ID, threads);
}
template <int ID>
void named_arrive(int threads) {
  named_arrive(ID, threads);
}
template <int ID, int THREADS>
bool named_any(bool x) {
  return named_any(ID, THREADS, x);
}

template <int COUNT>
void give_registers() {
  set_registers(COUNT, true);
}
template <int COUNT>
void take_registers() {
  set_registers(COUNT, false);
}

using warp::load_matrices;
using warp::load_matrices_transposed;
inline void store_matrices(unsigned at, const unsigned (&r)[4], bool transposed) {
  struct Share {
    unsigned at, r[4];
  } mine{at, {r[0], r[1], r[2], r[3]}};
  const Share* all = Block::current().exchange(mine, "stmatrix");
  // Each lane stores the row whose address it has: of matrix lane / 8.
  const unsigned matrix = warp::lane() / 8, row = warp::lane() % 8;
  unsigned short x[8];
  for (unsigned col = 0; col < 8; ++col) {
    const unsigned i = transposed ? col : row, j = transposed ? row : col;
    x[col] = static_cast<unsigned short>(all[4 * i + j / 2].r[matrix] >> j % 2 * 16);
  }
  std::memcpy(warp::shared_at(at, 16), x, 16);
}
inline void store_matrices(unsigned at, const unsigned (&r)[4]) { store_matrices(at, r, false); }
inline void store_matrices_transposed(unsigned at, const unsigned (&r)[4]) {
  store_matrices(at, r, true);
}

inline float exp2_fast(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.f / x; }
inline int word_of(float x) { return __float_as_int(x); }

// ---- words.cuh ----------------------------------------------------------------------------------------

inline unsigned char* panel_memory() { return Block::current().shared(); }

template <typename T>
T shared_value(unsigned at) {
  T x;
  std::memcpy(&x, Block::current().at(at, sizeof x), sizeof x);
  return x;
}
inline unsigned shared_word(unsigned at) { return shared_value<unsigned>(at); }
inline uint2 shared_pair(unsigned at) { return shared_value<uint2>(at); }
inline uint4 shared_words(unsigned at) { return shared_value<uint4>(at); }
inline int shared_int(unsigned at) { return shared_value<int>(at); }
inline int4 shared_ints(unsigned at) { return shared_value<int4>(at); }
inline float shared_float(unsigned at) { return shared_value<float>(at); }
inline float2 shared_float2(unsigned at) { return shared_value<float2>(at); }
inline unsigned short shared_half(unsigned at) { return shared_value<unsigned short>(at); }

template <typename T>
void put_shared(unsigned at, T x) {
  static_assert(sizeof x == 4, "a word");
  std::memcpy(Block::current().at(at, 4), &x, 4);
}
inline void put_shared(unsigned at, int x, int y, int z, int w) {
  const int all[4] = {x, y, z, w};
  std::memcpy(Block::current().at(at, 16), all, 16);
}
inline void put_shared(unsigned at, float x, float y, float z, float w) {
  const float all[4] = {x, y, z, w};
  std::memcpy(Block::current().at(at, 16), all, 16);
}
inline void or_shared(unsigned at, unsigned bits) { put_shared(at, shared_word(at) | bits); }
template <int STEP>
void append_above(unsigned& end, float x, float bound) {
  if (x > bound) put_shared(end, x), end += STEP;
}

// Who finds the same as the last time is in a loop: the others go on first.
template <typename T>
T look_at(const T* at) {
  Thread& t = *running();
  for (Thread::Seen& seen : t.seen)
    if (seen.at == at) {
      if (seen.x == *at) pause();
      if (seen.x != *at) ++progress();
      return T(seen.x = *at);
    }
  t.seen[t.next_seen++ % 4] = {at, *at};
  return *at;
}
inline unsigned acquire_word(const unsigned* at) { return look_at(at); }
inline uint64_t acquire_word(uint64_t address) {
  return look_at(reinterpret_cast<const uint64_t*>(address));
}
inline void release_word(uint64_t address, uint64_t x) {
  *reinterpret_cast<uint64_t*>(address) = x, ++progress();
}
inline uint64_t exchange_word(uint64_t address, uint64_t x) {
  std::swap(*reinterpret_cast<uint64_t*>(address), x), ++progress();
  return x;
}
inline void release_add(unsigned* at, unsigned by) { *at += by, ++progress(); }
inline unsigned count_up(uint64_t address, unsigned by) {
  unsigned& x = *reinterpret_cast<unsigned*>(address);
  return ++progress(), x += by, x - by;
}

// ---- wgmma.cuh ----------------------------------------------------------------------------------------

inline void fence() {}
template <int LEFT>
void wait() {
  wait(unsigned(LEFT));
}

inline unsigned pack_half(float low, float high) {
  return __half_as_ushort(__float2half_rn(low)) | unsigned(__half_as_ushort(__float2half_rn(high)))
                                                      << 16;
}
inline unsigned pack_bfloat(float low, float high) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
         unsigned(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}
// NaN stays NaN, without its sign.
inline float positive(float x) { return x < 0.f || x == 0.f ? 0.f : x; }
inline unsigned pack_half_positive(float low, float high) {
  return pack_half(positive(low), positive(high));
}
inline unsigned pack_bfloat_positive(float low, float high) {
  return pack_bfloat(positive(low), positive(high));
}
inline unsigned multiply_bfloats(unsigned x, unsigned y) {
  const auto one = [](unsigned a, unsigned b) {
    return __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u);
  };
  return pack_bfloat(one(x << 16, y << 16), one(x, y));
}
inline void put_bfloats(float& low, float& high, unsigned x) {
  low = __uint_as_float(x << 16), high = __uint_as_float(x & 0xffff0000u);
}
inline void put_product(float& to, float x, float y) { to = x * y; }

template <Type TYPE, int N>
struct Product {
  template <int A_ACROSS, int B_ACROSS>
  static void from_shared(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
    multiply(d, {TYPE, N, false, A_ACROSS != 0, B_ACROSS != 0, add != 0, a, b}, nullptr);
  }
  template <int B_ACROSS>
  static void from_registers(float (&d)[N / 2], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                             uint64_t b, int add) {
    const unsigned registers[4] = {a0, a1, a2, a3};
    multiply(d, {TYPE, N, true, false, B_ACROSS != 0, add != 0, 0, b}, registers);
  }
};

}  // namespace hopper
}  // namespace simt
#endif
