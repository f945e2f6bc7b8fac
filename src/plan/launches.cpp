// SPDX-License-Identifier: MIT OR Apache-2.0
// The launches of a plan once its path and tiles are chosen: which kernels, how many workgroups,
// and how sums are split.
#include <algorithm>

#include "base/number.h"
#include "heuristics.h"
#include "planner.h"
#include "problem/mask_map.h"
#include "problem/table.h"
#include "thrift.h"

namespace tandem {

String PathPlanner::name() const { return String(backend_name(row.backend)) + "." + row.name; }

String size_refusal(const Problem& p, int br, int bc) {
  if ((p.tile_rows == 0 || p.tile_rows == br) && (p.tile_cols == 0 || p.tile_cols == bc)) return "";
  return text("%dx%d is not the tile %dx%d that the problem asks for", br, bc, p.tile_rows,
              p.tile_cols);
}

Stem merge_stem(const Problem& p) { return p.backward ? Stem::bwd_merge : Stem::merge; }

Launch* find_launch(Vec<Launch>* launches, Stem stem) {
  for (Launch& l : *launches)
    if (l.stem == stem) return &l;
  return nullptr;
}

bool fuses_dist(const Problem& p) {
  return p.wants(TANDEM_GRAD_DIST_BIAS) && p.dist_window <= kFusedWindow &&
         p.batch * p.heads_q * p.seq_q != 0 && p.heads_kv * p.seq_kv != 0;
}

Extent PathPlanner::extent(const Launch& l) const {
  const int64_t Br = std::max(l.tile.br, 1), Bc = std::max(l.tile.bc, 1),
                q_tiles = ceil_div(p.seq_q, Br);
  switch (l.stem) {
    case Stem::bwd_dot:
      return {ceil_div(p.seq_q, kDotRows), p.heads_q, p.batch};
    case Stem::merge:
    case Stem::bwd_merge:
      return {ceil_div(p.seq_q, merge_rows(p.head_dim_v)), p.heads_q, p.batch};
    case Stem::bwd_origin:
      return {ceil_div(p.seq_q, kLineGroup), p.heads_q, p.batch};
    case Stem::place_entries:
      return {ceil_div(p.batch, kLineGroup), 1, 1};
    case Stem::expand_blocks:
      return {tandem_map_blocks(int(p.seq_q)) *
                  ceil_div(p.seq_kv, TANDEM_LISTS_GROUP * TANDEM_MAP_BLOCK),
              p.blocks.heads, p.blocks.batch};
    case Stem::mask_map:
      return {ceil_div(tandem_map_blocks(int(p.seq_kv)), TANDEM_MAP_GROUP), p.spans.heads,
              p.spans.batch};
    case Stem::bwd_dkv:
    case Stem::bwd_dkv_dist:
    case Stem::bwd_dkv_dq:
      return {ceil_div(p.seq_kv, Bc), p.heads_kv, p.batch};
    case Stem::bwd_dbias: {
      const Overlay& b = p.bias;
      const bool one_row = b.rows == 1;
      const int64_t readers =
          b.heads > 0 && b.batch > 0 ? p.heads_q / b.heads * (p.batch / b.batch) : 0;
      return {(one_row ? 1 : ceil_div(b.rows, Br)) * ceil_div(p.seq_kv, Bc), b.heads, b.batch,
              readers * (one_row ? q_tiles : 1)};
    }
    case Stem::bwd_dist_bias:
      return {ceil_div(p.dist_window, Br), p.heads_q, 1, p.batch * q_tiles};
    case Stem::bwd_head_sums:
      return {1, p.heads_q,
              std::max(p.wants(TANDEM_GRAD_SLOPE) ? p.slopes_batch : 1,
                       p.wants(TANDEM_GRAD_SINK) ? p.sinks_batch : 1)};
    case Stem::expand_table:
      return {ceil_div(p.seq_q * p.seq_kv, TANDEM_TABLE_PAIRS), 1, p.table.batch};
    case Stem::reduce_table:  // the pairs are none where there is no entry of the batch
      return {ceil_div(p.table.size, TANDEM_TABLE_ENTRIES), p.heads_q, 1,
              ceil_div(p.seq_q * p.seq_kv, TANDEM_TABLE_PAIRS) * (p.batch ? p.table.batch : 0)};
    default:
      return {q_tiles, p.heads_q, p.batch};
  }
}

uint32_t PathPlanner::sum_splits(const Launch&, const Extent& e) const {
  return splits_of_sum(e.tiles * e.heads * e.batch, e.members, cores_of(caps));
}

Vec<Stem> PathPlanner::separate_stems(bool fuses, bool forms_d_bias) const {
  if (!p.backward) return {Stem::fwd};
  const bool fused_k = fuses && p.wants(TANDEM_GRAD_K);
  Vec<Stem> stems;
  bool dq = p.wants(TANDEM_GRAD_Q);
  if (p.wants(TANDEM_GRAD_TAU) || (p.needs_delta() && !p.delta_is_dot())) {
    const bool fused = fuses && dq;
    stems.push_back(fused ? Stem::bwd_row_sums_dq : Stem::bwd_row_sums);
    if (fused) dq = false;
  } else if (p.needs_delta()) {
    stems.push_back(Stem::bwd_dot);
  }
  if (p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V))
    stems.push_back(fused_k ? Stem::bwd_dkv_dist : Stem::bwd_dkv);
  if (dq) stems.push_back(Stem::bwd_dq);
  if (p.wants(TANDEM_GRAD_BIAS) && !forms_d_bias) stems.push_back(Stem::bwd_dbias);
  if (p.wants(TANDEM_GRAD_DIST_BIAS) && !(fused_k && fuses_dist(p)))
    stems.push_back(Stem::bwd_dist_bias);
  if (p.wants(TANDEM_GRAD_TAU | TANDEM_GRAD_SLOPE | TANDEM_GRAD_SINK))
    stems.push_back(Stem::bwd_head_sums);
  return stems;
}

String PathPlanner::set_groups(Launch* launch, double total) const {
  // Kernels number their workgroups in 32 bits. A limit of 2^31 leaves room for the workgroups
  // without work in the last row.
  const double limit = std::min(double(caps.max_groups_x) * caps.max_groups_y, 2147483648.0);
  if (total > limit) {
    char wanted[40], most[40];
    return text("%s needs %s workgroups, the device dispatches %s", stem_name(launch->stem),
                fixed_text(wanted, total, 0), fixed_text(most, limit, 0));
  }
  launch->total = uint32_t(total);
  launch->groups_x = std::min(launch->total, caps.max_groups_x);
  launch->groups_y = uint32_t((uint64_t(launch->total) + launch->groups_x - 1) / launch->groups_x);
  return "";
}

String PathPlanner::make_launch(Stem stem, Vec<Launch>* launches) const {
  const bool gpu = row.backend != Backend::cpu;
  Launch launch;
  launch.stem = stem;
  if (!has_kernels(row.id, stem)) return text("it has no %s kernel", stem_name(stem));
  launch.kernel = kernel(stem);
  form(&launch);
  if (gpu && launch.shared_bytes > caps.shared_bytes)
    return text("%s needs %u bytes of shared memory, the device has %u", stem_name(stem),
                launch.shared_bytes, caps.shared_bytes);
  const Extent e = extent(launch);
  const double groups =
      double(e.tiles) * double(launch.feature_parts) * double(e.heads) * double(e.batch);
  if (groups == 0) return "";
  if (gpu) {  // first, as from here on their product is computed in 64 bits
    const String why = set_groups(&launch, groups);
    if (!why.empty()) return why;
  }
  // A launch waits for place_entries, expand_blocks, expand_table, mask_map, pack_keep, pack_bias,
  // bwd_dot, bwd_origin or bwd_row_sums, which come first, and reduce_table for all. The others are
  // independent.
  if (!launches->empty()) {
    const Stem before = launches->back().stem;
    launch.waits =
        before == Stem::place_entries || before == Stem::bwd_dot || before == Stem::bwd_origin ||
        before == Stem::bwd_row_sums || before == Stem::bwd_row_sums_dq ||
        before == Stem::expand_table || stem == Stem::reduce_table ||
        (before == Stem::pack_bias && stem == Stem::fwd) ||
        (before == Stem::mask_map && is_tiled(stem)) ||
        ((before == Stem::pack_keep || before == Stem::expand_blocks) && has_extra(stem));
  }
  launch.members = e.members;
  if (stem == Stem::fwd)
    launch.splits = thrifty_splits(p, key_splits(launch, e));
  else if (gpu && caps.max_invocations >= uint32_t(kLineGroup) && !saves(p, Saving::partial_sums))
    launch.splits = sum_splits(launch, e);
  const int64_t shares = launch.splits;  // workgroups in place of one
  if (stem == Stem::bwd_dkv_dist && fuses_dist(p)) {
    launch.members = e.tiles * e.batch;
    launch.splits = uint32_t(launch.members);
  }
  launch.tiles = uint32_t(e.tiles);
  if (gpu) {
    if (launch.members >= int64_t(1) << 31)
      return text("%s sums over %lld tiles, beyond 2^31", stem_name(stem),
                  (long long)launch.members);
    const String why = set_groups(&launch, groups * double(shares));
    if (!why.empty()) return why;
    if (!is_tiled(stem)) {
      const auto group = uint32_t(launch.invocations());
      if (group > caps.max_invocations)
        return text("%s needs workgroups of %u, the device has %u", stem_name(stem), group,
                    caps.max_invocations);
      if (stem != Stem::bwd_dq_cast && stem != Stem::pack_bias && stem != Stem::pack_keep)
        launch.shared_bytes = uint32_t(sizeof(float)) * group;
      if (stem == Stem::expand_table || stem == Stem::place_entries || stem == Stem::merge)
        launch.shared_bytes = 0;
      if (stem == Stem::bwd_merge) launch.shared_bytes = 4 * sizeof(float) * group;
      if (stem == Stem::reduce_table)
        launch.shared_bytes = 4 * (2 * TANDEM_TABLE_PAIRS + TANDEM_TABLE_ENTRIES);
      if (stem == Stem::mask_map) launch.shared_bytes = 2 * 4 * sizeof(int32_t) * group;
      if (stem == Stem::bwd_origin) launch.shared_bytes += 2 * kHeadQuads * 4 * sizeof(float);
    }
    complete(&launch, e);
  }
  launches->push_back(launch);
  return "";
}

// Adds the kernel that adds up the parts that a launch leaves.
String PathPlanner::add_sum(const Launch& parts, uint32_t gradient, bool waits,
                            Vec<Launch>* launches) const {
  const bool join = parts.stem == Stem::fwd;
  Launch sum;
  sum.stem = join ? Stem::fwd_combine : Stem::bwd_sum_splits;
  if (!has_kernels(row.id, sum.stem)) return text("it has no %s kernel", stem_name(sum.stem));
  sum.kernel = kernel(sum.stem);
  form(&sum);
  sum.splits = parts.splits;
  sum.waits = waits;
  if (uint32_t(sum.invocations()) > caps.max_invocations)
    return text("%s needs workgroups of %d, the device has %u", stem_name(sum.stem),
                sum.invocations(), caps.max_invocations);
  int64_t tiles = 0, heads = 1;
  if (join) {
    const CombineShape shape(sum.splits, p.head_dim_v);
    tiles = ceil_div(p.seq_q, shape.rows()) * shape.shares;
    heads = p.heads_q * p.batch;
    sum.shared_bytes = 5 * sizeof(float) * kCombineGroup;
  } else {
    sum.gradient = gradient;
    tiles = ceil_div(gradient_elements(p, sum.gradient), kLineGroup);
  }
  const String why = set_groups(&sum, double(tiles) * double(heads));
  if (!why.empty()) return why;
  sum.tiles = uint32_t(tiles);
  launches->push_back(sum);
  return "";
}

// The gradients of which a launch leaves parts; 0 stands for o, of fwd.
Vec<uint32_t> PathPlanner::gradients_in_parts(const Launch& parts) const {
  if (parts.stem == Stem::fwd) return {0};
  if (parts.stem == Stem::reduce_table) return {TANDEM_GRAD_BIAS_TABLE};
  if (parts.stem == Stem::bwd_dbias || parts.stem == Stem::bwd_dkv_dq) return {TANDEM_GRAD_BIAS};
  if (parts.stem != Stem::bwd_dkv) return {TANDEM_GRAD_DIST_BIAS};
  Vec<uint32_t> gradients;
  for (uint32_t gradient : {TANDEM_GRAD_K, TANDEM_GRAD_V})
    if (p.wants(gradient)) gradients.push_back(gradient);
  return gradients;
}

String PathPlanner::launches(Vec<Launch>* launches) const {
  Vec<Stem> all = p.parts ? Vec<Stem>{merge_stem(p)} : stems();
  const bool tiles = std::any_of(all.begin(), all.end(), is_tiled);
  if (row.backend != Backend::cpu && has_mask_map(p) && tiles && !p.is_empty())
    all.insert(all.begin(), Stem::mask_map);
  // bwd_origin, which has no tiles, forms scores as well. It reads spans, not the map.
  const bool scores = std::any_of(all.begin(), all.end(), has_extra);
  if (row.backend != Backend::cpu && p.blocks && scores && !p.is_empty())
    all.insert(all.begin(), Stem::expand_blocks);
  if (p.expands_table() && scores && !p.is_empty()) all.insert(all.begin(), Stem::expand_table);
  if (row.backend != Backend::cpu && p.has_gaps()) all.insert(all.begin(), Stem::place_entries);
  for (Stem stem : all) {
    const String why = make_launch(stem, launches);
    if (!why.empty()) return why;
  }
  // Nothing may read what it writes.
  if (launches->size() == 1 && launches->front().stem == Stem::place_entries) launches->clear();
  const String why = share(launches);
  if (!why.empty()) return why;
  // The kernels that add up the parts of splits come after all kernels that leave parts. The first
  // of them waits for the others.
  for (size_t n = 0, kernels = launches->size(); n < kernels; ++n) {
    if ((*launches)[n].splits == 1) continue;
    const Launch parts = (*launches)[n];
    for (uint32_t gradient : gradients_in_parts(parts)) {
      const String no = add_sum(parts, gradient, launches->size() == kernels, launches);
      if (!no.empty()) return no;
    }
  }
  arrange(launches);
  return p.wants(TANDEM_GRAD_BIAS_TABLE) ? add_reduce_table(launches) : "";
}

// The sum of d_bias into the table's gradient, which comes behind all that forms d_bias.
String PathPlanner::add_reduce_table(Vec<Launch>* launches) const {
  if (gradient_elements(p, TANDEM_GRAD_BIAS_TABLE) >= int64_t(1) << 31)
    return text("the tables of %lld heads have %lld entries each, together 2^31 or more",
                (long long)p.heads_q, (long long)p.table.size);
  const size_t others = launches->size();
  const String why = make_launch(Stem::reduce_table, launches);
  if (!why.empty() || launches->size() == others || launches->back().splits == 1) return why;
  return add_sum(Launch(launches->back()), TANDEM_GRAD_BIAS_TABLE, true, launches);
}

}  // namespace tandem
