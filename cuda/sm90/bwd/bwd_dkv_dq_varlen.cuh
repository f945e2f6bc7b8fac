// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with lengths, and softcap and ALiBi or a bias of one row beside them, head sizes up to
// 128.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_VARLEN_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_VARLEN_CUH
#include "dkv_dq.cuh"
#include "variant_row_bias.cuh"
#include "variant_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  if constexpr (Row::has(trait::persistent))
    return bwd_dkv_dq_persistent<T, TILE, Row, PersistentRowBias>;
  else if constexpr (Row::has(trait::one_row))
    return bwd_dkv_dq<T, TILE, Row, RowBias>;
  else if constexpr ((Row::inputs & kHasSoftcap) != 0)
    return bwd_dkv_dq<T, TILE, Row, SoftcapAlibi>;
  else
    return bwd_dkv_dq<T, TILE, Row, Varlen>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
