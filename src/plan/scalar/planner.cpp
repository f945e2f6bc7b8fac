// SPDX-License-Identifier: MIT OR Apache-2.0
// The path vulkan.scalar, and what the paths of Vulkan share.
#include "plan/planner.h"

#include <algorithm>

#include "kernels/params.h"
#include "plan/heuristics.h"
#include "plan/quirks.h"

namespace tandem {

String missing_capability(const Caps& caps) {
  if (!caps.buffer_address) return "the device lacks bufferDeviceAddress";
  if (!caps.inline_uniform) return "the device lacks inline uniform blocks";
  if (caps.push_bytes < 128)
    return text("the device has %u bytes of push constants, 128 are needed", caps.push_bytes);
  if (caps.inline_uniform_bytes != 0 && caps.inline_uniform_bytes < kMostUniformBytes)
    return text("the device has %u bytes of inline uniform blocks a pipeline, %u are needed",
                caps.inline_uniform_bytes, kMostUniformBytes);
  if (caps.no_device_scope)
    return "the kernels' atomics have device scope, and vulkanMemoryModel is enabled without "
           "vulkanMemoryModelDeviceScope";
  return "";
}

// If tiles may be skipped, the votes, and for the search of entmax the live tiles
// (shaders/parts/mask.glsl, shaders/parts/entmax.glsl).
uint32_t VulkanPlanner::skip_shared_bytes(Stem stem) const {
  const bool entmax = p.normalizer == Normalizer::entmax, skip = !p.visit_all;
  const uint32_t votes = (p.keep && skip) || entmax ? 4 : 1, live = entmax && skip ? 64 : 1;
  return 4 * (votes + (stem == Stem::fwd ? 2 * live : 0));
}

// Tiles of pairs (tiles.inc) come first where the device is better off with them, else last. Of few
// workgroups each has a core for itself, which more invocations use better. Measured on an H100:
// with a workgroup for every other core t128r8 took 0.85 of the time of t64k32, and t64r8k8 with
// one for each core 0.88 in backward, but 1.19 in forward.
int VulkanPlanner::rank(const Tile& tile) const {
  if (!tile.pairs) return 1;
  if (!find_quirk(caps, QuirkAction::pairs)) return 2;
  int64_t groups = ceil_div(p.seq_q, tile.br) * p.heads_q;
  if (p.backward) groups = std::min(groups, ceil_div(p.seq_kv, tile.bc) * p.heads_kv);
  const bool twice = !p.backward && tile.use == TileUse::plain;
  return 2 * groups * p.batch < (twice ? 4 : 1) * cores_of(caps) ? 2 : 0;
}

void VulkanPlanner::form(Launch* launch) const {
  launch->path = ScalarLaunch();
  if (launch->stem == Stem::bwd_sum_splits)  // for bwd_head_sums, whose work it may do
    launch->shared_bytes = sizeof(float) * kLineGroup;
}

// A dispatch takes the host about a microsecond, and a barrier almost as long. So the last
// bwd_sum_splits does the work of bwd_head_sums, which then comes behind it. If dS is shared,
// bwd_dist_bias comes before the barrier between bwd_dkv and bwd_dq, so that bwd_sum_splits needs
// no barrier of its own.
void VulkanPlanner::arrange(Vec<Launch>* launches) const {
  const auto find = [&](Stem stem) {
    return std::find_if(launches->begin(), launches->end(),
                        [&](const Launch& l) { return l.stem == stem; });
  };
  const auto dist = find(Stem::bwd_dist_bias);
  const auto dkv = find(Stem::bwd_dkv);
  const bool early = dist != launches->end() && dkv < dist && dkv->has(trait::ds);
  if (early) {
    dkv->waits = dkv->of<MatrixLaunch>().chunks > 1;
    dist->waits = true;
    std::rotate(dkv, dist, dist + 1);
  }
  if (launches->empty() || launches->back().stem != Stem::bwd_sum_splits) return;
  if (early && find(Stem::bwd_sum_splits)->gradient == TANDEM_GRAD_DIST_BIAS)
    find(Stem::bwd_sum_splits)->waits = false;
  const auto head = find(Stem::bwd_head_sums);
  if (head == launches->end()) return;
  std::rotate(head, head + 1, launches->end());
  Launch& last = launches->back();
  Launch& sum = *(launches->end() - 2);
  const uint64_t total = uint64_t(sum.total) + last.total;
  if (total > caps.max_groups_x) return;
  join(&last);
  sum.as<ScalarLaunch>()->joined_heads = last.total;
  sum.groups_x = uint32_t(total);
}

namespace {

class ScalarPlanner final : public VulkanPlanner {
 public:
  using VulkanPlanner::VulkanPlanner;
  String refuse() const override {
    for (const String& why : {missing_capability(caps), splits_refusal(), addresses_refusal()})
      if (!why.empty()) return why;
    return "";
  }
  bool choose(const Refuse& refuse) override {
    tile_ = next_tile(refuse);
    return tile_ != nullptr;
  }
  String chosen() const override { return name() + " " + tile_->name; }

 protected:
  Vec<Stem> stems() const override { return with_origin(separate_stems(false, false)); }
  void form(Launch* launch) const override {
    VulkanPlanner::form(launch);
    if (is_tiled(launch->stem)) form_plain(*tile_, launch);
  }

 private:
  const Tile* tile_ = nullptr;
};

}  // namespace

std::unique_ptr<PathPlanner> make_vulkan_scalar(const PathRow& row, const Problem& p,
                                                const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new ScalarPlanner(row, p, caps));
}

}  // namespace tandem
