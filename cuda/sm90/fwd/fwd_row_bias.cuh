// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with a bias of one row for all queries, lengths and a sink. In the producer
// warpgroup, warp 0 loads by TMA, warp 1 fills the stages of the row, and the others write rows
// that see no key.
#ifndef TANDEM_CUDA_SM90_FWD_FWD_ROW_BIAS_CUH
#define TANDEM_CUDA_SM90_FWD_FWD_ROW_BIAS_CUH
#include "kernel.cuh"
#include "score_row_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

struct RowBiasRoles {
  static constexpr bool kDependentLaunch = true;
  template <typename S>
  static TANDEM_DEVICE void init(const FwdSharedStorage<S>& shared) {
    RowBiasStages<S>(shared).init();
  }
  template <typename S>
  static TANDEM_DEVICE void produce(const FwdOptionalParams& params,
                                    const FwdSharedStorage<S>& shared) {
    if (threadIdx.x < 32)
      produce_varlen<S>(params, shared);
    else if (threadIdx.x < 64)
      produce_row_bias<S>(params, shared);
    else
      store_unseen<S, 2>(params);
  }
  template <typename T, typename S>
  static TANDEM_DEVICE void consume(const FwdOptionalParams& params,
                                    const FwdSharedStorage<S>& shared) {
    main_loop_ping_pong<RowBiasScore<T, S, FwdOptionalParams>, T>(params, shared);
  }
};

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return fwd<T, TILE, Row, RowBiasRoles, Params>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
