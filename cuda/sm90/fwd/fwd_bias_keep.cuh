// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with a dense bias and a keep mask. Warp 0 of the producer warpgroup loads by TMA,
// and the consumer warpgroups compute, both as without the mask (score_bias.cuh). Of a mask with
// one row for all queries, warp 1 + n writes which keys of the tiles of warpgroup n are hidden. Of
// a mask with a row for each query the consumers read their rows.
#ifndef TANDEM_CUDA_SM90_FWD_FWD_BIAS_KEEP_CUH
#define TANDEM_CUDA_SM90_FWD_FWD_BIAS_KEEP_CUH
#include "hidden_columns.cuh"
#include "kernel.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return fwd<T, TILE, Row, MaskedBiasRoles<BiasScore>, Params>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
