// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with a dense bias and a keep mask. Warp 0 of the producer warpgroup loads by TMA,
// and the consumer warpgroups compute, both as without the mask (score_bias.cuh). Between them warp
// 1 + n edits the tiles of the bias of warpgroup n: it writes minus infinity to the elements that
// the mask hides. Of a mask with one row for all queries it writes bits, by which the consumers
// hide scores.
#include "edit_bias.cuh"
#include "kernel.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <>
struct FwdRoles<FwdVariant::bias_keep> : EditedBiasRoles<BiasScore> {
  static constexpr bool has_tile(const FwdTile& t) { return fwd_has_bias_keep(t); }
};

}  // namespace

Kernel<FwdBiasParams> fwd_bias_keep_kernel(tandem_dtype dtype, const char* tile) {
  return select_kernel<FwdVariant::bias_keep, FwdBiasParams>(dtype, tile);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
