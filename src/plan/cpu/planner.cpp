// SPDX-License-Identifier: MIT OR Apache-2.0
// The paths of the CPU.
#include "plan/planner.h"

#include "plan/tiles.h"
#include "sum_parts.h"

namespace tandem {
namespace {

// The tile sizes are those of the GPU paths, so that the CPU can be compared with them tile by
// tile. The CPU uses only the sizes of a row. The reference has no tiles, and accepts any of these
// sizes.
class CpuPlanner : public PathPlanner {
 public:
  using PathPlanner::PathPlanner;
  String refuse() const override { return ""; }
  bool choose(const Refuse& refuse) override {
    if (tile_) return false;
    for (const Tile& tile : kTiles)
      if (!tile_ && size_refusal(p, tile.br, tile.bc).empty()) tile_ = &tile;
    return tile_ || refuse(name(), text("has no tile %dx%d", p.tile_rows, p.tile_cols));
  }

 protected:
  Vec<Stem> stems() const override { return separate_stems(false, false); }
  void form(Launch*) const override {}
  uint32_t key_splits(const Launch&, const Extent&) const override { return 1; }
  const Tile* tile_ = nullptr;
};

class SimdPlanner final : public CpuPlanner {
 public:
  using CpuPlanner::CpuPlanner;

 protected:
  // bwd_dq stores d_bias, too, where it runs.
  Vec<Stem> stems() const override {
    return separate_stems(false, p.wants(TANDEM_GRAD_Q) && p.batch * p.seq_q > 0);
  }
  void form(Launch* launch) const override {
    if (launch->stem == Stem::bwd_dq) launch->stores_d_bias = p.wants(TANDEM_GRAD_BIAS);
    if (is_tiled(launch->stem))
      launch->tile = Tile{"", tile_->br, tile_->bc, 0, 0, 0, 0, kMaxHeadDim, TileOn::both};
  }
  void scratch(Plan* plan, ScratchExtents* x) const override {
    CpuPlanner::scratch(plan, x);
    const int64_t parts = sum_parts(p);
    if (parts > 1 && p.wants(TANDEM_GRAD_DIST_BIAS))
      x->dist_parts = {parts * gradient_elements(p, TANDEM_GRAD_DIST_BIAS)};
    if (parts > 1 && p.wants(TANDEM_GRAD_BIAS_TABLE))
      x->table_parts = {parts * gradient_elements(p, TANDEM_GRAD_BIAS_TABLE)};
  }
};

}  // namespace

std::unique_ptr<PathPlanner> make_cpu_simd(const PathRow& row, const Problem& p, const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new SimdPlanner(row, p, caps));
}
std::unique_ptr<PathPlanner> make_cpu_ref(const PathRow& row, const Problem& p, const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new CpuPlanner(row, p, caps));
}

}  // namespace tandem
