// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq of heads over 256: what its warps share. d_k and d_v of 64 keys with 512 features fill
// the registers of two workgroups, so a two-CTA cluster takes a tile of keys, and each workgroup is
// one side of it. The side of keys, rank 0, has K, and Q tile by tile; the side of values, rank 1,
// has V, and dO tile by tile. No product is formed twice:
//
//   side of keys                      side of values
//   S = Q K^T, P = exp(S - lse)       dP = dO V^T
//                    ------ P ----->  dS = P (dP - delta)
//                    <---- dS ------
//   dK += dS^T Q                      dV += P^T dO
//   dQ = dS K, a half of its panels   dQ = dS K, the other half
//
// Each thread sends its weights, in f32, to the thread of the same index of the other side, which
// has the same elements of dP, by stores that an mbarrier of that side counts. dS goes back as a
// whole, rounded, by one TMA copy between the workgroups. dQ is added to the dQ accumulator out of
// registers, 16 bytes a thread, in the order in which the accumulator has them.
//
// A tile has 64 queries and 64 keys. Of S and dP each consumer warpgroup forms all queries and 32
// keys; of d_k, d_v and dQ half of the features. Where the number of panels is odd, each has 32
// features of the last one. Q and dO come panel by panel.
#ifndef TANDEM_CUDA_SM90_BWD_TWO_SIDES_CUH
#define TANDEM_CUDA_SM90_BWD_TWO_SIDES_CUH
#include "../panels.cuh"
#include "../ptx/cluster.cuh"
#include "far_rows.cuh"
#include "shared_storage.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr uint kKeysSide = 0, kValuesSide = 1;  // ranks in the cluster

// Compile-time geometry of a side. OF: of kBwdShapes.
template <int OF, uint SIDE>
struct SideShape {
  static constexpr int TILE = OF;
  static constexpr BwdShape tile = kBwdShapes[TILE];
  static constexpr bool KEYS = SIDE == kKeysSide;
  static constexpr uint OTHER = SIDE ^ 1;
  static constexpr int ROWS = 64, PANEL_BYTES = kSidePanelBytes;
  // Panels of K and Q, or of V and dO; those of a warpgroup; and whether both share one.
  static constexpr int PANELS = bwd_side_panels(KEYS ? tile.d : tile.dv()), HALF = PANELS / 2,
                       ODD = PANELS % 2;
  // Panels of dQ likewise, and the first one.
  static constexpr int DQ_PANELS = KEYS ? bwd_keys_dq_panels(tile) : bwd_values_dq_panels(tile),
                       DQ_FIRST = KEYS ? 0 : bwd_keys_dq_panels(tile), DQ_HALF = DQ_PANELS / 2,
                       DQ_ODD = DQ_PANELS % 2, DQ_ALL_PANELS = bwd_panels(tile);
  // Panels of a product into dQ. Beside 4 1/2 panels of d_k or d_v there are registers for one.
  static constexpr int DQ_WIDTH = HALF == 4 && ODD ? 1 : DQ_HALF, DQ_PRODUCTS = DQ_HALF / DQ_WIDTH;
  static constexpr int STAGES = KEYS ? tile.q_stages : tile.do_stages;
  // Partial sums of a part of a tile of keys in the workspace, float4 of a warpgroup of a side.
  static constexpr int PARTIAL_FOURS = int(bwd_partial_floats(tile) / 16);
  // Panels of the next tile that have room beside those of this one.
  static constexpr int AHEAD = STAGES - PANELS < PANELS ? STAGES - PANELS : PANELS;
  static_assert(STAGES % PANELS == 0 || (STAGES % HALF == 0 && ODD == 0),
                "the panels of a product lie side by side");
  static_assert(HALF > 0 && DQ_HALF % DQ_WIDTH == 0 && AHEAD >= 0, "whole products");
  // Shared memory. The side of values has its panels of K behind V.
  static constexpr int DQ_K_AT = KEYS ? 0 : PANELS * PANEL_BYTES,
                       STAGES_AT = (PANELS + (KEYS ? 0 : DQ_PANELS)) * PANEL_BYTES,
                       DS_AT = STAGES_AT + STAGES * PANEL_BYTES, P_AT = DS_AT + PANEL_BYTES,
                       WEIGHTS_AT = P_AT + PANEL_BYTES,
                       BARRIERS_AT = bwd_two_sided_barriers_at(tile),
                       WORDS_AT = bwd_two_sided_shared_bytes(tile) - 2 * 16;
};

// Addresses of shared memory of a side. base is the same in both workgroups.
template <typename S>
struct SideStorage {
  uint base;
  TANDEM_DEVICE uint own() const { return base; }  // K or V
  TANDEM_DEVICE uint dq_k() const { return base + S::DQ_K_AT; }
  TANDEM_DEVICE uint stage(int n) const { return base + S::STAGES_AT + n * S::PANEL_BYTES; }
  TANDEM_DEVICE uint ds() const { return base + S::DS_AT; }
  TANDEM_DEVICE uint p() const { return base + S::P_AT; }
  // Weights of a thread of the consumer warpgroups: four times 16 bytes, `kWeightsStep` apart.
  static constexpr int kWeightsStep = 128 * 16;
  TANDEM_DEVICE uint weights(int warpgroup, int thread) const {
    return base + S::WEIGHTS_AT + uint(warpgroup * 4 * kWeightsStep + thread * 16);
  }
  TANDEM_DEVICE uint word(int warpgroup) const { return base + S::WORDS_AT + 16 * warpgroup; }
  // K or V has arrived.
  TANDEM_DEVICE uint own_full() const { return base + S::BARRIERS_AT; }
  // What the other side sends has arrived.
  TANDEM_DEVICE uint received() const { return own_full() + 8; }
  // The other side has read what this side sent.
  TANDEM_DEVICE uint sent() const { return own_full() + 16; }
  TANDEM_DEVICE uint full(int n) const { return own_full() + 24 + 16 * n; }
  TANDEM_DEVICE uint empty(int n) const { return full(n) + 8; }
  TANDEM_DEVICE void init() const {
    mbarrier_init(own_full(), 1);
    mbarrier_init(received(), 1);
    // dS is read by products of two warpgroups, weights by eight warps.
    mbarrier_init(sent(), S::KEYS ? 8 : 2);
    for (int n = 0; n < S::STAGES; ++n) {
      mbarrier_init(full(n), 1);
      mbarrier_init(empty(n), 2);  // a thread of each warpgroup
    }
    fence_mbarrier_init();
  }
};

// A value that all lanes have, in a uniform register. Registers are short, and the compiler does
// not see what follows from a division.
TANDEM_DEVICE int uniform(int x) { return int(__reduce_or_sync(kAllLanes, uint(x))); }

// The pairs of a query head and a query tile that the Q loop of a workgroup visits, in order. Whole
// warps make it.
struct QSteps {
  int left, n, at;  // pairs to come, with this one; query head of the group; position of the tile
  template <typename Block>
  TANDEM_DEVICE QSteps(const Block& u, const BwdWorkTile& work) {
    const int tiles = work.span.end - work.span.begin, pairs = max(u.group * tiles, 0);
    const int from = bwd_part_begin(pairs, work.parts, work.part);
    left = uniform(bwd_part_begin(pairs, work.parts, work.part + 1) - from);
    n = uniform(left > 0 ? from / tiles : 0);
    at = uniform(work.span.begin + (left > 0 ? from - n * tiles : 0));
  }
  TANDEM_DEVICE void next(const BwdWorkTile& work) {
    --left;
    if (++at >= work.span.end) at = work.span.begin, ++n;
  }
};

// The tile of keys of a cluster, and its part of the Q loop; false if there is none. In any order,
// where tiles have parts, the longest tiles of all heads come first.
template <int TILE>
TANDEM_DEVICE bool find_two_sided_tile(const BwdDkvDqPartsParams& params, uint index,
                                       BwdWorkTile* work) {
  const BwdDkvDqBlock& u = params.block;
  constexpr BwdShape kShape = kBwdShapes[TILE];
  const uint most = uint(params.most_parts);
  uint tile = index / most;
  if (tile >= u.total) return false;
  const bool has_parts = params.part_pairs > 0;
  if (has_parts && u.deterministic == 0) {
    const uint heads = u.total / u.tiles;
    tile = tile % heads * u.tiles + tile / heads;
  }
  if (!find_work_tile(u, kShape, 1, params.interleaved_heads, tile, work)) return false;
  if (u.deterministic == 0) work->reversed = reverses_q_loop(u);
  work->shared = int(tile);
  if (!has_parts) return true;
  work->part = int(index % most);
  work->parts = bwd_part_count(u.group * (work->span.end - work->span.begin), params.part_pairs);
  return work->part < work->parts;
}

// The producer thread of a side.
template <typename S>
TANDEM_DEVICE void produce_side(const BwdDkvDqPartsParams& params, const BwdWorkTile& work,
                                QSteps step, const SideStorage<S>& shared) {
  if (step.left == 0) return;
  mbarrier_arrive_expect_tx(shared.own_full(),
                            (S::PANELS + (S::KEYS ? 0 : S::DQ_PANELS)) * S::PANEL_BYTES);
  const auto load_keys = [&](uint to, const CUtensorMap* map, int panels, int first) {
#pragma unroll 1
    for (int p = 0; p < panels; ++p)
      tma_load(to + p * S::PANEL_BYTES, map, shared.own_full(), (first + p) * kPanel, work.col0,
               work.head_kv, work.batch);
  };
  load_keys(shared.own(), S::KEYS ? &params.k : &params.v, S::PANELS, 0);
  if constexpr (!S::KEYS) load_keys(shared.dq_k(), &params.k, S::DQ_PANELS, S::DQ_FIRST);
  PipelineState<S::STAGES> pipe;
#pragma unroll 1
  for (; step.left > 0; step.next(work)) {
    const int row0 = work.q_tile(step.at) * S::ROWS,
              head = work.head_kv * params.block.group + step.n;
#pragma unroll 1
    for (int p = 0; p < S::PANELS; ++p, pipe.next()) {
      const uint full = shared.full(pipe.stage());
      mbarrier_wait(shared.empty(pipe.stage()), pipe.phase() ^ 1);
      mbarrier_arrive_expect_tx(full, S::PANEL_BYTES);
      tma_load(shared.stage(pipe.stage()), S::KEYS ? &params.q : &params.d_o, full, p * kPanel,
               row0, head, work.batch);
    }
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
