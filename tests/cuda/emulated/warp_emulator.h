// SPDX-License-Identifier: MIT OR Apache-2.0
// The instructions of cuda/sm80/mma.cuh in plain C++: what one lane gets of what all lanes of its
// warp brought. Copies that go past the registers arrive no sooner than they are waited for, so
// that a missing wait shows.
#ifndef TANDEM_TESTS_CUDA_EMULATED_WARP_EMULATOR_H
#define TANDEM_TESTS_CUDA_EMULATED_WARP_EMULATOR_H
#include "simt_emulator.h"

namespace simt {
namespace warp {

inline unsigned char* shared_at(unsigned at, size_t bytes) {
  return Block::current().at(at, bytes);
}
inline unsigned lane() { return running()->index % 32; }
inline Copies& copies() { return running()->copies; }

template <typename T>
void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Operands {
    float a[4][2], b[2][2];
  } mine;
  const auto low = [](unsigned x) { return T::to_float(static_cast<unsigned short>(x)); };
  const auto high = [](unsigned x) { return T::to_float(static_cast<unsigned short>(x >> 16)); };
  for (int n = 0; n < 4; ++n) mine.a[n][0] = low(a[n]), mine.a[n][1] = high(a[n]);
  mine.b[0][0] = low(b0), mine.b[0][1] = high(b0), mine.b[1][0] = low(b1), mine.b[1][1] = high(b1);
  const Operands* all = Block::current().exchange(mine, "mma.sync");
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned n = 0; n < 4; ++n) {
    const unsigned row = g, col = 2 * t + n % 2;
    float sum = 0.f;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned of = k % 8 / 2;
      sum += all[4 * row + of].a[n / 2 + 2 * (k / 8)][k % 2] * all[4 * col + of].b[k / 8][k % 2];
    }
    d[n] += sum;
  }
}

// Of 8 columns in TF32: the last 13 bits of an operand count for nothing; and as tensor cores do,
// each product, and what it is added to, is cut off two bits below the last one of the largest of
// them, and their sum where f32 ends.
inline void multiply_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Operands {
    float a[4], b[2];
  } mine;
  const auto first_bits = [](unsigned x) { return __uint_as_float(x & 0xffffe000u); };
  for (int n = 0; n < 4; ++n) mine.a[n] = first_bits(a[n]);
  mine.b[0] = first_bits(b0), mine.b[1] = first_bits(b1);
  const Operands* all = Block::current().exchange(mine, "mma.sync");
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned n = 0; n < 4; ++n) {
    const unsigned row = g, col = 2 * t + n % 2;
    double terms[9] = {double(d[n])}, largest = std::fabs(terms[0]);
    for (unsigned k = 0; k < 8; ++k) {
      terms[1 + k] = double(all[4 * row + k % 4].a[n / 2 + 2 * (k / 4)]) *
                     double(all[4 * col + k % 4].b[k / 4]);
      largest = std::fabs(terms[1 + k]) > largest ? std::fabs(terms[1 + k]) : largest;
    }
    double sum = 0;
    const double unit = std::isfinite(largest) && largest > 0x1p-120
                            ? std::ldexp(1.0, std::ilogb(largest) - 25)
                            : 0;
    for (double x : terms) sum += unit > 0 ? std::trunc(x / unit) * unit : x;
    d[n] = float(sum);
    if (std::fabs(double(d[n])) > std::fabs(sum)) d[n] = std::nextafter(d[n], 0.f);
  }
}

inline void load_matrices(unsigned (&r)[4], unsigned at, bool transposed) {
  const unsigned* all = Block::current().exchange(at, "ldmatrix");
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned n = 0; n < 4; ++n) {
    unsigned short x[2];
    for (unsigned c = 0; c < 2; ++c) {
      const unsigned row = transposed ? 2 * t + c : g, col = transposed ? g : 2 * t + c;
      std::memcpy(&x[c], shared_at(all[8 * n + row], 16) + 2 * col, 2);
    }
    r[n] = x[0] | unsigned(x[1]) << 16;
  }
}
inline void load_matrices(unsigned (&r)[4], unsigned at) { load_matrices(r, at, false); }
inline void load_matrices_transposed(unsigned (&r)[4], unsigned at) { load_matrices(r, at, true); }

inline void put_word(unsigned at, unsigned x) { std::memcpy(shared_at(at, 4), &x, 4); }
inline unsigned get_word(unsigned at) {
  unsigned x;
  std::memcpy(&x, shared_at(at, 4), 4);
  return x;
}
inline void put_number(unsigned at, float x) { std::memcpy(shared_at(at, 4), &x, 4); }
inline void put_pair(unsigned at, unsigned x, unsigned y) {
  const unsigned both[2] = {x, y};
  std::memcpy(shared_at(at, 8), both, 8);
}
inline void put_chunk(unsigned at, uint4 x) { std::memcpy(shared_at(at, 16), &x, 16); }
inline uint4 get_chunk(unsigned at) {
  uint4 x;
  std::memcpy(&x, shared_at(at, 16), 16);
  return x;
}
inline void get_numbers(float (&x)[2], unsigned at) { std::memcpy(x, shared_at(at, 8), 8); }

inline void copy_chunk(unsigned to, const void* from, int bytes) {
  if (bytes < 0 || bytes > 16) die("a copy of a wrong size");
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0) die("a misaligned copy");
  Copies::Chunk c{shared_at(to, 16), {}};
  if (bytes > 0) std::memcpy(c.data, from, size_t(bytes));
  copies().open.push_back(c);
}
inline void commit() {
  Copies& c = copies();
  c.groups.push_back(std::move(c.open));
  c.open.clear();
}
template <int LEFT>
void wait() {
  Copies& c = copies();
  size_t done = 0;
  for (; c.groups.size() - done > size_t(LEFT); ++done)
    for (const Copies::Chunk& chunk : c.groups[done])
      std::memcpy(chunk.to, chunk.data, chunk.bytes);
  c.groups.erase(c.groups.begin(), c.groups.begin() + std::ptrdiff_t(done));
}

// Of cuda/parts/copy.cuh, and of cuda/simt/f32.cuh.
inline void copy_floats(float* to, const float* from, bool there, size_t count) {
  if (there && reinterpret_cast<uintptr_t>(from) % (4 * count) != 0) die("a misaligned copy");
  if (reinterpret_cast<uintptr_t>(to) % (4 * count) != 0) die("a misaligned copy");
  Copies::Chunk c{reinterpret_cast<unsigned char*>(to), {}, 4 * count};
  if (there) std::memcpy(c.data, from, 4 * count);
  copies().open.push_back(c);
}
inline void copy_word(float* to, const float* from, bool there) { copy_floats(to, from, there, 1); }
inline void copy_quad(float* to, const float* from, bool there) { copy_floats(to, from, there, 4); }
inline void commit_copies() { commit(); }
template <int LEFT>
void wait_copies() {
  wait<LEFT>();
}
inline float exp2_approx(float x) { return std::exp2(x); }

inline float exp2_fast(float x) { return std::exp2(x); }
inline bool any_of_warp(bool x) { return __any_sync(~0u, x); }
inline unsigned swap_words(unsigned x, int lanes) { return __shfl_xor_sync(~0u, x, lanes); }
inline void sync_warp() { __syncwarp(); }
inline void sync_two_warps() { __syncthreads(); }  // more than asked: all pairs come equally often

}  // namespace warp
}  // namespace simt
#endif
