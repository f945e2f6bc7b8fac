// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq of plain softmax attention, head sizes up to 128.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_CUH
#include "dkv_dq.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  if constexpr (Row::has(trait::persistent))
    return bwd_dkv_dq_persistent<T, TILE, Row, Plain>;
  else
    return bwd_dkv_dq<T, TILE, Row, Plain>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
