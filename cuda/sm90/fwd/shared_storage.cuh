// SPDX-License-Identifier: MIT OR Apache-2.0
// What a forward kernel on Hopper is instantiated with, and its shared memory.
#ifndef TANDEM_CUDA_SM90_FWD_SHARED_STORAGE_CUH
#define TANDEM_CUDA_SM90_FWD_SHARED_STORAGE_CUH
#include "../numerics.cuh"
#include "../params.h"
#include "../ptx/mbarrier.cuh"
#include "../ptx/shared_memory.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/wgmma.cuh"
#include "kernels/columns.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// Registers of a thread of the producer warpgroup and of the consumer warpgroups. Together they are
// at most what the launch allocates: 168 a thread for 3 warpgroups, 128 for 4, 96 for 5. A
// warpgroup that asks for more waits for ever.
constexpr int producer_registers(const FwdTile& t) {
  return t.warpgroups == 4 ? 24 : t.warpgroups == 3 ? 32 : t.dv > 192 ? 24 : 40;
}
constexpr int consumer_registers(const FwdTile& t) {
  return t.warpgroups == 4 ? 112 : t.warpgroups == 3 ? 160 : t.dv > 192 ? 240 : 232;
}

// A row without optional inputs, for kernels that do not ask theirs.
struct PlainRow {
  static constexpr uint32_t inputs = 0, traits = 0;
  static constexpr bool has(uint32_t) { return false; }
};

// Compile-time geometry of a forward kernel. TILE: of kFwdTiles. Row: of src/kernels/kernels.inc,
// as a type (../instantiate.cuh). Q_STAGES_: stages of Q, 0: as many as fit.
template <int TILE, typename Row = PlainRow, int Q_STAGES_ = 0>
struct FwdShape {
  static constexpr bool BIAS = Row::has(trait::bias_tiles), SCALED = Row::has(trait::scales_q),
                        F32_BIAS = Row::has(trait::f32_bias),
                        KEEP = BIAS && (Row::inputs & kHasKeep) != 0,
                        ENDS = BIAS && (Row::inputs & kHasLengths) != 0,
                        MASKED = !BIAS && (Row::inputs & kHasKeep) != 0,
                        SOFTCAP_ALIBI = (Row::inputs & kHasSoftcap) != 0,
                        ROW_BIAS = Row::has(trait::one_row),
                        VARLEN = !BIAS && (Row::inputs & kHasLengths) != 0;
  static constexpr FwdTile tile =
      MASKED || (KEEP && !F32_BIAS) ? fwd_two_warpgroup_tile(kFwdTiles[TILE]) : kFwdTiles[TILE];
  static constexpr int D = tile.d, DV = tile.dv, WARPGROUPS = tile.warpgroups, M = tile.rows(),
                       N = tile.bc;
  // A producer that finds batch entries needs more registers than one that only loads, and one that
  // produces a mask bitmap more still. Four consumer warpgroups of 112 leave it 32.
  static constexpr bool MORE = VARLEN && tile.dv > 192;
  // Warps that read a mask need more registers, too.
  static constexpr int PRODUCER = MASKED                        ? 72
                                  : KEEP                        ? 56
                                  : MORE                        ? 40
                                  : ROW_BIAS && WARPGROUPS == 4 ? 32
                                                                : producer_registers(tile),
                       CONSUMER = MASKED ? 216
                                  : KEEP ? 224
                                  : MORE ? 232
                                         : consumer_registers(tile);
  static constexpr int STAGES = tile.stages, Q_STAGES = Q_STAGES_ ? Q_STAGES_
                                                        : BIAS    ? fwd_bias_q_stages(tile)
                                                                  : fwd_q_stages(tile);
  static_assert(WARPGROUPS >= 2 && WARPGROUPS <= 4, "registers are shared out for these");
  static constexpr bool PING_PONG = tile.ping_pong && WARPGROUPS > 1, DECOUPLED = tile.decoupled,
                        VISITS_ALL = fwd_visits_all(tile);
  // Q has one stage, and each warpgroup has its rows of it with mbarriers of its own
  // (main_loop_wide_heads.cuh, main_loop_bias_192_rows.cuh).
  static constexpr bool WIDE_HEADS = Row::has(trait::wide_heads),
                        BIAS_192 = Row::has(trait::rows_192);
  static constexpr int Q_PARTS = WIDE_HEADS || BIAS_192 ? WARPGROUPS : Q_STAGES,
                       Q_BARRIERS = fwd_q_barriers(tile);
  static_assert(2 * Q_PARTS <= Q_BARRIERS && (Q_STAGES == 1 || !(WIDE_HEADS || BIAS_192)),
                "barriers");
  static constexpr int DESCRIPTOR_BYTES = fwd_decoupled_descriptor_bytes(tile);
  static constexpr int D_PANELS = fwd_panels(D), DV_PANELS = fwd_panels(DV);
  static constexpr int Q_PANEL = M * kPanelBytes, K_PANEL = N * kPanelBytes;
  static constexpr int Q_BYTES = D_PANELS * Q_PANEL, K_BYTES = D_PANELS * K_PANEL,
                       V_BYTES = DV_PANELS * K_PANEL;
  static constexpr int K_AT = Q_STAGES * Q_BYTES, V_AT = K_AT + STAGES * K_BYTES,
                       BIAS_AT = V_AT + STAGES * V_BYTES;
  static constexpr int BIAS_STAGES = BIAS ? fwd_bias_stages(tile) : 0;
  // A stage of the bias of a warpgroup. A panel has 128 bytes of each of its 64 rows.
  static constexpr int BIAS_BYTES = BIAS ? 64 * N * (F32_BIAS ? 4 : 2) : 0,
                       BIAS_PANEL_KEYS = F32_BIAS ? 32 : 64;
  static constexpr int BARRIERS_AT = BIAS_AT + BIAS_STAGES * WARPGROUPS * BIAS_BYTES;
  static constexpr int DESCRIPTORS_AT = BARRIERS_AT + fwd_bias_barriers(tile, BIAS_STAGES);
  static constexpr int LANDED_AT = DESCRIPTORS_AT + kBiasDescriptors * kBiasDescriptorBytes,
                       HIDDEN_AT = LANDED_AT + 16 * WARPGROUPS * BIAS_STAGES,
                       ENTRIES_AT = HIDDEN_AT + 16 * WARPGROUPS * BIAS_STAGES,
                       V_LANDED_AT = ENTRIES_AT + kBiasDescriptors * kBiasEntryBytes,
                       KEY_TILES_AT = V_LANDED_AT + 8 * STAGES;
};

// Addresses of shared memory: stages of Q, K, V and the dense bias, their mbarriers, and work-tile
// descriptors.
template <typename S>
struct FwdSharedStorage {
  uint at;
  TANDEM_DEVICE uint q(int stage) const { return at + stage * S::Q_BYTES; }
  TANDEM_DEVICE uint k(int stage) const { return at + S::K_AT + stage * S::K_BYTES; }
  TANDEM_DEVICE uint v(int stage) const { return at + S::V_AT + stage * S::V_BYTES; }
  TANDEM_DEVICE uint barrier(int n) const { return at + S::BARRIERS_AT + 8 * n; }
  TANDEM_DEVICE uint q_full(int stage) const { return barrier(stage); }
  TANDEM_DEVICE uint q_empty(int stage) const { return barrier(S::Q_BARRIERS / 2 + stage); }
  TANDEM_DEVICE uint k_full(int stage) const { return barrier(S::Q_BARRIERS + stage); }
  TANDEM_DEVICE uint k_empty(int stage) const { return barrier(S::Q_BARRIERS + S::STAGES + stage); }
  TANDEM_DEVICE uint v_full(int stage) const {
    return barrier(S::Q_BARRIERS + 2 * S::STAGES + stage);
  }
  TANDEM_DEVICE uint v_empty(int stage) const {
    return barrier(S::Q_BARRIERS + 3 * S::STAGES + stage);
  }
  // Behind the mbarriers of Q, K and V: what a variant has besides.
  TANDEM_DEVICE uint variant_at(int n) const { return barrier(S::Q_BARRIERS + 4 * S::STAGES + n); }
  TANDEM_DEVICE uint bias(int warpgroup, int stage) const {
    return at + S::BIAS_AT + (warpgroup * S::BIAS_STAGES + stage) * S::BIAS_BYTES;
  }
  TANDEM_DEVICE uint bias_full(int warpgroup, int stage) const {
    return variant_at(2 * (warpgroup * S::BIAS_STAGES + stage));
  }
  TANDEM_DEVICE uint bias_empty(int warpgroup, int stage) const {
    return bias_full(warpgroup, stage) + 8;
  }
  // Where the TMA boxes of a bias tile arrive. With a keep mask the tile is then edited, and its
  // full mbarrier is that of the warp that edits it.
  TANDEM_DEVICE uint bias_landed(int warpgroup, int stage) const {
    if (!S::KEEP) return bias_full(warpgroup, stage);
    return at + S::LANDED_AT + 16 * (warpgroup * S::BIAS_STAGES + stage);
  }
  // Which keys of the bias tile a mask of one row hides: hidden_columns().
  TANDEM_DEVICE uint hidden_columns(int warpgroup, int stage) const {
    return at + S::HIDDEN_AT + 16 * (warpgroup * S::BIAS_STAGES + stage);
  }
  TANDEM_DEVICE uint bias_descriptor(uint tile) const {
    return at + S::DESCRIPTORS_AT + tile % kBiasDescriptors * kBiasDescriptorBytes;
  }
  // With lengths: more words of the descriptor, {q_len, kv_len, off, 0} of the batch
  // entry.
  TANDEM_DEVICE uint bias_entry(uint tile) const {
    return at + S::ENTRIES_AT + tile % kBiasDescriptors * kBiasEntryBytes;
  }
  // Where V arrives that has rows behind the end of a batch entry. They are then zeroed, and the
  // full mbarrier is that of the warp that does this.
  TANDEM_DEVICE uint v_landed(int stage) const { return at + S::V_LANDED_AT + 8 * stage; }
  // The number of the tile of keys of a step, counted over all work tiles, where the producer skips
  // tiles. It stays while consumers compute scores, when the stage of K is free again.
  TANDEM_DEVICE uint key_tile(uint step) const {
    static_assert(S::STAGES + 1 < kBiasKeyTiles, "how long it stays");
    return at + S::KEY_TILES_AT + step % kBiasKeyTiles * 4;
  }
  // Behind them: where the producer's bits of blocks begin (shown_tiles.cuh).
  TANDEM_DEVICE uint key_tiles_end() const { return at + S::KEY_TILES_AT + kBiasKeyTiles * 4; }
  TANDEM_DEVICE void init() const {
    for (int n = 0; S::BIAS && n < S::WARPGROUPS * S::BIAS_STAGES; ++n) {
      mbarrier_init(bias_full(0, n), 1);
      mbarrier_init(bias_empty(0, n), 4);  // the warps that read it
      if (S::KEEP) mbarrier_init(bias_landed(0, n), 1);
    }
    for (int n = 0; n < S::Q_PARTS; ++n) {
      mbarrier_init(q_full(n), 1);
      // With a keep mask the warps that edit tiles of the bias read work-tile descriptors, too.
      mbarrier_init(q_empty(n),
                    S::WIDE_HEADS || S::BIAS_192 ? 1 : (S::KEEP ? 2 : 1) * S::WARPGROUPS);
    }
    for (int n = 0; n < S::STAGES; ++n) {
      mbarrier_init(k_full(n), 1);
      mbarrier_init(v_full(n), 1);
      mbarrier_init(k_empty(n), S::WARPGROUPS);
      mbarrier_init(v_empty(n), S::WARPGROUPS);
      if (S::ENDS) mbarrier_init(v_landed(n), 1);
    }
    if (S::VARLEN) mbarrier_init(variant_at(0), 1);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
