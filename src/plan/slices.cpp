// SPDX-License-Identifier: MIT OR Apache-2.0
#include "slices.h"

#include <algorithm>
#include <cmath>

#include "planner.h"

namespace tandem {
namespace {

// What a number costs that a kernel without products reads or writes, in operations. Its time is
// that of memory, of which a GPU moves one for so many operations.
constexpr double kOfNumber = 64;

// Features of the products of a score, twice: operations.
double operations(const Problem& p, const Launch& l) {
  const auto d = double(p.head_dim), dv = double(p.head_dim_v);
  const bool ds = l.has(trait::ds);
  const double parts = l.feature_parts;
  switch (l.stem) {
    case Stem::fwd:
      return 2 * (d + dv / parts);
    case Stem::bwd_dkv:
    case Stem::bwd_dkv_dist:
      return 2 * (d + dv + (d + dv) / parts);
    case Stem::bwd_dkv_dq:
      return 2 * (3 * d + 2 * dv);
    case Stem::bwd_dq:
      return ds ? 2 * d : 2 * (d + dv + d / parts);
    case Stem::bwd_row_sums_dq:
      return 2 * (3 * d + 2 * dv);  // it goes over the keys twice
    case Stem::bwd_dbias:
      return ds ? kOfNumber : 2 * (d + dv);
    default:
      return 2 * (d + dv);
  }
}

bool owns_keys(Stem stem) {
  return stem == Stem::bwd_dkv || stem == Stem::bwd_dkv_dist || stem == Stem::bwd_dkv_dq;
}

// Scores of a tiled launch, as if all sequences were as long as can be: of the tile with most, and
// of all tiles of a head of the launch.
struct Scores {
  double longest = 0, head = 0;
};
Scores scores_of(const Problem& p, const Launch& l) {
  Scores s;
  const int br = std::max(l.tile.br, 1), bc = std::max(l.tile.bc, 1);
  const bool keys = owns_keys(l.stem);
  if (l.stem == Stem::bwd_dbias || l.stem == Stem::bwd_dist_bias) {  // the members of a sum
    const double tile = double(br) * bc;
    s.longest = l.stem == Stem::bwd_dist_bias
                    ? double(l.members) * br * br * 2
                    : tile * std::max(1.0, double(std::max<int64_t>(l.members, 1)));
    s.head = s.longest * l.tiles;
    return s;
  }
  const int64_t owned = keys ? p.seq_kv : p.seq_q, size = keys ? bc : br;
  for (int64_t at = 0; at < owned; at += size) {
    const TandemTiles t =
        keys ? tandem_query_tiles(p.band, int(at), bc, br, int(p.seq_q), int(p.seq_kv))
             : tandem_key_tiles(p.band, int(at), br, bc, int(p.seq_q), int(p.seq_kv));
    const double scores =
        double(std::max(t.end - t.begin, 0)) * br * bc * (keys ? double(p.group()) : 1);
    s.longest = std::max(s.longest, scores);
    s.head += scores;
  }
  return s;
}

// Numbers that a launch without products reads and writes.
double numbers_of(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  const auto rows = double(p.batch * p.heads_q * p.seq_q);
  const auto pairs = double(p.seq_q) * double(p.seq_kv);
  switch (l.stem) {
    case Stem::bwd_dot:
      return 2 * rows * double(p.head_dim_v);
    case Stem::fwd_combine:
      return double(l.splits) * rows * double(p.head_dim_v);
    case Stem::bwd_sum_splits:
      return double(l.splits) * double(gradient_elements(p, l.gradient));
    case Stem::bwd_dq_cast:
      return 2 * rows * double(p.head_dim);
    case Stem::expand_table:
    case Stem::reduce_table:
      return pairs * double(p.heads_q) * double(p.table.batch);
    case Stem::expand_blocks:
      return pairs / 4 * double(p.blocks.batch * p.blocks.heads);
    case Stem::pack_bias:
      return 2 * pairs * double(p.bias.batch * p.bias.heads);
    case Stem::pack_keep:
      return pairs / 4 * double(p.keep.batch * p.keep.heads);
    case Stem::mask_map:
      return pairs / 4096 * double(p.spans.batch * p.spans.heads) +
             double(p.spans.batch * p.spans.heads) * double(p.spans.numbers(p.seq_kv));
    default:
      return rows;
  }
}

// Whether cuda.sm90 cuts a launch: fwd between heads, and of the backward kernels whose workgroups
// or clusters have a tile each. Persistent ones, clusters of a dense bias and parts of a tile stay
// whole.
bool is_cut_on_sm90(const Launch& l) {
  const Sm90Launch& own = l.of<Sm90Launch>();
  switch (l.stem) {
    case Stem::fwd:
      return own.stream_k_units == 0 && own.short_tiles == 0;
    case Stem::bwd_dkv_dq:
      return own.parts.most == 0 && l.groups_y == 1 &&
             !l.has(trait::persistent | trait::bias_tiles);
    case Stem::bwd_dkv:
    case Stem::bwd_dkv_dist:
    case Stem::bwd_dq:
      return l.groups_y == 1;
    default:
      return false;
  }
}

// Whether the kernel of a CUDA launch numbers its workgroups from first_group on (cuda/kernels.h).
// What is not here has little work, or strides over its grid.
bool is_cut_on_cuda(const Launch& l) {
  if (l.as<Sm90Launch>()) return is_cut_on_sm90(l);
  if (uint64_t(l.groups_x) * l.groups_y < l.total) return false;
  switch (l.stem) {
    case Stem::fwd:
    case Stem::fwd_combine:
    case Stem::bwd_row_sums:
    case Stem::bwd_row_sums_dq:
    case Stem::bwd_dkv:
    case Stem::bwd_dkv_dist:
    case Stem::bwd_dkv_dq:
    case Stem::bwd_dq:
    case Stem::bwd_dbias:
    case Stem::bwd_dist_bias:
      return true;
    case Stem::bwd_dot:
      return !l.has(trait::zeroes);
    default:
      return false;
  }
}

// Whether a launch is of workgroups that take several whole heads (cuda.sm80).
bool takes_whole_heads(const Launch& l) {
  const Sm80Launch* own = l.as<Sm80Launch>();
  return own && own->tile().table == TileTable::ampere_whole_heads;
}

}  // namespace

double Slicing::Work::of(uint32_t n) const {
  const double rest = std::min(double(n % run) * each, of_run);
  return double(n / run) * of_run + rest;
}

uint32_t Slicing::Work::fit(double room) const {
  if (of_run <= 0 || of(groups) <= room) return groups;
  if (room <= 0) return 0;  // a larger slice than asked for
  const double runs = std::floor(room / of_run);
  if (runs * run >= double(groups)) return groups;
  double n = runs * run + std::min(std::floor((room - runs * of_run) / each), double(run - 1));
  n = std::min(n, double(groups));
  uint32_t whole = uint32_t(n) / grain * grain;
  while (whole > 0 && of(whole) > room) whole -= std::min(whole, grain);
  return whole;
}

Slicing::Slicing(const Plan& plan) {
  const Problem& p = plan.problem;
  const Vec<Piece> pieces = pieces_of(plan);
  for (size_t n = 0; n < pieces.size(); ++n) {
    const Launch& l = pieces[n].launch;
    Work w;
    w.first = w.last = n;
    if (l.joins()) {  // in the piece before
      if (!works_.empty()) works_.back().last = n;
      continue;
    }
    double all = 0;
    w.groups = l.groups_y > 1 ? l.total : std::max(l.groups_x, 1u);
    if (l.total == 0) w.groups = 1;
    if (is_tiled(l.stem) && !l.has(trait::redo)) {
      const Scores s = scores_of(p, l);
      const double ops = operations(p, l) / std::max(1u, l.splits);
      w.run = std::max(l.tiles * l.feature_parts, 1u);
      w.each = s.longest * ops, w.of_run = std::max(s.head * l.feature_parts * ops, w.each);
      const double heads = double(p.batch) * double(owns_keys(l.stem) ? p.heads_kv : p.heads_q);
      all = l.total > 0 ? w.of_run * (double(l.total) / w.run) : w.of_run * heads;  // 0: the CPU
      if (takes_whole_heads(l)) {
        all = s.head * ops * heads;
        w.run = 1, w.each = w.of_run = all / std::max(1u, l.total);
      }
    } else {
      all = kOfNumber * numbers_of(plan, l);
      w.each = w.of_run = all / std::max(1u, w.groups);
    }
    if (plan.backend == Backend::vulkan && l.groups_y > 1) w.grain = least_width(l);
    // Persistent workgroups of fwd: whole heads, or with optional inputs whole batch entries.
    if (l.as<Sm90Launch>() && l.stem == Stem::fwd)
      w.groups = l.total, w.grain = l.tiles * (l.row().inputs ? uint32_t(p.heads_q) : 1);
    if (l.has(trait::two_sided)) w.groups = l.total;  // clusters
    const bool cut = plan.backend == Backend::cuda
                         ? is_cut_on_cuda(l)
                         : plan.backend == Backend::vulkan && w.grain <= l.groups_x / 4 + 1 &&
                               !l.of<MatrixLaunch>().sums_d_bias;
    if (!cut) w.groups = w.run = w.grain = 1, w.each = w.of_run = all;
    if (plan.backend == Backend::cpu && !works_.empty()) {
      works_.back().last = n;
      works_.back().each = works_.back().of_run += all;
    } else {
      works_.push_back(w);
    }
  }
}

template <typename Each>
void Slicing::for_each_cut(double most, const Each& each) const {
  uint64_t slice = 0;
  double room = most;
  bool begun = false;
  for (const Work& w : works_) {
    const uint32_t full = std::min(std::max(w.fit(most), std::min(w.grain, w.groups)), w.groups);
    for (uint32_t at = 0; at < w.groups;) {
      const uint32_t left = w.groups - at;
      if (begun) {
        const uint32_t n = std::min(w.fit(room), left);
        if (n > 0) {
          each(slice, 1, w, at, n);
          room -= w.of(n), at += n;
        }
        if (at < w.groups) ++slice, room = most, begun = false;
        continue;
      }
      // New slices, all but the last of them full.
      const uint32_t count = std::max(left / full, 1u), n = std::min(full, left);
      each(slice, count, w, at, n);
      slice += count - 1, at += count * n;
      room = most - w.of(n), begun = true;
    }
  }
}

Slicing::Sizes Slicing::sizes(double most) const {
  Sizes s;
  double filled = 0;
  uint64_t last = 0;
  for_each_cut(most, [&](uint64_t slice, uint32_t count, const Work& w, uint32_t, uint32_t n) {
    const double work = w.of(n);
    filled = slice == last && s.count > 0 ? filled + work : work;
    last = slice + count - 1;
    s.largest = std::max(s.largest, filled);
    if (count > 1) filled = work;
    s.count = last + 1;
  });
  for (const Work& w : works_) s.whole += w.of(w.groups);
  return s;
}

bool Slicing::range(double most, uint64_t n, size_t piece, Range* range) const {
  bool found = false;
  for_each_cut(most,
               [&](uint64_t slice, uint32_t count, const Work& w, uint32_t from, uint32_t groups) {
                 if (piece < w.first || piece > w.last || n < slice || n >= slice + count) return;
                 found = true;
                 range->from = from + uint32_t(n - slice) * groups;
                 range->to = range->from + groups;
                 range->whole = range->from == 0 && range->to == w.groups;
               });
  return found;
}

}  // namespace tandem
