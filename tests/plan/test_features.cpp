// SPDX-License-Identifier: MIT OR Apache-2.0
// The planner with optional inputs: which operations each set of gradients needs, what they wait
// for, where their parts lie in the workspace, and what is refused.
#include <algorithm>
#include <set>

#include "compare.h"
#include "plan/cpu/sum_parts.h"
#include "plan/sm80/heuristics.h"
#include "plan/sm90/tensor_maps.h"
#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

// Workgroups of one head (or slice) by the docs' own words, and how many of those there are.
std::pair<int64_t, int64_t> groups_of(const Problem& p, const Launch& l) {
  const int64_t br = l.tile.br, bc = l.tile.bc;
  if (l.as<Sm80Launch>() && l.row().tiles == TileTable::ampere_whole_heads)
    return {l.tiles, sm80_slices_batch(p) ? p.heads_q : 1};
  switch (l.stem) {
    case Stem::bwd_dot:
      return {ceil_div(p.seq_q, kDotRows), p.heads_q * p.batch};
    case Stem::bwd_origin:
      return {ceil_div(p.seq_q, kLineGroup), p.heads_q * p.batch};
    case Stem::merge:
    case Stem::bwd_merge:  // a row has an invocation for each four features, up to 32
      return {ceil_div(p.seq_q, p.head_dim_v > 64   ? 4
                                : p.head_dim_v > 32 ? 8
                                                    : kLineGroup / merge_lanes(p.head_dim_v)),
              p.heads_q * p.batch};
    case Stem::pack_bias: {
      const PackedBias copy = packed_bias(p, bias_box_rows(p, l));
      return {ceil_div(copy.rows * copy.pitch, 8 * kLineGroup), p.bias.heads * p.bias.batch};
    }
    case Stem::pack_keep:
      return {ceil_div(p.seq_q, 64) * ceil_div(p.seq_kv, 8 * 64),
              packed_keep(p).heads * packed_keep(p).batch};
    case Stem::place_entries:
      return {ceil_div(p.batch, kLineGroup), 1};
    case Stem::expand_blocks:
      return {ceil_div(p.seq_q, 64) * ceil_div(p.seq_kv, 16 * 64), p.blocks.heads * p.blocks.batch};
    case Stem::expand_table:
      return {ceil_div(p.seq_q * p.seq_kv, 512), p.table.batch};
    case Stem::reduce_table:
      return {ceil_div(p.table.size, 2048), p.heads_q * int64_t(l.splits)};
    case Stem::mask_map:
      return {ceil_div(p.seq_kv, 32 * 64), p.spans.heads * p.spans.batch};
    case Stem::bwd_dkv:
      return {ceil_div(p.seq_kv, bc), p.heads_kv * p.batch * l.splits};
    case Stem::bwd_dkv_dist:
    case Stem::bwd_dkv_dq:
      return {ceil_div(p.seq_kv, bc), p.heads_kv * p.batch};
    case Stem::bwd_dq_cast:
      return {(l.as<Sm80Launch>() ? kAmpereTiles[l.of<Sm80Launch>().row].panels()
                                  : bwd_panels(kBwdShapes[l.of<Sm90Launch>().row])) *
                  ceil_div(p.seq_q, 64),
              p.heads_q * p.batch};
    case Stem::bwd_dbias:
      return {(p.bias.rows == 1 ? 1 : ceil_div(p.seq_q, br)) * ceil_div(p.seq_kv, bc),
              p.bias.heads * p.bias.batch * l.splits};
    case Stem::bwd_dist_bias:
      return {ceil_div(p.dist_window, br), p.heads_q * int64_t(l.splits)};
    case Stem::bwd_head_sums:  // a group of batch entries has workgroups of its own
      return {1, p.heads_q * std::max(p.wants(TANDEM_GRAD_SLOPE) ? p.slopes_batch : 1,
                                      p.wants(TANDEM_GRAD_SINK) ? p.sinks_batch : 1)};
    case Stem::bwd_sum_splits:
      return {ceil_div(gradient_elements(p, l.gradient), kLineGroup), 1};
    case Stem::fwd_combine: {
      const CombineShape shape(l.splits, p.head_dim_v);
      return {ceil_div(p.seq_q, shape.rows()) * shape.shares, p.heads_q * p.batch};
    }
    case Stem::fwd:
      return {ceil_div(p.seq_q, br), p.heads_q * p.batch * l.splits};
    default:
      // Of all entries, where d_bias is summed over them.
      return {ceil_div(p.seq_q, br), p.heads_q * (l.of<MatrixLaunch>().sums_d_bias ? 1 : p.batch)};
  }
}

// Whether the fused kernels of elastic softmax may run.
bool lazy(const Plan& plan) {
  const Problem& p = plan.problem;
  return plan.backend == Backend::cuda && std::string(plan.path) != "sm80" &&
         p.normalizer == Normalizer::elastic && !p.bias && !p.alibi && !p.keep && !p.spans &&
         p.softcap == 0 && p.dropout == 0 && std::max(p.head_dim, p.head_dim_v) <= kWholeFeatures;
}

// Whether a kernel reads what hides or moves scores.
bool forms_scores(const Launch& l) { return has_extra(l.stem); }

// What of a problem's gradients each operation writes.
bool expects(const Plan& plan, Stem stem) {
  const Problem& p = plan.problem;
  const bool q = p.batch * p.heads_q * p.seq_q != 0, kv = p.batch * p.heads_kv * p.seq_kv != 0;
  const uint32_t through_ds = TANDEM_GRAD_Q | TANDEM_GRAD_K | TANDEM_GRAD_BIAS |
                              TANDEM_GRAD_DIST_BIAS | TANDEM_GRAD_SLOPE | TANDEM_GRAD_SINK |
                              TANDEM_GRAD_BIAS_TABLE;
  const bool by_dot = p.normalizer == Normalizer::softmax &&
                      (std::string(plan.path) == "sm90" || !p.wants(TANDEM_GRAD_SLOPE));
  const bool row_sums_dq = lazy(plan) && p.wants(TANDEM_GRAD_Q),
             dkv_dist = lazy(plan) && p.wants(TANDEM_GRAD_K);
  const bool hopper = std::string(plan.path) == "sm90" && p.backward &&
                      p.normalizer != Normalizer::elastic && p.gradients != TANDEM_GRAD_SINK;
  const bool fused = (hopper && std::max(p.head_dim, p.head_dim_v) <= kMaxFusedHeadDim) ||
                     plan.find(Stem::bwd_dkv_dq);
  if (p.parts) return q && stem == (p.backward ? Stem::bwd_merge : Stem::merge);
  const bool of_table = stem == Stem::expand_table || stem == Stem::reduce_table;
  if (stem == Stem::place_entries)
    return plan.backend != Backend::cpu && p.has_gaps() && p.batch > 0 && plan.launches.size() > 1;
  if (has_whole_heads(plan) && !of_table)
    return stem == (p.backward ? Stem::bwd_dkv_dq : Stem::fwd) ||
           (stem == Stem::bwd_dbias && p.wants(TANDEM_GRAD_BIAS)) ||
           (stem == Stem::expand_blocks && p.blocks);
  switch (stem) {
    case Stem::pack_keep:
      return std::string(plan.path) == "sm90" && packs_keep(p) && !p.blocks && q && kv;
    case Stem::expand_blocks:
      return plan.backend != Backend::cpu && p.blocks && q && kv &&
             std::any_of(plan.launches.begin(), plan.launches.end(), forms_scores);
    case Stem::expand_table:
      return plan.backend != Backend::cpu && p.table && q && kv &&
             std::any_of(plan.launches.begin(), plan.launches.end(), forms_scores);
    case Stem::reduce_table:
      return p.wants(TANDEM_GRAD_BIAS_TABLE) && p.heads_q > 0;
    case Stem::mask_map:
      return plan.backend != Backend::cpu && p.spans && !p.visit_all && q && kv &&
             std::any_of(plan.launches.begin(), plan.launches.end(),
                         [](const Launch& l) { return is_tiled(l.stem); });
    case Stem::pack_bias:
      return std::string(plan.path) == "sm90" && packs_bias(p);
    case Stem::bwd_dkv_dq:
      return fused;
    case Stem::bwd_dq_cast:
      return fused && p.wants(TANDEM_GRAD_Q) &&
             !(std::string(plan.path) == "sm90" ? fuses_dq_postprocess(plan) : sums_few(p));
    case Stem::fwd:
      return !p.backward && q;
    case Stem::bwd_origin:
      return p.backward && q && kv && plan.backend != Backend::cpu;
    case Stem::bwd_row_sums_dq:
      return q && row_sums_dq;
    case Stem::bwd_dkv_dist:
      return kv && dkv_dist;
    case Stem::bwd_dot:
      return q && by_dot && (hopper || fused || p.wants(through_ds));
    case Stem::bwd_row_sums:
      return q && !by_dot && !row_sums_dq && (fused || p.wants(through_ds | TANDEM_GRAD_TAU));
    case Stem::bwd_dkv:
      return kv && !dkv_dist && !fused && p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V);
    case Stem::bwd_dq:
      return q && !row_sums_dq && !fused && p.wants(TANDEM_GRAD_Q);
    case Stem::bwd_dbias:
      return p.wants(TANDEM_GRAD_BIAS) && gradient_elements(p, TANDEM_GRAD_BIAS) > 0;
    case Stem::bwd_dist_bias:
      return p.wants(TANDEM_GRAD_DIST_BIAS) && p.heads_q > 0 &&
             !(q && kv && dkv_dist && p.dist_window <= 1024);
    case Stem::bwd_head_sums:
      return p.wants(TANDEM_GRAD_TAU | TANDEM_GRAD_SLOPE | TANDEM_GRAD_SINK) && p.heads_q > 0;
    default:
      return false;
  }
}

void check_plan(const Plan& plan, const Caps& caps) {
  const Problem& p = plan.problem;
  std::set<Stem> present;
  int sums = 0, splits = 0;
  struct Piece {
    uint64_t begin, end;
  };
  std::vector<Piece> pieces;
  const auto piece = [&](uint64_t offset, int64_t floats) {
    pieces.push_back({offset, offset + 4 * uint64_t(floats)});
  };
  for (size_t n = 0; n < plan.launches.size(); ++n) {
    const Launch& l = plan.launches[n];
    CAPTURE(std::string(stem_name(l.stem)));
    present.insert(l.stem);
    CHECK(kKernels[l.kernel].stem == l.stem);
    CHECK((l.stem == Stem::bwd_sum_splits) == (l.gradient != 0));
    if (plan.backend == Backend::cpu) {
      CHECK(l.splits == 1);
      continue;
    }
    // Who does the work of those that are no launches of their own comes before them, and has
    // numbers for all workgroups.
    if (l.joins()) {
      REQUIRE(n > 0);
      if (plan.backend == Backend::vulkan) {
        CHECK(l.stem == Stem::bwd_head_sums);
        CHECK(plan.launches[n - 1].stem == Stem::bwd_sum_splits);
        CHECK(plan.launches[n - 1].of<ScalarLaunch>().joined_heads == l.total);
        CHECK(plan.launches[n - 1].groups_x == plan.launches[n - 1].total + l.total);
      } else {
        CHECK(plan.backend == Backend::cuda);
      }
      CHECK(plan.launches[n - 1].stem != Stem::bwd_dot);
      CHECK(uint64_t(l.total) + plan.launches[n - 1].total <= caps.max_groups_x);
    }
    const auto [tiles, slices] = groups_of(p, l);
    if (l.has(trait::ds)) {  // of one chunk
      const int64_t blocks = (p.seq_q + 127) / 128 * ((p.seq_kv + 63) / 64);
      CHECK(int64_t(l.tiles) == (l.stem == Stem::bwd_dbias ? blocks : tiles));
      CHECK(l.total == l.tiles * l.splits * uint32_t(l.of<MatrixLaunch>().heads));
    } else {
      CHECK(int64_t(l.tiles) == tiles);
      CHECK(int64_t(l.total) == tiles * slices * l.feature_parts);
      CHECK((l.feature_parts == 1 || std::max(p.head_dim, p.head_dim_v) > kWholeFeatures));
    }
    const bool is_persistent = (l.stem == Stem::bwd_origin && plan.backend == Backend::cuda) ||
                               l.of<MatrixLaunch>().sums_d_bias;
    if (!l.as<Sm90Launch>() && !is_persistent) CHECK(uint64_t(l.groups_x) * l.groups_y >= l.total);
    CHECK(l.shared_bytes <= caps.shared_bytes);
    if (l.stem == Stem::bwd_sum_splits) {
      ++sums;
      CHECK(l.splits > 1);
      // A fused kernel that leaves parts of d_bias pads their rows; bwd_dbias beside one does not.
      const Launch* fused = plan.find(Stem::bwd_dkv_dq);
      const bool bias = l.gradient == TANDEM_GRAD_BIAS, padded = fused && fused->splits > 1;
      piece(plan.scratch[bias                                   ? Scratch::bias_parts
                         : l.gradient == TANDEM_GRAD_K          ? Scratch::d_k_parts
                         : l.gradient == TANDEM_GRAD_V          ? Scratch::d_v_parts
                         : l.gradient == TANDEM_GRAD_BIAS_TABLE ? Scratch::table_parts
                                                                : Scratch::dist_parts]
                .offset,
            int64_t(l.splits) * (bias && padded ? p.heads_q * p.seq_q * bias_parts_pitch(p.seq_kv)
                                                : gradient_elements(p, l.gradient)));
      CHECK(n > 0);
    } else if (l.stem == Stem::fwd_combine) {
      ++sums;
      // Behind fwd, and its redo.
      CHECK(n == (plan.find(Stem::mask_map) ? 1 : 0) + (plan.find(Stem::expand_table) ? 1 : 0) +
                     (plan.find(Stem::expand_blocks) ? 1 : 0) +
                     (plan.find(Stem::place_entries) ? 1 : 0) +
                     (plan.find(Stem::fwd)->as<MatrixLaunch>() ? 2 : 1));
      piece(plan.scratch[Scratch::o_parts].offset,
            l.splits * p.batch * p.heads_q * p.seq_q * part_pitch(p.head_dim_v));
      // Two numbers for each part of a row; the offset is between them.
      const int64_t parts = l.splits * p.batch * p.heads_q * p.seq_q;
      piece(plan.scratch[Scratch::lse_parts].offset - 4 * uint64_t(parts), 2 * parts);
    } else {
      const bool both = l.stem == Stem::bwd_dkv && p.wants(TANDEM_GRAD_K) && p.wants(TANDEM_GRAD_V);
      if (l.splits > 1 && !l.has(trait::redo)) splits += both ? 2 : 1;
      CHECK((l.splits == 1 || l.stem == Stem::fwd || l.stem == Stem::bwd_dkv_dq ||
             int64_t(l.splits) <= l.members));
    }
  }
  CHECK(sums == splits);  // every split sum is added up, and none other
  for (int n = 0; n < kStemCount; ++n)
    if (Stem(n) != Stem::bwd_sum_splits && Stem(n) != Stem::fwd_combine) {
      CAPTURE(std::string(stem_name(Stem(n))));
      // bwd_dq stores d_bias in place of bwd_dbias.
      const Launch* d_q = plan.find(Stem::bwd_dq);
      const Launch* fused = plan.find(Stem::bwd_dkv_dq);
      const bool stored = Stem(n) == Stem::bwd_dbias &&
                          ((d_q && d_q->stores_d_bias) || (fused && fused->stores_d_bias));
      CHECK((expects(plan, Stem(n)) && !stored) == (present.count(Stem(n)) > 0));
      if (stored && d_q && plan.backend != Backend::cpu) {
        CHECK(d_q->multiplies_matrices());
        if (d_q->of<MatrixLaunch>().sums_d_bias)
          CHECK(d_bias_sums(p, *d_q) <= 8 * p.batch * p.heads_q * p.seq_q * p.head_dim);
        CHECK(gradient_elements(p, TANDEM_GRAD_BIAS) ==
              (d_q->of<MatrixLaunch>().sums_d_bias ? 1 : p.batch) * p.heads_q * p.seq_q * p.seq_kv);
      }
    }
  // What reads what another wrote waits: each after what leaves delta or origins, and the first sum
  // after the parts.
  const auto leaves_rows = [](Stem stem) {
    return stem == Stem::bwd_dot || stem == Stem::bwd_origin || stem == Stem::bwd_row_sums ||
           stem == Stem::bwd_row_sums_dq || stem == Stem::place_entries;
  };
  bool summed = false;
  // On Vulkan bwd_dist_bias comes before what shares ds, and so before its barrier.
  const Launch* dkv = plan.find(Stem::bwd_dkv);
  const bool early = plan.find(Stem::bwd_dist_bias) && dkv && dkv->has(trait::ds);
  if (early) CHECK(plan.find(Stem::bwd_dist_bias) < dkv);
  for (size_t n = 0; n < plan.launches.size(); ++n) {
    const bool sum =
        plan.launches[n].stem == Stem::bwd_sum_splits || plan.launches[n].stem == Stem::fwd_combine;
    const Launch& l = plan.launches[n];
    const bool turns = l.has(trait::ds) && l.stem != Stem::bwd_dbias &&
                       !(early && l.stem == Stem::bwd_dkv && l.of<MatrixLaunch>().chunks == 1);
    const Stem before = n > 0 ? plan.launches[n - 1].stem : Stem::fwd;
    const bool mapped =
        (before == Stem::mask_map && l.tile.br > 0) ||
        ((before == Stem::pack_keep || before == Stem::expand_blocks) && forms_scores(l));
    const bool packed = n > 0 && plan.launches[n - 1].stem == Stem::pack_bias;
    // Of a table's launches, also the sum of its parts.
    const bool of_table = (n > 0 && plan.launches[n - 1].stem == Stem::expand_table) ||
                          (n > 0 && l.stem == Stem::reduce_table) ||
                          l.gradient == TANDEM_GRAD_BIAS_TABLE;
    CHECK(l.waits == ((n > 0 && leaves_rows(plan.launches[n - 1].stem)) || l.has(trait::redo) ||
                      (packed && l.stem == Stem::fwd) || mapped || (sum && !summed && !early) ||
                      turns || of_table));
    summed |= sum;
  }
  // The workspace: nothing overlaps, nothing is misaligned, nothing is left over.
  const int64_t rows = p.batch * p.heads_q * p.seq_q;
  if (has_far_rows(plan)) {
    piece(0, 2 * rows);
    piece(plan.scratch[Scratch::delta].offset, 0);
    CHECK(plan.scratch[Scratch::delta].offset == far_size(p));
  }
  if (present.count(Stem::place_entries)) {
    if (p.lengths_q == Lengths::gapped) piece(plan.scratch[Scratch::places_q].offset, 3 * p.batch);
    if (p.lengths_kv == Lengths::gapped)
      piece(plan.scratch[Scratch::places_kv].offset, 3 * p.batch);
  }
  const bool packs =
      present.count(Stem::expand_blocks) && std::string(plan.path) == "sm90" && packs_keep(p);
  if (present.count(Stem::expand_blocks) && !packs)
    piece(plan.scratch[Scratch::block_keep].offset,
          ceil_div(p.blocks.heads * p.blocks.batch * p.seq_q * ceil_div(p.seq_kv, 16) * 16, 4));
  if (present.count(Stem::pack_keep) || packs)
    piece(plan.scratch[Scratch::packed_keep].offset, packed_keep(p).elements());
  if (p.expands_table()) {
    const int64_t biases = p.table.batch * p.heads_q * p.seq_q * p.seq_kv;
    if (present.count(Stem::expand_table)) piece(plan.scratch[Scratch::table_bias].offset, biases);
    if (present.count(Stem::reduce_table))
      piece(plan.scratch[Scratch::d_table_bias].offset, biases);
  }
  if (present.count(Stem::mask_map)) {
    const int64_t q = ceil_div(p.seq_q, 64), kv = ceil_div(p.seq_kv, 64);
    piece(plan.scratch[Scratch::mask_map].offset,
          p.spans.heads * p.spans.batch * 2 * (q * ceil_div(kv, 32) + kv * ceil_div(q, 32)));
  }
  if (present.count(Stem::bwd_dot) + present.count(Stem::bwd_row_sums) +
      present.count(Stem::bwd_row_sums_dq)) {
    piece(plan.scratch[Scratch::delta].offset, rows);
    if (p.wants(TANDEM_GRAD_TAU)) piece(plan.scratch[Scratch::tau_rows].offset, rows);
    if (p.wants(TANDEM_GRAD_SLOPE)) {
      const Launch* fused = plan.find(Stem::bwd_dkv_dq);
      CHECK(plan.slope_parts == (fused ? fused->tiles * kBwdParts : p.seq_q));
      piece(plan.scratch[Scratch::slope_rows].offset, p.batch * p.heads_q * plan.slope_parts);
    }
  }
  if (const Launch* pack = plan.find(Stem::pack_bias))
    piece(plan.scratch[Scratch::packed_bias].offset,
          packed_bias(p, bias_box_rows(p, *pack)).elements() /
              (sm90_has(p, trait::f32_bias) ? 1 : 2));
  if (const Launch* sum = plan.find_sum(TANDEM_GRAD_DIST_BIAS); sum && sum->joins())
    piece(plan.scratch[Scratch::sum_counts].offset, 2 * p.heads_kv);
  const Launch* fwd = plan.find(Stem::fwd);
  if (fwd && fwd->as<MatrixLaunch>() && fwd->splits == 1)
    piece(plan.scratch[Scratch::own_lse].offset, rows);
  const Launch* d_q = plan.find(Stem::bwd_dq);
  if (d_q && d_q->of<MatrixLaunch>().sums_d_bias) {  // a tile's for each workgroup at work
    const int64_t keys = (p.seq_kv + d_q->tile.bc - 1) / d_q->tile.bc * d_q->tile.bc;
    piece(plan.scratch[Scratch::bias_sums].offset,
          p.batch > d_q->of<MatrixLaunch>().entries ? d_q->groups_x * d_q->tile.br * keys : 0);
  }
  if (d_q && d_q->has(trait::ds))
    piece(plan.scratch[Scratch::ds].offset, int64_t(ds_size(p, *d_q) / 4));
  // What the first kernel zeroes stands last, but for the partial sums of shared tiles of keys.
  uint64_t zeroed_end = plan.workspace_size;
  if (const Launch* fused = plan.find(Stem::bwd_dkv_dq);
      fused && fused->of<Sm90Launch>().parts.most > 1) {
    const int64_t room = int64_t(fused->total) * fused->of<Sm90Launch>().parts.most;
    piece(plan.scratch[Scratch::dkv_partial_counts].offset, 2 * int64_t(fused->total));
    piece(plan.scratch[Scratch::dkv_partials].offset,
          room * bwd_partial_floats(kBwdShapes[fused->of<Sm90Launch>().row]));
    zeroed_end = plan.scratch[Scratch::dkv_partial_counts].offset + 8 * uint64_t(fused->total);
  }
  if (const Launch* fused = plan.find(Stem::bwd_dkv_dq);
      fused && !has_whole_heads(plan) &&
      (p.wants(TANDEM_GRAD_Q) || kKernels[sm90_kernel(p)].inputs != kHasSink)) {
    int64_t heads = p.batch * p.heads_q;
    if (p.normalizer == Normalizer::entmax &&
        (gathers_rows(p) ? !saves(p, Saving::maps) : !p.visit_all))
      piece(plan.scratch[Scratch::support].offset,
            heads * support_blocks(p.seq_q) *
                (gathers_rows(p) ? 2 * support_rows_tiles(p.seq_kv) : support_words(p.seq_kv)));
    if (fused->as<Sm80Launch>() && !plan.scratch[Scratch::d_q_accum].present) {
      // The workgroup of a head's only keys stores d_q.
    } else if (fused->as<Sm80Launch>()) {
      piece(plan.scratch[Scratch::d_q_accum].offset,
            heads * ampere_row_blocks(p.seq_q) * 64 *
                std::max(kAmpereTiles[fused->of<Sm80Launch>().row].width, 64));
      if (!plan.find(Stem::bwd_dq_cast))
        piece(plan.scratch[Scratch::d_q_counts].offset, p.batch * p.heads_kv);
    } else {
      const BwdShape& s = kBwdShapes[fused->of<Sm90Launch>().row];
      int64_t rows_of_head = p.seq_q;
      if (is_packed(p.lengths_q)) {  // each entry begins a tile
        heads = p.heads_q;
        rows_of_head = (p.total_q / s.br + p.batch) * s.br;
      }
      piece(plan.scratch[Scratch::d_q_accum].offset,
            bwd_dq_accum_bytes(s, heads, rows_of_head) / 4);
      if (p.deterministic)
        piece(plan.scratch[Scratch::dq_semaphores].offset,
              bwd_dq_semaphore_bytes(s, heads, rows_of_head) / 4);
      const Launch* cast = plan.find(Stem::bwd_dq_cast);
      if (p.wants(TANDEM_GRAD_Q) && (!cast || cast->of<Sm90Launch>().programmatic))
        piece(plan.scratch[Scratch::d_q_counts].offset,
              p.batch * p.heads_kv * (fused->of<Sm90Launch>().cooperative_postprocess ? 2 : 1));
    }
    if (plan.scratch[Scratch::d_q_accum].present)
      CHECK(plan.zeroed_size == zeroed_end - plan.scratch[Scratch::d_q_accum].offset);
  }
  // cpu.simd adds up its parts itself.
  if (plan.backend == Backend::cpu && plan.scratch[Scratch::dist_parts].present)
    piece(plan.scratch[Scratch::dist_parts].offset,
          sum_parts(p) * gradient_elements(p, TANDEM_GRAD_DIST_BIAS));
  if (plan.backend == Backend::cpu && plan.scratch[Scratch::table_parts].present)
    piece(plan.scratch[Scratch::table_parts].offset,
          sum_parts(p) * gradient_elements(p, TANDEM_GRAD_BIAS_TABLE));
  if (plan.scratch[Scratch::tile_counter].present)
    piece(plan.scratch[Scratch::tile_counter].offset, 1);
  // Counts of who is done with a head, where no bwd_head_sums comes.
  if (const Launch* fused = plan.find(Stem::bwd_dkv_dq), *head = plan.find(Stem::bwd_head_sums);
      fused && head && head->joins() && !plan.find(Stem::bwd_dq_cast)) {
    piece(plan.scratch[Scratch::head_counts].offset, p.heads_kv);
    CHECK(plan.zeroed_size == zeroed_end - plan.zeroed_offset);
  } else {
    CHECK(plan.scratch[Scratch::head_counts].offset == 0);
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  uint64_t end = 0;
  for (const Piece& x : pieces) {
    CHECK(x.begin % kWorkspaceAlignment == 0);
    CHECK(x.begin >= end);
    CHECK(x.begin - end < kWorkspaceAlignment);
    end = x.end;
  }
  CHECK(plan.workspace_size == end);
}

}  // namespace

TEST_CASE("the operations of each set of gradients") {
  const struct {
    const char* words;
    const char* stems;
  } rows[] = {{"deterministic", "bwd_dot bwd_dkv bwd_dq"},
              {"grads=v", "bwd_dkv"},
              {"keep:1x1x1 sink q_padded softcap=5 dropout=0.5", "bwd_dot bwd_dkv bwd_dq"},
              {"sink grads=s", "bwd_dot bwd_head_sums"},
              {"sink grads=qs", "bwd_dot bwd_dq bwd_head_sums"},
              {"alibi", "bwd_dot bwd_dkv bwd_dq"},
              {"alibi grads=a", "bwd_row_sums bwd_head_sums"},
              {"alibi grads=qkva", "bwd_row_sums bwd_dkv bwd_dq bwd_head_sums"},
              {"elastic softcap=5", "bwd_row_sums bwd_dkv bwd_dq"},
              {"elastic grads=v", "bwd_dkv"},
              {"elastic grads=t", "bwd_row_sums bwd_head_sums"},
              {"elastic grads=vt", "bwd_row_sums bwd_dkv bwd_head_sums"},
              {"entmax=1.5", "bwd_row_sums bwd_dkv bwd_dq"},
              {"entmax=2 grads=v", "bwd_dkv"},
              {"bias:f32:2x4x500 grads=b d_bias:f32", "bwd_dot bwd_dbias"},
              {"bias:f32:2x4x500 grads=qb d_bias:f32", "bwd_dot bwd_dq bwd_dbias"},
              {"bias:f16:1x1x1 grads=b d_bias:f32", "bwd_dot bwd_dbias bwd_sum_splits"},
              {"dist=40 grads=d", "bwd_dot bwd_dist_bias bwd_sum_splits"},
              {"bias:f16:1x1x1 dist=40 elastic alibi sink grads=qkvbdats d_bias:f16",
               "bwd_row_sums bwd_dkv bwd_dq bwd_dbias bwd_dist_bias bwd_head_sums bwd_sum_splits "
               "bwd_sum_splits"}};
  // On Vulkan the last bwd_sum_splits does the work of bwd_head_sums, which then comes behind it.
  const std::string by_head = " bwd_head_sums bwd_sum_splits bwd_sum_splits",
                    by_sum = " bwd_sum_splits bwd_sum_splits bwd_head_sums";
  for (const auto& row : rows)
    for (const char* id : {"h100_cuda", "h100_vulkan", "lavapipe"}) {
      CAPTURE(std::string(row.words));
      const Plan plan = plan_of(std::string("bwd f32 b2 hq4 hk2 sq500 d64 ") + row.words, id);
      std::string wanted = row.stems;
      if (const size_t at = wanted.find(by_head);
          at != std::string::npos && plan.backend == Backend::vulkan) {
        wanted.replace(at, by_head.size(), by_sum);
        CHECK(plan.launches.back().joins());
      }
      // cuda.sm80's bwd_dq stores the d_bias that it alone has.
      if (std::string(plan.path) == "sm80" && wanted == "bwd_dot bwd_dq bwd_dbias")
        wanted = "bwd_dot bwd_dq";
      CHECK(stems(plan) == wanted);
      check_plan(plan, caps_of(id));
    }
}

TEST_CASE("kernels of a fixed set of optional inputs: who gets them, and what is fused") {
  const struct {
    const char* words;
    const char* stems;
  } rows[] = {{"", "bwd_row_sums_dq bwd_dkv_dist"},
              {"grads=qkvt", "bwd_row_sums_dq bwd_dkv_dist bwd_head_sums"},
              {"grads=qv", "bwd_row_sums_dq bwd_dkv"},
              {"grads=kt", "bwd_row_sums bwd_dkv_dist bwd_head_sums"},
              {"dist=512 sink q_padded grads=qkvdts",
               "bwd_row_sums_dq bwd_dkv_dist bwd_head_sums bwd_sum_splits"},
              {"dist=1025 grads=qkvd", "bwd_row_sums_dq bwd_dkv_dist bwd_dist_bias"},
              {"dist=512 grads=qd", "bwd_row_sums_dq bwd_dist_bias bwd_sum_splits"},
              {"dist=512 keep:1x1x1 grads=qkvd",
               "bwd_row_sums bwd_dkv bwd_dq bwd_dist_bias bwd_sum_splits"}};
  for (const auto& row : rows) {
    const std::string line = std::string("bwd bf16 b4 hq16 hk4 sq500 d64 elastic ") + row.words;
    CAPTURE(line);
    const Plan plan = plan_of(line, "v100_cuda");
    CHECK(stems(plan) == row.stems);
    check_plan(plan, caps_of("v100_cuda"));
    for (const Launch& l : plan.launches)
      CHECK(l.has(trait::fixed) ==
            (l.stem == Stem::bwd_row_sums_dq || l.stem == Stem::bwd_dkv_dist));
  }
  // Parts of d_dist_bias: one for each tile of keys.
  const Plan plan =
      plan_of("bwd bf16 b4 hq16 hk4 sq500 d64 elastic dist=512 grads=qkvd", "v100_cuda");
  CHECK(plan.find(Stem::bwd_dkv_dist)->splits == 4 * 8);
  // Two pools and two P tiles of t64r8.
  CHECK(plan.find(Stem::bwd_dkv_dist)->shared_bytes == 27648 + 17408);
  const String text = explain(plan.problem, caps_of("v100_cuda"));
  CHECK(text.find("of cuda.simt.elastic") != std::string::npos);

  CHECK(plan_of("fwd f16 sq500 d64 elastic dist=40", "v100_cuda").launches[0].has(trait::fixed));
  CHECK(!plan_of("fwd f16 sq500 d64 dist=40", "v100_cuda").launches[0].has(trait::fixed));
  const Plan more = plan_of("fwd f16 sq500 d64 elastic alibi", "v100_cuda");
  CHECK(!more.launches[0].has(trait::fixed));
  CHECK(more.refusals.back().candidate == "cuda.simt.elastic");
  CHECK(more.refusals.back().reason.find("alibi") != std::string::npos);

  Caps caps = caps_of("v100_cuda");
  REQUIRE(parse_disabled("cuda.simt.elastic", &caps.disabled).ok());
  Plan without;
  REQUIRE(make_plan(plan.problem, caps, &without).ok());
  CHECK(stems(without) == "bwd_row_sums bwd_dkv bwd_dq bwd_dist_bias bwd_sum_splits");
  CHECK(without.refusals.back().reason.find("disabled") != std::string::npos);
}

TEST_CASE("every recorded device that plans plain attention plans each optional input") {
  for (const Profile& profile : profiles())
    for (const char* words :
         {"elastic", "entmax=1.5", "entmax=1.25", "softcap=5", "bias:bf16:1x1x1", "dist=512",
          "alibi", "keep:2x4x1024", "sink", "dropout=0.1", "q_packed=1500 kv_packed=1500",
          "q_padded kv_padded"}) {
      CAPTURE(std::string(profile.id));
      CAPTURE(std::string(words));
      for (const char* direction : {"fwd", "bwd"}) {
        Plan plan;
        const Problem p =
            problem_of(std::string(direction) + " f16 b2 hq4 hk2 sq1024 d64 " + words);
        const Status status = make_plan(p, profile.caps, &plan);
        CHECK_MESSAGE(status.ok() == !profile.path.empty(), status.message());
        if (status.ok()) check_plan(plan, profile.caps);
      }
    }
}

TEST_CASE("sums are split where few workgroups would do all the work, and only there") {
  const auto splits = [](const std::string& words, const char* id) {
    const Plan plan = plan_of("bwd f32 b8 hq16 sq2048 d64 grads=b d_bias:f32 " + words, id);
    return plan.find(Stem::bwd_dbias)->splits;
  };
  for (const char* id : {"h100_cuda", "lavapipe"}) {
    CAPTURE(std::string(id));
    CHECK(splits("bias:f32:8x16x2048", id) == 1);
    CHECK(splits("bias:f32:1x1x1", id) >= 4);
    CHECK(splits("bias:f32:1x1x1", id) <= 8 * 16 * 2048 / 32);
  }
  // A member is the least that a workgroup can do.
  const Plan few =
      plan_of("bwd f32 b1 hq2 sq20 d64 bias:f32:1x1x1 grads=b d_bias:f32", "h100_cuda");
  CHECK(int64_t(few.find(Stem::bwd_dbias)->splits) <= few.find(Stem::bwd_dbias)->members);
}

TEST_CASE("sums of rows and of parts run on devices with the smallest workgroups") {
  const Plan plan = plan_of(
      "bwd f32 b2 hq4 sq500 d64 bias:f16:1x1x1 dist=40 elastic alibi sink grads=qkvbdats "
      "d_bias:f16",
      "minimum");
  CHECK(plan.find(Stem::bwd_sum_splits) != nullptr);
  CHECK(plan.find(Stem::bwd_head_sums) != nullptr);
  CHECK(uint32_t(kLineGroup) <= caps_of("minimum").max_invocations);
}

TEST_CASE("more optional inputs than addresses fit are refused with their number") {
  const std::string all =
      "fwd f32 b1 hq2 sq100 d64 elastic softcap=5 bias:f32:1x1x1 dist=9 alibi keep:1x1x1 sink "
      "dropout=0.5 q_padded kv_padded";
  for (const char* id : {"h100_cuda", "h100_vulkan"}) {
    Plan plan;
    const Status status = make_plan(problem_of(all), caps_of(id), &plan);
    CHECK(status.code() == TANDEM_ERROR_UNSUPPORTED);
    CHECK(status.message().find("8 addresses of optional inputs") != std::string::npos);
  }
  Plan plan;  // the CPU takes anything
  CHECK(make_plan(problem_of(all), caps_of("cpu"), &plan).ok());
  CHECK(std::string(plan.path) == "simd");
}

TEST_CASE("random problems with optional inputs keep the rules on every device") {
  int taken = 0, refused = 0;
  const std::vector<Profile> devices = profiles();
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    const tandem_problem given =
        seed % 16 == 5 ? harness::random_merge(seed) : harness::random_problem(seed * 7);
    Problem p;
    const Status status = make_problem(&given, &p);
    CAPTURE(print_problem(given));
    REQUIRE_MESSAGE(status.ok(), status.message());
    for (size_t n = seed % 3; n < devices.size(); n += 3) {
      CAPTURE(std::string(devices[n].id));
      Plan plan, again;
      const Status planned = make_plan(p, devices[n].caps, &plan);
      CHECK(dump(planned, plan) == dump(make_plan(p, devices[n].caps, &again), again));
      const bool told = explain(p, devices[n].caps).find("taken") != std::string::npos;
      CHECK(told == planned.ok());
      planned.ok() ? ++taken : ++refused;
      if (planned.ok())
        check_plan(plan, devices[n].caps);
      else
        CHECK(!plan.refusals.empty());
    }
  }
  CHECK(taken > 5000);
  CHECK(refused > 1000);
}
