// SPDX-License-Identifier: MIT OR Apache-2.0
// The path cuda.sm90: which problems it takes, and which tiles (tiles.inc) they get.
#include <algorithm>

#include "base/number.h"
#include "bwd_cluster_schedule.h"
#include "fwd_stream_k.h"
#include "heuristics.h"
#include "kernel_tiles.h"
#include "kernels/kernel_rows.h"
#include "path_planner.h"
#include "plan/thrift.h"
#include "problem/mask_map.h"
#include "rules.h"
#include "tensor_maps.h"

namespace tandem {
namespace {

String too_wide(const char* what, int64_t size, int most) {
  return size <= most ? "" : text("%s %lld is beyond its %d", what, (long long)size, most);
}

String no_room(const Caps& caps, int shared, int invocations) {
  if (uint32_t(shared) > caps.shared_bytes)
    return text("needs %d bytes of shared memory, the device has %u", shared, caps.shared_bytes);
  if (uint32_t(invocations) > caps.max_invocations)
    return text("needs workgroups of %d, the device has %u", invocations, caps.max_invocations);
  return "";
}

// Optional inputs that change scores, or in backward what their gradients need.
constexpr uint32_t kScores = kHasSoftcap | kHasAlibi | kHasDistBias;

// Whether the decoupled warpgroups have elastic softmax
// (cuda/sm90/fwd/main_loop_elastic_decoupled.cuh). They need a causal mask whose diagonal lies
// along blocks of 64 rows and keys, and a scale that multiplies a score after its bias.
bool on_blocks(const Problem& p) {
  return p.band.right == 0 && p.band.left == TANDEM_BAND_OPEN && p.band.off % 64 == 0 &&
         p.seq_q - 1 + p.band.off < p.seq_kv && p.scale > kPlainScale;
}

// Bytes of shared memory of a row of fwd; 0: it has no kernel for the tile.
int fwd_bytes(const Problem& p, int kernel, const FwdTile& t) {
  if (kernel < 0) return 0;
  if (fwd_visits_all(t) && p.banded()) return 0;
  const bool elastic = (kKernels[kernel].needs & kHasElastic) != 0;
  return elastic && t.decoupled && !on_blocks(p) ? 0 : sm90_shared_bytes(kKernels[kernel], t);
}
// The same of the problem's kernel of the backward. The masked one has registers for all scores
// with some tiles alone.
int bwd_bytes(const Problem& p, const BwdShape& s) {
  const int kernel = sm90_kernel(p);
  if (kernel < 0) return 0;
  const KernelRow& row = kKernels[kernel];
  const bool masked = masks_scores(row) && !row.has(trait::bias_tiles | trait::one_row);
  if (masked && !has_masked_scores(s) && (p.inputs() & kScores) != 0) return 0;
  return sm90_shared_bytes(row, s);
}

// Why a tile for heads of d does not take the alpha of entmax; "" if it does. An alpha other than
// 1.5 has kernels for heads of 128 alone.
String alpha_refusal(const Problem& p, int d) {
  if (p.normalizer != Normalizer::entmax || p.alpha == 1.5f || d == 128) return "";
  return text("entmax with alpha %s takes the tiles for heads of 128", short_text(p.alpha).c_str());
}

// Rows of kRowShapes and kSupportShapes. The last row of each has all head sizes that the path
// takes for its kernel.
int row_dq_row(const Problem& p) {
  return std::max(p.head_dim, p.head_dim_v) <= kRowShapes[0].d ? 0 : 1;
}
int support_row(const Problem& p) {
  return std::max(p.head_dim, p.head_dim_v) <= kSupportShapes[0].d &&
                 alpha_refusal(p, kSupportShapes[0].d).empty()
             ? 0
             : 1;
}

// Why no kernel of fwd takes a tile.
String no_kernel(const Problem& p, const FwdTile& t) {
  if (fwd_visits_all(t)) return "its kernels have softmax alone, without a mask";
  if (t.decoupled)
    return "its kernels have softmax alone, or elastic softmax with a causal mask whose diagonal "
           "goes along blocks of 64 rows and keys";
  if (t.halves_o()) return "its kernels have softmax alone, with or without lengths of keys";
  if (fwd_is_plain(t)) return "its kernels have softmax alone";
  if (t.bias)
    return has_bias_tiles(p) ? "its kernels have no mask beside the bias"
                             : "its kernels have a dense bias";
  if (has_bias_tiles(p)) return "it has no room for tiles of the bias";
  if (p.normalizer == Normalizer::entmax) return "it has no room for candidates";
  return "it has no kernel with lengths";
}

// Why a tile is not taken: its kernels cannot, another is faster, or there is no room for it.
String row_refusal(const Problem& p, const Caps& caps, const FwdTile& t) {
  if (is_disabled(caps, t.name)) return kDisabled;
  for (const String& why :
       {too_wide("head_dim", p.head_dim, t.d), too_wide("head_dim_v", p.head_dim_v, t.dv),
        size_refusal(p, t.rows(), t.bc), alpha_refusal(p, t.d)})
    if (!why.empty()) return why;
  if (t.halves_o() && std::max(p.head_dim, p.head_dim_v) <= kMaxWholeHeadDim)
    return text("it is for heads over %d", kMaxWholeHeadDim);
  const int of_problem = sm90_kernel(p), of_tile = sm90_fwd_kernel(p, caps, t);
  const KernelRow& kernel = kKernels[of_tile >= 0 ? of_tile : of_problem];
  if (!caps.disabled.empty() && is_disabled(caps, kernel_name(kernel)))
    return text("its kernel %s is %s", short_kernel_name(kernel).c_str(), kDisabled);
  const int bytes = fwd_bytes(p, of_tile, t);
  if (bytes == 0) return no_kernel(p, t);
  const String slower = sm90_slower({p, caps, &kernel, &t});
  if (!slower.empty()) return slower;
  return no_room(caps, bytes, t.threads());
}

String row_refusal(const Problem& p, const Caps& caps, const BwdShape& s) {
  if (is_disabled(caps, s.name)) return kDisabled;
  for (const String& why :
       {too_wide("head_dim", p.head_dim, s.d), too_wide("head_dim_v", p.head_dim_v, s.dv()),
        size_refusal(p, s.br, s.bc), alpha_refusal(p, s.d)})
    if (!why.empty()) return why;
  if (s.wide && std::max(p.head_dim, p.head_dim_v) <= kMaxFusedHeadDim)
    return text("it is for heads over %d", kMaxFusedHeadDim);
  if (s.two_sided() && !has_two_sides(p)) return text("it is for heads over %d", kMaxWholeHeadDim);
  const char* beside = s.wide                                ? kDqShapes[dq_row(s)].name
                       : p.normalizer == Normalizer::elastic ? kRowShapes[row_dq_row(p)].name
                       : p.normalizer == Normalizer::entmax  ? kSupportShapes[support_row(p)].name
                                                             : "";
  if (is_disabled(caps, beside)) return text("the tile %s beside it is %s", beside, kDisabled);
  if (bwd_bytes(p, s) == 0) return "its registers do not suffice for " + p.extras();
  const int dq = s.wide ? dq_shared_bytes(kDqShapes[dq_row(s)]) : 0;
  return no_room(caps, std::max(bwd_bytes(p, s), dq), kBwdThreads);
}

// The first row from `begin` to `end` that serves the problem; -1: none does.
template <typename Row>
int first_row(const Row& row, int begin, int end, const Problem& p, const Caps& caps,
              const String& name, const Refuse& refuse) {
  for (int n = begin; n < end; ++n) {
    const String why = row_refusal(p, caps, row(n));
    if (why.empty()) return n;
    refuse(name + " " + row(n).name, why);
  }
  refuse(name, "no row of its tiles does");
  return -1;
}

String bias_type_refusal(const Problem& p) {
  if (p.bias.dtype == p.dtype || p.bias.dtype == TANDEM_F32) return "";
  return text("its bias is of f32 or of the tensors' type, this one of %s",
              dtype_name(p.bias.dtype));
}

// Why the kernels with tiles of a dense bias do not take a problem; "" if they do.
String bias_refusal(const Problem& p) {
  const Overlay& b = p.bias;
  const String more = p.extras(kHasBias | kHasKeep | kHasSpans | kHasLengths);
  if (!more.empty()) return "beside the dense bias, a mask and lengths, this problem has " + more;
  if (is_packed(p.lengths_q) || is_packed(p.lengths_kv))
    return "with a dense bias, lengths are of padded tensors, here a tensor is packed";
  if (p.backward && (p.head_dim > 128 || p.head_dim_v > 128))
    return "with a dense bias, head sizes go up to 128";
  if (b.dtype == TANDEM_F32 && (p.head_dim > 128 || p.head_dim_v > 128))
    return "with a dense bias of f32, head sizes go up to 128";
  if (!p.backward && b.dtype != TANDEM_F32 && !(p.scale > kPlainScale))
    return text("with a dense bias, the scale is over %s, here it is %s",
                short_text(kPlainScale).c_str(), short_text(p.scale).c_str());
  const String type = bias_type_refusal(p);
  if (!type.empty()) return type;
  const Overlay& grouped = p.is_grouped(b) ? b : p.keep;
  if (p.backward && p.is_grouped(grouped))
    return text(
        "in backward, a dense bias and the mask beside it have 1 or %lld batch entries, "
        "this %s has %lld",
        (long long)p.batch, p.is_grouped(b) ? "bias" : "mask", (long long)grouped.batch);
  if (packs_bias(p)) {
    const PackedBias copy = packed_bias(p, kFwdBiasRows);
    if (copy.rows * (copy.pitch / 8) > INT32_MAX)
      return text("a copy of bias for TMA has %lld rows of %lld, beyond 2^34 elements a head",
                  (long long)copy.rows, (long long)copy.pitch);
    const String why = tensor_map_refusal("a copy of bias for TMA", copy.strides(), copy.batch,
                                          copy.heads, copy.rows, 8, b.dtype);
    if (!why.empty()) return why;
  }
  if (!p.wants(TANDEM_GRAD_BIAS)) return "";
  if (b.rows != p.seq_q) return "d_bias, it sums over the batch, not over rows";
  if (b.heads != p.heads_q) return "d_bias, it sums over the batch, not over heads";
  return "";
}

// Why the kernels of elastic softmax do not take a problem; "" if they do.
String elastic_refusal(const Problem& p) {
  const String more = p.extras(kHasElastic | kHasDistBias);
  if (!more.empty()) return "beside elastic softmax and a distance bias, this problem has " + more;
  const int most = p.backward ? kFusedWindow : kFwdDistWindow;
  if (p.dist_window > most)
    return text("a distance bias has up to %d entries, this one %lld", most,
                (long long)p.dist_window);
  if (!p.backward) return "";
  if (p.head_dim > 128 || p.head_dim_v > 128)
    return "with elastic softmax, head sizes go up to 128";
  if (!p.wants(TANDEM_GRAD_Q) || !p.wants(TANDEM_GRAD_K))
    return "with elastic softmax, it forms d_q and d_k, not one alone";
  if (p.tile_rows || p.tile_cols)
    return "with elastic softmax, its two kernels have different tiles";
  return "";
}

// Why the kernels of entmax do not take a problem; "" if they do.
String entmax_refusal(const Problem& p) {
  const String more = p.extras(kHasEntmax);
  if (!more.empty()) return "beside entmax, this problem has " + more;
  if (p.head_dim > 128 || p.head_dim_v > 128) return "with entmax, head sizes go up to 128";
  if (p.backward && (p.tile_rows || p.tile_cols))
    return "with entmax, its kernels of the backward have different tiles";
  return "";
}

// Why the kernels of softmax with optional inputs do not take a problem; "" if they do.
String full_refusal(const Problem& p) {
  if (p.wants(TANDEM_GRAD_DIST_BIAS)) return "it forms d_dist_bias with elastic softmax alone";
  if (!p.backward && std::max(p.head_dim, p.head_dim_v) > kMaxWholeHeadDim) {
    if (p.batch_invariant)
      return text("heads over %d are not batch-invariant on it", kMaxWholeHeadDim);
    if (p.lengths_q != Lengths::full)
      return text("with heads over %d, lengths are of keys alone", kMaxWholeHeadDim);
  }
  if (sm90_kernel(p) < 0 && std::max(p.head_dim, p.head_dim_v) <= kMaxFusedHeadDim)
    return "none of its kernels has " + p.extras();
  if (sm90_kernel(p) < 0)
    return "with " + p.extras() + ", head sizes go up to 128" + (p.backward ? " in backward" : "");
  return "";
}

}  // namespace

FwdTile sm90_fwd_tile(const Problem& p, int row) {
  const int kernel = sm90_kernel(p);
  return kernel >= 0 && masks_scores(kKernels[kernel]) ? fwd_two_warpgroup_tile(kFwdTiles[row])
                                                       : kFwdTiles[row];
}

// Why the path cannot take the problem on the device; "" if it can.
String Sm90Planner::cannot() const {
  if (caps.compute_major != 9 || caps.compute_minor != 0)
    return text("compute capability %d.%d is not 9.0", caps.compute_major, caps.compute_minor);
  if (!caps.sm90_code) return "this build holds no code for sm_90a";
  const String splits = splits_refusal();
  if (!splits.empty()) return splits;
  const bool packed_q = is_packed(p.lengths_q), packed_kv = is_packed(p.lengths_kv);
  const int64_t batch_q = packed_q ? 1 : p.batch, batch_kv = packed_kv ? 1 : p.batch;
  const int64_t rows_q = packed_q ? p.total_q : p.seq_q,
                rows_kv = packed_kv ? p.total_kv : p.seq_kv;
  if (p.dtype == TANDEM_F32) return "its operands are f16 or bf16";
  if (p.bias) {
    const String why = has_bias_tiles(p) ? bias_refusal(p) : bias_type_refusal(p);
    if (!why.empty()) return why;
  } else if (p.normalizer == Normalizer::elastic) {
    const String why = elastic_refusal(p);
    if (!why.empty()) return why;
  } else if (p.normalizer == Normalizer::entmax) {
    const String why = entmax_refusal(p);
    if (!why.empty()) return why;
  } else {
    const String why = full_refusal(p);
    if (!why.empty()) return why;
  }
  if (p.has_head_groups())
    return text("its slopes and sinks are of the whole batch, here they have %lld and %lld entries",
                (long long)p.slopes_batch, (long long)p.sinks_batch);
  if (p.splits > 1 && std::max(p.head_dim, p.head_dim_v) <= kMaxWholeHeadDim)
    return text("it does not split keys of heads up to %d, the problem asks for %d parts",
                kMaxWholeHeadDim, p.splits);
  if (p.is_empty() || (packed_q && p.total_q == 0) || (packed_kv && p.total_kv == 0))
    return "a size is 0";
  if (p.sink_of_rows)
    return text("the %lld rows that share keys, with a sink each, are one tile of cuda.sm80",
                (long long)p.seq_q);
  for (const String& why :
       {tensor_map_refusal("q", p.q, batch_q, p.heads_q, rows_q, p.head_dim),
        tensor_map_refusal("k", p.k, batch_kv, p.heads_kv, rows_kv, p.head_dim),
        tensor_map_refusal("v", p.v, batch_kv, p.heads_kv, rows_kv, p.head_dim_v),
        p.backward ? tensor_map_refusal("d_o", p.d_o, batch_q, p.heads_q, rows_q, p.head_dim_v)
                   : ""})
    if (!why.empty()) return why;
  return "";
}

String Sm90Planner::refuse() const {
  const String why = cannot();
  return why.empty() ? sm90_slower({p, caps}) : why;
}

bool Sm90Planner::choose(const Refuse& refuse) {
  if (row_ >= 0) return false;
  const auto bwd = [](int n) { return kBwdShapes[n]; };
  const auto fwd = [&](int n) { return sm90_fwd_tile(p, n); };
  if (sm90_has(p, trait::f32_bias))
    row_ = p.backward ? first_row(bwd, kBwdShapeCount, kAllBwdShapeCount, p, caps, name(), refuse)
                      : first_row(fwd, kFwdTileCount, kAllFwdTileCount, p, caps, name(), refuse);
  else
    row_ = p.backward ? first_row(bwd, 0, kBwdShapeCount, p, caps, name(), refuse)
                      : first_row(fwd, 0, kFwdTileCount, p, caps, name(), refuse);
  const int with_parts =
      has_two_sides(p) ? sm90_kernel(p) : sm90_with(p, sm90_kernel(p), trait::parts);
  if (row_ >= 0 && with_parts >= 0 && !is_off(with_parts) && !p.batch_invariant && !p.slices)
    parts_ = bwd_parts(p, cores_of(caps), kBwdShapes[row_]);
  return row_ >= 0;
}

String Sm90Planner::unfit() const {
  const bool fits = p.backward ? bwd_bytes(p, kBwdShapes[row_]) > 0
                               : fwd_bytes(p, sm90_fwd_kernel(p, caps, sm90_fwd_tile(p, row_)),
                                           sm90_fwd_tile(p, row_)) > 0;
  return fits ? "" : "its tile has no kernel with " + p.extras();
}

Vec<Stem> Sm90Planner::stems() const {
  Vec<Stem> stems = stems_but_pack();
  if (packs_bias(p)) stems.insert(stems.begin(), Stem::pack_bias);
  if (packs_keep(p) && !expands_to_bits(p)) stems.insert(stems.begin(), Stem::pack_keep);
  return stems;
}

Vec<Stem> Sm90Planner::stems_but_pack() const {
  if (!p.backward || p.normalizer == Normalizer::elastic)
    return with_origin(separate_stems(true, false));
  const bool softmax = p.normalizer == Normalizer::softmax;
  Vec<Stem> stems = {softmax ? Stem::bwd_dot : Stem::bwd_row_sums};
  if (std::max(p.head_dim, p.head_dim_v) > kMaxFusedHeadDim && !has_two_sides(p)) {
    if (p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V)) stems.push_back(Stem::bwd_dkv);
    if (p.wants(TANDEM_GRAD_Q)) stems.push_back(Stem::bwd_dq);
  } else {
    if (p.gradients != TANDEM_GRAD_SINK) stems.push_back(Stem::bwd_dkv_dq);
    if (p.wants(TANDEM_GRAD_Q) && !fuses_dq_postprocess(p, cores_of(caps), parts_))
      stems.push_back(Stem::bwd_dq_cast);
  }
  if (p.wants(TANDEM_GRAD_SLOPE | TANDEM_GRAD_SINK)) stems.push_back(Stem::bwd_head_sums);
  return with_origin(stems);
}

void Sm90Planner::form(Launch* launch) const {
  CudaPlanner::form(launch);
  const auto set = [&](int tile_row, const Tile& tile, int shared) {
    Sm90Launch own;
    own.row = tile_row;
    launch->path = own;
    launch->tile = tile;
    launch->shared_bytes = uint32_t(shared);
  };
  constexpr int kWarpgroups = kBwdThreads / 128;
  switch (launch->stem) {
    case Stem::fwd: {
      const FwdTile t = sm90_fwd_tile(p, row_);
      launch->kernel = sm90_fwd_kernel(p, caps, t);
      return set(row_, Tile{t.name, t.rows(), t.bc, t.warpgroups + 1, 128, 0, 0, t.d, TileOn::cuda},
                 fwd_bytes(p, launch->kernel, t));
    }
    case Stem::pack_bias:
      if (sm90_has(p, trait::f32_bias)) launch->kernel = kernel(launch->stem, trait::f32_bias);
      return set(row_, Tile{}, 0);
    case Stem::pack_keep:
    case Stem::bwd_dq_cast:
      return set(row_, Tile{}, 0);
    case Stem::bwd_row_sums_dq: {
      const int row = row_dq_row(p);
      const RowShape& r = kRowShapes[row];
      return set(row, Tile{r.name, r.br, r.bc, kWarpgroups, 128, 0, 0, r.d, TileOn::cuda},
                 row_shared_bytes(r));
    }
    case Stem::bwd_dq: {
      const int row = dq_row(kBwdShapes[row_]);
      const DqShape& r = kDqShapes[row];
      return set(row, Tile{r.name, r.br, r.bc, kWarpgroups, 128, 0, 0, r.d, TileOn::cuda},
                 dq_shared_bytes(r));
    }
    case Stem::bwd_row_sums: {
      const int row = support_row(p);
      if (p.alpha != 1.5f) launch->kernel = kernel(launch->stem, trait::any_alpha);
      const SupportShape& r = kSupportShapes[row];
      return set(row, Tile{r.name, r.br(), r.bc, r.threads() / 128, 128, 0, 0, r.d, TileOn::cuda},
                 support_shared_bytes(r));
    }
    case Stem::bwd_dkv:
    case Stem::bwd_dkv_dist:
    case Stem::bwd_dkv_dq: {
      const BwdShape& s = kBwdShapes[row_];
      launch->kernel = sm90_kernel(p);
      set(row_, Tile{s.name, s.br, s.bc, kWarpgroups, 128, 0, 0, s.d, TileOn::cuda},
          bwd_bytes(p, s));
      launch->stores_d_bias = p.wants(TANDEM_GRAD_BIAS);
      return;
    }
    default:
      return;
  }
}

Extent Sm90Planner::extent(const Launch& launch) const {
  if (launch.stem == Stem::pack_bias) {
    const PackedBias copy = packed_bias(p, bias_box_rows(p, launch));
    return {ceil_div(copy.rows * (copy.pitch / 8), kLineGroup), copy.heads, copy.batch};
  }
  if (launch.stem == Stem::pack_keep) {
    const int64_t across = ceil_div(tandem_map_blocks(int(p.seq_kv)), TANDEM_KEEP_GROUP);
    const PackedKeep copy = packed_keep(p);
    return {tandem_map_blocks(int(p.seq_q)) * across, copy.heads, copy.batch};
  }
  if (launch.stem != Stem::bwd_dq_cast) return CudaPlanner::extent(launch);
  return {bwd_panels(kBwdShapes[row_]) * ceil_div(p.seq_q, 64), p.heads_q, p.batch};
}

// Adds the plan for executes with addresses that TMA does not accept. It is by another path, also
// where other paths are disabled, as a plan cannot know the addresses. It ignores a forced tile
// size, and has as many partial outputs in the workspace as this one.
void Sm90Planner::add_unaligned(const Plan& plan, Sm90Plan* own, ScratchExtents* x) const {
  if (p.batch_invariant) return;  // another path has other bits
  Caps others = caps;
  others.disabled = {name()};
  Problem any = p;
  any.tile_rows = any.tile_cols = 0;
  if (const Launch* fwd = plan.find(Stem::fwd)) any.splits = int(fwd->splits);
  // If this plan sums in a fixed order, so does the other, which then has no dQ accumulator either.
  if (any.backward && plan.unordered() == 0) any.deterministic = true;
  auto unaligned = make_host_shared<Plan>();
  const Status status = make_plan(any, others, unaligned.get());
  // Then this plan is beyond the limit, too.
  if (status.code() == TANDEM_ERROR_WORKSPACE) x->least_bytes = unaligned->least_workspace;
  if (!status.ok()) return;
  x->least_bytes = unaligned->workspace_size;
  own->unaligned = std::move(unaligned);
}

void Sm90Planner::scratch(Plan* plan, ScratchExtents* x) const {
  const Launch* fused = plan->find(Stem::bwd_dkv_dq);
  CudaPlanner::scratch(plan, x);
  Sm90Plan& own = plan->of_path.emplace<Sm90Plan>();
  add_unaligned(*plan, &own, x);
  if (const Launch* sum = plan->find_sum(TANDEM_GRAD_DIST_BIAS); sum && sum->joins())
    x->sum_counts = {sum_counts_bytes(p.heads_kv) / 4};
  if (const Launch* fwd = plan->find(Stem::fwd); fwd && fwd->of<Sm90Launch>().stream_k_units > 0) {
    const FwdTile t = sm90_fwd_tile(p, row_);
    const int64_t parts = int64_t(fwd->groups_x) - fwd->of<Sm90Launch>().stream_k_unit;
    x->stream_k_partials = {parts * fwd_partial_floats(t)};
    x->stream_k_flags = {parts * fwd_partial_flags(t)};
  }
  if (const Launch* pack = plan->find(Stem::pack_bias))
    x->packed_bias = {packed_bias(p, bias_box_rows(p, *pack)).elements() *
                      (pack->has(trait::f32_bias) ? 2 : 1)};
  if (plan->find(Stem::pack_keep)) x->packed_keep = {packed_keep(p).elements()};
  if (plan->find(Stem::expand_blocks) && expands_to_bits(p))
    x->packed_keep = {packed_keep(p).elements()}, x->block_keep = {};
  if (!fused) return;
  const Sm90Launch& launch = fused->of<Sm90Launch>();
  const KernelRow& kernel = fused->row();
  const BwdShape& s = kBwdShapes[row_];
  plan->slope_parts = int64_t(fused->tiles) * kBwdParts;
  if (p.wants(TANDEM_GRAD_SLOPE)) x->slope_rows = {p.batch * p.heads_q * plan->slope_parts};
  // With optional inputs bwd_dkv_dq always forms the dQ accumulator.
  const bool sums = p.wants(TANDEM_GRAD_Q) || kernel.inputs != kHasSink;
  const bool packed = is_packed(p.lengths_q);
  const int64_t heads = packed ? p.heads_q : p.batch * p.heads_q,
                rows_of_head = packed ? bwd_packed_tiles(s, p.total_q, p.batch) * s.br : p.seq_q;
  // Which rows are gathered decides in which order products sum them, so TANDEM_FLAG_VISIT_ALL,
  // which changes no bit, does not change that.
  if ((kernel.needs & kHasEntmax) != 0 &&
      (gathers_rows(p) ? !saves(p, Saving::maps) : !p.visit_all))
    x->support = {p.batch * p.heads_q * support_blocks(p.seq_q) *
                  (gathers_rows(p) ? 2 * support_rows_tiles(p.seq_kv) : support_words(p.seq_kv))};
  if (sums) x->d_q_accum = {bwd_dq_accum_bytes(s, heads, rows_of_head) / 4};
  if (sums && p.deterministic)
    x->dq_semaphores = {bwd_dq_semaphore_bytes(s, heads, rows_of_head) / 4};
  if (launch.eager_zero_heads > 0) {
    const auto of_head = uint64_t(bwd_dq_accum_bytes(s, p.group(), p.seq_q));
    own.lazy_zero.eager_bytes = launch.eager_zero_heads * of_head;
    own.lazy_zero.bytes = uint64_t(p.batch * p.heads_kv) * of_head;
    own.lazy_zero.slices = kernel.has(trait::bias_tiles) ? uint64_t(p.batch) : 1;
    x->lazy_zero_counters = {bwd_lazy_zero_bytes(p.batch, p.heads_kv) / 4};
  }
  if (kernel.has(trait::persistent) || sums_dbias_in_slices(p)) x->tile_counter = {1};
  if (sums_dbias_in_slices(p))
    x->bias_parts = {fused->splits * p.heads_q * p.seq_q * bias_parts_pitch(p.seq_kv)};
  // A counter of the tiles that have added and, for the cooperative postprocess, one of claims.
  const Launch* cast = plan->find(Stem::bwd_dq_cast);
  if (p.wants(TANDEM_GRAD_Q) && (!cast || cast->of<Sm90Launch>().programmatic))
    x->d_q_counts = {bwd_counts_bytes(p.batch, p.heads_kv) / 4 *
                     (launch.cooperative_postprocess ? 2 : 1)};
  const Launch* head = plan->find(Stem::bwd_head_sums);
  if (head && head->joins() && !cast) x->head_counts = {bwd_head_sums_counts_bytes(p.heads_kv) / 4};
  if (launch.parts.most > 1) {
    x->dkv_partial_counts = {(s.two_sided() ? 2 : 1) * 2 * int64_t(fused->total)};
    x->dkv_partials = {int64_t(fused->total) * launch.parts.most * bwd_partial_floats(s)};
  }
  if (!sums || !reduces_dbias_in_clusters(p) || sums_dbias_in_slices(p)) return;
  const int64_t room = bwd_partial_slots(fused->total);
  // Two more numbers count the tiles of keys that were fetched, and the reserved ones.
  x->dkv_partial_counts = {2 * room + 2};
  x->dkv_partials = {room * bwd_partial_floats(s)};
  if (fused->second_kernel >= 0)
    x->pass_sums = {kMaxTwoCtaClusters * bwd_pass_floats(s, p.heads_q / p.heads_kv, p.seq_q)};
}

std::unique_ptr<PathPlanner> make_cuda_sm90(const PathRow& row, const Problem& p,
                                            const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new Sm90Planner(row, p, caps));
}

}  // namespace tandem
