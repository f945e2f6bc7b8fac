// SPDX-License-Identifier: MIT OR Apache-2.0
// Variants of bwd_dkv_dq: a bias with one row for all queries, without gradient; beside lengths, or
// without them in persistent workgroups.
#ifndef TANDEM_CUDA_SM90_BWD_VARIANT_ROW_BIAS_CUH
#define TANDEM_CUDA_SM90_BWD_VARIANT_ROW_BIAS_CUH
#include "../row_bias.cuh"
#include "variant_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// S is transposed, so that a thread has two keys of a tile, and two numbers of the bias a head.
template <typename T, int TILE>
struct RowBiasConsumer : Plain::Consumer<T, TILE> {
  static constexpr int BR = kBwdShapes[TILE].br;
  const BwdDkvDqOptionalParams& params;
  const BwdWorkTile& work;
  float bias[2];
  template <typename BwdSharedStorage>
  TANDEM_DEVICE RowBiasConsumer(const BwdDkvDqOptionalParams& params, const BwdWorkTile& work,
                                const BwdSharedStorage& memory)
      : Plain::Consumer<T, TILE>(params, work, {memory.base}), params(params), work(work) {}
  // Keys behind the end of the entry are not loaded, as anything may be there.
  TANDEM_DEVICE void begin_head(int head) {
    const BiasRow row(params.extra, params.features, params.extra_at, work.batch, head);
    const int x = read_tid_x() - 128, key = work.col0 + x / 32 * 16 + x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      bias[r] = row.number(key + 8 * r < work.seq_kv ? row.load(key + 8 * r) : 0);
  }
  TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int, int) {
#pragma unroll
    for (int j = 0; j < BR / 8; ++j) {
      const float2 l = ld_shared_v2_f32(lse + 32 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[4 * j + i] =
            exp2_fast(fmaf(s[4 * j + i], scale2, fmaf(bias[i / 2], kLog2e, i % 2 ? -l.y : -l.x)));
    }
  }
  template <typename Push>
  TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint lse, int, int,
                               const FarTile<Push>& far) {
    sm90::weigh_far<BR>(s, lse, far, [&](int j, uint) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[4 * j + i] = __fadd_rn(__fmul_rn(scale, s[4 * j + i]), bias[i / 2]);
    });
  }
  TANDEM_DEVICE void end_head(const BwdWorkTile&, int) {}
};

struct RowBias : Varlen {
  static constexpr bool kVisitsHeads = true, kFarBefore = false;
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, RowBias>& memory) {
    init_load_barrier(memory);
  }
  template <typename T, int TILE>
  using Consumer = RowBiasConsumer<T, TILE>;
  template <typename T, int TILE>
  static TANDEM_DEVICE void run_auxiliary(const Params&, const BwdWorkTile&,
                                          const BwdSharedStorage<TILE, RowBias>&) {}
};

struct PersistentRowBias : Plain {
  static constexpr bool kVisitsHeads = true, kFarBefore = false;
  using Params = BwdDkvDqOptionalParams;
  template <int TILE>
  static TANDEM_DEVICE uint
  tile_descriptor_at(const BwdSharedStorage<TILE, PersistentRowBias>& memory) {
    return memory.variant_barriers();
  }
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, PersistentRowBias>& memory) {
    tile_descriptor_of(memory).init();
  }
  template <int TILE>
  using Loader = Varlen::Loader<TILE>;
  template <typename T, int TILE>
  using Consumer = RowBiasConsumer<T, TILE>;
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
