// SPDX-License-Identifier: MIT OR Apache-2.0
// A launch of a plan: what every path has, and a struct for each path.
#ifndef TANDEM_SRC_PLAN_LAUNCH_H
#define TANDEM_SRC_PLAN_LAUNCH_H
#include <cstdint>
#include <variant>

#include "kernels/registry.h"
#include "plan/coopmat/tile.h"
#include "plan/sm80/tiles.h"
#include "plan/tile.h"
#include "problem/problem.h"
#include "workgroups.h"

namespace tandem {

// vulkan.scalar, and launches of the matrix paths whose kernels multiply no matrices.
struct ScalarLaunch {
  // bwd_sum_splits: additional workgroups, behind its own, that do the work of bwd_head_sums.
  uint32_t joined_heads = 0;
};

// vulkan.coopmat and coopmat2. Launch::tile holds br and bc, and the subgroups and their
// invocations as tr and tc.
struct MatrixLaunch {
  struct PlainLoop {
    bool runs = false;              // else the other loop
    uint32_t k_row = 0, v_row = 0;  // strides of rows of k and v, in 8 elements
    bool keys_exist = false;        // no tile has keys that do not exist
  };
  MatrixDims matrix;              // shape of the matrices
  uint32_t subgroup = 0;          // invocations of a subgroup
  int row_blocks = 0;             // matrices of rows that a subgroup owns
  int left_shared = 0;            // left operands that stay in shared memory
  bool copies = false;            // of an accumulator's elements make a left operand
  bool register_prefetch = true;  // the next tile's rows wait in registers
  bool sums_d_bias = false;       // bwd_dq sums d_bias over the batch in the workspace
  int entries = 1;                // batch entries that a workgroup of bwd_dq takes at once
  PlainLoop plain_loop;           // fwd
  // A redo (redo.glsl) runs the module of fwd: fwd's row. -1: the launch is none.
  int redoes = -1;
  // With trait::ds the launches alternate, chunk by chunk of kv heads. kv_heads: kv heads of a
  // chunk (the last chunk may have fewer); heads: heads of this launch in a chunk. first_head: of a
  // piece, counted through the batch entries of the first kv head, then those of the next one.
  uint32_t chunks = 1;
  int kv_heads = 0, heads = 0, first_head = 0;
};

// cuda.simt, and launches of sm80 and sm90 that have kernels of simt.
struct SimtLaunch {
  // bwd_dot: workgroups of a head, and in all, of bwd_dot_fast, which runs where o and d_o lie at
  // multiples of 16 bytes. 0: it never runs.
  uint32_t fast_tiles = 0, fast_total = 0;
  bool tf32 = false;          // bwd_dot: d_o is rounded to TF32, as by the kernels behind it
  bool programmatic = false;  // fwd_combine: as Sm80Launch::programmatic
};

struct Sm80Launch {
  int row = 0;  // of kAmpereTiles; bwd_dq_cast: that of bwd_dkv_dq
  // Launched with programmatic dependent launch: it may start before the launch before it has
  // ended, and waits for that before it reads anything.
  bool programmatic = false;
  const AmpereTile& tile() const { return kAmpereTiles[row]; }
};

// How the tiles of keys of bwd_dkv_dq are cut into parts (plan/sm90/bwd_parts.h).
struct BwdParts {
  int most = 0;            // most parts of a tile; 0: the kernel that knows no parts
  int pairs = 0;           // longest part of a Q loop
  int64_t workgroups = 0;  // parts of all tiles
};

struct Sm90Launch {
  int row = 0;  // of the stem's table in plan/sm90/tiles.h; bwd_dq_cast and pack_bias: that of the
                // kernel that multiplies
  // Launched with programmatic dependent launch: it may start before the launch before it has ended
  // (fwd, pack_bias: any launch), and waits before it reads what that writes.
  bool programmatic = false;
  // fwd with a dense bias: stream-K units and tiles of a unit (fwd_stream_k.h); 0: no tile is
  // split. short_tiles: number of the last tiles of all heads, which have rows for some warpgroups
  // only. Short tiles come last.
  int stream_k_units = 0, stream_k_unit = 0, short_tiles = 0;
  // bwd_dkv_dq. Deterministic: heads whose tiles of keys are interleaved.
  uint32_t interleaved_heads = 0;
  // trait::heads_inside, where no tile of keys is shared: workgroups that run at a time; else 0.
  uint32_t wave = 0;
  // Number of leading kv heads, with a bias of each batch entry, whose dQ accumulator bwd_dot
  // zeroes. bwd_dkv_dq zeroes the rest. 0: bwd_dot zeroes all.
  uint32_t eager_zero_heads = 0;
  BwdParts parts;
  bool cooperative_postprocess = false;  // dQ postprocess by all workgroups of a head
  // d_bias in slices of the batch, whose number is Launch::splits: passes of a slice. 0: no slices.
  int passes = 0;
};

struct Launch {
  Stem stem = Stem::fwd;
  // Registry rows, set by the path's planner. other_kernel: of the kernel that runs instead where
  // the addresses of an execute require it (kernel_rows.h); -1: none does. second_kernel: launched
  // beside `kernel`; -1: none is.
  int kernel = -1, other_kernel = -1, second_kernel = -1;
  Tile tile{};                      // br = bc = 0 where a path has no tiles
  int d_blocks = 0, dv_blocks = 0;  // accumulator blocks that cover D, Dv
  // Workgroups that share a tile where heads are wider than the accumulators of one: each sums a
  // part of the features, for which all of them form the scores.
  uint32_t feature_parts = 1;
  uint32_t tiles = 0;                   // workgroups of one head that share none
  uint32_t total = 0;                   // workgroups with work: tiles x parts x heads x batch
  uint32_t groups_x = 0, groups_y = 0;  // dispatched; fewer than total for persistent kernels
  uint32_t shared_bytes = 0;
  bool waits = false;          // waits for the launches before it, as it reads what they wrote
  bool stores_d_bias = false;  // bwd_dq or bwd_dkv_dq stores d_bias; there is no bwd_dbias
  // By stem, members and splits are:
  //   fwd                       splits: workgroups that share the keys of a row
  //   fwd_combine               splits: partial outputs of a row
  //   bwd_sum_splits            splits: partial sums of an element
  //   bwd_dbias, bwd_dist_bias  members of a sum; splits: workgroups that share it
  //   bwd_dkv of coopmat2       the same
  //   bwd_dkv_dq                splits: slices of the batch, each with partial sums of d_bias
  //   bwd_dkv_dist              both: tiles of keys, each with a partial sum of d_dist_bias;
  //                             members is 0 where it forms no d_dist_bias
  int64_t members = 0;
  uint32_t splits = 1;
  uint32_t gradient = 0;  // bwd_sum_splits: TANDEM_GRAD_* whose parts it adds
  // Of the path whose kernel runs; none on the CPU.
  std::variant<std::monostate, ScalarLaunch, MatrixLaunch, SimtLaunch, Sm80Launch, Sm90Launch> path;

  // The struct of a path; nullptr: the launch is of another one.
  template <typename Path>
  const Path* as() const {
    return std::get_if<Path>(&path);
  }
  template <typename Path>
  Path* as() {
    return std::get_if<Path>(&path);
  }
  // The same, with its defaults in place of another path's.
  template <typename Path>
  const Path& of() const {
    static constexpr Path kNone{};
    const Path* own = as<Path>();
    return own ? *own : kNone;
  }
  // The row of the kernel; without one, a row that takes nothing and has no traits.
  const KernelRow& row() const { return kernel < 0 ? kNoKernel : kKernels[kernel]; }
  bool has(uint32_t traits) const { return row().has(traits); }
  bool joins() const { return has(trait::joined); }
  int invocations() const;  // of a workgroup
  bool multiplies_matrices() const;
  int wide_elements() const;  // elements of a wide load or store
  // What tables and logs name beside the stem: the tile, if any, or that rows are recomputed.
  const char* tile_word() const { return has(trait::redo) ? "redo" : tile.name; }
  bool rounds_to_tf32() const { return of<SimtLaunch>().tf32 || has(trait::tf32); }
};

// bwd_dq of a matrix path: floats of its sums of d_bias over the batch.
int64_t d_bias_sums(const Problem& p, const Launch& launch);

}  // namespace tandem
#endif
