// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq of entmax with a deterministic order: its Q loop visits the tiles that have support.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_ENTMAX_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_ENTMAX_CUH
#include "variant_entmax.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return bwd_dkv_dq<T, TILE, Row, Entmax<!Row::has(trait::any_alpha)>>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
