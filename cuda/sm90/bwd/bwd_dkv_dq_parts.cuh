// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq of plain softmax where workgroups share tiles of keys, head sizes up to 128.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_PARTS_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_PARTS_CUH
#include "dkv_dq.cuh"
#include "variant_parts.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return bwd_dkv_dq<T, TILE, Row, Parts<Row::has(trait::heads_inside)>>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
