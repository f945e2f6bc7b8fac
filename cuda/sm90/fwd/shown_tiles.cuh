// SPDX-License-Identifier: MIT OR Apache-2.0
// Which tiles of keys a mask with a row for each query leaves something of, beside a dense bias.
// pack_keep and expand_blocks leave a bit for each block of 64 rows and 64 keys.
#ifndef TANDEM_CUDA_SM90_FWD_SHOWN_TILES_CUH
#define TANDEM_CUDA_SM90_FWD_SHOWN_TILES_CUH
#include "../mask_bitmap.cuh"
#include "work_tile.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The tiles of keys of a work tile, for the producer thread, which has no registers for more than
// the work tile's first row: where its words begin is in shared memory. A word has 32 blocks of
// keys, of 64 rows.
template <typename S>
struct ShownTiles {
  static constexpr int kBlocks = S::N / TANDEM_MAP_BLOCK, kTiles = 32 / kBlocks;  // tiles of a word
  static_assert(S::N == TANDEM_MAP_BLOCK || S::N == 2 * TANDEM_MAP_BLOCK, "blocks of a tile");
  const ExtraBlock& x;
  const uint begins_at;  // where the address of the first word lies in shared memory
  const int block;       // first block of rows

  TANDEM_DEVICE ShownTiles(const ExtraBlock& x, const FwdSharedStorage<S>& shared, int row0)
      : x(x), begins_at(shared.key_tiles_end()), block(row0 / TANDEM_MAP_BLOCK) {}
  // The lowest bit of each shown tile of word w.
  TANDEM_DEVICE uint word(const uint* rows, int w) const {
    uint bits = 0;
#pragma unroll
    for (int r = 0; r < S::M / TANDEM_MAP_BLOCK; ++r)
      if (block + r < x.map_q_blocks)
        bits |= __ldg(rows + r * tandem_some_pitch(x.map_kv_blocks) + w);
    return kBlocks == 2 ? (bits | bits >> 1) & 0x55555555u : bits;
  }
  // Leaves in span, in place of the work tile's tiles of keys, as many numbers as tiles are shown:
  // the last number is that of the last tile. head: the words of the head of keep.
  TANDEM_DEVICE void find(const uint* head, TandemTiles* span) const {
    const uint* const rows = head + tandem_packed_some(x.map_q_blocks, x.map_kv_blocks) +
                             int64_t(block) * tandem_some_pitch(x.map_kv_blocks);
    st_shared(begins_at, uint(reinterpret_cast<uint64_t>(rows)));
    st_shared(begins_at + 4, uint(reinterpret_cast<uint64_t>(rows) >> 32));
    int shown = 0, last = -1;
    if (span->begin < span->end)
#pragma unroll 2
      for (int w = (span->end - 1) / kTiles; w >= span->begin / kTiles; --w) {
        const int end = span->end - w * kTiles, begin = span->begin - w * kTiles;
        uint bits = word(rows, w);
        if (end < kTiles) bits &= (1u << end * kBlocks) - 1;
        if (begin > 0) bits &= ~0u << begin * kBlocks;
        shown += __popc(bits);
        if (last < 0 && bits) last = w * kTiles + (31 - __clz(int(bits))) / kBlocks;
      }
    span->end = last + 1, span->begin = last + 1 - shown;
  }
  // The last shown tile before t; there is one.
  TANDEM_DEVICE int previous(int t) const {
    const uint2 begins = ld_shared_v2_u32(begins_at);
    const uint* const rows = reinterpret_cast<const uint*>(uint64_t(begins.y) << 32 | begins.x);
    for (--t;; t = t / kTiles * kTiles - 1) {
      const uint bits = word(rows, t / kTiles) & ~0u >> (kTiles - 1 - t % kTiles) * kBlocks;
      if (bits) return t / kTiles * kTiles + (31 - __clz(int(bits))) / kBlocks;
    }
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
