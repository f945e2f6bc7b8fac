// SPDX-License-Identifier: MIT OR Apache-2.0
// What the files of the planner share. A path is an object with four answers: refuse, choose,
// launches, scratch. plan.cpp asks them of one path after another. launches.cpp makes launches
// of a path's choice, workspace.cpp lays out the arrays of the workspace. <path>/planner.cpp has
// the answers of a path, and <path>/heuristics.h what it decides by measured times.
#ifndef TANDEM_SRC_PLAN_PLANNER_H
#define TANDEM_SRC_PLAN_PLANNER_H

#include <memory>

#include "plan.h"

namespace tandem {

// Records a refused candidate and the reason. It always returns false, so that callers can return
// it.
using Refuse = Function<bool(const String& who, const String& why)>;

constexpr const char* kDisabled = "disabled by TANDEM_DISABLE or the device's options";
bool is_disabled(const Caps& caps, const String& name);

constexpr int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

// Why a tile of br query rows and bc keys is not the one that the problem forces; "" if it is, or
// if the problem forces none.
String size_refusal(const Problem& p, int br, int bc);

struct Extent {  // workgroups of a launch
  int64_t tiles, heads, batch;
  int64_t members = 0;  // members of a sum that may be split
};

// One path, for a problem and a device, which outlive it.
class PathPlanner : public HostObject {
 public:
  PathPlanner(const PathRow& path, const Problem& problem, const Caps& device)
      : row(path), p(problem), caps(device) {}
  virtual ~PathPlanner() = default;
  String name() const;  // "vulkan.scalar"

  // Why the path does not take the problem on this device, whatever the tiles; "" if it may.
  virtual String refuse() const = 0;
  // Takes the next choice of tiles, in order of preference; false: there is none left. Records what
  // it refuses.
  virtual bool choose(const Refuse& refuse) = 0;
  // Batch-invariant, whose choice is that of another problem (Problem::invariant_form()): why the
  // choice cannot serve the problem itself; "" if it can.
  virtual String unfit() const { return ""; }
  // Name of the choice as a candidate.
  virtual String chosen() const { return name(); }
  // Makes the launches of the choice. Returns why it cannot, "" if it can. A launch whose output is
  // empty is left out.
  String launches(Vec<Launch>* launches) const;
  // Sets the extents of the path's arrays in the workspace of a plan whose launches are made, and
  // what else the plan holds of the path.
  virtual void scratch(Plan* plan, ScratchExtents* extents) const;
  // Sets rows of launches that depend on the workspace, once it is laid out.
  virtual void finish(Plan*) const {}

 protected:
  // The operations of the problem, in order.
  virtual Vec<Stem> stems() const = 0;
  // Row of a stem's kernel with these traits for the problem (find_kernel()).
  int kernel(Stem stem, uint32_t traits = trait::none) const {
    return find_kernel(row.id, stem, traits, p.dtype, p.inputs());
  }
  bool is_off(int kernel) const {
    return !caps.disabled.empty() && is_disabled(caps, kernel_name(kKernels[kernel]));
  }
  // An earlier launch does the work of this one.
  void join(Launch* launch) const { launch->kernel = kernel(launch->stem, trait::joined); }

  // Sets the tile of a launch, what follows from it, and the path's struct; and its row, if it has
  // traits.
  virtual void form(Launch* launch) const = 0;
  virtual Extent extent(const Launch& launch) const;
  // How many workgroups share the keys of a row of fwd, which has this extent.
  virtual uint32_t key_splits(const Launch& launch, const Extent& extent) const = 0;
  // How many workgroups share the members of a sum.
  virtual uint32_t sum_splits(const Launch& launch, const Extent& extent) const;
  // Sets what depends on the number of workgroups.
  virtual void complete(Launch*, const Extent&) const {}
  // Rearranges the launches before those that sum parts are added, and all of them at the end.
  virtual String share(Vec<Launch>*) const { return ""; }
  virtual void arrange(Vec<Launch>*) const {}

  // The operations of a backward in which each gradient has a kernel of its own. fuses:
  // bwd_row_sums_dq and bwd_dkv_dist take the place of two each. forms_d_bias: some other kernel
  // forms d_bias.
  Vec<Stem> separate_stems(bool fuses, bool forms_d_bias) const;
  // Numbers a launch's workgroups; returns why it cannot, "" if it can.
  String set_groups(Launch* launch, double total) const;

  const PathRow& row;
  const Problem& p;
  const Caps& caps;

 private:
  String make_launch(Stem stem, Vec<Launch>* launches) const;
  Vec<uint32_t> gradients_in_parts(const Launch& parts) const;
  String add_reduce_table(Vec<Launch>* launches) const;
  String add_sum(const Launch& parts, uint32_t gradient, bool waits, Vec<Launch>* launches) const;
};

// Paths of a GPU.
class GpuPlanner : public PathPlanner {
 public:
  using PathPlanner::PathPlanner;

 protected:
  virtual TileOn tiles() const = 0;  // which tiles of tiles.inc are the backend's
  // Bytes of shared memory that a tiled kernel needs besides its tile.
  virtual uint32_t skip_shared_bytes(Stem stem) const = 0;
  uint32_t key_splits(const Launch& launch, const Extent& extent) const override;
  // Workgroups of a launch that the device has room for at a time, if that bounds the splits.
  virtual int64_t workgroups_at_once(const Launch&) const { return INT64_MAX; }
  // Why no path of a GPU has the problem's splits, or as many optional inputs; "" if all do.
  String splits_refusal() const;
  String addresses_refusal() const;
  // The operations with bwd_origin, where kernels read lse.
  Vec<Stem> with_origin(Vec<Stem> stems) const;
  // Why a row of tiles.inc is not taken for a problem; "" if it is.
  String tile_refusal(const Problem& problem, const Tile& tile) const;
  // The tile for kernels without matrices on a path that has matrices. A tile size that the problem
  // forces does not apply to it. nullptr: the device has room for no tile.
  const Tile* plain_tile() const;
  void form_plain(const Tile& tile, Launch* launch) const;
  // The choice of a path without matrices: the next tile that fits; nullptr: none is left.
  const Tile* next_tile(const Refuse& refuse);

 private:
  static constexpr int kTileRanks = 3;
  // Tiles of rank 0 are tried first, those of one rank in the order of kTiles.
  virtual int rank(const Tile&) const { return 0; }
  int tried_ = -1;  // rank and row of kTiles
};

// plan/scalar/planner.cpp
// Why no path of Vulkan runs on a device; "" if one may.
String missing_capability(const Caps& caps);

class VulkanPlanner : public GpuPlanner {
 public:
  using GpuPlanner::GpuPlanner;

 protected:
  TileOn tiles() const override { return TileOn::vulkan; }
  uint32_t skip_shared_bytes(Stem stem) const override;
  void form(Launch* launch) const override;
  void arrange(Vec<Launch>* launches) const override;

 private:
  int rank(const Tile& tile) const override;
};

// plan/simt/planner.cpp
class CudaPlanner : public GpuPlanner {
 public:
  using GpuPlanner::GpuPlanner;

 protected:
  TileOn tiles() const override { return TileOn::cuda; }
  uint32_t skip_shared_bytes(Stem stem) const override;
  void form(Launch* launch) const override;
  void complete(Launch* launch, const Extent& extent) const override;
  void finish(Plan* plan) const override;
};

using MakePlanner = std::unique_ptr<PathPlanner> (*)(const PathRow&, const Problem&, const Caps&);
#define TANDEM_PATH(backend, name, what)                                                     \
  std::unique_ptr<PathPlanner> make_##backend##_##name(const PathRow& row, const Problem& p, \
                                                       const Caps& caps);
#include "kernels/paths.inc"

// The shape of matrices that a matrix path of Vulkan takes for a problem; m = 0: the device has
// none that fits.
MatrixDims matrix_shape(const Problem& p, const Caps& caps, bool coopmat2);
// The subgroup size that pipelines with matrices request, but for tiles that have their own.
uint32_t matrix_subgroup(const Caps& caps);
// Whether vulkan.coopmat would take copies of elements (MatrixShape::copies) if the device had
// them: with a shape of the path, on a device where vulkan.coopmat2 does not serve.
bool may_copy(const Caps& caps, const MatrixShape& shape);

// The one operation of a merge, or of its backward.
Stem merge_stem(const Problem& p);

// The launch of an operation; nullptr: there is none.
Launch* find_launch(Vec<Launch>* launches, Stem stem);

// Whether bwd_dkv_dist sums d_dist_bias as well. Without pairs it would not run, and would not
// store zeros.
bool fuses_dist(const Problem& p);

// Lays out the arrays of the workspace.
void lay_out_workspace(const ScratchExtents& extents, Plan* plan);

}  // namespace tandem
#endif
