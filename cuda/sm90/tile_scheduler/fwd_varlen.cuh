// SPDX-License-Identifier: MIT OR Apache-2.0
// The tile scheduler of forward kernels whose batch entries have lengths.
#ifndef TANDEM_CUDA_SM90_TILE_SCHEDULER_FWD_VARLEN_CUH
#define TANDEM_CUDA_SM90_TILE_SCHEDULER_FWD_VARLEN_CUH
#include "../../parts/mask.cuh"
#include "../fwd/work_tile.cuh"
#include "base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

struct Entry {
  int seq_q, seq_kv, first_q, first_kv;  // first: its first row in packed tensors
  TandemBand band;
};
// The lengths and the band of a batch entry. address: of the optional inputs.
template <typename Block>
TANDEM_DEVICE Entry find_entry(const Block& u, const ExtraBlock& extra, const Features& f,
                               const uint64_t* address, int batch) {
  int64_t first_q, first_kv;
  Entry e;
  e.seq_q = entry_length(Lengths(f.LENGTHS_Q), address[f.AT_LENGTHS_Q], batch, u.seq_q,
                         extra.total_q, &first_q);
  e.seq_kv = entry_length(Lengths(f.LENGTHS_KV), address[f.AT_LENGTHS_KV], batch, u.seq_kv,
                          extra.total_kv, &first_kv);
  e.first_q = int(first_q), e.first_kv = int(first_kv);
  e.band =
      TandemBand{u.band_left, u.band_right, extra.bottom_right ? e.seq_kv - e.seq_q : u.band_off};
  return e;
}
TANDEM_DEVICE Entry find_entry(const FwdOptionalParams& params, int batch) {
  return find_entry(params.block, params.extra, params.features, params.push.extra, batch);
}

// A work tile of a batch entry.
struct FwdVarlenTile : FwdWorkTile {
  int batch;
  Entry entry;
};

// Varlen tile scheduler: the work tiles of this workgroup that see a key. The workgroups share the
// tiles of a batch entry, then those of the next one. Where a mask makes later tiles longer, they
// take them in pairs, as StaticTileScheduler does, or the longest first.
template <typename S>
struct VarlenTileScheduler {
  using Tile = FwdVarlenTile;
  const FwdOptionalParams& params;
  enum : int { kEqual, kPaired, kLongestFirst } order;
  int batches, batch, tiles = 0;  // batches: the first entry behind those of the launch
  uint position = 0, before = 0;  // before: tiles or pairs of the entries before this one

  TANDEM_DEVICE explicit VarlenTileScheduler(const FwdOptionalParams& p) : params(p) {
    const FwdBlock& u = p.block;
    batch = int(p.first_head / uint(u.heads_q));
    batches = batch + int(u.total / u.tiles / uint(u.heads_q));
    uint pairs = 0;
    for (int b = batch + int(threadIdx.x) % 32; b < batches; b += 32)
      pairs += uint(tiles_of(b) + 1) / 2;
    pairs = __reduce_add_sync(kAllLanes, pairs) * uint(u.heads_q);
    order = (u.band_right == TANDEM_BAND_OPEN) == (u.band_left == TANDEM_BAND_OPEN) ? kEqual
            : pairs >= 3 * gridDim.x                                                ? kPaired
                                                                                    : kLongestFirst;
    tiles = tiles_of(batch);
  }
  TANDEM_DEVICE int tiles_of(int b) const {
    return (find_entry(params, b).seq_q + S::M - 1) / S::M;
  }
  TANDEM_DEVICE bool next(Tile* at) {
    const uint heads = uint(params.block.heads_q);
    for (;;) {
      const uint index = position / 2 * gridDim.x + blockIdx.x;
      uint each;
      for (;;) {
        each = uint(order == kPaired ? (tiles + 1) / 2 : tiles);
        if (index - before < heads * each) break;
        before += heads * each;
        if (++batch >= batches) return false;
        tiles = tiles_of(batch);
      }
      const uint rest = index - before;
      uint head, tile;
      if (order == kPaired) {
        head = rest / each;
        const uint pair = rest - head * each;
        tile = position % 2 ? pair : uint(tiles) - 1 - pair;
        position += pair == tile && position % 2 == 0 ? 2 : 1;
      } else {
        position += 2;
        if (order == kEqual) {
          head = rest / each, tile = rest - head * each;
        } else {
          const uint many = rest / heads;
          head = rest - many * heads, tile = uint(tiles) - 1 - many;
        }
      }
      at->batch = batch;
      at->entry = find_entry(params, batch);
      at->index = uint(batch) * heads + head;
      at->row0 = int(tile) * S::M;
      at->span =
          tandem_key_tiles(at->entry.band, at->row0, S::M, S::N, at->entry.seq_q, at->entry.seq_kv);
      if (at->span.begin < at->span.end) return true;
    }
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
