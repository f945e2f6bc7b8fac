// SPDX-License-Identifier: MIT OR Apache-2.0
// The path cuda.simt, and what the paths of CUDA share.
#include "plan/planner.h"

#include <algorithm>

#include "plan/dot_tiles.h"

namespace tandem {
namespace {

// Whether o and d_o have the layout that bwd_dot_fast reads (cuda/simt/bwd_dot.h), addresses aside.
bool has_fast_dot(const Problem& p) {
  const auto wide = [&](const Strides& s) {
    return s.d == 1 && (p.batch == 1 || s.b % 8 == 0) && (p.heads_q == 1 || s.h % 8 == 0) &&
           (p.seq_q == 1 || s.s % 8 == 0);
  };
  return p.dtype != TANDEM_F32 && !p.has_lengths() && p.head_dim_v % 8 == 0 &&
         p.head_dim_v <= 256 && wide(p.o) && wide(p.d_o);
}

}  // namespace

// CUDA votes without shared memory.
uint32_t CudaPlanner::skip_shared_bytes(Stem stem) const {
  const bool entmax = p.normalizer == Normalizer::entmax;
  return entmax && !p.visit_all && stem == Stem::fwd ? kLiveBytes : 0;
}

void CudaPlanner::form(Launch* launch) const { launch->path = SimtLaunch(); }

void CudaPlanner::complete(Launch* launch, const Extent& e) const {
  if (launch->stem == Stem::bwd_dot && has_fast_dot(p)) {
    SimtLaunch& dot = *launch->as<SimtLaunch>();
    dot.fast_tiles = uint32_t(ceil_div(p.seq_q, bwd_dot_rows(int(p.head_dim_v))));
    dot.fast_total = uint32_t(dot.fast_tiles * e.heads * e.batch);
  }
  // Persistent workgroups. bwd_origin checks many rows, and few of them are far.
  if (launch->stem == Stem::bwd_origin) {
    launch->groups_x = uint32_t(std::min<int64_t>(launch->total, 4 * cores_of(caps)));
    launch->groups_y = 1;
  }
}

namespace {

class SimtPlanner final : public CudaPlanner {
 public:
  using CudaPlanner::CudaPlanner;
  String refuse() const override {
    if (caps.compute_major < 7)
      return text("compute capability %d.%d is below 7.0", caps.compute_major, caps.compute_minor);
    for (const String& why : {splits_refusal(), addresses_refusal()})
      if (!why.empty()) return why;
    return "";
  }
  bool choose(const Refuse& refuse) override {
    if (!tile_) choose_fixed(refuse);
    tile_ = next_tile(refuse);
    return tile_ != nullptr;
  }
  String chosen() const override { return name() + " " + tile_->name; }

 protected:
  Vec<Stem> stems() const override { return with_origin(separate_stems(fixed_ >= 0, false)); }
  void form(Launch* launch) const override {
    CudaPlanner::form(launch);
    if (!is_tiled(launch->stem)) return;
    form_plain(*tile_, launch);
    const bool fused = launch->stem == Stem::bwd_row_sums_dq || launch->stem == Stem::bwd_dkv_dist;
    if (fused || launch->stem == Stem::fwd) launch->as<SimtLaunch>()->fixed = fixed_;
    if (fused)
      launch->shared_bytes += uint32_t(16 * tile_ptile_vec4(launch->tile));  // a second tile of P
  }

 private:
  void choose_fixed(const Refuse& refuse) {
    for (const FixedRow& f : kFixed) {
      if (p.normalizer != f.normalizer) continue;
      const String more = p.extras(f.may);
      if (is_disabled(caps, f.candidate()))
        refuse(f.candidate(), kDisabled);
      else if (!more.empty())
        refuse(f.candidate(), "this problem has " + more + ", which its kernels do without");
      else
        fixed_ = int(&f - kFixed);
    }
  }
  const Tile* tile_ = nullptr;
  int fixed_ = -1;  // row of kFixed
};

}  // namespace

std::unique_ptr<PathPlanner> make_cuda_simt(const PathRow& row, const Problem& p,
                                            const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new SimtPlanner(row, p, caps));
}

}  // namespace tandem
