// SPDX-License-Identifier: MIT OR Apache-2.0
// The functions of cuda/sm90/ptx in C++, by the same names. The machinery behind them is
// hopper_engine.h.
#ifndef TANDEM_TESTS_CUDA_EMULATED_HOPPER_EMULATOR_H
#define TANDEM_TESTS_CUDA_EMULATED_HOPPER_EMULATOR_H
#include "hopper_engine.h"
#include "warp_emulator.h"

namespace simt {
namespace hopper {

// ---- base, mbarrier, tma, cluster and named_barrier ---------------------------------------------

inline unsigned shared_address(const void* p) { return Block::current().address(p); }
inline bool elect_one() {
  Block::current().exchange(char(), "elect.sync");
  return running()->index % 32 == 0;
}
inline int read_tid_x() { return int(running()->index); }
template <typename T>
T opaque(T x) {
  return x;
}
inline unsigned opaque_copy(unsigned x) { return x; }

inline void fence_mbarrier_init() {}
inline void prefetch_tensor_map(const CUtensorMap*) {}
inline void tma_prefetch(const CUtensorMap*, int, int, int, int) {}
template <int LEFT>
void bulk_wait_group_read() {
  bulk_wait_group(LEFT, true);
}
template <int LEFT>
void bulk_wait_group() {
  bulk_wait_group(LEFT, false);
}
inline void fence_proxy_async_shared() {}
inline void fence_proxy_async() {}

inline unsigned cluster_size() { return Block::current().grid().cluster; }
inline unsigned cluster_rank() { return Block::current().rank; }
inline unsigned cluster_address(unsigned at, unsigned rank) {
  if (rank >= cluster_size()) die("workgroup %u of a cluster of %u", rank, cluster_size());
  return (at & 0xffffff) | (rank + 1) << 24;
}
inline uint4 ld_cluster_v4_u32(unsigned at) {
  uint4 x;
  std::memcpy(&x, cluster_at(at, 16), 16);
  return x;
}

inline void named_barrier_sync(int id, int threads) {
  Block::current().named(unsigned(id), unsigned(threads), false, true);
}
inline void named_barrier_arrive(int id, int threads) {
  Block::current().named(unsigned(id), unsigned(threads), false, false);
}
inline bool named_barrier_any(int id, int threads, bool x) {
  return Block::current().named(unsigned(id), unsigned(threads), x, true);
}
template <int ID>
void named_barrier_sync(int threads) {
  named_barrier_sync(ID, threads);
}
template <int ID>
void named_barrier_arrive(int threads) {
  named_barrier_arrive(ID, threads);
}
template <int ID, int THREADS>
bool named_barrier_any(bool x) {
  return named_barrier_any(ID, THREADS, x);
}

template <int COUNT>
void warpgroup_reg_dealloc() {
  set_registers(COUNT, true);
}
template <int COUNT>
void warpgroup_reg_alloc() {
  set_registers(COUNT, false);
}

inline void ldmatrix_x4(unsigned (&r)[4], unsigned at) { warp::load_matrices(r, at); }
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned at) {
  warp::load_matrices_transposed(r, at);
}
inline void stmatrix_x4(unsigned at, const unsigned (&r)[4], bool transposed) {
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
inline void stmatrix_x4(unsigned at, const unsigned (&r)[4]) { stmatrix_x4(at, r, false); }
inline void stmatrix_x4_trans(unsigned at, const unsigned (&r)[4]) { stmatrix_x4(at, r, true); }

inline float exp2_fast(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.f / x; }
inline int float_bits(float x) { return __float_as_int(x); }

// ---- shared_memory and global_memory ------------------------------------------------------------

inline unsigned char* aligned_shared_memory() { return Block::current().shared(); }

template <typename T>
T shared_value(unsigned at) {
  T x;
  std::memcpy(&x, Block::current().at(at, sizeof x), sizeof x);
  return x;
}
inline unsigned ld_shared_u32(unsigned at) { return shared_value<unsigned>(at); }
inline uint2 ld_shared_v2_u32(unsigned at) { return shared_value<uint2>(at); }
inline uint4 ld_shared_v4_u32(unsigned at) { return shared_value<uint4>(at); }
inline int ld_shared_s32(unsigned at) { return shared_value<int>(at); }
inline int4 ld_shared_v4_s32(unsigned at) { return shared_value<int4>(at); }
inline float ld_shared_f32(unsigned at) { return shared_value<float>(at); }
inline float2 ld_shared_v2_f32(unsigned at) { return shared_value<float2>(at); }
inline unsigned short ld_shared_u16(unsigned at) { return shared_value<unsigned short>(at); }

template <typename T>
void st_shared(unsigned at, T x) {
  static_assert(sizeof x == 4, "a word");
  std::memcpy(Block::current().at(at, 4), &x, 4);
}
inline void st_shared_u16(unsigned at, unsigned x) {
  const auto half = (unsigned short)x;
  std::memcpy(Block::current().at(at, 2), &half, 2);
}
inline void st_shared(unsigned at, int x, int y, int z, int w) {
  const int all[4] = {x, y, z, w};
  std::memcpy(Block::current().at(at, 16), all, 16);
}
inline void st_shared(unsigned at, float x, float y, float z, float w) {
  const float all[4] = {x, y, z, w};
  std::memcpy(Block::current().at(at, 16), all, 16);
}
inline void red_shared_or(unsigned at, unsigned bits) { st_shared(at, ld_shared_u32(at) | bits); }
template <int STEP>
void append_above(unsigned& end, float x, float bound) {
  if (x > bound) st_shared(end, x), end += STEP;
}
template <int STEP>
void append_above(unsigned& end, float x, float bound, unsigned words, unsigned word) {
  if (x > bound) st_shared_u16(words + end / 2, word);
  append_above<STEP>(end, x, bound);
}

// ---- cp_async -----------------------------------------------------------------------------------

inline void cp_async_16(unsigned to, const void* from, int bytes) {
  if (bytes < 0 || bytes > 16) die("a copy of a wrong size");
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0) die("a misaligned copy");
  Copies::Chunk c{Block::current().at(to, 16), {}};
  if (bytes > 0) std::memcpy(c.data, from, size_t(bytes));
  running()->copies.open.push_back(c);
}
inline void cp_async_commit_group() { warp::commit(); }
template <int LEFT>
void cp_async_wait_group() {
  warp::wait<LEFT>();
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
inline unsigned ld_acquire(const unsigned* at) { return look_at(at); }
inline uint64_t ld_acquire(uint64_t address) {
  return look_at(reinterpret_cast<const uint64_t*>(address));
}
inline void st_release(uint64_t address, uint64_t x) {
  *reinterpret_cast<uint64_t*>(address) = x, ++progress();
}
inline uint64_t atom_exchange_acquire(uint64_t address, uint64_t x) {
  std::swap(*reinterpret_cast<uint64_t*>(address), x), ++progress();
  return x;
}
inline void red_add_release(unsigned* at, unsigned by) { *at += by, ++progress(); }
inline void red_add_v2_f32(uint64_t address, float x, float y) {
  if (address % 8 != 0) die("a sum of two floats to a misaligned address");
  float* const to = reinterpret_cast<float*>(address);
  to[0] += x, to[1] += y;
}
inline void red_add_v4_f32(uint64_t address, float4 by) {
  if (address % 16 != 0) die("a sum of four floats to a misaligned address");
  float* const to = reinterpret_cast<float*>(address);
  to[0] += by.x, to[1] += by.y, to[2] += by.z, to[3] += by.w;
}
inline unsigned atom_add_acq_rel(uint64_t address, unsigned by) {
  unsigned& x = *reinterpret_cast<unsigned*>(address);
  return ++progress(), x += by, x - by;
}

// ---- wgmma --------------------------------------------------------------------------------------

inline void wgmma_fence() {}
template <int LEFT>
void wgmma_wait_group() {
  wgmma_wait_group(unsigned(LEFT));
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
inline unsigned pack_half_relu(float low, float high) {
  return pack_half(positive(low), positive(high));
}
inline unsigned pack_bfloat_relu(float low, float high) {
  return pack_bfloat(positive(low), positive(high));
}
inline unsigned multiply_bfloats(unsigned x, unsigned y) {
  const auto one = [](unsigned a, unsigned b) {
    return __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u);
  };
  return pack_bfloat(one(x << 16, y << 16), one(x, y));
}
inline void unpack_bfloats_into(float& low, float& high, unsigned x) {
  low = __uint_as_float(x << 16), high = __uint_as_float(x & 0xffff0000u);
}
inline void multiply_into(float& to, float x, float y) { to = x * y; }

template <Type TYPE, int N>
struct Wgmma {
  template <int A_MN_MAJOR, int B_MN_MAJOR>
  static void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
    multiply(d, {TYPE, N, false, A_MN_MAJOR != 0, B_MN_MAJOR != 0, add != 0, a, b}, nullptr);
  }
  template <int B_MN_MAJOR>
  static void rs(float (&d)[N / 2], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint64_t b,
                 int add) {
    const unsigned registers[4] = {a0, a1, a2, a3};
    multiply(d, {TYPE, N, true, false, B_MN_MAJOR != 0, add != 0, 0, b}, registers);
  }
};

}  // namespace hopper
}  // namespace simt
#endif
