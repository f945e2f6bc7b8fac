// SPDX-License-Identifier: MIT OR Apache-2.0
// make_plan(problem, caps) is a pure function: no GPU call, no global, the same answer on every
// machine.
#ifndef TANDEM_SRC_PLAN_H
#define TANDEM_SRC_PLAN_H
#include <cstdint>
#include <memory>

#include "caps.h"
#include "problem.h"
#include "tiles.h"

namespace tandem {

struct Launch {
  Stem stem = Stem::fwd;
  int kernel = -1;                  // registry row
  Tile tile{};                      // br = bc = 0 where a path has no tiles
  int d_blocks = 0, dv_blocks = 0;  // accumulator blocks that cover D, Dv
  // The matrix paths: shape of the matrices (m = 0: no matrix path), invocations of a subgroup, and
  // matrices of rows that one subgroup owns. tile then holds br and bc, and the subgroups and their
  // invocations as tr and tc.
  MatrixDims matrix;
  uint32_t subgroup = 0;
  int row_blocks = 0;
  int left_shared = 0;            // left operands that stay in shared memory
  bool register_prefetch = true;  // register prefetch: the next tile's rows wait in registers
  bool tensors = false;           // the tile's own rows are loaded and stored by tensor addressing
  uint32_t tiles = 0;             // workgroups of one head
  uint32_t total = 0;             // workgroups with work: tiles x heads x batch
  uint32_t groups_x = 0, groups_y = 0;  // dispatched; fewer than total for persistent kernels
  // cuda.sm90, deterministic: heads whose tiles of keys are interleaved.
  uint32_t interleaved_heads = 0;
  // cuda.sm90: number of leading kv heads, with a bias of each batch entry, whose dQ accumulator
  // bwd_dot zeroes. bwd_dkv_dq zeroes the rest. 0: bwd_dot zeroes all.
  uint32_t eager_zero_heads = 0;
  // cuda.sm90, bwd_dkv_dq: persistent workgroups, one a SM, with a dynamic tile scheduler.
  bool persistent = false;
  // cuda.sm90: launched with programmatic dependent launch: it may start before the launch before
  // it has ended (fwd: any launch), and waits before it reads what that writes.
  bool programmatic_launch = false;
  bool two_cta_clusters = false;         // cuda.sm90: two-CTA clusters take part, in passes
  bool scales_q = false;                 // cuda.sm90, fwd with a bias: Q is multiplied by the scale
  bool cooperative_postprocess = false;  // cuda.sm90: all workgroups of a head
  // CUDA's bwd_dot: workgroups of a head, and in all, of bwd_dot_fast, which runs where o and d_o
  // lie at multiples of 16 bytes. 0: it never runs.
  uint32_t fast_tiles = 0, fast_total = 0;
  uint32_t shared_bytes = 0;
  bool waits = false;          // waits for the launches before it, as it reads what they wrote
  bool joins = false;          // on a GPU: no launch of its own; an earlier one does its work
  bool stores_d_bias = false;  // bwd_dq stores d_bias; there is no bwd_dbias
  bool sums_d_bias = false;    // bwd_dq sums d_bias over the batch in the workspace
  // bwd_dkv leaves dS in the workspace for bwd_dq and bwd_dbias. These launches then alternate,
  // chunk by chunk of kv heads. kv_heads: kv heads of a chunk (the last chunk may have fewer);
  // heads: heads of this launch in a chunk. first_head: of a piece, counted through the batch
  // entries of the first kv head, then those of the next one.
  bool shares_ds = false;
  uint32_t chunks = 1;
  int kv_heads = 0, heads = 0, first_head = 0;
  int entries = 1;          // batch entries that a workgroup of bwd_dq takes at once
  int invocations() const;  // of a workgroup
  // bwd_dbias, bwd_ddist: members of a sum, and workgroups that share it. bwd_sum: partial sums.
  // fwd: workgroups that share the keys of a row. fwd_join: partial outputs. bwd_dkv_ddist: a
  // member and a partial sum for each tile of keys; no members if it does not form d_dist_bias.
  int64_t members = 0;
  uint32_t splits = 1;
  uint32_t gradient = 0;  // bwd_sum: TANDEM_GRAD_BIAS or TANDEM_GRAD_DIST_BIAS
  // Vulkan's bwd_sum: additional workgroups, behind its own, that do the work of bwd_head.
  uint32_t joined_heads = 0;
  int fixed = -1;  // CUDA: row of kFixed whose kernel runs; -1: the kernel with all inputs
  // cuda.sm90: row of the stem's table in hopper_tiles.h; -1: a kernel of simt.
  int hopper = -1;
  int ampere = -1;    // cuda.sm80: row of kAmpereTiles; -1: a kernel of simt
  bool tf32 = false;  // cuda.sm80: f32 operands (of bwd_dot, d_o) are rounded to TF32
  bool multiplies_matrices() const { return matrix.m > 0 || hopper >= 0 || ampere >= 0; }
  int wide_elements() const {  // elements of a wide load or store
    return multiplies_matrices() && (ampere < 0 || kAmpereTiles[ampere].bytes == 2) ? 8 : 4;
  }
  int64_t sums(const struct Problem& p) const;  // floats of the sums of d_bias over the batch
  // cuda.sm90, fwd with a dense bias: stream-K units and tiles of a unit (fwd_stream_k.h); 0: no
  // tile is split. short_tiles: number of the last tiles of all heads, which have rows for some
  // warpgroups only. Short tiles come last.
  int stream_k_units = 0, stream_k_unit = 0, short_tiles = 0;
};

struct FixedRow {  // fixed.inc
  const char* name;
  Normalizer normalizer;
  uint32_t may;  // bits of Extra that the kernels handle
  String candidate() const { return String("cuda.simt.") + name; }
};
constexpr FixedRow kFixed[] = {
#define TANDEM_FIXED(name, normalizer, may) {#name, Normalizer::normalizer, may},
#include "fixed.inc"
};
// Variant of the kernels of cuda.sm90 that a problem takes, by its optional inputs.
enum class HopperVariant { plain, bias, elastic, entmax, varlen, softcap_alibi, masked };
HopperVariant hopper_variant(const Problem& p);
// Whether bwd_dkv_dq of cuda.sm90 converts the dQ accumulator itself, without bwd_dq_cast: the last
// workgroup of a head does, or, if all workgroups run at a time, those of a head together
// (cooperative).
bool fuses_dq_postprocess(const Problem& p, int64_t cores);
bool uses_cooperative_postprocess(const Problem& p, int64_t cores);
// Launch::eager_zero_heads, without a bias and with one. tiles: of keys; interleaved_heads:
// Launch::interleaved_heads.
int64_t eager_zero_heads(const Problem& p, int64_t cores, int64_t tiles, int64_t interleaved_heads);
int64_t eager_zero_heads_per_entry(const Problem& p, int64_t cores, int64_t tiles);
bool is_persistent(const Problem& p, int64_t cores);  // Launch::persistent
// Whether bwd_dkv_dq reduces d_bias over the batch, in clusters of as many workgroups.
bool reduces_dbias_in_clusters(const Problem& p);
// Whether two-CTA clusters take part, in passes. kv_tiles: tiles of keys.
bool uses_two_cta_clusters(const Problem& p, int64_t kv_tiles);

// Largest number of entries of d_dist_bias a head that bwd_dkv_ddist forms. Each tile of keys
// leaves as many in the workspace.
constexpr int kFusedWindow = 1024;

struct Refusal {
  String candidate;  // "vulkan.scalar", "vulkan.scalar t64k32"
  String reason;
};

struct Plan {
  Problem problem;
  Backend backend = Backend::cpu;
  const char* path = "";
  Vec<Launch> launches;  // in order; each may read what an earlier one wrote
  // The workspace: f32 arrays, each at a multiple of kWorkspaceAlignment.
  uint64_t workspace_size = 0;
  // [B,Hq,Sq]. The stored values of far rows lie in front of it (far_row.h).
  uint64_t delta_offset = 0;
  // [B,Hq,Sq]: the rows' parts of d_tau and d_slope.
  uint64_t tau_rows_offset = 0, slope_rows_offset = 0;
  int64_t slope_parts() const;  // parts of d_slope a head: Sq, or those that bwd_dkv_dq leaves
  uint64_t bias_parts_offset = 0, dist_parts_offset = 0;  // [splits], each of the gradient's shape
  // bwd_dq's sums of d_bias: whole tiles of rows and keys for each workgroup.
  uint64_t bias_sums_offset = 0;
  // dS that bwd_dkv leaves for bwd_dq: [heads, keys, query rows], in kDsBlocks.
  uint64_t ds_offset = 0;
  // Partial outputs of split keys. o_parts: [B,splits,Hq,Sq,part_pitch()]. lse_parts:
  // [B,splits,Hq,Sq], with as many rounding errors in front of it.
  uint64_t o_parts_offset = 0, lse_parts_offset = 0;
  // cuda.sm90, elastic softmax: counters of partial sums of d_dist_bias (hopper_tiles.h).
  uint64_t sum_counts_offset = 0;
  // The dQ accumulator and the deterministic dQ semaphores; zeroed together at each execute.
  uint64_t d_q_accum_offset = 0, dq_semaphores_offset = 0, zeroed_size = 0;
  // cuda.sm90: lazy zero-initialisation of the dQ accumulator, which has `bytes` in all and
  // consists of `slices` equal parts. bwd_dot zeroes the beginning of each part, eager_bytes in
  // all, and bwd_dkv_dq the rest (Launch::eager_zero_heads). The counters are zeroed with the
  // semaphores. 0: bwd_dot zeroes all.
  struct {
    uint64_t eager_bytes = 0, bytes = 0, counters_offset = 0, slices = 1;
  } lazy_zero;
  // cuda.sm90, zeroed likewise: counter of fetched tiles of keys (Launch::persistent).
  uint64_t tile_counter_offset = 0;
  // cuda.sm90, zeroed likewise: counts of the tiles of keys that have added to the accumulator of a
  // head, and of those that are done (hopper_tiles.h).
  uint64_t d_q_counts_offset = 0, head_counts_offset = 0;
  // cuda.sm90. d_bias summed over the batch: partial sums of d_k and d_v, and their counters,
  // zeroed with those above (hopper_tiles.h). fwd with a dense bias: stream-K partial results and
  // their flags (fwd_stream_k.h).
  uint64_t partials_offset = 0, partial_flags_offset = 0, pass_sums_offset = 0;
  // cuda.sm90, entmax: support bitmap (hopper_tiles.h), unless every tile is visited.
  uint64_t support_offset = 0;
  // cuda.sm90: the plan of an execute whose inputs do not lie at multiples of 16 bytes. Its
  // workspace fits into this plan's. Null: such an execute is refused.
  std::shared_ptr<const Plan> unaligned;
  Vec<Refusal> refusals;  // candidates that were tried and not taken
  String name() const;
  // A tile of its tiled kernels, if possible one with matrices; br = bc = 0: there is none.
  Tile tile() const;
  const Launch* find(Stem stem) const;  // nullptr: not in this plan
  // The bwd_sum of TANDEM_GRAD_BIAS or TANDEM_GRAD_DIST_BIAS.
  const Launch* find_sum(uint32_t gradient) const;
  bool sums_dist() const;  // some launch leaves d_dist_bias, or parts of it
  bool stores_d_bias() const;
  // Whether all kernels form the bits of a score by the same f32 operations: none multiplies
  // matrices.
  bool sums_scores_exactly() const;
  uint32_t unordered() const;  // TANDEM_GRAD_* that are summed in no fixed order
  int wide_elements() const;   // of the loads and stores of its tiled kernels: 4, or 8
};

constexpr uint64_t kWorkspaceAlignment = 256;
// Workgroups have 128 invocations, which every device allows. bwd_sum and bwd_head have kLineGroup;
// bwd_dot has kDotRows rows a workgroup and kDotLanes invocations a row.
constexpr int kLineGroup = 128;
constexpr int kDotRows = 8, kDotLanes = 16;

// Largest size of dS in the workspace, in bytes.
constexpr int64_t kDsBytes = int64_t(256) << 20;
constexpr const char* kDsWord = "shared_ds";  // name in TANDEM_DISABLE

// Workgroup of fwd_join, of kJoinGroup invocations: lanes, of four features each, times slices, of
// splits, times rows.
constexpr int kJoinGroup = 128;
struct JoinShape {
  int lanes = 1, slices = 1;
  JoinShape(uint32_t splits, int64_t head_dim_v);
  int rows() const { return kJoinGroup / (lanes * slices); }
};
// Floats of a row of o's parts: a whole number of chunks of every kernel that writes them.
constexpr int64_t part_pitch(int64_t head_dim_v) { return (head_dim_v + 7) / 8 * 8; }

// The plan's launches as they are dispatched. Launches that alternate chunk by chunk are split.
struct Piece {
  Launch launch;
  size_t stamp;  // number of the plan's launch that ends with it, from 1; 0: none
};
Vec<Piece> pieces_of(const Plan& plan);

// The SPIR-V of a launch on a Vulkan path.
String module_name(const Plan& plan, const Launch& launch);

// UNSUPPORTED with every refusal in the message when no path is left; *plan then holds the
// refusals.
Status make_plan(const Problem& problem, const Caps& caps, Plan* plan);

// The text of tandem_explain().
String explain(const Problem& problem, const Caps& caps);

}  // namespace tandem
#endif
