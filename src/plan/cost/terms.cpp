// SPDX-License-Identifier: MIT OR Apache-2.0
// What the launches of a plan do, as quantities (terms.inc): a function for each path.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cost.h"
#include "kernels/params.h"
#include "plan/planner.h"

namespace tandem {
namespace {

// Sequences with lengths: what the planner does not know is taken as three quarters of the most.
int64_t mean_length(Lengths lengths, int64_t length, int64_t total, int64_t batch) {
  if (is_packed(lengths) && batch > 0) return std::min(ceil_div(total, batch), length);
  return lengths == Lengths::padded ? ceil_div(3 * length, 4) : length;
}

// Scores that the workgroups of a tiled kernel form, of whole tiles.
struct Work {
  double total = 0, longest = 0;  // of all, of the longest workgroup
  double busy = 1;                // share of the workgroups that form any
};

// Tiles of br x bc of all heads. owns_keys: a workgroup has bc keys, and visits query rows. No more
// than kSamples tiles of a head are looked at.
constexpr int64_t kSamples = 32;
Work work_of(const Problem& p, int br, int bc, bool owns_keys) {
  const int64_t rows = mean_length(p.lengths_q, p.seq_q, p.total_q, p.batch),
                keys = mean_length(p.lengths_kv, p.seq_kv, p.total_kv, p.batch);
  const int64_t owned = owns_keys ? keys : rows, size = owns_keys ? bc : br;
  const int64_t tiles = ceil_div(owned, size), samples = std::min(tiles, kSamples);
  double sum = 0, longest = 0, busy = 0;
  for (int64_t n = 0; n < samples; ++n) {
    const int at = int((2 * n + 1) * tiles / (2 * samples) * size);
    const TandemTiles t = owns_keys ? tandem_query_tiles(p.band, at, bc, br, int(rows), int(keys))
                                    : tandem_key_tiles(p.band, at, br, bc, int(rows), int(keys));
    sum += t.end - t.begin;
    longest = std::max(longest, double(t.end - t.begin));
    busy += t.end > t.begin;
  }
  if (samples == 0) return {};
  const double tile = double(br) * bc;
  return {sum / double(samples) * double(tiles) * tile * double(p.batch) * double(p.heads_q),
          longest * tile * (owns_keys ? double(p.group()) : 1), busy / double(samples)};
}

double tensor_bytes(const Problem& p, bool queries, int64_t width) {
  const int64_t length = queries ? mean_length(p.lengths_q, p.seq_q, p.total_q, p.batch)
                                 : mean_length(p.lengths_kv, p.seq_kv, p.total_kv, p.batch);
  return double(p.batch) * double(queries ? p.heads_q : p.heads_kv) * double(length) *
         double(width * p.element_size());
}

double overlay_bytes(const Problem& p, const Overlay& o, double size) {
  return double(o.batch) * double(o.heads) * double(o.rows) * double(p.seq_kv) * size;
}

double dtype_size(tandem_dtype dtype) { return dtype == TANDEM_F32 ? 4 : 2; }

double bytes_of(const Problem& p) {
  const double q = tensor_bytes(p, true, p.head_dim), o = tensor_bytes(p, true, p.head_dim_v),
               k = tensor_bytes(p, false, p.head_dim), v = tensor_bytes(p, false, p.head_dim_v);
  double bytes = q + k + v + o;
  if (p.bias) bytes += overlay_bytes(p, p.bias, dtype_size(p.bias.dtype));
  if (p.keep) bytes += overlay_bytes(p, p.keep, 1);
  if (p.wants(TANDEM_GRAD_Q)) bytes += q;
  if (p.wants(TANDEM_GRAD_K)) bytes += k;
  if (p.wants(TANDEM_GRAD_V)) bytes += v;
  if (p.wants(TANDEM_GRAD_BIAS)) bytes += overlay_bytes(p, p.bias, dtype_size(p.d_bias_dtype));
  return bytes;
}

// Features of the products that a kernel forms for a score, where q and k have d of them and v dv.
double features(Stem stem, bool reads_ds, double d, double dv) {
  switch (stem) {
    case Stem::bwd_dkv_dq:
      return 3 * d + 2 * dv;
    case Stem::bwd_dkv:
    case Stem::bwd_dkv_dist:
      return 2 * (d + dv);
    case Stem::bwd_dq:
      return reads_ds ? d : 2 * d + dv;
    case Stem::bwd_row_sums_dq:
      return 2 * d + dv;
    default:
      return d + dv;  // fwd, bwd_dbias, bwd_dist_bias, bwd_row_sums
  }
}

bool owns_keys(Stem stem) {
  return stem == Stem::bwd_dkv || stem == Stem::bwd_dkv_dist || stem == Stem::bwd_dkv_dq;
}

// Whether keep is read 16 bytes at once.
bool has_wide_keep(const Problem& p) {
  const Strides& s = p.keep.strides;
  return s.d == 1 && s.s % 16 == 0 && s.h % 16 == 0 && s.b % 16 == 0;
}

// How evenly a launch's workgroups are spread over the SMs.
struct Spread {
  double workgroups = 0;
  bool even = false;  // they take parts of tiles, so that all SMs end together
};

// Workgroups of the SM that has most. From some eight on they end together.
double most_groups(const Spread& spread, double cores) {
  const double mean = spread.workgroups / cores;
  return spread.even || mean >= 8 ? mean : std::ceil(mean);
}

// Adds the scores of a kernel with products of d and dv features.
void add_scores(const Plan& plan, const Caps& caps, const Launch& l, Work work, Spread spread,
                double d, double dv, CostTerms* t) {
  const Problem& p = plan.problem;
  const auto cores = double(cores_of(caps));
  spread.workgroups *= work.busy;
  if (spread.workgroups <= 0) return;
  const double groups = most_groups(spread, cores);
  double scores = work.total / spread.workgroups * groups;
  if (!spread.even) scores = std::max(scores, work.longest / std::max(1u, l.splits));
  const auto add = [&](CostTerm term, bool has) {
    if (has) (*t)[term] += scores;
  };
  (*t)[CostTerm::groups] += groups;
  t->width = std::max(t->width, int(std::max(d, dv)));
  const double products = scores * features(l.stem, l.has(trait::ds), d, dv);
  if (products > t->most_products) {
    t->most_products = products;
    t->loop = work.total / spread.workgroups;
    t->fill = spread.workgroups / cores;
  }
  if (l.row().tiles == TileTable::ampere_whole_heads) {
    add(CostTerm::keep, bool(p.keep));
    return add(CostTerm::windows, true);
  }
  const bool tma = l.as<Sm90Launch>() != nullptr;
  const bool odd_bias = !tma && (p.bias.dtype != p.dtype || !is_chunked(p, p.bias.strides)),
             odd_keep = !has_wide_keep(p);
  add(CostTerm::elements, true);
  (*t)[CostTerm::products] += products;
  add(CostTerm::band, p.banded());
  add(odd_bias ? CostTerm::odd_bias : CostTerm::bias, bool(p.bias));
  add(CostTerm::d_bias, l.stores_d_bias || l.stem == Stem::bwd_dbias);
  add(odd_keep ? CostTerm::odd_keep : CostTerm::keep, bool(p.keep));
  add(CostTerm::dropout, p.dropout > 0);
  add(CostTerm::rescored, p.softcap > 0 || p.alibi || p.dist_window > 0);
  add(CostTerm::sink, p.sink && !p.backward);
  add(CostTerm::lengths, p.has_lengths());
  add(CostTerm::elastic, p.normalizer == Normalizer::elastic);
  add(CostTerm::entmax, p.normalizer == Normalizer::entmax);
  add(CostTerm::ordered, p.backward && p.deterministic);
  add(CostTerm::narrow, !tma && !narrow_inputs(p, plan.wide_elements()).empty());
}

// Adds what is alike on every path: launches, and bytes. The launch that recomputes rows and the
// lse that it reads are left out, as no plan that was measured for the fits had them.
void add_rest(const Plan& plan, CostTerms* t) {
  for (const Launch& l : plan.launches)
    if (!l.joins() && !l.has(trait::redo))
      (*t)[CostTerm::launches] += std::max(l.of<MatrixLaunch>().chunks, 1u);
  (*t)[CostTerm::bytes] = bytes_of(plan.problem);
  double aux = 0;
  // Each array is written once and read once.
#define TANDEM_SCRATCH(name, element, zeroed) aux += 2 * double(plan.scratch[Scratch::name].size);
#include "plan/scratch.inc"
  aux -= 2 * double(plan.scratch[Scratch::own_lse].size);
  if (plan.find(Stem::bwd_dot))
    aux += 2 * tensor_bytes(plan.problem, true, plan.problem.head_dim_v);
  (*t)[CostTerm::aux_bytes] = aux;
}

double whole(int64_t d, int step) { return double(ceil_div(d, step) * step); }

// Products of whole tiles of `width` features. Where heads of v are narrower than those of k, so
// are its tiles.
double width_of_v(const Problem& p, double width) {
  return p.head_dim_v < p.head_dim ? std::min(width, whole(p.head_dim_v, 64)) : width;
}

// Kernels without matrices, and those of simt on the other paths of CUDA.
void add_plain(const Plan& plan, const Caps& caps, const Launch& l, CostTerms* t) {
  const Problem& p = plan.problem;
  add_scores(plan, caps, l, work_of(p, l.tile.br, l.tile.bc, owns_keys(l.stem)),
             {double(l.total), false}, whole(p.head_dim, l.tile.block_cols()),
             whole(p.head_dim_v, l.tile.block_cols()), t);
}

void scalar_terms(const Plan& plan, const Caps& caps, CostTerms* t) {
  for (const Launch& l : plan.launches)
    if (is_tiled(l.stem)) add_plain(plan, caps, l, t);
}

void coopmat2_terms(const Plan& plan, const Caps& caps, CostTerms* t) {
  const Problem& p = plan.problem;
  for (const Launch& l : plan.launches) {
    if (!is_tiled(l.stem)) continue;
    const MatrixLaunch* own = l.as<MatrixLaunch>();
    if (!own) {
      add_plain(plan, caps, l, t);
      continue;
    }
    if (l.has(trait::redo)) continue;
    const double chunks = std::max(own->chunks, 1u);
    add_scores(plan, caps, l, work_of(p, l.tile.br, l.tile.bc, owns_keys(l.stem)),
               {double(l.total) * chunks, false}, whole(p.head_dim, 16), whole(p.head_dim_v, 16),
               t);
  }
}

void sm80_terms(const Plan& plan, const Caps& caps, CostTerms* t) {
  const Problem& p = plan.problem;
  for (const Launch& l : plan.launches) {
    if (!is_tiled(l.stem)) continue;
    const Sm80Launch* own = l.as<Sm80Launch>();
    if (!own) {
      add_plain(plan, caps, l, t);
      continue;
    }
    const double d = own->tile().width;
    // Whole heads: a tile each, whatever the mask, and workgroups that take several.
    const double tile = double(l.tile.br) * l.tile.bc;
    const bool heads = l.row().tiles == TileTable::ampere_whole_heads;
    const Work work = heads ? Work{tile * double(p.batch) * double(p.heads_q), tile, 1}
                            : work_of(p, l.tile.br, l.tile.bc, owns_keys(l.stem));
    add_scores(plan, caps, l, work, {double(l.total), false}, d, width_of_v(p, d), t);
  }
}

void sm90_terms(const Plan& plan, const Caps& caps, CostTerms* t) {
  const Problem& p = plan.problem;
  for (const Launch& l : plan.launches) {
    if (!is_tiled(l.stem)) continue;
    const Sm90Launch* own = l.as<Sm90Launch>();
    if (!own) {
      add_plain(plan, caps, l, t);
      continue;
    }
    const bool parts = own->parts.most > 1;
    const Spread spread{parts ? double(own->parts.workgroups) : double(l.total),
                        parts || own->stream_k_units > 0 || own->passes > 0};
    const double d = l.tile.max_d;
    // Without optional inputs, warpgroups whose 64 rows do not exist do nothing.
    const int64_t rows = p.inputs() ? l.tile.br : ceil_div(p.seq_q, 64) * 64;
    const int br = int(std::min<int64_t>(l.tile.br, rows));
    add_scores(plan, caps, l, work_of(p, br, l.tile.bc, owns_keys(l.stem)), spread, d,
               width_of_v(p, d), t);
  }
}

constexpr struct {
  Backend backend;
  const char* path;
  void (*terms)(const Plan&, const Caps&, CostTerms*);
} kPathTerms[] = {{Backend::cuda, "sm90", sm90_terms},
                  {Backend::cuda, "sm80", sm80_terms},
                  {Backend::cuda, "simt", scalar_terms},
                  {Backend::vulkan, "coopmat2", coopmat2_terms},
                  {Backend::vulkan, "scalar", scalar_terms}};

}  // namespace

bool cost_terms(const Plan& plan, const Caps& caps, CostTerms* terms) {
  *terms = CostTerms();
  if (plan.problem.is_empty()) return false;
  for (const auto& of : kPathTerms) {
    if (of.backend != plan.backend || std::strcmp(of.path, plan.path) != 0) continue;
    of.terms(plan, caps, terms);
    add_rest(plan, terms);
    return true;
  }
  return false;
}

}  // namespace tandem
