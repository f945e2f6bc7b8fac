// SPDX-License-Identifier: MIT OR Apache-2.0
// The path cuda.simt, and what the paths of CUDA share.
#include "plan/planner.h"

#include <algorithm>

#include "kernels/kernel_rows.h"
#include "plan/dot_tiles.h"
#include "plan/simt/outer_tiles.h"
#include "plan/thrift.h"

namespace tandem {
namespace {

// Whether o and d_o have the layout that bwd_dot_fast reads (cuda/simt/bwd_dot.h), addresses aside.
bool has_fast_dot(const Problem& p) {
  const auto wide = [&](const Strides& s) {
    return s.d == 1 && (p.batch == 1 || s.b % 8 == 0) && (p.heads_q == 1 || s.h % 8 == 0) &&
           (p.seq_q == 1 || s.s % 8 == 0);
  };
  return p.dtype != TANDEM_F32 && (p.inputs() & kHasLengths) == 0 && p.head_dim_v % 8 == 0 &&
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
  if (launch->stem == Stem::bwd_dot && has_fast_dot(p) &&
      !is_off(kernel(Stem::bwd_dot, trait::zeroes | trait::fast))) {
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

// bwd_dot zeroes what a later kernel adds to, if there is anything, and so does the fast one. Tiled
// kernels of simt have wide loads, unless strides forbid them.
void CudaPlanner::finish(Plan* plan) const {
  for (Launch& l : plan->launches) {
    const SimtLaunch* own = l.as<SimtLaunch>();
    if (!own || l.joins()) continue;
    if (l.stem == Stem::bwd_dot && l.total > 0 && (plan->zeroed_size > 0 || own->fast_total > 0))
      l.kernel = kernel(l.stem, trait::zeroes | (own->tf32 ? trait::tf32 : trait::none));
    if (own->fast_total > 0) {
      l.other_kernel = l.kernel;
      l.kernel = kernel(l.stem, trait::zeroes | trait::fast);
    }
    if (!is_tiled(l.stem)) continue;
    const int narrow = kernel(l.stem, l.row().traits | trait::narrow);
    (takes_wide(*plan, l, Addresses{}) && !is_off(l.kernel) ? l.other_kernel : l.kernel) = narrow;
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
    if (!chosen_) {
      chosen_ = true;
      choose_fixed(refuse);
      if (may_be_outer()) {
        const String why = outer_refusal();
        if (why.empty()) return outer_ = true;
        refuse(name() + " " + kOuterFwd.name, why);
      }
    }
    outer_ = false;
    tile_ = next_tile(refuse);
    return tile_ != nullptr;
  }
  String chosen() const override { return name() + " " + (outer_ ? kOuterFwd.name : tile_->name); }

 protected:
  Vec<Stem> stems() const override {
    return with_origin(separate_stems(set_ == trait::fixed, false));
  }
  void form(Launch* launch) const override {
    CudaPlanner::form(launch);
    if (!is_tiled(launch->stem)) return;
    if (outer_) return form_outer(launch);
    form_plain(*tile_, launch);
    const bool fused = launch->stem == Stem::bwd_row_sums_dq || launch->stem == Stem::bwd_dkv_dist;
    if (fused || launch->stem == Stem::fwd) launch->kernel = kernel(launch->stem, set_);
    if (fused)
      launch->shared_bytes += uint32_t(16 * tile_ptile_vec4(launch->tile));  // a second tile of P
  }
  uint32_t key_splits(const Launch& launch, const Extent& extent) const override {
    return outer_ ? 1 : GpuPlanner::key_splits(launch, extent);
  }

 private:
  // Whether the kernels of trait::outer could serve a problem of this kind.
  bool may_be_outer() const {
    return p.dtype == TANDEM_F32 && p.inputs() == 0 && p.splits <= 1 &&
           std::max(p.head_dim, p.head_dim_v) <= kOuterWidth && (!p.backward || p.delta_is_dot());
  }
  String outer_refusal() const {
    if (is_disabled(caps, kOuterFwd.name)) return kDisabled;
    // The backward goes by the size of the forward.
    const String forced = size_refusal(p, kOuterFwd.br, kOuterFwd.bc);
    if (!forced.empty()) return forced;
    if (caps.compute_major < 8)
      return text("compute capability %d.%d has no copies that bypass the registers",
                  caps.compute_major, caps.compute_minor);
    const uint32_t shared = outer_bytes(p.backward ? Stem::bwd_dq : Stem::fwd);
    if (shared > caps.shared_bytes)
      return text("needs %u bytes of shared memory, the device has %u", shared, caps.shared_bytes);
    // Two workgroups an SM at least, as one has a warp for each scheduler.
    int64_t groups = ceil_div(p.seq_q, kOuterRows) * p.heads_q;
    if (p.backward) groups = std::min(groups, ceil_div(p.seq_kv, kOuterRows) * p.heads_kv);
    if (!p.batch_invariant) groups *= p.batch;
    if (p.tile_rows == 0 && groups < 2 * cores_of(caps))
      return text("%lld workgroups of %d rows are fewer than two for each of %d SMs",
                  (long long)groups, kOuterRows, int(cores_of(caps)));
    return "";
  }
  static uint32_t outer_bytes(Stem stem) {
    return uint32_t(sizeof(float)) * (stem == Stem::fwd ? kOuterFwdFloats : kOuterBwdFloats);
  }
  void form_outer(Launch* launch) const {
    launch->tile = launch->stem == Stem::fwd       ? kOuterFwd
                   : launch->stem == Stem::bwd_dkv ? kOuterDkv
                                                   : kOuterDq;
    launch->d_blocks = launch->tile.blocks(p.head_dim);
    launch->dv_blocks = launch->tile.blocks(p.head_dim_v);
    launch->shared_bytes = outer_bytes(launch->stem);
    launch->kernel = kernel(launch->stem, trait::outer);
  }
  // Whether the kernels that are compiled for a set of inputs take the problem.
  void choose_fixed(const Refuse& refuse) {
    for (const KernelRow& fwd : kKernels) {
      if (!is_fixed_set(fwd) || (fwd.needs & ~p.inputs()) != 0) continue;
      const String who = fixed_set_name(fwd), more = p.extras(fwd.inputs);
      if (is_disabled(caps, who))
        refuse(who, kDisabled);
      else if (std::max(p.head_dim, p.head_dim_v) > kWholeFeatures)
        refuse(who, text("its kernels sum whole heads, up to %d", int(kWholeFeatures)));
      else if (p.backward && fuses_dist(p) && saves(p, Saving::partial_sums))
        refuse(who, "it leaves parts of d_dist_bias, which the limit of the workspace is without");
      else if (!more.empty())
        refuse(who, "this problem has " + more + ", which its kernels do without");
      else
        set_ = trait::fixed;
    }
  }
  bool chosen_ = false;  // something
  bool outer_ = false;   // of kernels of trait::outer
  const Tile* tile_ = nullptr;
  uint32_t set_ =
      trait::none;  // trait::fixed: of the kernels that are compiled for a set of inputs
};

}  // namespace

std::unique_ptr<PathPlanner> make_cuda_simt(const PathRow& row, const Problem& p,
                                            const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new SimtPlanner(row, p, caps));
}

}  // namespace tandem
