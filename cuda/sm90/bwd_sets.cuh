// SPDX-License-Identifier: MIT OR Apache-2.0
// Sets of optional inputs of bwd_dkv_dq: what a kernel of the set does beyond softmax attention without any. A set has
// Params, bytes of shared memory (before the numbers of the rows) and barriers (at the end), a Loader for the warp that
// loads, a Consumer for those that multiply, and help() for the two helping warps that have nothing else to do.
#ifndef TANDEM_CUDA_SM90_BWD_SETS_CUH
#define TANDEM_CUDA_SM90_BWD_SETS_CUH
#include "bwd_goes_on.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

struct Plain;
template <>
constexpr bool kZeroesAhead<Plain> = true;
template <>
constexpr bool kFarBefore<Plain> = true;
template <>
constexpr bool kGoesOn<Plain> = true;

struct Plain {
  using Params = BwdDkvDqParams;
  static constexpr bool kAnyOrder = true;  // of the tiles of queries
  static constexpr int kAdders = 2;        // warps that add dQ, and places for its tiles: 1 or 2
  using Registers = sm90::Registers<40>;
  static constexpr int bytes(const BwdShape& s) { return bwd_second_dq_bytes(s); }
  static constexpr float kHidden = 0.f;
  static constexpr float kLse = kLog2e;  // what lse is multiplied by
  template <int ROW>
  using Tiles = EveryTile<ROW>;
  static TANDEM_DEVICE int order(const Params&) { return 1; }
  static TANDEM_DEVICE int in_turn(const Params& params) { return params.beside; }
  template <int ROW>
  static TANDEM_DEVICE uint now_at(const Memory<ROW, Plain>& memory) {
    return memory.set_barriers();
  }
  template <int ROW>
  static TANDEM_DEVICE void init(const Memory<ROW, Plain>& memory) {
    now_of(memory).init();
  }
  static TANDEM_DEVICE void sync() { __syncthreads(); }
  static TANDEM_DEVICE void leave() {}
  template <int ROW>
  struct Loader {
    TANDEM_DEVICE Loader(const Params&, const Walk&, const Memory<ROW, Plain>&) {}
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int, int) {}
  };
  template <typename T, int ROW>
  struct Consumer {
    static constexpr int BR = kBwdShapes[ROW].br;
    TANDEM_DEVICE Consumer(const Params&, const Walk&, const Memory<ROW, Plain>&) {}
    // The scores become p; t: tile of queries, stage: where its rows' numbers are.
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int, int) {
      sm90::weigh<BR>(s, scale2, lse);
    }
    // In front of it, of a tile that has far rows, from the thread's first query on: products
    // become what is left of them.
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
    // What d_v takes as left operand, here or, with fewer registers, with dS.
    TANDEM_DEVICE void pack(uint (&y)[BR / 4], const float (&p)[BR / 2]) {
#pragma unroll
      for (int i = 0; i < BR / 4; ++i) y[i] = T::pack(p[2 * i], p[2 * i + 1]);
    }
    TANDEM_DEVICE void differentiate(uint (&)[BR / 4], uint (&ds)[BR / 4], const float (&p)[BR / 2],
                                     const float (&dp)[BR / 2], uint delta, int) {
      sm90::differentiate<T, BR>(ds, p, dp, delta);
    }
    TANDEM_DEVICE void wait_ds() {}
    TANDEM_DEVICE void tell_ds() {}
    TANDEM_DEVICE void keep_ds(const uint (&)[BR / 4], int) {}
  };

  template <typename T, int ROW>
  static TANDEM_DEVICE void help(const Params&, const Walk&, const Memory<ROW, Plain>&) {}
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
