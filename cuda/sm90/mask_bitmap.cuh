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
#include "../parts/mask.cuh"
#include "mask_bytes.cuh"
#include "plan/sm90/tiles.h"
#include "problem/mask_map.h"
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

// A head of keep as pack_keep has left it. strides: in words.
TANDEM_DEVICE const uint* packed_keep(const Features& f, const ExtraBlock& x,
                                      const uint64_t* address, int batch, int head) {
  return reinterpret_cast<const uint*>(address[f.AT_KEEP]) +
         group_of(batch, x.keep_entries) * x.keep.b + head / x.keep_group * x.keep.h;
}
TANDEM_DEVICE const unsigned char* packed_keep_blocks(const ExtraBlock& x, const uint* head) {
  return reinterpret_cast<const unsigned char*>(
      head + tandem_packed_bits(x.map_q_blocks, x.map_kv_blocks));
}

// Which tiles of a work tile the masks leave something of, by a warp: the mask map of spans, and
// the blocks of keep that pack_keep has left. It looks at a word of 32 blocks at a time, as most
// tiles of a tree are seen by no row of a work tile. KEYS: the work tile has keys, and its tiles
// have query rows; else the other way round. BLOCKS: of a tile.
template <int BLOCKS, bool KEYS>
struct MaskTiles {
  static constexpr int kTiles = 32 / BLOCKS;  // of a word
  const Features& f;
  const ExtraBlock& x;
  const uint64_t* address;
  const int batch, head;
  const int from, end;  // of the work tile, in blocks
  // Bits of the blocks of a word: something is shown; keep hides something; spans do.
  int word = -1;
  uint some = ~0u, kept = ~0u, spanned = ~0u;
  int first = -1;   // the words of the mask map that the lanes have begin here
  uint2 own{0, 0};  // of the lane
  TANDEM_DEVICE MaskTiles(const Features& f, const ExtraBlock& x, const uint64_t* address,
                          int batch, int head, int from, int end)
      : f(f), x(x), address(address), batch(batch), head(head), from(from), end(end) {}
  TANDEM_DEVICE bool has_map() const { return f.SPANS && f.SKIP; }
  TANDEM_DEVICE bool has_blocks() const { return f.KEEP == TANDEM_KEEP_BITS; }

  TANDEM_DEVICE void take(int next) {
    word = next, some = ~0u;
    const int rows = min(end, KEYS ? x.map_kv_blocks : x.map_q_blocks),
              across = KEYS ? x.map_q_blocks : x.map_kv_blocks, lane = int(threadIdx.x) % 32;
    if (has_map()) {
      if (first != word / 32 * 32) {
        first = word / 32 * 32;
        own = make_uint2(0, ~0u);
        const int words = (across + 31) / 32;
        const uint2* plane =
            map_plane<KEYS>(x, address[f.AT_MASK_MAP], spans_head(x, batch, head)) + first + lane;
#pragma unroll 1
        for (int n = from; n < rows && first + lane < words; ++n) {
          const uint2 more = __ldg(plane + int64_t(n) * words);
          own.x |= more.x, own.y &= more.y;
        }
      }
      some = __shfl_sync(kAllLanes, own.x, word - first);
      spanned = ~__shfl_sync(kAllLanes, own.y, word - first);
    }
    if (has_blocks()) {
      const unsigned char* blocks = packed_keep_blocks(x, packed_keep(f, x, address, batch, head));
      const int n = 32 * word + lane, row_step = KEYS ? 1 : across,
                step = KEYS ? x.map_kv_blocks : 1;
      uint shown = 0, hidden = 0;
#pragma unroll 1
      for (int r = from; r < rows && n < across; ++r) {
        const uint of = __ldg(blocks + int64_t(r) * row_step + int64_t(n) * step);
        shown |= of & 1, hidden |= ~of & 2;
      }
      some &= __ballot_sync(kAllLanes, shown != 0);
      kept = __ballot_sync(kAllLanes, hidden != 0);
    }
  }
  // The first tile from t on that something is shown of; `last` or more if there is none before it.
  TANDEM_DEVICE int next(int t, int last) {
    if (!has_map() && !has_blocks()) return t;
    while (t < last) {
      if (t / kTiles != word) take(t / kTiles);
      const uint bits = some & ~0u << t % kTiles * BLOCKS;
      if (bits) return word * kTiles + (__ffs(int(bits)) - 1) / BLOCKS;
      t = (word + 1) * kTiles;
    }
    return t;
  }
  // The last tile up to t that something is shown of; less than `begin` if there is none from
  // there on.
  TANDEM_DEVICE int previous(int t, int begin) {
    if (!has_map() && !has_blocks()) return t;
    while (t >= begin) {
      if (t / kTiles != word) take(t / kTiles);
      const uint bits = some & ~0u >> (kTiles - 1 - t % kTiles) * BLOCKS;
      if (bits) return word * kTiles + (31 - __clz(int(bits))) / BLOCKS;
      t = word * kTiles - 1;
    }
    return t;
  }
  struct Tile {
    bool kept, spanned;  // keep may hide something; spans may
  };
  // Of a tile that next() or previous() has found.
  TANDEM_DEVICE Tile tile(int t) const {
    const uint bits = ((1u << BLOCKS) - 1) << t % kTiles * BLOCKS;
    return {(kept & bits) != 0, (spanned & bits) != 0};
  }
};

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

  // Writes the words of the spans. joins: into the words of keep, which all producers have passed.
  // A lane has a key of each word, whose numbers it loads at once; the rows that see the key are an
  // interval. Lanes then exchange them, and have the keys of a row.
  TANDEM_DEVICE void spans(uint to, int row0, int col0, bool joins) const {
    static_assert(ROWS % 32 == 0, "groups of 32 rows");
    const int lane = thread() % 32;
    const int* keys =
        reinterpret_cast<const int*>(address[f.AT_SPANS]) + spans_head(x, batch, head) * x.spans.h;
#pragma unroll 1
    for (int first = thread() / 32 * 32; first < ROWS; first += THREADS) {
      uint bits[P::kWords] = {};
#pragma unroll 1
      for (uint n = 0; n < f.SPANS; ++n) {
        int2 span[P::kWords];
#pragma unroll
        for (int w = 0; w < P::kWords; ++w) {
          const int j = col0 + 32 * w + lane;
          span[w].x = span[w].y = 0;
          if (j < seq_kv) span[w] = load_span(keys + j * x.spans.s + 2 * n);
        }
#pragma unroll
        for (int w = 0; w < P::kWords; ++w) bits[w] |= interval_bits(span[w], row0 + first);
      }
#pragma unroll
      for (int w = 0; w < P::kWords; ++w) {
        const uint own = transpose_bits(bits[w]);
        const uint at = to + uint(w * P::kPitch + first + lane) * 4;
        st_shared(at, joins ? own & ld_shared_u32(at) : own);
      }
    }
  }
  // Which of the rows from row0 on an interval has, as bits.
  static TANDEM_DEVICE uint interval_bits(int2 span, int row0) {
    // Clamped first: the difference of any two numbers may leave 32 bits.
    const int begin = max(span.x, row0) - row0, end = max(min(span.y, row0 + 32), row0) - row0;
    if (begin >= end) return 0;
    return (~0u << begin) & (~0u >> (32 - end));
  }
  // Bit i of lane n becomes bit n of lane i.
  static TANDEM_DEVICE uint transpose_bits(uint bits) {
    uint mask = 0xffffu;
#pragma unroll
    for (int step = 16; step > 0; step /= 2, mask ^= mask << step) {
      const uint other = __shfl_xor_sync(kAllLanes, bits, step);
      bits = thread() & step ? (bits & ~mask) | (other >> step & mask)
                             : (bits & mask) | (other & mask) << step;
    }
    return bits;
  }

  // Writes the words of keep, from what pack_keep has left.
  TANDEM_DEVICE void packed(uint to, int row0, int col0) const {
    const uint* words = packed_keep(f, x, address, batch, head) + col0 / 32;
#pragma unroll 1
    for (int row = thread(); row < ROWS; row += THREADS) {
      const uint4 of =
          __ldg(reinterpret_cast<const uint4*>(words + min(row0 + row, seq_q - 1) * x.keep.s));
      const uint at = to + uint(row) * 4;
      st_shared(at, of.x), st_shared(at + P::kPitch * 4, of.y);
      st_shared(at + P::kPitch * 8, of.z), st_shared(at + P::kPitch * 12, of.w);
    }
  }
  // Writes the words of the masks that hide something of a tile. Returns false if that is all of
  // it; *hides: whether they hide anything.
  template <typename Tile>
  TANDEM_DEVICE bool masks(uint to, int row0, int col0, const Tile& tile, bool* hides) const {
    static_assert(P::kWords == 4, "a load has the words of a row");
    bool kept = false;
    if (f.KEEP == TANDEM_KEEP_BITS) {
      if (tile.kept) packed(to, row0, col0), kept = true;
    } else if (f.KEEP) {
      if (!keep(to, row0, col0, hides)) return false;
      kept = *hides;
    }
    if (f.SPANS && tile.spanned) {
      if (f.KEEP == TANDEM_KEEP_BITS && kept) named_barrier_any<ID, THREADS>(true);
      spans(to, row0, col0, f.KEEP && (kept || f.KEEP != TANDEM_KEEP_BITS));
      kept = true;
    }
    *hides |= kept;
    return true;
  }

  // Writes the words of keep. Returns whether keep shows any key of the tile. *hides: whether it
  // hides any.
  TANDEM_DEVICE bool keep(uint to, int row0, int col0, bool* hides) const {
    constexpr int kAtOnce = AT_ONCE;
    uint any = 0, all = ~0u;
    const char* mask = reinterpret_cast<const char*>(address[f.AT_KEEP]) +
                       group_of(batch, x.keep_entries) * x.keep.b + head / x.keep_group * x.keep.h +
                       col0 * x.keep.d;
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
