// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with masks, dropout and a distance bias beside the inputs of bwd_dkv_dq_varlen.cuh,
// head sizes up to 128.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_MASKED_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_MASKED_CUH
#include "dkv_dq.cuh"
#include "variant_masked.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  constexpr bool drops = (Row::inputs & kHasDropout) != 0,
                 has_scores = has_masked_scores(kBwdShapes[TILE]);
  return bwd_dkv_dq<T, TILE, Row, Masked<drops && has_scores, drops, has_scores ? 72 : 56>>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
