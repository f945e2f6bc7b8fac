// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dist of elastic softmax on Hopper, head sizes up to 128: bwd_dkv_dq without d_q, which
// bwd_row_sums_dq has formed.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DIST_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DIST_CUH
#include "dkv_dq.cuh"
#include "variant_elastic.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return bwd_dkv_dq<T, TILE, Row, Elastic>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
