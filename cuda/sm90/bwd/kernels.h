// SPDX-License-Identifier: MIT OR Apache-2.0
// The backward kernels for Hopper, as the host sees them.
#ifndef TANDEM_CUDA_SM90_BWD_KERNELS_H
#define TANDEM_CUDA_SM90_BWD_KERNELS_H
#include <cuda.h>

#include "../../kernels.h"
#include "bwd_cluster_schedule.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// What a tile of keys adds to the count of its head that a programmatically launched bwd_dq_cast
// waits for. The tile may be split in up to as many parts, each of which adds its share.
constexpr int kWholeTile = 16;

struct BwdDkvDqParams {
  CUtensorMap q, k, v, d_o;
  BwdDkvDqBlock block;
  BwdDkvDqPush push;
  // dQ postprocess by the last workgroup of a head, or by all of them (dq_postprocess.cuh).
  struct {
    Strides strides;
    uint64_t address;  // of d_q; 0: no postprocess here
    uint64_t counts;   // [B, Hk], zeroed before: how many tiles of keys have added to the sums
    uint64_t claims;   // likewise: claimed pieces of the head; 0: the last workgroup is alone
  } d_q;
  // d_sink and d_slope by the last workgroup of a kv head, over all batch entries. The address of
  // one that is not wanted is 0.
  struct {
    uint64_t counts;  // [Hk], zeroed before: how many tiles of keys are done; 0: not here
    uint64_t sink, d_sink, d_slope;
  } heads;
  // Dynamic tile scheduler: a counter of tiles of keys, zeroed before. 0: each workgroup has one
  // tile.
  uint64_t tile_counter;
  int interleaved_heads;  // deterministic: heads whose tiles of keys are interleaved; else 0
  // Lazy zero-initialisation of the dQ accumulator (dq_lazy_zero.cuh). counters: two a kv head [B,
  // Hk], zeroed before. eager_heads: leading heads that were zeroed before, with a bias of each
  // batch entry; 0: all were. rows_of_head: units of kZeroBytes of a head; rows: of a slice; the
  // first `more` slices have one more.
  struct {
    uint64_t counters;
    int eager_heads, total_heads, heads_kv;
    uint32_t rows_of_head, rows, more;
  } lazy_zero;
};
// A dense bias and its gradient. map: tensor map with keys as features and boxes of br queries; a
// bias that all heads or the whole batch share has one of them. If d_bias is wanted, workgroups are
// launched in clusters of `shared`, as many clusters as the device runs at a time. These fetch
// tiles of keys from a counter. On SMs that are left over, two-CTA clusters take the batch in
// several passes.
struct BwdBias {
  CUtensorMap map;
  Strides d_bias_strides;
  uint64_t d_bias;  // 0: not wanted
  int group;        // query heads of a head of the bias; 1 with d_bias
  int shared;  // the batch size if all entries share the bias; else 1. With d_bias: to kMaxCluster
  int d_bias_f32;  // 1: d_bias is f32, else of the dtype of the tensors
  // whole: clusters that have a tile of keys each. Of each further tile, `parts` clusters share the
  // queries. Their partial sums of d_k and d_v (f32) and counters, zeroed before, are in the
  // workspace.
  int whole, parts;
  uint64_t parts_at, counts;
  // Dynamic tile scheduler of clusters: two counters, zeroed before: tiles that clusters of the
  // whole batch have fetched, and reserved tiles that were fetched. 0: a cluster has the tile of
  // its index and no other.
  uint64_t counter;
  BwdClusterSchedule schedule;
  // Two-CTA clusters: passes over a tile, and sums of d_bias between passes, bwd_pass_floats() a
  // cluster.
  int passes;
  uint64_t sums_at;
};
struct BwdDkvDqBiasParams : BwdDkvDqParams {
  BwdBias bias;
};
// Parameters of bwd_dkv_dq with lengths, softcap and ALiBi, masks, dropout and a distance bias. A
// tensor map of a packed tensor has one batch entry with all rows.
struct BwdDkvDqOptionalParams : BwdDkvDqParams {
  ExtraBlock extra;
  Features features;
  uint64_t extra_at[kExtraAddresses];  // of the optional inputs
  uint64_t slope_parts;  // [B, Hq, tiles of keys, kBwdParts] partial sums of d_slope; 0: not wanted
  int packed_tiles;      // bwd_packed_tiles() of packed queries, else 0
  uint32_t drop_offset;
};
// Parameters of bwd_dkv_ddist: elastic softmax, with or without a distance bias.
struct BwdDkvDdistParams {
  CUtensorMap q, k, v, d_o;
  BwdDkvDdistBlock block;
  BwdDkvDdistPush push;
  ExtraBlock extra;
  Features features;
  // Reductions within this kernel: partial sums of d_dist_bias by the last workgroup, d_tau from
  // its rows by the first workgroup of a kv head. 0: not wanted, or not here.
  struct {
    uint64_t d_dist, counts;  // [Hk, 2], zeroed by bwd_row_dq
    uint64_t tau_rows, d_tau;
  } sums;
};
struct BwdRowDqParams {
  CUtensorMap q, k, v, d_o;
  BwdRowDqBlock block;
  BwdRowDqPush push;
  ExtraBlock extra;
  Features features;
  BwdRowDqSpec spec;
  uint64_t zeroed;  // counters of the next kernel
  int zeroed_count;
};
// Parameters of bwd_dkv and bwd_dq in one launch, for heads over 128. Either may be missing: the
// total of its block is then 0.
struct BwdDkvWithDqParams {
  CUtensorMap q, k, v, d_o;
  BwdDkvBlock block;
  BwdDkvPush push;
  BwdDqParams dq;    // block and push
  BwdHeadFull head;  // bwd_head's work, for d_sink; head.block.total may be 0, too
};
// Parameters of bwd_row of entmax. support: bitmap in the workspace (hopper_tiles.h); 0: every tile
// is visited.
struct BwdRowParams {
  CUtensorMap q, k, v, d_o;
  BwdRowBlock block;
  BwdRowPush push;
  ExtraBlock extra;
  Features features;
  uint64_t support;
  int support_words;
  uint64_t zeroed, zeroed_end;  // the dQ accumulator
};
struct BwdDkvDqEntmaxParams : BwdDkvDqParams {
  ExtraBlock extra;
  Features features;
  uint64_t support;
  int support_words;
};
struct BwdDqCastParams {
  BwdDqCastBlock block;
  BwdDqCastPush push;
  uint64_t lengths_q;  // of packed queries, else 0
  int total_q;         // rows of packed queries
  int packed_blocks;   // blocks of 64 rows of a head of packed queries
  int tile_blocks;     // blocks of 64 rows of a query tile of bwd_dkv_dq
  int entries;         // the batch size if bwd_dkv_dq took the entries of a head together; else 1
  // Programmatic dependent launch: counts of the kv heads [B, Hk], of `group` query heads each. A
  // tile of keys adds kWholeTile, and `done` is the final count. Else 0.
  uint64_t counts;
  uint32_t done;
  int group;
  BwdHeadFull head;  // bwd_head's work, by the last workgroups; head.block.total may be 0
};

// Plain softmax. row: of kBwdShapes. grad_q, grad_kv: wanted gradients, at least one. kBwdThreads
// threads; shared memory: bwd_plain_shared_bytes(). persistent: workgroups fetch tiles of keys
// (params.tile_counter); all gradients are wanted, and nothing is left to the last workgroup of a
// head.
Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, int row, bool grad_q, bool grad_kv,
                                         bool persistent);
// A dense bias, head sizes up to 128; shared memory: bwd_bias_shared_bytes(). All gradients; where
// d_q is not wanted, the accumulator is formed nevertheless. passes: two-CTA clusters that take
// each tile in several passes; postprocess: the last workgroup of a head forms d_q, at params.d_q.
enum class BiasForm { whole, passes, postprocess };
Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_bias_kernel(tandem_dtype dtype, int row, BiasForm form);
// Lengths alone; or lengths, softcap and ALiBi. Head sizes up to 128; shared memory:
// bwd_varlen_shared_bytes(). All gradients, as above.
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_varlen_kernel(tandem_dtype dtype, int row);
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_softcap_alibi_kernel(tandem_dtype dtype, int row);
// These, masks, dropout and a distance bias; shared memory: bwd_masked_shared_bytes(), and no
// kernel where that is 0.
Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_masked_kernel(tandem_dtype dtype, int row);
// Elastic softmax without lengths. Rows, boxes and threads are those of bwd_dkv_dq; shared memory:
// bwd_elastic_shared_bytes().
Kernel<BwdDkvDdistParams> bwd_dkv_ddist_kernel(tandem_dtype dtype, int row);
// Elastic softmax: delta, d_q and d_tau of the rows. row: of kRowShapes, whose boxes the tensor
// maps have. kBwdThreads threads; shared memory: row_shared_bytes(). block.tiles: of br queries.
Kernel<BwdRowDqParams> bwd_row_dq_kernel(tandem_dtype dtype, int row);
// Heads over 128. row: of kBwdShapes, wide. kBwdThreads threads; workgroups of bwd_dkv, then those
// of bwd_dq and of bwd_head; as much shared memory as the one that needs most.
Kernel<BwdDkvWithDqParams> bwd_dkv_kernel(tandem_dtype dtype, int row);
// Entmax. fast: alpha is 1.5; any other alpha takes rows for heads of 128. bwd_row: a row of
// kSupportShapes, its threads and support_shared_bytes(). bwd_dkv_dq: as plain softmax, but all
// gradients; where d_q is not wanted, the accumulator is formed nevertheless.
Kernel<BwdRowParams> bwd_row_kernel(tandem_dtype dtype, int row, bool fast);
Kernel<BwdDkvDqEntmaxParams> bwd_dkv_dq_entmax_kernel(tandem_dtype dtype, int row, bool fast);
// dQ postprocess as a kernel of its own; 128 threads.
Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype dtype);

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
