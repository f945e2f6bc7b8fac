// SPDX-License-Identifier: MIT OR Apache-2.0
// The planner of the path cuda.sm90. planner.cpp has what it takes and chooses, launches.cpp how
// its launches run.
#ifndef TANDEM_SRC_PLAN_SM90_PATH_PLANNER_H
#define TANDEM_SRC_PLAN_SM90_PATH_PLANNER_H
#include "plan/planner.h"
#include "tiles.h"

namespace tandem {

// The tile of fwd that a problem gets by a row of kFwdTiles: with as many warpgroups as its variant
// has.
FwdTile sm90_fwd_tile(const Problem& p, int row);

class Sm90Planner final : public CudaPlanner {
 public:
  using CudaPlanner::CudaPlanner;
  String refuse() const override;
  bool choose(const Refuse& refuse) override;
  String unfit() const override;
  void scratch(Plan* plan, ScratchExtents* extents) const override;

 protected:
  Vec<Stem> stems() const override;
  void form(Launch* launch) const override;
  Extent extent(const Launch& launch) const override;
  uint32_t key_splits(const Launch& launch, const Extent& extent) const override;
  void complete(Launch* launch, const Extent& extent) const override;
  void arrange(Vec<Launch>* launches) const override;

 private:
  String cannot() const;
  Vec<Stem> stems_but_pack() const;
  void complete_fwd(Launch* launch, Sm90Launch* own) const;
  void complete_dkv_dq(Launch* launch, Sm90Launch* own, int64_t tiles) const;
  void add_unaligned(const Plan& plan, Sm90Plan* own, ScratchExtents* extents) const;

  int row_ = -1;  // of kFwdTiles or kBwdShapes
  BwdParts parts_;
};

}  // namespace tandem
#endif
