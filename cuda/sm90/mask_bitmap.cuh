// SPDX-License-Identifier: MIT OR Apache-2.0
// Mask bitmap: boolean masks and dropout as bits in shared memory. Auxiliary warps produce the
// bitmap of a tile ahead of the warps that compute. From the bytes of the mask they form a word for
// each row and 32 keys. What dropout keeps (src/problem/philox.h) each consumer warp finds out for
// its own elements: two or three warps took three times as long for it. The auxiliary warps skip a
// tile that keeps nothing, so only they know which tile comes next. A stage therefore holds the
// bitmap of a tile and which tile it is, and the TMA producer and the consumer warps take the
// stages in order.
#ifndef TANDEM_CUDA_SM90_MASK_BITMAP_CUH
#define TANDEM_CUDA_SM90_MASK_BITMAP_CUH
#include "../parts/extra.cuh"
#include "mask_bytes.cuh"
#include "plan/sm90/tiles.h"
#include "problem/philox.h"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/shared_memory.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Flags of a tile, in the second word of its description.
enum : int {
  kHasHidden = 1,  // the mask hides some of its elements
  kFirst = 2,      // of a tile of query rows (fwd), of those that a head has (backward)
  kEnd = 4,        // there is no further tile, and none here
  kEdge = 8        // of the band, or of the keys (backward)
};

// Stages of the mask bitmap in shared memory: words of the mask, room for the consumers' bits of
// dropout and four words that describe the tile. The mbarriers lie apart.
template <int ROWS>
struct MaskBitmapStages {
  static constexpr int kPitch = mask_pitch(ROWS), kWords = kMaskKeys / 32,
                       kStageBytes = mask_stage_bytes(ROWS);
  uint at, barriers;
  TANDEM_DEVICE uint keep(uint n) const { return at + n % kMaskStages * kStageBytes; }
  TANDEM_DEVICE uint drop(uint n) const { return keep(n) + kWords * kPitch * 4; }
  TANDEM_DEVICE uint tile(uint n) const { return drop(n) + kWords * kPitch * 4; }
  TANDEM_DEVICE uint full(uint n) const { return barriers + n % kMaskStages * 16; }
  TANDEM_DEVICE uint empty(uint n) const { return full(n) + 8; }
  static TANDEM_DEVICE int phase(uint n) { return int(n / kMaskStages % 2); }
  TANDEM_DEVICE void init(int producers, int consumers) const {
    for (uint n = 0; n < kMaskStages; ++n) {
      mbarrier_init(full(n), producers);
      mbarrier_init(empty(n), consumers);
    }
  }
  TANDEM_DEVICE int4 wait_tile(uint n) const {
    mbarrier_wait(full(n), phase(n));
    return read_tile(n);
  }
  TANDEM_DEVICE int4 read_tile(uint n) const { return ld_shared_v4_s32(tile(n)); }
};

// ---- dropout ------------------------------------------------------------------------------------

// Which of KEYS keys, from key 4 quad on, dropout keeps in query row i, as bits. index: of the
// head, over the batch.
template <int KEYS>
TANDEM_DEVICE uint drop_bits(const Features& f, const ExtraBlock& x, const uint64_t* address,
                             uint offset, uint index, int i, int quad) {
  constexpr int kAtOnce = 4;  // Philox's rounds depend on each other
  static_assert(KEYS % (4 * kAtOnce) == 0 && KEYS <= 32, "whole steps");
  const uint below = x.drop_below;
  const uint64_t seed = address[f.AT_SEED];
  uint bits = 0;
#pragma unroll 1
  for (int first = 0; first < KEYS / 4; first += kAtOnce) {
    TandemPhilox c[kAtOnce];
    uint key0 = uint(seed), key1 = uint(seed >> 32);
    key0 = opaque(key0), key1 = opaque(key1);  // or all rounds' keys lie in registers
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n)
      c[n].x = uint(quad + first + n), c[n].y = uint(i), c[n].z = index, c[n].w = offset;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) c[n] = tandem_philox_round(c[n], key0, key1);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n)
      bits = bits >> 4 | uint(c[n].x >= below) << 28 | uint(c[n].y >= below) << 29 |
             uint(c[n].z >= below) << 30 | uint(c[n].w >= below) << 31;
  }
  return bits >> (32 - KEYS);
}

// ---- production ---------------------------------------------------------------------------------

// The last THREADS threads of a warpgroup produce the bitmaps of tiles of ROWS queries and
// kMaskKeys keys. They synchronise at named barrier ID. AT_ONCE: words whose bytes are being loaded
// at a time.
template <int ROWS, int THREADS, int ID, int AT_ONCE>
struct MaskBitmapProducer {
  using P = MaskBitmapStages<ROWS>;
  static constexpr int kTasks = ROWS * P::kWords;  // one word each
  const Features& f;
  const ExtraBlock& x;
  const uint64_t* address;  // of the optional inputs
  // Of the head. What depends on them is computed again for each tile, as registers are short.
  int batch = 0, head = 0, seq_q = 0, seq_kv = 0;
  TANDEM_DEVICE MaskBitmapProducer(const Features& f, const ExtraBlock& x, const uint64_t* address)
      : f(f), x(x), address(address) {}
  static TANDEM_DEVICE int thread() { return int(threadIdx.x) - (128 - THREADS); }

  // Adjacent tasks have the words of a row.
  static TANDEM_DEVICE int row_of(int task) { return task / P::kWords; }
  static TANDEM_DEVICE int word_of(int task) { return task % P::kWords; }
  static TANDEM_DEVICE uint offset_of(int task) {
    return uint(word_of(task) * P::kPitch + row_of(task)) * 4;
  }

  TANDEM_DEVICE uint word_by_bytes(const char* from, int j) const {
    uint bits = 0;
#pragma unroll 4
    for (int n = 0; n < min(32, seq_kv - j); ++n)
      bits |= uint(__ldg(from + n * x.keep.d) != 0) << n;
    return bits;
  }

  // Writes the words of the mask. Returns whether the mask keeps any key of the tile. *hides:
  // whether it hides any.
  TANDEM_DEVICE bool keep(uint to, int row0, int col0, bool* hides) const {
    constexpr int kAtOnce = AT_ONCE;
    uint any = 0, all = ~0u;
    const char* mask = reinterpret_cast<const char*>(address[f.AT_KEEP]) + batch * x.keep.b +
                       head / x.keep_group * x.keep.h + col0 * x.keep.d;
    const bool wide =
        x.keep.d == 1 && x.keep.s % 16 == 0 && reinterpret_cast<uint64_t>(mask) % 16 == 0;
    if (wide && col0 + kMaskKeys <= seq_kv) {
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
          const uint bits = kept_bits(bytes[n]);
          if (row0 + row_of(mine) < seq_q) any |= bits, all &= bits;
          st_shared(to + offset_of(mine), bits);
        }
      }
    } else {
#pragma unroll 1
      for (int task = thread(); task < kTasks; task += THREADS) {
        const int i = row0 + row_of(task);
        const int j = 32 * word_of(task);
        const char* from = mask + i * x.keep.s + j * x.keep.d;
        const uint bits = i >= seq_q      ? 0
                          : x.keep.d == 1 ? kept_bits<32>(from, col0 + j, seq_kv - col0 - j)
                                          : word_by_bytes(from, col0 + j);
        if (i < seq_q) any |= bits, all &= bits;
        st_shared(to + offset_of(task), bits);
      }
    }
    const bool kept = named_barrier_any<ID, THREADS>(any != 0);
    if (!kept && f.SKIP) return false;
    *hides = named_barrier_any<ID, THREADS>(all != ~0u);
    return true;
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
