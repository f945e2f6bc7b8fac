// SPDX-License-Identifier: MIT OR Apache-2.0
// plan(problem, caps): a pure function. No GPU call, no global; the same answer on every machine.
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
  // The matrix paths: shape of the matrices (m = 0: not on such a path), invocations of a subgroup, matrices of rows
  // that one owns. tile then holds br and bc, and the subgroups and their invocations as tr and tc.
  MatrixDims matrix;
  uint32_t subgroup = 0;
  int row_blocks = 0;
  int left_shared = 0;                  // left operands that stay in shared memory
  bool flies = true;                    // the next tile's rows fly in registers
  bool tensors = false;                 // the tile's own rows come and go by tensor addressing
  uint32_t tiles = 0;                   // workgroups of one head
  uint32_t total = 0;                   // workgroups with work: tiles x heads x batch
  uint32_t groups_x = 0, groups_y = 0;  // dispatched; fewer than total where they go on
  // cuda.sm90, sums of d_q in a fixed order: heads whose workgroups are started side by side.
  uint32_t beside = 0;
  // cuda.sm90: of how many first heads of keys, with a bias of each entry, bwd_dot zeroes the sums of d_q; bwd_dkv_dq zeroes those
  // of the others. 0: bwd_dot zeroes all.
  uint32_t ahead = 0;
  // cuda.sm90's bwd_dkv_dq: workgroups are as many as there are multiprocessors, and fetch tiles of keys.
  bool goes_on = false;
  // cuda.sm90: it may begin before the launch before it has ended (of fwd anybody's), and waits where it reads what that writes.
  bool early = false;
  bool pairs = false;     // cuda.sm90: beside its clusters, others of two take the batch in passes
  bool scales_q = false;  // cuda.sm90's fwd with a bias: q is multiplied by the scale
  bool together = false;  // cuda.sm90: all workgroups of a head make d_q of its sums
  // CUDA's bwd_dot: tiles of a head, and all, of bwd_dot_fast, which runs where o and d_o lie at multiples of 16 bytes; 0: never.
  uint32_t fast_tiles = 0, fast_total = 0;
  uint32_t shared_bytes = 0;
  bool waits = false;          // reads what launches before it wrote
  bool joins = false;          // on a GPU: no launch of its own, as an earlier one does its work
  bool stores_d_bias = false;  // bwd_dq: in place of bwd_dbias
  bool sums_d_bias = false;    // and as a sum over the batch, by way of the workspace
  // ds goes by way of the workspace from bwd_dkv to bwd_dq, and bwd_dbias, which then take turns, chunk by chunk: kv heads of
  // one, of which the last may have fewer, and the launch's own. first_head: of a piece, counted through the batch
  // entries of the first kv head, then those of the next one.
  bool shares_ds = false;
  uint32_t chunks = 1;
  int kv_heads = 0, heads = 0, first_head = 0;
  int entries = 1;          // batch entries that a workgroup then takes at once
  int invocations() const;  // of a workgroup
  // bwd_dbias, bwd_ddist: what is summed, and how many workgroups share a sum; bwd_sum: their parts. fwd: how many
  // share a row's keys; fwd_join: their parts.
  // bwd_dkv_ddist: a member and a part for each tile of keys, no members where d_dist_bias is not its work.
  int64_t members = 0;
  uint32_t splits = 1;
  uint32_t gradient = 0;  // bwd_sum: TANDEM_GRAD_BIAS or TANDEM_GRAD_DIST_BIAS
  uint32_t joined_heads =
      0;           // Vulkan's bwd_sum: workgroups behind its own that do the work of bwd_head
  int fixed = -1;  // CUDA: row of kFixed whose kernel runs; -1: one that knows everything
  // The path cuda.sm90: row of kFwdTiles or kBwdShapes; -1: a kernel of simt.
  int hopper = -1;
  int ampere = -1;    // the path cuda.sm80: row of kAmpereTiles; -1: a kernel of simt
  bool tf32 = false;  // and f32 operands are rounded to TF32; of bwd_dot, d_o
  bool multiplies_matrices() const { return matrix.m > 0 || hopper >= 0 || ampere >= 0; }
  int wide_elements() const {  // of a wide load or store
    return multiplies_matrices() && (ampere < 0 || kAmpereTiles[ampere].bytes == 2) ? 8 : 4;
  }
  int64_t sums(const struct Problem& p) const;  // floats of the sums over the batch
  // cuda.sm90, fwd with a dense bias: the first tiles are shared out by steps (fwd_tail.h), units of so many each. 0: none are.
  // shorts: the last ones of all heads, which have rows for some warpgroups alone, come last.
  int tail_units = 0, tail_unit = 0, tail_shorts = 0;
};

struct FixedRow {  // fixed.inc
  const char* name;
  Normalizer normalizer;
  uint32_t may;  // of Extra
  String candidate() const { return String("cuda.simt.") + name; }
};
constexpr FixedRow kFixed[] = {
#define TANDEM_FIXED(name, normalizer, may) {#name, Normalizer::normalizer, may},
#include "fixed.inc"
};
// The path cuda.sm90: which of its kernels a problem takes.
enum class HopperSet { plain, bias, elastic, entmax, lengths, full, all };
HopperSet hopper_set(const Problem& p);
// Whether its bwd_dkv_dq leaves d_q itself, not sums of it for bwd_dq_cast: the last workgroup of a head does, or, as all
// workgroups run at once, those of a head together.
bool rounds_d_q(const Problem& p, int64_t cores);
bool rounds_together(const Problem& p, int64_t cores);
// Launch::ahead, without a bias and with one. tiles: of keys, beside: Launch::beside.
int64_t heads_ahead(const Problem& p, int64_t cores, int64_t tiles, int64_t beside);
int64_t entry_heads_ahead(const Problem& p, int64_t cores, int64_t tiles);
bool goes_on(const Problem& p, int64_t cores);  // Launch::goes_on
// Whether bwd_dkv_dq sums d_bias over the batch, in clusters of as many workgroups.
bool sums_in_clusters(const Problem& p);
// ... and, of so many tiles of keys, some in clusters of two that take the batch in passes.
bool sums_in_passes(const Problem& p, int64_t walks);

// Entries of d_dist_bias of a head that bwd_dkv_ddist takes on: each tile of keys leaves as many in the workspace.
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
  uint64_t delta_offset = 0;  // [B,Hq,Sq]; in front of it what is kept of far rows (far_row.h)
  uint64_t tau_rows_offset = 0,
           slope_rows_offset = 0;  // [B,Hq,Sq]: the rows' parts of d_tau, d_slope
  int64_t slope_parts() const;     // of a head: Sq, or those that bwd_dkv_dq leaves
  uint64_t bias_parts_offset = 0, dist_parts_offset = 0;  // [splits], each of the gradient's shape
  uint64_t bias_sums_offset = 0;  // bwd_dq's sums: of each workgroup rows and keys of whole tiles
  uint64_t ds_offset = 0;  // bwd_dkv leaves it for bwd_dq: [heads, keys, query rows], in kDsBlocks
  uint64_t
      o_parts_offset = 0,
      // [B,splits,Hq,Sq,part_pitch()]; [B,splits,Hq,Sq], in front of which lie as many roundings
      lse_parts_offset = 0;
  // cuda.sm90, elastic softmax: who has left parts of d_dist_bias (hopper_tiles.h).
  uint64_t sum_counts_offset = 0;
  // What bwd_dkv_dq adds to, and whose turn it is; zeroed together at each execute.
  uint64_t d_q_sums_offset = 0, turns_offset = 0, zeroed_size = 0;
  // cuda.sm90: of the sums, so many bytes, bwd_dot zeroes the first ones, and bwd_dkv_dq the others (Launch::ahead), for
  // which it has words, zeroed with the rest. 0: bwd_dot zeroes all. entries: those of each of so many equal parts of the sums.
  struct {
    uint64_t first = 0, sums = 0, words_offset = 0, entries = 1;
  } ahead;
  // cuda.sm90, among them: how many tiles of keys were fetched (Launch::goes_on).
  uint64_t next_offset = 0;
  // cuda.sm90, among them: who has added to the sums of a head, and who is done with it (hopper_tiles.h).
  uint64_t d_q_counts_offset = 0, head_counts_offset = 0;
  // cuda.sm90, d_bias summed over the batch: parts of d_k and d_v, and who has come, zeroed with those (hopper_tiles.h). fwd
  // with a dense bias: parts of o, and words that say who has come (fwd_tail.h).
  uint64_t tail_offset = 0, tail_counts_offset = 0, pass_sums_offset = 0;
  // cuda.sm90, entmax: bits of the tiles that hold support (hopper_tiles.h), unless every tile is visited.
  uint64_t support_offset = 0;
  // cuda.sm90: what runs at an execute whose inputs do not lie at multiples of 16 bytes; its workspace fits into this
  // one's. None: such an execute is refused.
  std::shared_ptr<const Plan> unaligned;
  Vec<Refusal> refusals;  // candidates that were looked at and not taken
  String name() const;
  Tile tile() const;  // of its tiled kernels, if possible one with matrices; br = bc = 0: none
  const Launch* find(Stem stem) const;  // nullptr: not in this plan
  // The bwd_sum of TANDEM_GRAD_BIAS or TANDEM_GRAD_DIST_BIAS.
  const Launch* find_sum(uint32_t gradient) const;
  bool sums_dist() const;  // some launch leaves d_dist_bias, or parts of it
  bool stores_d_bias() const;
  // Whether all kernels form the bits of a score by the same f32 operations: none multiplies
  // matrices.
  bool sums_scores_exactly() const;
  uint32_t unordered() const;  // TANDEM_GRAD_* that are summed in any order
  int wide_elements() const;   // of the loads and stores of its tiled kernels: 4, or 8
};

constexpr uint64_t kWorkspaceAlignment = 256;
// Workgroups of 128 invocations, which every device has. bwd_sum and bwd_head; bwd_dot: rows of a workgroup,
// invocations a row.
constexpr int kLineGroup = 128;
constexpr int kDotRows = 8, kDotLanes = 16;

// Bytes of ds in the workspace at most.
constexpr int64_t kDsBytes = int64_t(256) << 20;
constexpr const char* kDsWord = "shared_ds";  // of TANDEM_DISABLE

// fwd_join: its workgroups of 128, too, are lanes, of four features, times slices, of splits, times rows.
constexpr int kJoinGroup = 128;
struct JoinShape {
  int lanes = 1, slices = 1;
  JoinShape(uint32_t splits, int64_t head_dim_v);
  int rows() const { return kJoinGroup / (lanes * slices); }
};
// Floats of a row of o's parts: whole chunks of whatever kernel writes them.
constexpr int64_t part_pitch(int64_t head_dim_v) { return (head_dim_v + 7) / 8 * 8; }

// The plan's launches as they are dispatched, with those that take turns in pieces.
struct Piece {
  Launch launch;
  size_t stamp;  // which launch of the plan it ends, counted from 1; 0: none
};
Vec<Piece> pieces_of(const Plan& plan);

// The SPIR-V of a launch on a Vulkan path.
String module_name(const Plan& plan, const Launch& launch);

// UNSUPPORTED with every refusal in the message when no path is left; *plan then holds the refusals.
Status make_plan(const Problem& problem, const Caps& caps, Plan* plan);

// The text of tandem_explain().
String explain(const Problem& problem, const Caps& caps);

}  // namespace tandem
#endif
