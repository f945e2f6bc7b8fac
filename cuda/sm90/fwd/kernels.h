// SPDX-License-Identifier: MIT OR Apache-2.0
// The forward kernels for Hopper, as the host sees them.
#ifndef TANDEM_CUDA_SM90_FWD_KERNELS_H
#define TANDEM_CUDA_SM90_FWD_KERNELS_H
#include "../params.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// The kernel depends on tile (src/plan/sm90/tiles.inc) and the dtype only. block.tiles:
// tiles of FwdTile::rows() queries. The workgroups share block.total tiles, so any grid of one
// dimension does. As many workgroups as SMs are best.
Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const char* tile);

// A dense bias of the dtype of the tensors, with a row for each query, and no other optional input.
// Shared memory: fwd_bias_shared_bytes(). The scale is above kPlainScale. The scaled form
// multiplies Q by the scale and is faster; it takes bf16, tiles of fwd_scales_q() and scales of
// has_exact_scale().
Kernel<FwdBiasParams> fwd_bias_kernel(tandem_dtype dtype, const char* tile);
Kernel<FwdBiasParams> fwd_scaled_bias_kernel(const char* tile);
// A keep mask beside the bias; or, by kernels of their own, padded lengths with or without a mask.
// Shared memory: fwd_bias_keep_shared_bytes(); there is no kernel for a tile where it is 0. Tiles
// are those of fwd_two_warpgroup_tile().
Kernel<FwdBiasParams> fwd_bias_keep_kernel(tandem_dtype dtype, const char* tile, bool lengths);
// A dense bias of f32, with or without a keep mask, and as above with lengths, for any scale.
// Shared memory: fwd_f32_bias_shared_bytes(); tiles are those where it is not 0.
Kernel<FwdBiasParams> fwd_f32_bias_kernel(tandem_dtype dtype, const char* tile, bool lengths);

// Lengths and sinks; the second kernel also has softcap and ALiBi. Shared memory:
// fwd_varlen_shared_bytes(); there is no kernel for a tile where it is 0. A tensor map of a packed
// tensor has one batch entry with all rows.
Kernel<FwdOptionalParams> fwd_varlen_kernel(tandem_dtype dtype, const char* tile);
Kernel<FwdOptionalParams> fwd_softcap_alibi_kernel(tandem_dtype dtype, const char* tile);

// A bias with one row for all queries, of f32 or the dtype of the tensors, beside lengths and
// sinks, for any scale. Shared memory: fwd_row_bias_shared_bytes(); there is no kernel for a tile
// where it is 0.
Kernel<FwdOptionalParams> fwd_row_bias_kernel(tandem_dtype dtype, const char* tile);

// Masks, dropout and a distance bias beside lengths, sinks, softcap and ALiBi. Shared memory:
// fwd_masked_shared_bytes(); there is no kernel for a tile where it is 0. Tiles are those of
// fwd_two_warpgroup_tile().
Kernel<FwdOptionalParams> fwd_masked_kernel(tandem_dtype dtype, const char* tile);

// Elastic softmax, with or without a distance bias of up to kFwdDistWindow entries. Shared memory:
// fwd_elastic_shared_bytes(); there is no kernel for a tile that needs more than there is.
Kernel<FwdOptionalParams> fwd_elastic_kernel(tandem_dtype dtype, const char* tile);

// Entmax without other optional inputs, with alpha = 1.5; any alpha takes tiles of 128 features.
// Shared memory: fwd_entmax_shared_bytes(); there is no kernel for a tile where it is 0.
Kernel<FwdOptionalParams> fwd_entmax_kernel(tandem_dtype dtype, const char* tile);
Kernel<FwdOptionalParams> fwd_entmax_any_kernel(tandem_dtype dtype, const char* tile);

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
