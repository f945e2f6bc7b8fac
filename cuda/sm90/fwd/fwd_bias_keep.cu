// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with a dense bias and a keep mask. Warp 0 of the producer warpgroup loads by TMA,
// and the consumer warpgroups compute, both as without the mask (score_bias.cuh). Of a mask with
// one row for all queries, warp 1 + n writes which keys of the tiles of warpgroup n are hidden. Of
// a mask with a row for each query the consumers read their rows.
#include "hidden_columns.cuh"
#include "kernel.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <>
struct FwdRoles<FwdVariant::bias_keep> : MaskedBiasRoles<BiasScore> {
  static constexpr bool has_tile(const FwdTile& t) { return fwd_bias_keep_shared_bytes(t) > 0; }
};

template <>
struct FwdRoles<FwdVariant::bias_lengths> : FwdRoles<FwdVariant::bias_keep> {};

}  // namespace

Kernel<FwdBiasParams> fwd_bias_keep_kernel(tandem_dtype dtype, const char* tile, bool lengths) {
  return lengths ? select_kernel<FwdVariant::bias_lengths, FwdBiasParams>(dtype, tile)
                 : select_kernel<FwdVariant::bias_keep, FwdBiasParams>(dtype, tile);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
