// SPDX-License-Identifier: MIT OR Apache-2.0
// The path cuda.sm80: which problems it takes, and which tiles (tiles.inc) its kernels get.
// A stem without a row there has the kernel of cuda.simt.
#include "plan/planner.h"

#include <algorithm>

#include "heuristics.h"
#include "plan/thrift.h"

namespace tandem {
namespace {

// Whether a tile is one of a kernel (sm80_kernel()).
bool is_for(const AmpereTile& t, int kernel, const Problem& p) {
  return kernel >= 0 && t.stem == kKernels[kernel].stem && t.table == kKernels[kernel].tiles &&
         t.bytes == p.element_size();
}

// Bytes of shared memory of a kernel of whole heads. A bias of the whole batch is f32 there; one
// that each pair has for itself has stages.
uint32_t whole_shared_bytes(const Problem& p, const AmpereTile& t) {
  int bytes = ampere_shared_bytes(t);
  if (p.bias)
    bytes += t.br * (sm80_slices_batch(p)
                         ? 4 * t.bc
                         : t.stages * whole_bias_pitch(t.bc, p.bias.dtype == TANDEM_F32 ? 4 : 2));
  return uint32_t(bytes);
}

// Why a row is not taken on a device, with the shared memory that its kernel needs; "" if it is.
String row_refusal(const Problem& p, const Caps& caps, const AmpereTile& t, uint32_t shared) {
  const int64_t wider = std::max(p.head_dim, p.head_dim_v);
  if (is_disabled(caps, t.name)) return kDisabled;
  const String forced = size_refusal(p, t.br, t.bc);
  if (!forced.empty()) return forced;
  if (t.width < wider) return text("head size %lld is beyond its %d", (long long)wider, t.width);
  if (t.table == TileTable::ampere_whole_heads && !sm80_holds_whole(p, caps, t))
    return text("%lld heads of %lld x %lld are too large, or too few",
                (long long)(p.batch * p.heads_q), (long long)p.seq_q, (long long)p.seq_kv);
  if (shared > caps.shared_bytes)
    return text("needs %u bytes of shared memory, the device has %u", shared, caps.shared_bytes);
  if (uint32_t(t.threads()) > caps.max_invocations)
    return text("needs workgroups of %d, the device has %u", t.threads(), caps.max_invocations);
  return "";
}

// Whether a kernel has a tile for a problem and a device.
bool has_tile(int kernel, const Problem& p, const Caps& caps) {
  for (const AmpereTile& t : kAmpereTiles)
    if (is_for(t, kernel, p) && row_refusal(p, caps, t, uint32_t(ampere_shared_bytes(t))).empty())
      return true;
  return false;
}

// The first kernel of a stem on tensor cores that takes a problem; -1: there is none. whole: of
// those that hold whole heads. What the kernel of few rows with lengths has no tile for is left to
// the kernel of all inputs, which has wider and larger ones.
int sm80_kernel(Stem stem, const Problem& p, const Caps& caps, bool whole = false) {
  for (int n = 0; n < kKernelCount; ++n) {
    const KernelRow& row = kKernels[n];
    if (row.path_id == PathId::cuda_sm80 && row.stem == stem && is_ampere(row.tiles) &&
        (row.tiles == TileTable::ampere_whole_heads) == whole &&
        (row.traits & ~(trait::mma | trait::over_256 | (p.tf32 ? trait::tf32 : trait::none))) ==
            0 &&
        (!row.has(trait::over_256) || std::max(p.head_dim, p.head_dim_v) > kWholeFeatures) &&
        has_dtype(row.dtypes, p.dtype) && row.takes(p.inputs()) &&
        (row.tiles != TileTable::ampere_lengths ||
         (sm80_takes_few_lengths(p, caps) && has_tile(n, p, caps))))
      return n;
  }
  return -1;
}

int widest_tile(Stem stem, const Problem& p, const Caps& caps) {
  const int kernel = sm80_kernel(stem, p, caps);
  int widest = 0;
  for (const AmpereTile& t : kAmpereTiles)
    if (is_for(t, kernel, p)) widest = std::max(widest, t.width);
  return widest;
}

class Sm80Planner final : public CudaPlanner {
 public:
  using CudaPlanner::CudaPlanner;
  String refuse() const override;
  bool choose(const Refuse& refuse) override;
  void scratch(Plan* plan, ScratchExtents* extents) const override;

 protected:
  Vec<Stem> stems() const override;
  void form(Launch* launch) const override;
  uint32_t sum_splits(const Launch& launch, const Extent& extent) const override;
  Extent extent(const Launch& launch) const override;
  int64_t workgroups_at_once(const Launch& launch) const override {
    return sm80_workgroups_at_once(caps.shared_bytes, launch.shared_bytes, cores_of(caps),
                                   launch.of<Sm80Launch>().tile());
  }
  void complete(Launch* launch, const Extent& extent) const override;
  void arrange(Vec<Launch>* launches) const override;

 private:
  uint32_t key_splits(const Launch& launch, const Extent& extent) const override {
    if (choice_ == Choice::whole || p.batch_invariant) return 1;
    const uint32_t splits = CudaPlanner::key_splits(launch, extent);
    if (p.splits > 0) return splits;
    const int64_t groups = std::max<int64_t>(extent.tiles * extent.heads * extent.batch, 1);
    const Sm80Launch* own = launch.as<Sm80Launch>();
    if (own && sm80_reads_whole_keys(own->tile(), groups, cores_of(caps))) return 1;
    return sm80_splits_of_keys(caps, splits, groups, cores_of(caps));
  }
  bool can_fuse() const;
  bool is_alone() const;
  bool stores_ds() const;
  uint32_t shared_bytes(const AmpereTile& tile) const;
  bool choose_tiles(const Refuse& refuse);

  // whole: of whole heads; fused: with bwd_dkv_dq.
  enum class Choice { none, whole, fused, separate, end } choice_ = Choice::none;
  Vec<int> rows_;                // of kAmpereTiles, by stem; -1: a kernel of simt
  const Tile* plain_ = nullptr;  // for those
};

String Sm80Planner::refuse() const {
  if (caps.compute_major < 8)
    return text("compute capability %d.%d is below 8.0", caps.compute_major, caps.compute_minor);
  if (!caps.sm80_code) return "this build holds no code of this path for the device";
  const String splits = splits_refusal();
  if (!splits.empty()) return splits;
  if (p.dtype == TANDEM_F32 && !sm80_is_simple_bias(p))
    return "of f32 problems it takes those with a bias, keep, lengths or a sink, this one has " +
           p.extras(kSimpleInputs);
  if (p.dtype == TANDEM_F32 && (p.is_grouped(p.bias) || p.is_grouped(p.keep)))
    return text(
        "of f32 problems it takes a bias or mask of the whole batch or of each entry, this "
        "%s has %lld",
        p.is_grouped(p.bias) ? "bias" : "mask",
        (long long)(p.is_grouped(p.bias) ? p.bias : p.keep).batch);
  const int64_t wider = std::max(p.head_dim, p.head_dim_v);
  const int widest = widest_tile(p.backward ? Stem::bwd_dq : Stem::fwd, p, caps);
  if (wider > widest)
    return text("with these inputs, head size %lld is beyond its %d", (long long)wider, widest);
  return addresses_refusal();
}

// Whether bwd_dkv_dq may replace bwd_dkv and bwd_dq. It adds to dQ in no fixed order, but where
// is_alone().
bool Sm80Planner::can_fuse() const {
  return p.backward && p.wants(TANDEM_GRAD_Q) && p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V) &&
         !p.is_empty() && (p.inputs() == 0 ? !p.deterministic : p.dtype == TANDEM_F32);
}

// Whether a workgroup of bwd_dkv_dq has all keys of a head, and stores d_q.
bool Sm80Planner::is_alone() const {
  const int row = choice_ == Choice::fused ? rows_[size_t(Stem::bwd_dkv_dq)] : -1;
  return row >= 0 && kAmpereTiles[row].table == TileTable::ampere_inputs &&
         p.seq_kv <= kAmpereTiles[row].bc;
}

// Whether each element of bias has one reader and d_q is wanted. The kernel that forms d_q then
// stores its dS as d_bias, so that no product is formed twice.
bool Sm80Planner::stores_ds() const {
  const Overlay& b = p.bias;
  return p.wants(TANDEM_GRAD_BIAS) && p.wants(TANDEM_GRAD_Q) && p.seq_kv > 0 &&
         b.batch == p.batch && b.heads == p.heads_q && b.rows == p.seq_q;
}

Vec<Stem> Sm80Planner::stems() const {
  if (choice_ == Choice::whole) return {p.backward ? Stem::bwd_dkv_dq : Stem::fwd};
  if (choice_ != Choice::fused) return with_origin(separate_stems(false, stores_ds()));
  Vec<Stem> stems = {Stem::bwd_dot, Stem::bwd_dkv_dq};
  if (!sm80_postprocesses_dq(p, caps) && !is_alone()) stems.push_back(Stem::bwd_dq_cast);
  if (p.wants(TANDEM_GRAD_BIAS) && !stores_ds()) stems.push_back(Stem::bwd_dbias);
  if (p.wants(TANDEM_GRAD_SINK)) stems.push_back(Stem::bwd_head_sums);
  return with_origin(stems);
}

uint32_t Sm80Planner::shared_bytes(const AmpereTile& t) const {
  return t.table == TileTable::ampere_whole_heads
             ? whole_shared_bytes(p, t)
             : uint32_t(ampere_shared_bytes(t)) + skip_shared_bytes(t.stem);
}

bool Sm80Planner::choose_tiles(const Refuse& refuse) {
  rows_.assign(kStemCount, -1);
  plain_ = nullptr;
  const bool forced = p.tile_rows != 0 || p.tile_cols != 0;
  for (Stem stem : stems()) {
    const bool whole = choice_ == Choice::whole;
    const int kernel = sm80_kernel(stem, p, caps, whole);
    int& best = rows_[size_t(stem)];
    for (int n = 0; n < kAmpereTileCount; ++n) {
      const AmpereTile& t = kAmpereTiles[n];
      if (!is_for(t, kernel, p)) continue;
      const String why = row_refusal(p, caps, t, shared_bytes(t));
      if (!why.empty())
        refuse(name() + " " + t.name, why);
      else if (best < 0 || (!forced && !whole && sm80_is_better(p, caps, t, kAmpereTiles[best])))
        best = n;
    }
    if (best >= 0 || !is_tiled(stem)) continue;
    // bwd_dbias of wide heads with 16 bits is simt's, as are all stems without a row.
    if (kernel >= 0 && (stem != Stem::bwd_dbias || p.dtype == TANDEM_F32)) return false;
    if (!plain_) plain_ = plain_tile();
    if (!plain_) return refuse(name(), text("no tile of %s fits the device", stem_name(stem)));
  }
  return true;
}

bool Sm80Planner::choose(const Refuse& refuse) {
  if (choice_ == Choice::none) {
    choice_ = Choice::whole;
    if (sm80_takes_whole(p, caps) && choose_tiles(refuse)) return true;
  }
  if (choice_ == Choice::whole) {
    choice_ = Choice::fused;
    const bool sums_dq = !p.deterministic && !saves(p, Saving::d_q_accum);
    if (can_fuse() && choose_tiles(refuse) && (sums_dq || is_alone())) return true;
  }
  if (choice_ == Choice::fused) {
    choice_ = Choice::separate;
    if (choose_tiles(refuse)) return true;
  }
  choice_ = Choice::end;
  return false;
}

void Sm80Planner::form(Launch* launch) const {
  CudaPlanner::form(launch);
  Sm80Launch l;
  if (launch->stem == Stem::bwd_dq_cast) {
    l.row = rows_[size_t(Stem::bwd_dkv_dq)];
    launch->path = l;
  }
  if (!is_tiled(launch->stem)) return;
  l.row = rows_[size_t(launch->stem)];
  if (l.row < 0) return form_plain(*plain_, launch);
  const AmpereTile& t = l.tile();
  const bool whole = t.table == TileTable::ampere_whole_heads;
  launch->kernel = sm80_kernel(launch->stem, p, caps, whole);
  launch->path = l;
  launch->tile = Tile{t.name, t.br, t.bc, t.warps, 32, 0, 0, t.width, TileOn::cuda};
  launch->shared_bytes = shared_bytes(t);
  if (whole) launch->stores_d_bias = p.wants(TANDEM_GRAD_BIAS);
  if (launch->stem == Stem::bwd_dq ||
      (launch->stem == Stem::bwd_dkv_dq && t.table == TileTable::ampere_inputs))
    launch->stores_d_bias = stores_ds();
}

uint32_t Sm80Planner::sum_splits(const Launch& launch, const Extent& e) const {
  const Sm80Launch* own = launch.as<Sm80Launch>();
  if (launch.stem != Stem::bwd_dbias || !own) return CudaPlanner::sum_splits(launch, e);
  const int64_t room =
      std::min<int64_t>(own->tile().groups * cores_of(caps), workgroups_at_once(launch));
  return sm80_splits_of_dbias(e.tiles * e.heads * e.batch, e.members, room);
}

Extent Sm80Planner::extent(const Launch& launch) const {
  if (choice_ == Choice::whole && is_tiled(launch.stem)) {
    const int64_t room = std::min<int64_t>(launch.of<Sm80Launch>().tile().groups * cores_of(caps),
                                           workgroups_at_once(launch));
    return {sm80_whole_slices(p, cores_of(caps), room), sm80_slices_batch(p) ? p.heads_q : 1, 1};
  }
  if (launch.stem != Stem::bwd_dq_cast) return CudaPlanner::extent(launch);
  return {launch.of<Sm80Launch>().tile().panels() * ampere_row_blocks(p.seq_q), p.heads_q, p.batch};
}

void Sm80Planner::complete(Launch* launch, const Extent& extent) const {
  CudaPlanner::complete(launch, extent);
  if (launch->stem == Stem::bwd_dq_cast) launch->shared_bytes = 64 * 64 * 2;
  // Slices with sums of their own.
  if (choice_ == Choice::whole && launch->stores_d_bias && sm80_slices_batch(p))
    launch->splits = launch->tiles;
}

// A launch takes the host three microseconds, so bwd_dkv does the work of small ones.
void Sm80Planner::arrange(Vec<Launch>* launches) const {
  if (caps.early_launches && !p.slices && in_force(caps, sm80_rule::programmatic))
    for (Launch& l : *launches) {
      if (l.stem == Stem::fwd_combine) l.as<SimtLaunch>()->programmatic = true;
      Sm80Launch* own = l.stem == Stem::fwd ? l.as<Sm80Launch>() : nullptr;
      if (own) own->programmatic = sm80_starts_early(own->tile(), l.splits);
    }
  for (const Launch& l : *launches)
    if (l.has(trait::tf32))
      if (Launch* dot = find_launch(launches, Stem::bwd_dot)) dot->as<SimtLaunch>()->tf32 = true;
  const Launch* dkv = find_launch(launches, Stem::bwd_dkv);
  // In slices a launch is cut between its workgroups, and has those of one kernel.
  if (!dkv || dkv->row().tiles != TileTable::ampere_full || p.slices) return;
  uint64_t total = dkv->total;
  const auto join_if_possible = [&](Launch* l) {
    if (total + l->total > caps.max_groups_x) return;
    total += l->total;
    join(l);
  };
  Launch* dq = find_launch(launches, Stem::bwd_dq);
  // Another kernel might form other bits.
  if (dq && !p.batch_invariant && dq->as<Sm80Launch>() &&
      sm80_joins_dq(caps, dkv->total, dq->total, cores_of(caps)) &&
      dq->of<Sm80Launch>().tile().width == dkv->of<Sm80Launch>().tile().width)
    join_if_possible(dq);
  // bwd_head_sums sums up what the first kernel has left, so it can run with bwd_dkv.
  if (Launch* head = find_launch(launches, Stem::bwd_head_sums)) join_if_possible(head);
}

void Sm80Planner::scratch(Plan* plan, ScratchExtents* x) const {
  CudaPlanner::scratch(plan, x);
  const Launch* fused = plan->find(Stem::bwd_dkv_dq);
  if (!fused) return;
  if (choice_ == Choice::whole) {
    if (fused->splits > 1)
      x->bias_parts = {fused->splits * p.heads_q * p.seq_q * bias_parts_pitch(p.seq_kv)};
    return;
  }
  if (is_alone()) return;
  x->d_q_accum = {p.batch * p.heads_q * ampere_row_blocks(p.seq_q) * 64 * 64 *
                  fused->of<Sm80Launch>().tile().panels()};
  if (!plan->find(Stem::bwd_dq_cast)) x->d_q_counts = {p.batch * p.heads_kv};
}

}  // namespace

int sm80_whole_row(const Problem& p, const Caps& caps) {
  if (!sm80_takes_whole(p, caps)) return -1;
  const int kernel = sm80_kernel(p.backward ? Stem::bwd_dkv_dq : Stem::fwd, p, caps, true);
  for (int n = 0; n < kAmpereTileCount; ++n) {
    const AmpereTile& t = kAmpereTiles[n];
    if (is_for(t, kernel, p) && row_refusal(p, caps, t, whole_shared_bytes(p, t)).empty()) return n;
  }
  return -1;
}

std::unique_ptr<PathPlanner> make_cuda_sm80(const PathRow& row, const Problem& p,
                                            const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new Sm80Planner(row, p, caps));
}

}  // namespace tandem
