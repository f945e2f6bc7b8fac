// SPDX-License-Identifier: MIT OR Apache-2.0
// The paths of the CPU.
#include "plan/planner.h"

#include "plan/tiles.h"

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
  String refuse() const override {
    constexpr uint32_t takes = kKernels[int(KernelId::cpu_simd_fwd_only)].inputs;
    if ((p.inputs() & ~takes) != 0 || p.table)
      return "it knows softmax with a bias, masks, lengths, softcap, ALiBi and sinks, this problem "
             "has " +
             p.extras();
    if (p.blocks) return "it reads no block lists";
    if (p.wants(TANDEM_GRAD_SLOPE)) return "it forms no d_slope";
    return "";
  }

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
};

}  // namespace

std::unique_ptr<PathPlanner> make_cpu_simd(const PathRow& row, const Problem& p, const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new SimdPlanner(row, p, caps));
}
std::unique_ptr<PathPlanner> make_cpu_ref(const PathRow& row, const Problem& p, const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new CpuPlanner(row, p, caps));
}

}  // namespace tandem
