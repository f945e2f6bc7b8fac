// SPDX-License-Identifier: MIT OR Apache-2.0
// Which tiles of queries a mask with a row for each query leaves something of, beside a dense bias.
// pack_keep and expand_blocks leave a bit for each block of 64 rows and 64 keys.
#ifndef TANDEM_CUDA_SM90_BWD_SHOWN_Q_TILES_CUH
#define TANDEM_CUDA_SM90_BWD_SHOWN_Q_TILES_CUH
#include "problem/mask_map.h"
#include "work_tile.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Iterator of the Q loop (AllQTiles), the same for all warps, and for all workgroups that share the
// bias: it visits what the mask shows in any batch entry of theirs. Each warp reads the blocks of
// 32 tiles at a time, a tile a lane. All: the iterator of all tiles.
template <int TILE, typename All>
struct ShownQTiles : All {
  static constexpr BwdShape S = kBwdShapes[TILE];
  static constexpr int kRows = S.br / TANDEM_MAP_BLOCK;  // blocks of a tile
  static_assert(S.bc == 2 * TANDEM_MAP_BLOCK && S.br % TANDEM_MAP_BLOCK == 0, "blocks of a tile");
  const BwdDkvDqBiasParams& params;
  const BwdWorkTile& work;
  uint shown = 0;  // of the 32 tiles that next() has looked at last
  TANDEM_DEVICE ShownQTiles(const BwdDkvDqBiasParams& params, const BwdWorkTile& work)
      : All(params, work), params(params), work(work) {}

  // Bits of 32 blocks of keys that something is shown of to query tile t. n: head of the group;
  // word: of the blocks.
  TANDEM_DEVICE uint blocks(int n, int t, int word) const {
    const BwdDkvDqBlock& u = params.block;
    const BwdBias& b = params.bias;
    const int q_blocks = tandem_map_blocks(u.seq_q), kv_blocks = tandem_map_blocks(u.seq_kv);
    const int first = b.shared > 1 ? 0 : work.batch, last = b.shared > 1 ? b.shared - 1 : first;
    const uint* const head = reinterpret_cast<const uint*>(b.keep) +
                             (work.head_kv * u.group + n) / b.keep_group * b.keep_strides.h +
                             tandem_packed_some(q_blocks, kv_blocks) + word;
    uint bits = 0;
#pragma unroll 1
    for (int entry = first; entry <= (b.keep_strides.b ? last : first); ++entry)
#pragma unroll
      for (int r = t * kRows; r < (t + 1) * kRows; ++r)
        if (r < q_blocks)
          bits |=
              __ldg(head + entry * b.keep_strides.b + int64_t(r) * tandem_some_pitch(kv_blocks));
    return bits;
  }
  TANDEM_DEVICE int next(int n, int t) {
    if (!params.bias.skips) return t;
    while (t < work.span.end) {
      if (t == work.span.begin || t % 32 == 0) {
        const int own = t / 32 * 32 + read_tid_x() % 32;
        const int block = work.col0 / TANDEM_MAP_BLOCK;
        const uint bits = own < work.span.end ? blocks(n, own, block / 32) >> block % 32 & 3u : 0u;
        shown = __ballot_sync(kAllLanes, bits != 0);
      }
      const uint left = shown & ~0u << t % 32;
      if (left) return t / 32 * 32 + __ffs(int(left)) - 1;
      t = t / 32 * 32 + 32;
    }
    return t;
  }
  // Of the later tiles of keys, those that something is shown of.
  template <typename Block>
  TANDEM_DEVICE uint before(const Block& u, const BwdWorkTile& of, int n, int t) const {
    const uint all = All::before(u, of, n, t);
    if (!params.bias.skips) return all;
    const int first = work.tile + 1, end = first + int(all);
    uint count = 0;
#pragma unroll 1
    for (int word = first / 16; word * 16 < end; ++word) {
      uint bits = blocks(n, t, word);
      bits = (bits | bits >> 1) & 0x55555555u;
      if (word == first / 16) bits &= ~0u << 2 * (first % 16);
      if (end - word * 16 < 16) bits &= (1u << 2 * (end - word * 16)) - 1;
      count += __popc(bits);
    }
    return count;
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
