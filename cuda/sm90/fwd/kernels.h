// SPDX-License-Identifier: MIT OR Apache-2.0
// The forward kernels for Hopper, as the host sees them. Their parameters hold tensor maps.
#ifndef TANDEM_CUDA_SM90_FWD_KERNELS_H
#define TANDEM_CUDA_SM90_FWD_KERNELS_H
#include <cuda.h>

#include "../../kernels.h"
#include "fwd_stream_k.h"
#include "hopper_tiles.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// Parameters of fwd of plain softmax. Tensor maps: 4 dimensions (feature, row, head, batch) of
// 16-bit elements, boxes {64, rows, 1, 1}, SWIZZLE_128B, zeros outside the tensor.
struct FwdParams {
  CUtensorMap q, k, v;
  FwdBlock block;
  FwdPush push;
};

// Parameters of fwd with optional inputs. bias: tensor map (key, row, head, batch) with as many
// heads and batch entries as the bias has, boxes of kFwdBiasRows rows.
struct FwdOptionalParams {
  CUtensorMap q, k, v, bias;
  FwdBlock block;
  FwdPush push;
  ExtraBlock extra;
  Features features;
};

// Stream-K with a dense bias: two workgroups share some tiles and combine their partial results
// through the workspace. With units = 0 no tile is shared, and any grid of one dimension does.
struct FwdStreamKParams : FwdStreamK {
  FwdStreamKShares shares;
  int batches;  // batch entries
  // Addresses in the workspace of the partial results and of a 64-bit flag for each, which says
  // which workgroup has written. No other execute has this number, nor number + 1.
  uint64_t partials, flags, number;
};
struct FwdBiasParams : FwdOptionalParams {
  FwdStreamKParams stream_k;
};

// The kernel depends on launch.tile.name (src/hopper_tiles.inc) and the dtype only. block.tiles:
// tiles of FwdTile::rows() queries. The workgroups share block.total tiles, so any grid of one
// dimension does. As many workgroups as SMs are best.
Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch);

// A dense bias of the dtype of the tensors, with a row for each query, and no other optional input.
// Shared memory: fwd_bias_shared_bytes(). The scale is above kPlainScale. The scaled form
// multiplies Q by the scale and is faster; it takes bf16, tiles of fwd_scales_q() and scales of
// has_exact_scale().
Kernel<FwdBiasParams> fwd_bias_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<FwdBiasParams> fwd_scaled_bias_kernel(const Launch& launch);

// Lengths and sinks; the second kernel also has softcap and ALiBi. Shared memory:
// fwd_varlen_shared_bytes(); there is no kernel for a tile where it is 0. A tensor map of a packed
// tensor has one batch entry with all rows.
Kernel<FwdOptionalParams> fwd_varlen_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<FwdOptionalParams> fwd_softcap_alibi_kernel(tandem_dtype dtype, const Launch& launch);

// Masks, dropout and a distance bias beside all of these. Shared memory: fwd_masked_shared_bytes();
// there is no kernel for a tile where it is 0. Tiles are those of fwd_masked_tile().
Kernel<FwdOptionalParams> fwd_masked_kernel(tandem_dtype dtype, const Launch& launch);

// Elastic softmax, with or without a distance bias of up to kFwdDistWindow entries. Shared memory:
// fwd_elastic_shared_bytes(); there is no kernel for a tile that needs more than there is.
Kernel<FwdOptionalParams> fwd_elastic_kernel(tandem_dtype dtype, const Launch& launch);

// Entmax without other optional inputs, with alpha = 1.5; any alpha takes tiles of 128 features.
// Shared memory: fwd_entmax_shared_bytes(); there is no kernel for a tile where it is 0.
Kernel<FwdOptionalParams> fwd_entmax_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<FwdOptionalParams> fwd_entmax_any_kernel(tandem_dtype dtype, const Launch& launch);

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
