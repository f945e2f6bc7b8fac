// SPDX-License-Identifier: MIT OR Apache-2.0
// Boolean masks and dropout as bits in shared memory. Warps that have nothing else to do make them for a tile ahead of those
// that compute: from the bytes of the mask a word for each row and 32 keys, and another of what dropout keeps (src/philox.h).
// They leave a tile that keeps nothing out, so they alone know which comes next: a place has the bits of a tile, and which
// one it is; who copies and who computes takes the places one after the other.
#ifndef TANDEM_CUDA_SM90_BITS_CUH
#define TANDEM_CUDA_SM90_BITS_CUH
#include "../extra.cuh"
#include "hopper_tiles.h"
#include "philox.h"
#include "words.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// What a tile is, a word of a place.
enum : int {
  kHides = 1,  // its words of the mask are to be looked at
  kFirst = 2,  // of a tile of query rows (fwd), of those that a head has (backward)
  kEnd = 4,    // there is no further tile, and none here
  kEdge = 8    // of the band, or of the keys (backward)
};

// Places in shared memory: words of the mask, words of dropout, four words about the tile; then their barriers.
template <int ROWS>
struct TilePlaces {
  static constexpr int kPitch = bits_pitch(ROWS), kWords = kBitsKeys / 32,
                       kPlace = bits_place_bytes(ROWS);
  uint at, barriers;
  TANDEM_DEVICE uint keep(uint n) const { return at + n % kBitsPlaces * kPlace; }
  TANDEM_DEVICE uint drop(uint n) const { return keep(n) + kWords * kPitch * 4; }
  TANDEM_DEVICE uint tile(uint n) const { return drop(n) + kWords * kPitch * 4; }
  TANDEM_DEVICE uint full(uint n) const { return barriers + n % kBitsPlaces * 16; }
  TANDEM_DEVICE uint empty(uint n) const { return full(n) + 8; }
  static TANDEM_DEVICE int parity(uint n) { return int(n / kBitsPlaces % 2); }
  TANDEM_DEVICE void init(int makers, int readers) const {
    for (uint n = 0; n < kBitsPlaces; ++n) {
      barrier_init(full(n), makers);
      barrier_init(empty(n), readers);
    }
  }
  TANDEM_DEVICE int4 wait_tile(uint n) const {
    barrier_wait(full(n), parity(n));
    return read_tile(n);
  }
  TANDEM_DEVICE int4 read_tile(uint n) const { return shared_ints(tile(n)); }
};

// ---- making them ------------------------------------------------------------------------------------

// Four bytes that are not 0, as the highest four bits.
TANDEM_DEVICE uint top_bits(uint x) {
  x = (x | ((x & 0x7f7f7f7fu) + 0x7f7f7f7fu)) & 0x80808080u;
  return x * 0x00204081u & 0xf0000000u;
}

// The last THREADS of a warpgroup make the bits of tiles of ROWS queries and kBitsKeys keys; barrier ID is theirs. AT_ONCE:
// words whose bytes are on their way at a time.
template <int ROWS, int THREADS, int ID, int AT_ONCE>
struct BitMaker {
  using P = TilePlaces<ROWS>;
  static constexpr int kTasks = ROWS * P::kWords;  // a word each
  const Features& f;
  const ExtraBlock& x;
  const uint64_t* address;  // of the optional inputs
  const uint offset;
  const int heads;
  // Of the head; what depends on it is found anew for each tile, as registers are short.
  int batch = 0, head = 0, seq_q = 0, seq_kv = 0;
  TANDEM_DEVICE BitMaker(const Features& f, const ExtraBlock& x, const uint64_t* address,
                         uint offset, int heads)
      : f(f), x(x), address(address), offset(offset), heads(heads) {}
  static TANDEM_DEVICE int thread() { return int(threadIdx.x) - (128 - THREADS); }

  // Neighbours have the words of a row.
  static TANDEM_DEVICE int row_of(int task) { return task / P::kWords; }
  static TANDEM_DEVICE int word_of(int task) { return task % P::kWords; }
  static TANDEM_DEVICE uint place_of(int task) {
    return uint(word_of(task) * P::kPitch + row_of(task)) * 4;
  }

  TANDEM_DEVICE uint word_by_bytes(const char* from, int j) const {
    uint bits = 0;
#pragma unroll 4
    for (int n = 0; n < min(32, seq_kv - j); ++n)
      bits |= uint(__ldg(from + n * x.keep.d) != 0) << n;
    return bits;
  }

  // The words of the mask. Returns whether the tile keeps a key; *hides: whether it does not keep all.
  TANDEM_DEVICE bool keep(uint to, int row0, int col0, bool* hides) const {
    constexpr int kAtOnce = AT_ONCE;
    uint any = 0, all = ~0u;
    const char* mask = reinterpret_cast<const char*>(address[f.AT_KEEP]) + batch * x.keep.b +
                       head / x.keep_group * x.keep.h + col0 * x.keep.d;
    const bool wide =
        x.keep.d == 1 && x.keep.s % 16 == 0 && reinterpret_cast<uint64_t>(mask) % 16 == 0;
    if (wide && col0 + kBitsKeys <= seq_kv) {
#pragma unroll 1
      for (int task = thread(); task < kTasks; task += kAtOnce * THREADS) {
        uint4 bytes[kAtOnce][2];
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          const int mine = min(task + n * THREADS, kTasks - 1), i = row0 + row_of(mine);
          const auto* from = reinterpret_cast<const uint4*>(mask + min(i, seq_q - 1) * x.keep.s +
                                                            32 * word_of(mine));
          bytes[n][0] = __ldg(from), bytes[n][1] = __ldg(from + 1);
        }
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          const int mine = min(task + n * THREADS, kTasks - 1);
          uint bits = 0;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint4 b = bytes[n][half];
            bits = bits >> 4 | top_bits(b.x);
            bits = bits >> 4 | top_bits(b.y);
            bits = bits >> 4 | top_bits(b.z);
            bits = bits >> 4 | top_bits(b.w);
          }
          if (row0 + row_of(mine) < seq_q) any |= bits, all &= bits;
          put_shared(to + place_of(mine), bits);
        }
      }
    } else {
#pragma unroll 1
      for (int task = thread(); task < kTasks; task += THREADS) {
        const int i = row0 + row_of(task);
        const int j = 32 * word_of(task);
        const uint bits =
            i < seq_q ? word_by_bytes(mask + i * x.keep.s + j * x.keep.d, col0 + j) : 0;
        if (i < seq_q) any |= bits, all &= bits;
        put_shared(to + place_of(task), bits);
      }
    }
    const bool kept = named_any<ID, THREADS>(any != 0);
    if (!kept && f.SKIP) return false;
    *hides = named_any<ID, THREADS>(all != ~0u);
    return true;
  }

  // The words of what dropout keeps.
  TANDEM_DEVICE void drop(uint to, int row0, int col0) const {
    constexpr int kAtOnce = 4;
    const uint below = x.drop_below, index = uint(batch * heads + head);
    const uint64_t seed = address[f.AT_SEED];
#pragma unroll 1
    for (int task = thread(); task < kTasks; task += THREADS) {
      const int i = row0 + row_of(task), quad = (col0 + 32 * word_of(task)) / 4;
      uint bits = 0;
#pragma unroll 1
      for (int first = 0; first < 8; first += kAtOnce) {
        TandemPhilox c[kAtOnce];
        uint key0 = uint(seed), key1 = uint(seed >> 32);
        key0 = fresh(key0), key1 = fresh(key1);  // or all rounds' keys lie in registers
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n)
          c[n].x = uint(quad + first + n), c[n].y = uint(i), c[n].z = index, c[n].w = offset;
#pragma unroll
        for (int round = 0; round < 10; ++round) {
#pragma unroll
          for (int n = 0; n < kAtOnce; ++n) c[n] = tandem_philox_round(c[n], key0, key1);
          key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
        }
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          bits = bits >> 4 | uint(c[n].x >= below) << 28 | uint(c[n].y >= below) << 29 |
                 uint(c[n].z >= below) << 30 | uint(c[n].w >= below) << 31;
        }
      }
      put_shared(to + place_of(task), bits);
    }
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
