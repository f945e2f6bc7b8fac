// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with a dense bias of f32, with or without a keep mask, and as a kernel of its own
// with lengths. The producer thread and the main loop are those of a bias of 16 bits
// (score_bias.cuh). Tiles of the bias take twice the room, so the kernel has tiles of its own, of
// two warpgroups. These leave registers for a mask of any kind (hidden_columns.cuh).
#ifndef TANDEM_CUDA_SM90_FWD_FWD_BIAS_F32_CUH
#define TANDEM_CUDA_SM90_FWD_FWD_BIAS_F32_CUH
#include "hidden_columns.cuh"
#include "kernel.cuh"
#include "score_f32_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return fwd<T, TILE, Row, MaskedBiasRoles<F32BiasScore>, Params>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
