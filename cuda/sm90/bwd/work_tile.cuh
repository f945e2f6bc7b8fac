// SPDX-License-Identifier: MIT OR Apache-2.0
// A work tile of bwd_dkv_dq and bwd_dkv: a tile of keys and the tiles of queries that its Q loop
// visits.
#ifndef TANDEM_CUDA_SM90_BWD_WORK_TILE_CUH
#define TANDEM_CUDA_SM90_BWD_WORK_TILE_CUH
#include "../../parts/mask.cuh"
#include "../numerics.cuh"
#include "../params.h"
#include "../ptx/wgmma.cuh"
#include "kernels/columns.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// Work tile of the backward: a tile of keys of a kv head and a batch entry, and the span of query
// tiles that the Q loop visits.
struct BwdWorkTile {
  int tile, head_kv, batch, col0;
  TandemBand band;
  TandemTiles span;
  int seq_q, seq_kv;      // lengths of the batch entry
  int keys;               // rows of d_k and d_v that are stored
  int first_q, first_kv;  // where the entry begins in packed tensors
  int map_q, map_kv;      // index of the entry in the tensor maps
  bool reversed = false;
  // Several workgroups may share a tile of keys, each with a part of the query tiles. part: which
  // part; parts: how many; shared: index of the shared tile.
  int part = 0, parts = 1, shared = 0;
  // Persistent workgroups. begun: query tiles of earlier work tiles, from which the pipeline state
  // follows; pass: which pass over the tile this is.
  uint begun = 0, pass = 0;
  // d_bias in slices of the batch (trait::slices). slice: which one; present: workgroups of the
  // cluster that have a batch entry; ghost: this one has none. It computes as the others do, on the
  // last entry, and stores nothing.
  int slice = 0, present = 0;
  bool ghost = false;
  // Index of the query tile at a position of the Q loop, which may run backwards.
  TANDEM_DEVICE int q_tile(int at) const { return reversed ? span.begin + span.end - 1 - at : at; }
};
// A word of shared memory, in a uniform register.
TANDEM_DEVICE uint ld_shared_uniform(uint at) {
  return __reduce_or_sync(kAllLanes, ld_shared_u32(at));
}

TANDEM_DEVICE uint workgroup_index() { return blockIdx.y * gridDim.x + blockIdx.x; }

// Whether the Q loop runs backwards. With a causal mask all tiles of keys share the last queries,
// not the first: a loop that begins there reads what other workgroups read. Not for a deterministic
// order.
template <typename Block>
TANDEM_DEVICE bool reverses_q_loop(const Block& u) {
  return u.band_right != TANDEM_BAND_OPEN && u.band_left == TANDEM_BAND_OPEN;
}

// What a variant of bwd_dkv_dq or bwd_dkv has, at compile time. Each says what it has; none
// inherits more.
struct BwdVariant {
  // Batch entries may be shorter than the lengths of the problem, and there is no dense bias
  // (variant_varlen.cuh).
  static constexpr bool kIsVarlen = false;
  // Consumer has begin_head() and end_head(), for each query head.
  static constexpr bool kVisitsHeads = false;
  // The Q loop visits all query heads of a query tile before the next tile. Workgroups of different
  // keys then visit the same rows at a time, which L2 holds, however many heads share the keys.
  static constexpr bool kHeadsInside = false;
  // The mask bitmap says which query tiles are visited (variant_masked.cuh).
  static constexpr bool kHasMaskBitmap = false;
  // A dense bias: workgroups may share a tile of keys, and Consumer says where dS goes. Beside it
  // there may be a keep mask, and lengths.
  static constexpr bool kHasBias = false, kHasKeep = false, kHasEnds = false;
  // Workgroups may share a tile of keys, and there is no bias (variant_parts.cuh).
  static constexpr bool kHasParts = false;
  // An auxiliary warp zeroes the dQ accumulator some heads ahead (dq_lazy_zero.cuh).
  static constexpr bool kLazyZero = false;
  // weigh_far() runs before weigh() rather than in its place: the two branches then have fewer
  // registers to agree on.
  static constexpr bool kFarBefore = false;
  // A query tile is of gathered rows (gathered_rows.cuh). Consumer has has_far(), hide() and
  // add_dq(): what follows from the index of a tile elsewhere follows from those of its rows.
  static constexpr bool kGathers = false;
  // Workgroups are persistent (persistent.cuh), where all gradients are wanted.
  static constexpr bool kPersistent = false;
  // Whether the Q loop of a workgroup runs backwards.
  template <typename Params>
  static TANDEM_DEVICE bool reversed(const Params& params) {
    return reverses_q_loop(params.block);
  }
  // The number of the work tile that a workgroup takes.
  template <typename Params>
  static TANDEM_DEVICE uint work_index(const Params& params) {
    return params.first_group + workgroup_index();
  }
};

// The tile of keys number `index`; false if there is none. interleaved_heads: 0, or, for a
// deterministic order, how many heads are interleaved: the first tile of each of them, then the
// second ones. A workgroup then waits only for workgroups that were started before it.
template <typename Block>
TANDEM_DEVICE bool find_tile(const Block& u, int interleaved_heads, uint index, Place* at) {
  const uint heads_kv = uint(u.heads_q / u.group);
  uint head = index / u.tiles, n = index % u.tiles;
  if (index >= u.total) return false;
  if (interleaved_heads > 1) {
    const uint heads = u.total / u.tiles;
    const uint first = index / (uint(interleaved_heads) * u.tiles) * uint(interleaved_heads);
    const uint width = min(uint(interleaved_heads), heads - first);
    n = index - first * u.tiles;
    head = first + n % width, n /= width;
  }
  at->tile = int(u.tiles - 1 - n);
  at->head = int(head % heads_kv), at->batch = int(head / heads_kv);
  return true;
}
// The work tile number `index`; false if there is none. inner: the batch size, if consecutive
// workgroups differ in the batch entry only; else 1.
template <typename Block>
TANDEM_DEVICE bool find_work_tile(const Block& u, const BwdShape& shape, int inner,
                                  int interleaved_heads, uint index, BwdWorkTile* work) {
  Place at;
  if (inner == 1) {
    if (!find_tile(u, interleaved_heads, index, &at)) return false;
  } else {
    if (index >= u.total) return false;
    const uint n = index / uint(inner);
    at.batch = int(index % uint(inner));
    at.tile = int(u.tiles - 1 - n % u.tiles);
    at.head = int(n / u.tiles);
  }
  // The first keys come first: with a causal mask most rows see them, and they take longest. In a
  // deterministic order the last ones come first: with a causal mask the tile on the diagonal is
  // the first to add, and no workgroup waits.
  work->tile = interleaved_heads ? at.tile : int(u.tiles) - 1 - at.tile;
  work->head_kv = at.head;
  work->batch = at.batch;
  work->col0 = work->tile * shape.bc;
  work->band = mask_band(u);
  work->seq_q = u.seq_q, work->seq_kv = work->keys = u.seq_kv;
  work->first_q = work->first_kv = 0;
  work->map_q = work->map_kv = work->batch;
  work->span = tandem_query_tiles(work->band, work->col0, shape.bc, shape.br, u.seq_q, u.seq_kv);
  return true;
}

// How many tiles of keys add to the dQ accumulator of query tile t before this one: all later ones
// that the queries see.
template <int TILE>
TANDEM_DEVICE uint dq_order(const BwdDkvDqBlock&, const BwdWorkTile& work, int t) {
  constexpr BwdShape S = kBwdShapes[TILE];
  return uint(tandem_key_tiles(work.band, t * S.br, S.br, S.bc, work.seq_q, work.seq_kv).end - 1 -
              work.tile);
}

// Iterator of the Q loop, the same for all warps: it visits all query tiles of the span.
template <int TILE>
struct AllQTiles {
  template <typename Params>
  TANDEM_DEVICE AllQTiles(const Params&, const BwdWorkTile&) {}
  // The first visited tile from t on; work.span.end or more if there is none. n: query head of the
  // group.
  TANDEM_DEVICE int next(int, int t) { return t; }
  // The same with kHeadsInside: a range of tiles, and of the heads of each.
  TANDEM_DEVICE int first(const BwdWorkTile& work) const { return work.span.begin; }
  TANDEM_DEVICE int end(const BwdWorkTile& work) const { return work.span.end; }
  TANDEM_DEVICE int first_head(int) const { return 0; }
  TANDEM_DEVICE int end_head(int, int group) const { return group; }
  // How many tiles of keys add to the dQ accumulator of query tile t before this one.
  template <typename Block>
  TANDEM_DEVICE uint before(const Block& u, const BwdWorkTile& work, int, int t) const {
    return dq_order<TILE>(u, work, t);
  }
};

// The Q loop as two nested loops: over query heads and their tiles, or with kHeadsInside over tiles
// and their heads. QTiles: the variant's.
template <typename Variant, typename QTiles>
struct QLoop {
  static constexpr bool INSIDE = Variant::kHeadsInside;
  QTiles& tiles;
  const BwdWorkTile& work;
  const int group;
  TANDEM_DEVICE int begin() const {
    if constexpr (INSIDE) return tiles.first(work);
    return 0;
  }
  TANDEM_DEVICE int end() const {
    if constexpr (INSIDE) return tiles.end(work);
    return group;
  }
  TANDEM_DEVICE int first(int outer) const {
    if constexpr (INSIDE)
      return tiles.first_head(outer);
    else
      return tiles.next(outer, work.span.begin);
  }
  TANDEM_DEVICE int last(int outer) const {
    if constexpr (INSIDE) return tiles.end_head(outer, group);
    return work.span.end;
  }
  TANDEM_DEVICE int next(int outer, int inner) const {
    if constexpr (INSIDE)
      return inner + 1;
    else
      return tiles.next(outer, inner + 1);
  }
  // Query head of the group, and query tile.
  TANDEM_DEVICE int head(int outer, int inner) const { return INSIDE ? inner : outer; }
  TANDEM_DEVICE int tile(int outer, int inner) const { return work.q_tile(INSIDE ? outer : inner); }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
