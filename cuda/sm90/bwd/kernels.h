// SPDX-License-Identifier: MIT OR Apache-2.0
// The backward kernels for Hopper, as the host sees them.
#ifndef TANDEM_CUDA_SM90_BWD_KERNELS_H
#define TANDEM_CUDA_SM90_BWD_KERNELS_H
#include "../params.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// What a tile of keys adds to the count of its head that a programmatically launched bwd_dq_cast
// waits for. The tile may be split in up to as many parts, each of which adds its share.
constexpr int kWholeTile = 16;

// Plain softmax. row: of kBwdShapes. grad_q, grad_kv: wanted gradients, at least one. kBwdThreads
// threads; shared memory: bwd_plain_shared_bytes(). persistent: workgroups fetch tiles of keys
// (params.tile_counter); all gradients are wanted, and nothing is left to the last workgroup of a
// head.
Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, int row, bool grad_q, bool grad_kv,
                                         bool persistent);
// The same with all gradients, where workgroups may share a tile of keys (plan/sm90/bwd_parts.h):
// params.most_parts workgroups for each.
Kernel<BwdDkvDqPartsParams> bwd_dkv_dq_parts_kernel(tandem_dtype dtype, int row);
// A dense bias, head sizes up to 128; shared memory: bwd_bias_shared_bytes(). All gradients; where
// d_q is not wanted, the accumulator is formed nevertheless. passes: two-CTA clusters that take
// each tile in several passes; postprocess: the last workgroup of a head forms d_q, at params.d_q;
// slices: clusters of kSliceCluster, each for a tile and a slice of the batch, in several passes.
enum class BiasForm {
  whole,
  passes,
  postprocess,
  slices,
  keep,
  keep_slices,
  f32,
  f32_slices,
  lengths,
  lengths_slices
};
template <BiasForm FORM>
constexpr bool kFormHasF32 = FORM == BiasForm::f32 || FORM == BiasForm::f32_slices;
template <BiasForm FORM>
constexpr bool kFormHasEnds =
    FORM == BiasForm::lengths || FORM == BiasForm::lengths_slices || kFormHasF32<FORM>;
template <BiasForm FORM>
constexpr bool kFormHasKeep =
    FORM == BiasForm::keep || FORM == BiasForm::keep_slices || kFormHasEnds<FORM>;
template <BiasForm FORM>
constexpr bool kInSlices = FORM == BiasForm::slices || FORM == BiasForm::keep_slices ||
                           FORM == BiasForm::f32_slices || FORM == BiasForm::lengths_slices;
Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_bias_kernel(tandem_dtype dtype, int row, BiasForm form);
// A keep mask, lengths or both beside the bias; shared memory: bwd_bias_shared_bytes(). form:
// keep, keep_slices, lengths or lengths_slices.
Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_bias_keep_kernel(tandem_dtype dtype, int row, BiasForm form);
// A bias of f32, with or without a keep mask and lengths; shared memory: bwd_bias_shared_bytes().
// row: from kBwdShapeCount on. form: f32 or f32_slices.
Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_f32_bias_kernel(tandem_dtype dtype, int row, BiasForm form);
// Lengths alone; or lengths, softcap and ALiBi. Head sizes up to 128; shared memory:
// bwd_varlen_shared_bytes(). All gradients, as above.
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_varlen_kernel(tandem_dtype dtype, int row);
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_softcap_alibi_kernel(tandem_dtype dtype, int row);
// A bias with one row for all queries, without gradient, beside lengths; head sizes up to 128;
// shared memory: bwd_plain_shared_bytes(). persistent: as above, and there are no lengths.
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_row_bias_kernel(tandem_dtype dtype, int row,
                                                          bool persistent);
// Lengths, softcap, ALiBi, masks, dropout and a distance bias; shared memory:
// bwd_masked_shared_bytes(), and no kernel where that is 0.
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_masked_kernel(tandem_dtype dtype, int row);
// Elastic softmax without lengths. Rows, boxes and threads are those of bwd_dkv_dq; shared memory:
// bwd_elastic_shared_bytes().
Kernel<BwdDkvDistParams> bwd_dkv_dist_kernel(tandem_dtype dtype, int row);
// Elastic softmax: delta, d_q and d_tau of the rows. row: of kRowShapes, whose boxes the tensor
// maps have. kBwdThreads threads; shared memory: row_shared_bytes(). block.tiles: of br queries.
Kernel<BwdRowSumsDqParams> bwd_row_sums_dq_kernel(tandem_dtype dtype, int row);
// Heads over 128. row: of kBwdShapes, wide. kBwdThreads threads; workgroups of bwd_dkv, then those
// of bwd_dq and of bwd_head_sums; as much shared memory as the one that needs most. softcap: with
// params.softcap.
Kernel<BwdDkvWithDqParams> bwd_dkv_kernel(tandem_dtype dtype, int row, bool softcap);
// Entmax. fast: alpha is 1.5; any other alpha takes rows for heads of 128. bwd_row_sums: a row of
// kSupportShapes, its threads and support_shared_bytes(). bwd_dkv_dq: as plain softmax, but all
// gradients; where d_q is not wanted, the accumulator is formed nevertheless.
Kernel<BwdRowSumsParams> bwd_row_sums_kernel(tandem_dtype dtype, int row, bool fast);
Kernel<BwdDkvDqEntmaxParams> bwd_dkv_dq_entmax_kernel(tandem_dtype dtype, int row, bool fast);
// dQ postprocess as a kernel of its own; 128 threads.
Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype dtype);

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
