// SPDX-License-Identifier: MIT OR Apache-2.0
// Variants of bwd_dkv_dq: what a kernel does for a set of optional inputs. A variant has Params,
// bytes of shared memory (before the statistics of the rows) and mbarriers (at the end), a Loader
// for the producer warp, a Consumer for the consumer warps, and run_auxiliary() for the auxiliary
// warps.
#ifndef TANDEM_CUDA_SM90_BWD_VARIANT_PLAIN_CUH
#define TANDEM_CUDA_SM90_BWD_VARIANT_PLAIN_CUH
#include "persistent.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

struct Plain : BwdVariant {
  static constexpr bool kLazyZero = true, kFarBefore = true, kPersistent = true;
  using Params = BwdDkvDqParams;
  static constexpr bool kAnyOrder = true;  // the Q loop may run backwards
  static constexpr int kDqWarps = 2;       // warps that add dQ, and stages of dQ: 1 or 2
  using Registers = sm90::Registers<40>;
  static constexpr int bytes(const BwdShape& s) { return bwd_second_dq_bytes(s); }
  static constexpr float kHidden = 0.f;
  static constexpr float kLse = kLog2e;  // what lse is multiplied by
  template <int TILE>
  using QTiles = AllQTiles<TILE>;
  static TANDEM_DEVICE int order(const Params&) { return 1; }
  static TANDEM_DEVICE int interleaved_heads(const Params& params) {
    return params.interleaved_heads;
  }
  template <int TILE>
  static TANDEM_DEVICE uint tile_descriptor_at(const BwdSharedStorage<TILE, Plain>& memory) {
    return memory.variant_barriers();
  }
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, Plain>& memory) {
    tile_descriptor_of(memory).init();
  }
  static TANDEM_DEVICE void sync() { __syncthreads(); }
  static TANDEM_DEVICE void leave() {}
  template <int TILE>
  struct Loader {
    TANDEM_DEVICE Loader(const Params&, const BwdWorkTile&, const BwdSharedStorage<TILE, Plain>&) {}
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int, int) {}
  };
  template <typename T, int TILE>
  struct Consumer {
    static constexpr int BR = kBwdShapes[TILE].br;
    TANDEM_DEVICE Consumer(const Params&, const BwdWorkTile&,
                           const BwdSharedStorage<TILE, Plain>&) {}
    // Turns scores into weights. t: query tile; stage: where the statistics of its rows are.
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int, int) {
      sm90::weigh<BR>(s, scale2, lse);
    }
    // Before weigh(), for a tile that has far rows: subtracts their origins from the products.
    template <typename Push>
    TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint lse, int, int,
                                 const FarTile<Push>& tile) {
      const float over_scale = 1.f / scale;
      sm90::weigh_far<BR, true>(
          s, lse, kLog2e, tile,
          [&](int j, uint) {
#pragma unroll
            for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] = __fmul_rn(scale, s[i]);
          },
          [&](float x, float) { return x * over_scale; });
    }
    // Packs the A operand of d_v, here or, with fewer registers, in differentiate().
    TANDEM_DEVICE void pack(uint (&y)[BR / 4], const float (&p)[BR / 2]) {
#pragma unroll
      for (int i = 0; i < BR / 4; ++i) y[i] = T::pack(p[2 * i], p[2 * i + 1]);
    }
    TANDEM_DEVICE void differentiate(uint (&)[BR / 4], uint (&ds)[BR / 4], const float (&p)[BR / 2],
                                     const float (&dp)[BR / 2], uint delta, int) {
      sm90::differentiate<T, BR>(ds, p, dp, delta);
    }
    TANDEM_DEVICE void wait_ds() {}
    TANDEM_DEVICE void signal_ds() {}
    TANDEM_DEVICE void keep_ds(const uint (&)[BR / 4], int) {}
  };

  template <typename T, int TILE>
  static TANDEM_DEVICE void run_auxiliary(const Params&, const BwdWorkTile&,
                                          const BwdSharedStorage<TILE, Plain>&) {}
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
