// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of heads over 256: what its warps share. o of 64 rows fills the registers of two consumer
// warpgroups, so each has a half of o's features, of the same rows. A step has 128 keys. Warpgroup
// w forms the scores of 64 of them, block w. Both need the weights of both blocks, so these go
// through shared memory.
//
// K and V come panel by panel, each of 64 keys and 64 features in a stage of its own. So there is
// prefetch where neither all of K nor all of V has room. The stages are filled in the order in
// which they are read:
//   K of a step: a panel of block 0, the same of block 1, and so on
//   V of a step: the panels of block 0, then those of block 1. The two warpgroups have a half of
//                these each. If their number is odd, they share the last panel of a block, and
//                those of both blocks lie between the blocks.
// K of the first step of a work tile comes first, then K of the next step, V of the step before,
// and so on.
//
// A work tile has 128 rows, 64 for each workgroup of a two-CTA cluster. Both take the same steps,
// and each loads every other stage, of both, which halves what is read from L2. Heads of at most 64
// rows have a workgroup alone.
//
// Keys may be split: then a work tile is a part of the keys of its rows. Its o, in f32, and its lse
// are fwd_combine's. Work tiles are numbered as the parts lie, so the index of a head counts over
// batch, splits and heads.
//
// Keys may have lengths, queries not. Each role finds the length of a batch entry for itself. The
// rows of V behind the last key of an entry may hold anything, so a warpgroup zeroes them in its
// panels before it multiplies.
#ifndef TANDEM_CUDA_SM90_FWD_HALVED_O_CUH
#define TANDEM_CUDA_SM90_FWD_HALVED_O_CUH
#include "../ptx/cluster.cuh"
#include "../tile_scheduler/fwd_varlen.cuh"
#include "epilogue.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Compile-time geometry. TILE: of kFwdTiles. ParamsOfKernel: FwdOptionalParams with lengths.
template <int TILE, typename ParamsOfKernel>
struct HalvedShape {
  using Params = ParamsOfKernel;
  static constexpr bool LENGTHS = std::is_same<Params, FwdOptionalParams>::value;
  static constexpr FwdTile tile = kFwdTiles[TILE];
  static constexpr bool BIAS = false;  // for StaticTileScheduler
  // Rows of a work tile and of a workgroup.
  static constexpr int M = tile.rows(), ROWS = 64, N = tile.bc, KEYS = kHalvedKeys;
  static constexpr uint CLUSTER = uint(tile.cluster());
  static constexpr int PRODUCER = producer_registers(tile), CONSUMER = consumer_registers(tile);
  static constexpr int D_PANELS = fwd_panels(tile.d), DV_PANELS = fwd_panels(tile.dv);
  // Panels of o: those of a warpgroup, and whether there is one that both share, with 32 features
  // each. A product has PANELS of a warpgroup.
  static constexpr int HALF = DV_PANELS / 2, ODD = DV_PANELS % 2, PANELS = tile.halved_panels,
                       PRODUCTS = HALF / PANELS;
  // Panels of Q that stay in registers, beside o and S. A workgroup alone has one less: there the
  // compiler needs more registers, and the bytes of K and V bound the time.
  static constexpr int OPERANDS =
                           (CLUSTER > 1 ? 208 : 192) - (HALF * kPanel + 32 * ODD) / 2 - KEYS / 2,
                       Q_PANELS = OPERANDS / 16 < D_PANELS ? OPERANDS / 16 : D_PANELS;
  static constexpr int STAGES = tile.stages, PANEL_BYTES = kHalvedPanelBytes;
  // Where the panels of V of a step begin: those of a block, and the shared ones.
  static constexpr int V_BLOCK = 2 * (HALF + ODD), V_ODD = 2 * HALF;
  static_assert(HALF % PANELS == 0 && STAGES % PANELS == 0 && 2 * D_PANELS % PANELS == 0 &&
                    2 * DV_PANELS % PANELS == 0 && V_BLOCK % PANELS == 0,
                "the panels of a product lie side by side");
  // V of a step does not fit into the stages: its block 0 is released before block 1 has arrived.
  static constexpr bool FEW_STAGES = STAGES < 2 * DV_PANELS;
  // A warpgroup does not wait for the panels of the other one. It may wait for a panel in a stage
  // only when the panel before has arrived there. Barriers between K and V of a step and between
  // two steps see to that; of K, stages of a warpgroup follow stages of its own.
  static_assert(STAGES % 2 == 0 && STAGES >= V_BLOCK && 2 * DV_PANELS - STAGES <= HALF,
                "who reads a stage");
  static constexpr int P_AT = D_PANELS * PANEL_BYTES,
                       STAGES_AT = P_AT + kHalvedWeightPanels * PANEL_BYTES,
                       ROWS_AT = STAGES_AT + STAGES * PANEL_BYTES,
                       BARRIERS_AT = ROWS_AT + kHalvedRowBytes;
};

// Which of the workgroups of a work tile this is. All of them wait for each other.
template <typename S>
TANDEM_DEVICE uint halved_rank() {
  if constexpr (S::CLUSTER > 1) return cluster_rank();
  return 0;
}
template <typename S>
TANDEM_DEVICE void halved_sync() {
  if constexpr (S::CLUSTER > 1)
    cluster_sync();
  else
    __syncthreads();
}

// The batch entry of a work tile. batch_of() counts parts.
TANDEM_DEVICE int batch_of_part(const FwdBlock& u, const FwdWorkTile& at) {
  return batch_of(u, at) / u.splits;
}
// The keys that the batch entry of a work tile has.
struct HalvedKeys {
  int count, first;  // first: its first row in a packed tensor
  TandemBand band;
};
template <typename S>
TANDEM_DEVICE HalvedKeys keys_of(const typename S::Params& params, const FwdWorkTile& at) {
  const FwdBlock& u = params.block;
  if constexpr (S::LENGTHS) {
    const Entry entry = find_entry(params, batch_of_part(u, at));
    return {entry.seq_kv, entry.first_kv, entry.band};
  } else {
    return {u.seq_kv, 0, TandemBand{u.band_left, u.band_right, u.band_off}};
  }
}

// The work tiles, with the key tiles of a part.
template <typename S>
struct HalvedTileScheduler {
  using Tile = FwdWorkTile;
  const typename S::Params& params;
  StaticTileScheduler<S> scheduler;
  TANDEM_DEVICE explicit HalvedTileScheduler(const typename S::Params& p)
      : params(p), scheduler(p) {}
  TANDEM_DEVICE bool next(Tile* at) {
    const FwdBlock& u = params.block;
    if (!scheduler.next(at)) return false;
    if constexpr (S::LENGTHS) {
      const HalvedKeys keys = keys_of<S>(params, *at);
      at->span = tandem_key_tiles(keys.band, at->row0, S::M, S::N, u.seq_q, keys.count);
    }
    if (u.splits > 1)
      at->span = tandem_split_tiles(at->span, batch_of(u, *at) % u.splits, u.splits);
    return true;
  }
};

// Addresses of shared memory.
template <typename S>
struct HalvedSharedStorage {
  uint at;
  TANDEM_DEVICE uint q() const { return at; }
  // Weights of a block. Those of odd and even steps lie apart.
  TANDEM_DEVICE uint p(uint step, int block) const {
    return at + S::P_AT + (2 * (step % 2) + block) * S::PANEL_BYTES;
  }
  TANDEM_DEVICE uint stage(int n) const { return at + S::STAGES_AT + n * S::PANEL_BYTES; }
  // A number of each of the 64 rows, by warpgroup.
  TANDEM_DEVICE uint row(int warpgroup, int n) const {
    return at + S::ROWS_AT + 4 * (64 * warpgroup + n);
  }
  TANDEM_DEVICE uint q_full() const { return at + S::BARRIERS_AT; }
  TANDEM_DEVICE uint q_empty() const { return q_full() + 8; }
  TANDEM_DEVICE uint full(int n) const { return q_full() + 16 + 16 * n; }
  TANDEM_DEVICE uint empty(int n) const { return full(n) + 8; }
  // Whether the workgroup of this rank loads a stage, for both workgroups of the cluster.
  TANDEM_DEVICE static bool loads(uint rank, int n) { return uint(n) % S::CLUSTER == rank; }
  TANDEM_DEVICE void init() const {
    const uint rank = halved_rank<S>();
    mbarrier_init(q_full(), 1);
    mbarrier_init(q_empty(), 2);
    for (int n = 0; n < S::STAGES; ++n) {
      mbarrier_init(full(n), 1);
      // Two warps of a warpgroup, or one of each; and those of the other workgroup.
      mbarrier_init(empty(n), S::CLUSTER > 1 && loads(rank, n) ? 4 : 2);
    }
  }
};

// The producer thread.
template <typename S>
TANDEM_DEVICE void produce_halved_o(const typename S::Params& params,
                                    const HalvedSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  HalvedTileScheduler<S> scheduler(params);
  PipelineState<S::STAGES> pipe;
  FwdWorkTile at;
  const uint rank = halved_rank<S>();
  int batch = 0, kv_head = 0, first = 0;
  // Panel n of 64 keys. It may come before this thread expects it: the other workgroup loads it as
  // soon as the warps of both have released the stage.
  const auto load = [&](const CUtensorMap* map, int n, int key) {
    const uint full = shared.full(pipe.stage());
    mbarrier_wait(shared.empty(pipe.stage()), pipe.phase() ^ 1);
    mbarrier_arrive_expect_tx(full, S::PANEL_BYTES);
    const uint to = shared.stage(pipe.stage());
    if constexpr (S::CLUSTER == 1)
      tma_load(to, map, full, n * kPanel, key, kv_head, batch);
    else if (shared.loads(rank, pipe.stage()))
      tma_load_multicast(to, map, full, n * kPanel, key, kv_head, batch, 3);
    pipe.next();
  };
  const auto load_k = [&](int t) {
#pragma unroll 1
    for (int n = 0; n < 2 * S::D_PANELS; ++n) {
      load(&params.k, n / 2, first + t * S::N + n % 2 * S::KEYS);
    }
  };
  const auto load_v = [&](int t) {
#pragma unroll 1
    for (int n = 0; n < 2 * S::DV_PANELS; ++n) {
      const bool odd = n >= S::V_ODD && n < S::V_BLOCK;
      const int block = odd ? n - S::V_ODD : n >= S::V_BLOCK;
      load(&params.v, odd ? S::V_ODD : n - block * S::V_BLOCK, first + t * S::N + block * S::KEYS);
    }
  };
#pragma unroll 1
  for (uint tile = 0; next_visible_tile(scheduler, &at); ++tile) {
    const int head = head_of(u, at);
    batch = batch_of_part(u, at), kv_head = head / u.group;
    mbarrier_wait(shared.q_empty(), int(tile % 2) ^ 1);
    tma_load_tile<S::D_PANELS>(shared.q(), &params.q, shared.q_full(), S::ROWS,
                               at.row0 + S::ROWS * int(rank), head, batch);
    if constexpr (S::LENGTHS) {
      first = keys_of<S>(params, at).first;
      if (is_packed(params.features.LENGTHS_KV)) batch = 0;
    }
#pragma unroll 1
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      load_k(t);
      if (t + 1 < at.span.end) load_v(t + 1);
    }
    load_v(at.span.begin);
  }
}

// Warps 1 to 3: they store o and lse of work tiles whose rows see no key. Of parts without a key
// they store lse alone, as fwd_combine reads no o there.
template <typename S>
TANDEM_DEVICE void store_unseen_halves(const typename S::Params& params) {
  const FwdBlock& u = params.block;
  if (!S::LENGTHS && u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN &&
      u.splits == 1)
    return;
  HalvedTileScheduler<S> scheduler(params);
  FwdWorkTile at;
  while (next_visible_tile(scheduler, &at, [&](const FwdWorkTile& unseen) {
    const int row0 = unseen.row0 + S::ROWS * int(halved_rank<S>()), thread = int(threadIdx.x) - 32;
    if (u.splits == 1)
      return store_unseen_rows(u, params.push, batch_of(u, unseen), head_of(u, unseen), row0,
                               S::ROWS, thread, 96);
    float* lse = reinterpret_cast<float*>(params.push.lse) + int64_t(unseen.index) * u.seq_q;
    if (thread < S::ROWS && row0 + thread < u.seq_q) lse[row0 + thread] = -INFINITY;
  })) {
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
