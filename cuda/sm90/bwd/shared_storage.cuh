// SPDX-License-Identifier: MIT OR Apache-2.0
// Register budgets, shared memory and mbarriers of bwd_dkv_dq and bwd_dkv.
#ifndef TANDEM_CUDA_SM90_BWD_SHARED_STORAGE_CUH
#define TANDEM_CUDA_SM90_BWD_SHARED_STORAGE_CUH
#include "../named_barriers.cuh"
#include "../pipeline.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/shared_memory.cuh"
#include "../ptx/tma.cuh"
#include "work_tile.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Registers of a thread of the producer warpgroup and of a consumer warpgroup. At launch each of
// 384 threads has 168. The warpgroups share that many; a warpgroup that asks for more waits for
// ever.
template <int PRODUCER>
struct Registers {
  static constexpr int kProducer = PRODUCER, kConsumer = 168 + (168 - PRODUCER) / 2;
  static_assert(kProducer % 8 == 0 && kConsumer % 8 == 0, "what setmaxnreg takes");
};

// mbarriers: kv; then, for each stage, Q full, Q empty, dO full and dO empty.
template <int TILE>
struct Barriers {
  static constexpr int kQ = kBwdShapes[TILE].q_stages, kDo = kBwdShapes[TILE].do_stages;
  // Consumer warps that release a stage. With 192 features, one warpgroup reads dO last, and the
  // other one Q, or with fewer features of V both.
  static constexpr int kDoReaders = kBwdShapes[TILE].d == 192 ? 4 : 8,
                       kQReaders = kBwdShapes[TILE].dv() == 192 ? 4 : 8;
  uint kv, first;
  TANDEM_DEVICE explicit Barriers(uint at) : kv(at), first(at + 8) {}
  TANDEM_DEVICE uint q_full(int stage) const { return first + 8 * stage; }
  TANDEM_DEVICE uint q_empty(int stage) const { return first + 8 * (kQ + stage); }
  TANDEM_DEVICE uint do_full(int stage) const { return first + 8 * (2 * kQ + stage); }
  TANDEM_DEVICE uint do_empty(int stage) const { return first + 8 * (2 * kQ + kDo + stage); }
  // full: arrivals at a full mbarrier. Usually they are of the TMA boxes, and of the statistics of
  // the rows.
  TANDEM_DEVICE void init(uint full = 2) const {
    mbarrier_init(kv, 1);
    for (int stage = 0; stage < kQ; ++stage) {
      mbarrier_init(q_full(stage), full);
      mbarrier_init(q_empty(stage), kQReaders);
    }
    for (int stage = 0; stage < kDo; ++stage) {
      mbarrier_init(do_full(stage), full);
      mbarrier_init(do_empty(stage), kDoReaders);
    }
    fence_mbarrier_init();
  }
};

// The pipeline state at the start of a work tile.
template <typename Variant, int STAGES>
TANDEM_DEVICE PipelineState<STAGES> first_pipeline_state(const BwdWorkTile& work) {
  if constexpr (Variant::kPersistent)
    return PipelineState<STAGES>(work.begun);
  else
    return PipelineState<STAGES>();
}

// Addresses of shared memory for row TILE of kBwdShapes. The part of the variant lies before the
// statistics of the rows, and its mbarriers lie at the end.
template <int TILE, typename Variant>
struct BwdSharedStorage {
  static constexpr BwdShape kShape = kBwdShapes[TILE];
  static constexpr int kDv = kShape.dv(), kPanels = bwd_panels(kShape),
                       kVPanels = bwd_v_panels(kShape), kKBytes = bwd_k_bytes(kShape),
                       kVBytes = bwd_v_bytes(kShape), kQBytes = bwd_q_bytes(kShape),
                       kDoBytes = bwd_do_bytes(kShape), kDsBytes = bwd_ds_bytes(kShape),
                       kDqBytes = bwd_second_dq_bytes(kShape),
                       kDsPanel = bwd_ds_panel_bytes(kShape);
  static constexpr bool kHalvesDq = bwd_halves_dq(kShape), kHoldsV = bwd_holds_v(kShape);
  static constexpr int kAtV = bwd_at_v(kShape), kAtQ = bwd_at_q(kShape), kAtDo = bwd_at_do(kShape),
                       kAtDs = bwd_at_ds(kShape), kAtDq = bwd_at_dq(kShape),
                       kAtVariant = bwd_at_stats(kShape), kVariantBytes = Variant::bytes(kShape),
                       kAtStats = kAtVariant + kVariantBytes,
                       kAtFar = bwd_at_far(kShape) + kVariantBytes,
                       kAtBarriers = bwd_at_barriers(kShape) + kVariantBytes,
                       kAtVariantBarriers = bwd_shared_bytes(kShape) + kVariantBytes,
                       kAtBiasRaw = bwd_bias_raw_at(kShape);
  uint base;
  TANDEM_DEVICE uint k() const { return base; }
  TANDEM_DEVICE uint v() const { return base + kAtV; }
  TANDEM_DEVICE uint q(int stage) const { return base + kAtQ + stage * kQBytes; }
  TANDEM_DEVICE uint d_o(int stage) const { return base + kAtDo + stage * kDoBytes; }
  TANDEM_DEVICE uint ds(int stage) const { return base + kAtDs + stage * kDsBytes; }
  // The second stage of dQ is the beginning of the part of the variant, where it has two.
  TANDEM_DEVICE uint dq(int warpgroup, int stage) const {
    return base + kAtDq + warpgroup * 16384 + stage * kDqBytes;
  }
  TANDEM_DEVICE uint lse(int stage) const { return base + kAtStats + stage * kShape.br * 4; }
  TANDEM_DEVICE uint delta(int stage) const { return lse(kShape.q_stages + stage); }
  TANDEM_DEVICE uint far(int stage) const { return base + kAtFar + stage * kBwdFarBytes; }
  TANDEM_DEVICE uint barriers() const { return base + kAtBarriers; }
  TANDEM_DEVICE uint variant() const { return base + kAtVariant; }
  TANDEM_DEVICE uint variant_barriers() const { return base + kAtVariantBarriers; }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
