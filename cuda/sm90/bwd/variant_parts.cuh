// SPDX-License-Identifier: MIT OR Apache-2.0
// Plain softmax where several workgroups may share a tile of keys (plan/sm90/bwd_parts.h): for
// problems with fewer tiles of keys than SMs, or with unequal ones.
#ifndef TANDEM_CUDA_SM90_BWD_VARIANT_PARTS_CUH
#define TANDEM_CUDA_SM90_BWD_VARIANT_PARTS_CUH
#include "dkv_partials.cuh"
#include "variant_plain.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

static_assert(kMaxBwdParts <= kWholeTile, "each part has a share of what a tile counts");

// Iterator of the Q loop: the query tiles of the workgroup's part. A state that changes from tile
// to tile takes more registers.
template <int TILE>
struct PartQTiles : AllQTiles<TILE> {
  int tiles;     // query tiles of a query head
  int begin;     // the first one
  int from, to;  // pairs of the part, and begin
  template <typename Params>
  TANDEM_DEVICE PartQTiles(const Params& params, const BwdWorkTile& work)
      : AllQTiles<TILE>(params, work),
        tiles(work.span.end - work.span.begin),
        begin(work.span.begin) {
    const int pairs = params.block.group * tiles;
    from = bwd_part_begin(pairs, work.parts, work.part) + begin;
    to = bwd_part_begin(pairs, work.parts, work.part + 1) + begin;
  }
  TANDEM_DEVICE int next(int n, int t) const {
    const int before = n * tiles;
    return t + before < to ? max(t, from - before) : begin + tiles;
  }
};
// The same with kHeadsInside: pairs are numbered by query tiles first.
template <int TILE>
struct PartPairs : AllQTiles<TILE> {
  int begin;     // the first query tile of the loop
  int from, to;  // pairs of the part
  int group;
  template <typename Params>
  TANDEM_DEVICE PartPairs(const Params& params, const BwdWorkTile& work)
      : AllQTiles<TILE>(params, work), begin(work.span.begin), group(params.block.group) {
    const int pairs = group * (work.span.end - begin);
    from = bwd_part_begin(pairs, work.parts, work.part);
    to = bwd_part_begin(pairs, work.parts, work.part + 1);
  }
  TANDEM_DEVICE int first(const BwdWorkTile&) const { return begin + from / group; }
  TANDEM_DEVICE int end(const BwdWorkTile&) const { return begin + (to + group - 1) / group; }
  TANDEM_DEVICE int first_head(int at) const { return max(from - (at - begin) * group, 0); }
  TANDEM_DEVICE int end_head(int at, int) const { return min(to - (at - begin) * group, group); }
};

// INSIDE: kHeadsInside.
template <bool INSIDE>
struct Parts : BwdVariant {
  static constexpr bool kHasParts = true, kLazyZero = true, kFarBefore = true,
                        kHeadsInside = INSIDE;
  using Params = BwdDkvDqPartsParams;
  static constexpr bool kAnyOrder = true;
  static constexpr int kDqWarps = Plain::kDqWarps;
  using Registers = Plain::Registers;
  static constexpr int bytes(const BwdShape& s) { return Plain::bytes(s); }
  static constexpr float kHidden = Plain::kHidden;
  static constexpr float kLse = Plain::kLse;
  template <int TILE>
  using QTiles = std::conditional_t<INSIDE, PartPairs<TILE>, PartQTiles<TILE>>;

  // The work tile of a workgroup, by its index; false if there is none. Each tile of keys has
  // params.most_parts indices, of which those behind its parts are of no use. In any order, the
  // longest tiles of all heads come first, as with a causal mask tiles have unequal numbers of
  // queries; with INSIDE first parts, which have the same queries, before the second ones. In a
  // deterministic order the tiles come as in the kernel without parts, so that a
  // workgroup waits only for workgroups that were started before it.
  static TANDEM_DEVICE bool find(const Params& params, const BwdShape& shape, uint index,
                                 BwdWorkTile* work) {
    const BwdDkvDqBlock& u = params.block;
    const uint most = uint(params.most_parts);
    if (index >= most * u.total) return false;
    uint tile = index / most, part = index % most;
    if (u.deterministic == 0) {
      const uint heads = u.total / u.tiles;
      if constexpr (INSIDE) tile = index % u.total, part = index / u.total;
      tile = tile % heads * u.tiles + tile / heads;
    }
    if (!find_work_tile(u, shape, 1, params.interleaved_heads, tile, work)) return false;
    work->part = int(part);
    work->parts = bwd_part_count(u.group * (work->span.end - work->span.begin), params.part_pairs);
    work->shared = int(tile);
    return work->part < work->parts;
  }
  // With INSIDE every second wave of workgroups begins at its first queries. With a causal mask
  // its workgroups start one after another, as those of the wave before end, and each has its first
  // queries that much later: so all of them are at the same queries, as in the wave before.
  static TANDEM_DEVICE bool reversed(const Params& params) {
    const uint wave = INSIDE ? uint(params.wave) : 0;
    return reverses_q_loop(params.block) && !(wave > 0 && workgroup_index() / wave % 2 != 0);
  }
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, Parts>&) {}
  static TANDEM_DEVICE void sync() { __syncthreads(); }
  static TANDEM_DEVICE void leave() {}
  template <int TILE>
  struct Loader {
    TANDEM_DEVICE Loader(const Params&, const BwdWorkTile&, const BwdSharedStorage<TILE, Parts>&) {}
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int, int) {}
  };
  template <typename T, int TILE>
  struct Consumer : Plain::Consumer<T, TILE> {
    const Params& params;
    TANDEM_DEVICE Consumer(const Params& params, const BwdWorkTile& work,
                           const BwdSharedStorage<TILE, Parts>& memory)
        : Plain::Consumer<T, TILE>(params, work, {memory.base}), params(params) {}
    // Sums d_k and d_v over the workgroups that share the tile of keys. Returns false in all but
    // the last one.
    template <int N>
    TANDEM_DEVICE bool gather(const BwdWorkTile& work, uint scratch, float (&d_k)[N],
                              float (&d_v)[N]) {
      return gather_partials({params.dkv_partials, params.dkv_partial_counts, params.most_parts},
                             work, scratch, d_k, d_v);
    }
  };

  template <typename T, int TILE>
  static TANDEM_DEVICE void run_auxiliary(const Params&, const BwdWorkTile&,
                                          const BwdSharedStorage<TILE, Parts>&) {}
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
