// SPDX-License-Identifier: MIT OR Apache-2.0
// The Hopper kernels as the host sees them: like cuda/kernels.h, with tensor maps among the parameters.
#ifndef TANDEM_CUDA_SM90_KERNELS_H
#define TANDEM_CUDA_SM90_KERNELS_H
#include <cuda.h>

#include "../kernels.h"
#include "fwd_tail.h"
#include "hopper_tiles.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// Maps: 4 dimensions (feature, row, head, batch) of 16-bit elements, boxes {64, rows, 1, 1}, SWIZZLE_128B, zeros outside.
struct FwdParams {
  CUtensorMap q, k, v;
  FwdBlock block;
  FwdPush push;
};

// Of problems with optional inputs. bias: (key, row, head, batch) of as many heads and batches as it has, boxes of
// kFwdBiasRows rows.
struct FwdFullParams {
  CUtensorMap q, k, v, bias;
  FwdBlock block;
  FwdPush push;
  ExtraBlock extra;
  Features features;
};

// With a dense bias; tail: tiles that are shared out by steps, whose parts, and the words that say who has come, lie in the
// workspace. number: no other execute has it, nor number + 1. units = 0: none are, and any grid of one dimension does.
struct FwdTailParams : FwdTail {
  FwdShares shares;
  int batches;  // entries
  uint64_t parts, words, number;
};
struct FwdBiasParams : FwdFullParams {
  FwdTailParams tail;
};

// By launch.tile.name (src/hopper_tiles.inc), the tensors' type, and nothing else. block.tiles: of FwdTile::rows() queries.
// Workgroups share out block.total tiles: any grid of one dimension does; as many as there are multiprocessors is best.
Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch);

// A dense bias of the tensors' type, a row for each query row, and nothing else; fwd_bias_shared_bytes() of shared memory.
// Of plain scales (kPlainScale). Scaled: faster, for bf16, tiles of fwd_scales_q() and scales of has_exact_scale() alone.
Kernel<FwdBiasParams> fwd_bias_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<FwdBiasParams> fwd_scaled_bias_kernel(const Launch& launch);

// Lengths and sinks; and, beside them, softcap and ALiBi. fwd_lengths_shared_bytes() of shared memory, and no kernel for
// tiles of which that is 0. Maps of packed tensors have one batch entry, of all rows.
Kernel<FwdFullParams> fwd_lengths_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<FwdFullParams> fwd_full_kernel(tandem_dtype dtype, const Launch& launch);

// Masks, dropout and a distance bias beside all of these; fwd_all_shared_bytes(), and no kernel where that is 0. Tiles of
// fwd_all_tile().
Kernel<FwdFullParams> fwd_all_kernel(tandem_dtype dtype, const Launch& launch);

// Elastic softmax with nothing else but a distance bias of up to kFwdDistWindow entries; fwd_elastic_shared_bytes() of
// shared memory, and no kernel for tiles of which that is more than there is.
Kernel<FwdFullParams> fwd_elastic_kernel(tandem_dtype dtype, const Launch& launch);

// Entmax with nothing else: alpha = 1.5, or any, for tiles of 128 features alone. fwd_entmax_shared_bytes(), and no kernel
// where that is 0.
Kernel<FwdFullParams> fwd_entmax_kernel(tandem_dtype dtype, const Launch& launch);
Kernel<FwdFullParams> fwd_entmax_any_kernel(tandem_dtype dtype, const Launch& launch);

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
