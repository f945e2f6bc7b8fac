// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias and its gradient, head sizes up to 128.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_BIAS_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_BIAS_CUH
#include "variant_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return bwd_dkv_dq_bias<T, TILE, Row>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
