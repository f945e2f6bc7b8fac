// SPDX-License-Identifier: MIT OR Apache-2.0
// The backward kernels of the sm90 path as the host sees them.
#ifndef TANDEM_CUDA_SM90_BWD_H
#define TANDEM_CUDA_SM90_BWD_H
#include <cuda.h>

#include "../kernels.h"
#include "bwd_shares.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// What a tile of keys adds to the number of its head for a bwd_dq_cast that begins early; of up to as many parts of it each adds its share.
constexpr int kWholeTile = 16;

struct BwdDkvDqParams {
  CUtensorMap q, k, v, d_o;
  BwdDkvDqBlock block;
  BwdDkvDqPush push;
  // If the last workgroup of a head rounds the sums of d_q itself, or all of them do (bwd_round.cuh).
  struct {
    Strides strides;
    uint64_t address;  // 0: it does not
    uint64_t counts;   // [B, Hk], zeroed before: how many tiles of keys have added to the sums
    uint64_t claims;   // the same: how much of the head was claimed; 0: the last one rounds alone
  } d_q;
  // If the last workgroup of a head of keys, of all entries, sums d_sink and d_slope of its query heads. Where one of the two is not
  // wanted its address is 0.
  struct {
    uint64_t counts;  // [Hk], zeroed before: how many tiles of keys are done; 0: it does not
    uint64_t sink, d_sink, d_slope;
  } heads;
  // A word, zeroed before, by which workgroups fetch tiles of keys; else 0: each has one.
  uint64_t next;
  int beside;  // in a fixed order of sums: of how many heads the tiles of keys are started side by side; else 0
  // Zeros under the sums of d_q (bwd_zeros.cuh): two words a head of keys [B, Hk], zeroed before; of how many first heads the sums
  // were zeroed before (with a bias of each entry; 0: of all), of how many; and, in kZeroBytes, those of a head,
  // and those of each tile of keys, of which the first `more` have one more.
  struct {
    uint64_t words;
    int heads, all, heads_kv;
    uint32_t rows_of_head, rows, more;
  } ahead;
};
// With a dense bias. map: like the others, with keys as features and boxes of br queries; of a bias that all heads or the
// whole batch share, one of them. Launched in clusters of `shared` workgroups if d_bias is wanted: as many as the device has at a
// time, which fetch tiles of keys from a counter, and, beside these, on multiprocessors that are left over, in clusters of two
// that take the batch in passes.
struct BwdBias {
  CUtensorMap map;
  Strides d_bias_strides;
  uint64_t d_bias;  // 0: not wanted
  int group;        // query heads of a head of bias; d_bias: 1
  int shared;  // the batch, if all of it has one bias: with d_bias, kMaxCluster at most; else 1
  int wide;    // 1: d_bias is f32, else of the tensors' type
  // Clusters that have a tile of keys each. Of every further tile as many clusters as `parts` share the queries, and there
  // are, in the workspace, their f32 parts of d_k and d_v, and counts of who has come, zeroed before.
  int whole, parts;
  uint64_t parts_at, counts;
  // Where clusters fetch further tiles: two words, zeroed before, how many clusters of the whole batch have fetched, and how many of
  // those that are reserved were. 0: a cluster's number says its tile, and it has no other.
  uint64_t counter;
  BwdShares shares;
  // Of clusters of two: how often they go through a tile, and sums of d_bias from pass to pass, bwd_pass_floats() of each cluster.
  int passes;
  uint64_t sums_at;
};
struct BwdDkvDqBiasParams : BwdDkvDqParams {
  BwdBias bias;
};
// Lengths, softcap and ALiBi; masks, dropout and a distance bias. Maps of packed tensors have one batch entry, of all rows.
struct BwdDkvDqFullParams : BwdDkvDqParams {
  ExtraBlock extra;
  Features features;
  uint64_t extra_at[kExtraAddresses];  // of the optional inputs
  uint64_t slope_parts;  // [B, Hq, tiles of keys, kBwdParts] parts of d_slope; 0: not wanted
  int packed_tiles;      // bwd_packed_tiles() of packed queries, else 0
  uint32_t drop_offset;
};
// Elastic softmax, with a distance bias or without: bwd_dkv_ddist in its Hopper form, and bwd_row_dq.
struct BwdDkvDdistParams {
  CUtensorMap q, k, v, d_o;
  BwdDkvDdistBlock block;
  BwdDkvDdistPush push;
  ExtraBlock extra;
  Features features;
  // What is summed on the way: the parts of d_dist_bias by who comes last, the rows' parts of d_tau by the first workgroup
  // of a head of keys. 0: it is not wanted, or not here.
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
  uint64_t zeroed;  // words that the next kernel counts in
  int zeroed_count;
};
// Heads over 128. Of bwd_dkv and bwd_dq one may be missing: its block then has a total of 0.
struct BwdDkvWithDqParams {
  CUtensorMap q, k, v, d_o;
  BwdDkvBlock block;
  BwdDkvPush push;
  BwdDqParams dq;    // block and push
  BwdHeadFull head;  // bwd_head's work, for d_sink; head.block.total may be 0, too
};
// Entmax. support: words of bits in the workspace (hopper_tiles.h), 0: every tile is visited.
struct BwdRowParams {
  CUtensorMap q, k, v, d_o;
  BwdRowBlock block;
  BwdRowPush push;
  ExtraBlock extra;
  Features features;
  uint64_t support;
  int support_words;
  uint64_t zeroed, zeroed_end;  // what bwd_dkv_dq adds to
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
  int total_q;         // their rows, all entries together
  int packed_blocks;   // blocks of 64 rows that a head has then, and of a tile of bwd_dkv_dq
  int tile_blocks;
  int entries;  // the batch, if its entries were taken side by side, head by head; else 1
  // If it begins early: of each head of keys [B, Hk], of `group` query heads, how far it is, kWholeTile for each tile of keys, `done`
  // in the end; else 0.
  uint64_t counts;
  uint32_t done;
  int group;
  BwdHeadFull
      head;  // the workgroups behind those of bwd_dq_cast do bwd_head's work; head.block.total may be 0
};

// row: of kBwdShapes. grad_q, grad_kv: which gradients are wanted, one at least. kBwdThreads threads,
// bwd_plain_shared_bytes() of shared memory. on: workgroups fetch tiles of keys (params.next); all gradients, and nothing is left to the last one of a head.
Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, int row, bool grad_q, bool grad_kv,
                                         bool on);
// Head sizes up to 128. bwd_bias_shared_bytes() of shared memory. All gradients; where d_q is not wanted, its sums are formed
// nevertheless. passes: in clusters of two that go through each tile several times; rounds: the last workgroup of a head makes d_q,
// whose address params.d_q must have.
enum class BiasForm { whole, passes, rounds };
Kernel<BwdDkvDqBiasParams> bwd_dkv_dq_bias_kernel(tandem_dtype dtype, int row, BiasForm form);
// Head sizes up to 128: lengths alone, or whatever of its parameters; bwd_lengths_shared_bytes(). All gradients, as above.
Kernel<BwdDkvDqFullParams> bwd_dkv_dq_lengths_kernel(tandem_dtype dtype, int row);
Kernel<BwdDkvDqFullParams> bwd_dkv_dq_full_kernel(tandem_dtype dtype, int row);
// These and masks, dropout and a distance bias; bwd_all_shared_bytes(), and no kernel where that is 0.
Kernel<BwdDkvDqFullParams> bwd_dkv_dq_all_kernel(tandem_dtype dtype, int row);
// Elastic softmax without lengths. Rows, boxes and threads as of bwd_dkv_dq; bwd_elastic_shared_bytes().
Kernel<BwdDkvDdistParams> bwd_dkv_ddist_kernel(tandem_dtype dtype, int row);
// A row of kRowShapes, whose boxes its maps have: kBwdThreads threads, row_shared_bytes(). block.tiles: of br queries.
Kernel<BwdRowDqParams> bwd_row_dq_kernel(tandem_dtype dtype, int row);
// Heads over 128: a row of kBwdShapes that is wide. kBwdThreads threads, the workgroups of bwd_dkv, then those of bwd_dq and of
// bwd_head, and as much shared memory as the one that needs most.
Kernel<BwdDkvWithDqParams> bwd_dkv_kernel(tandem_dtype dtype, int row);
// Entmax; fast: alpha is 1.5, else rows for heads of 128 alone. bwd_row: a row of kSupportShapes, its threads and
// support_shared_bytes(). bwd_dkv_dq: as without optional inputs, but all gradients; where d_q is not wanted, its sums are
// formed nevertheless.
Kernel<BwdRowParams> bwd_row_kernel(tandem_dtype dtype, int row, bool fast);
Kernel<BwdDkvDqEntmaxParams> bwd_dkv_dq_entmax_kernel(tandem_dtype dtype, int row, bool fast);
// 128 threads.
Kernel<BwdDqCastParams> bwd_dq_cast_kernel(tandem_dtype dtype);

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
