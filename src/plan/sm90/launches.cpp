// SPDX-License-Identifier: MIT OR Apache-2.0
// How the launches of cuda.sm90 run: their grids, what each does besides, and which of them join.
#include <algorithm>

#include "base/number.h"
#include "bwd_cluster_schedule.h"
#include "fwd_stream_k.h"
#include "heuristics.h"
#include "path_planner.h"
#include "plan/thrift.h"
#include "tensor_maps.h"

namespace tandem {

uint32_t Sm90Planner::key_splits(const Launch&, const Extent& e) const {
  const FwdTile t = sm90_fwd_tile(p, row_);
  if (!t.halves_o() || p.batch_invariant) return 1;
  if (p.splits > 0) return uint32_t(p.splits);
  int steps = 0;  // of the tile with most
  for (int64_t n = 0; n < e.tiles; ++n) {
    const TandemTiles keys =
        tandem_key_tiles(p.band, int(n * t.rows()), t.rows(), t.bc, int(p.seq_q), int(p.seq_kv));
    steps = std::max(steps, keys.end - keys.begin);
  }
  return uint32_t(halved_splits(e.tiles * e.heads * e.batch, cores_of(caps) / t.cluster(), steps,
                                p.batch * p.heads_q * p.seq_q * p.head_dim_v));
}

void Sm90Planner::complete_fwd(Launch* launch, Sm90Launch* own) const {
  const KernelRow& kernel = launch->row();
  const FwdTile t = sm90_fwd_tile(p, row_);
  // Lengths and sinks are read by the read-only path, maybe ahead of the grid dependency wait.
  own->programmatic =
      caps.early_launches && (kernel.inputs == 0 || kernel.has(trait::bias_tiles) ||
                              (kernel.has(trait::one_row) && p.inputs() == kHasBias));
  const int64_t clusters = std::min<int64_t>(launch->total, cores_of(caps) / t.cluster());
  launch->groups_x = uint32_t(std::max<int64_t>(clusters, 1) * t.cluster());  // persistent
  launch->groups_y = 1;
  // With lengths or a mask tiles do not take equally long, and stream-K knows nothing of what they
  // leave out.
  if (!kernel.has(trait::bias_tiles) || p.banded() || p.has_lengths() || packs_keep(p)) return;
  if (saves(p, Saving::stream_k) || p.slices) return;
  const int64_t steps = ceil_div(p.seq_kv, launch->tile.bc);
  const int64_t shorts = fwd_short_tiles(t, p.batch * p.heads_q, p.seq_q, launch->groups_x, steps);
  const FwdStreamK stream_k =
      fwd_stream_k(launch->total - shorts, launch->groups_x, p.batch, steps);
  own->stream_k_units = stream_k.units, own->stream_k_unit = stream_k.unit;
  own->short_tiles = int(shorts);
}

void Sm90Planner::complete_dkv_dq(Launch* launch, Sm90Launch* own, int64_t tiles) const {
  const int64_t cores = cores_of(caps);
  if (p.deterministic)
    own->interleaved_heads =
        uint32_t(interleaved_heads(p.band.right == TANDEM_BAND_OPEN, cores, tiles,
                                   p.group() * ceil_div(p.seq_q, kBwdShapes[row_].br)));
  own->cooperative_postprocess = uses_cooperative_postprocess(p, cores, parts_);
  const bool two_cta = caps.early_launches && reduces_dbias_in_clusters(p) &&
                       uses_two_cta_clusters(p, launch->total / p.batch);
  if (two_cta) launch->second_kernel = sm90_with(p, launch->kernel, trait::two_cta);
  own->eager_zero_heads =
      uint32_t(two_cta ? eager_zero_heads_per_entry(p, cores, tiles)
                       : eager_zero_heads(p, cores, tiles, own->interleaved_heads));
  if (sums_dbias_in_slices(p)) {
    const BwdShape& s = kBwdShapes[row_];
    const BwdSlices slices =
        bwd_slices(p.batch, launch->total / p.batch, cores, bwd_query_tiles(s, p.seq_q),
                   bias_parts_pitch(p.seq_kv) * p.seq_q * p.heads_q * 4);
    launch->splits = uint32_t(slices.count);
    own->passes = slices.passes;
  }
  own->parts = parts_;
  if (parts_.most > 0) {
    // In any order the tiles of all heads come side by side.
    if (!p.deterministic) own->eager_zero_heads = 0;
    launch->groups_x = launch->total * uint32_t(parts_.most);
    launch->groups_y = 1;
  }
  if (launch->has(trait::two_sided)) {
    launch->groups_x = kTwoSidedCluster * launch->total * uint32_t(std::max(parts_.most, 1));
    launch->groups_y = 1;
    return;
  }
  // What is true of the launch, and has a kernel of its own beside that of the problem.
  const struct {
    bool holds;
    uint32_t has;
  } traits[] = {{parts_.most > 0 && visits_heads_inside(p), trait::parts | trait::heads_inside},
                {is_persistent(p, cores), trait::persistent},
                {launch->splits > 1, trait::slices},
                {parts_.most > 0, trait::parts},
                {gathers_rows(p), trait::gathers},
                {!p.wants(TANDEM_GRAD_Q), trait::d_kv_alone},
                {!p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V), trait::d_q_alone},
                {fuses_dq_postprocess(p, cores, parts_), trait::postprocess}};
  const int of_problem = launch->kernel;
  for (const auto& t : traits)
    if (const int with = t.holds ? sm90_with(p, of_problem, t.has) : -1;
        with >= 0 && !is_off(with)) {
      launch->kernel = with;
      break;
    }
  if (launch->has(trait::heads_inside) && parts_.most == 1) own->wave = uint32_t(cores);
  if (!launch->has(trait::persistent)) return;
  launch->groups_x = uint32_t(std::min<int64_t>(launch->total, cores));
  launch->groups_y = 1;
}

void Sm90Planner::complete(Launch* launch, const Extent& extent) const {
  CudaPlanner::complete(launch, extent);
  Sm90Launch* own = launch->as<Sm90Launch>();
  if (launch->stem == Stem::fwd) complete_fwd(launch, own);
  if (launch->stem == Stem::bwd_dkv_dq) complete_dkv_dq(launch, own, extent.tiles);
  if (launch->stem == Stem::pack_bias) own->programmatic = caps.early_launches;
  // It may start early, as bwd_dkv_dq signals when it may and counts the finished tiles of a head.
  if (launch->stem == Stem::bwd_dq_cast)
    own->programmatic = caps.early_launches && !has_two_sides(p) && !gathers_rows(p);
}

// A launch takes the host three microseconds, so earlier launches do the work of a few small ones.
void Sm90Planner::arrange(Vec<Launch>* launches) const {
  // Workgroups of `l` come behind those of `to` and of launches that it has already joined.
  uint64_t total = 0;
  const auto join_to = [&](Launch* l, const Launch* to) {
    if (!l || !to) return;
    if (total == 0) total = to->total;
    if (total + l->total > caps.max_groups_x) return;
    total += l->total;
    join(l);
  };
  const Launch* dkv = find_launch(launches, Stem::bwd_dkv);
  const Launch* cast = find_launch(launches, Stem::bwd_dq_cast);
  Launch* head = find_launch(launches, Stem::bwd_head_sums);
  Launch* dq = find_launch(launches, Stem::bwd_dq);
  // Heads over kMaxFusedHeadDim. In slices a launch has the workgroups of one kernel.
  if (!p.slices) join_to(dq, dkv);
  if (!p.slices) join_to(head, dkv ? dkv : dq ? dq : cast);
  // The last workgroup of a kv head does the work of bwd_head_sums.
  const Launch* narrow = find_launch(launches, Stem::bwd_dkv_dq);
  if (head && narrow && !cast && !narrow->has(trait::two_sided) &&
      counts_heads(narrow->total, cores_of(caps)))
    join(head);
  if (!find_launch(launches, Stem::bwd_dkv_dist)) return;
  // Elastic softmax: the row sums of d_tau, and the sums of d_dist_bias if they are few.
  if (head) join(head);
  Launch* sum = find_launch(launches, Stem::bwd_sum_splits);
  if (sum && sums_at_once(p.group() * ceil_div(p.dist_window, 64), sum->splits)) join(sum);
}

}  // namespace tandem
