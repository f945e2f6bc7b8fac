// SPDX-License-Identifier: MIT OR Apache-2.0
// The one file that turns a plan into the numbers that kernels read, except addresses (push.cpp).
#include "params.h"

#include <algorithm>

#include "plan/sm90/tensor_maps.h"
#include "plan/sm90/tiles.h"
#include "problem/far_row.h"
#include "problem/mask_map.h"
#include "problem/rounded_weights.h"
#include "problem/table.h"

namespace tandem {

uint32_t bias_code(const Problem& p, const Launch& l) {
  const Strides& s = p.bias.strides;
  const MatrixLaunch* own = l.as<MatrixLaunch>();
  if (!own || !is_chunked(p, s)) return 0;
  const int64_t keys = own->matrix.n * (p.bias.dtype == TANDEM_F32 ? 1 : 2);
  const bool rows = p.seq_q % own->matrix.m == 0 || s.s == 0;
  return rows && p.seq_kv % keys == 0 && l.tile.bc % keys == 0 && !(p.dropout > 0) ? 2 : 1;
}

bool tiles_exist(const Problem& p, const Launch& l) {
  const bool keys = l.stem != Stem::bwd_dkv;
  return l.as<MatrixLaunch>() && !p.has_lengths() &&
         (keys ? p.seq_kv % l.tile.bc : p.seq_q % l.tile.br) == 0;
}

bool is_folded(const Problem& p) { return p.scale >= 1e-3f && p.scale <= 1e3f; }

namespace {

int slope_entries(const Problem& p) { return int(p.batch / p.slopes_batch); }
int sink_entries(const Problem& p) { return int(p.batch / p.sinks_batch); }

// Whether no streamed tile needs a mask.
bool is_whole(const Problem& p, const Launch& l) { return tiles_exist(p, l) && !p.banded(); }

// FwdSpec::SINK, where keys are not split.
uint32_t sinks_of(const Problem& p) {
  return p.sink_of_rows ? 2 : p.sinks_batch > 1 ? 3 : p.sink ? 1 : 0;
}

// The members that features.inc gives to every kernel with optional inputs.
template <typename Spec>
void set_features(const Problem& p, Spec* s) {
  const Features features = features_of(p);
#define TANDEM_SPEC(name, fallback) s->name = features.name;
#include "kernels/abi/features.inc"
#undef TANDEM_SPEC
}

// What merge and bwd_merge know of their rows.
template <typename Block>
void set_merged_rows(const Problem& p, const Launch& l, Block* b) {
  b->seq_q = int(p.seq_q);
  b->head_dim_v = int(p.head_dim_v);
  b->heads_q = int(p.heads_q);
  b->heads = int(p.batch * p.heads_q);
  b->parts = p.parts.count;
  b->tiles = l.tiles;
  b->total = l.total;
}

// The members that tile.inc gives to every tiled kernel. rows and cols swap roles in bwd_dkv.
template <typename Spec>
Spec tile_spec(const Plan& plan, const Launch& l) {
  Spec s;
  s.WG = uint32_t(l.tile.invocations());
  s.ROWS = uint32_t(l.tile.br);
  s.COLS = uint32_t(l.tile.bc);
  s.TC = uint32_t(l.tile.tc);
  s.DK = uint32_t(l.tile.dk);
  s.KC = uint32_t(l.tile.kc);
  s.LEAN = l.tile.is_lean();
  s.POOL = uint32_t(tile_pool_vec4(l.tile));
  s.PTILE = uint32_t(tile_ptile_vec4(l.tile));
  s.DTYPE = uint32_t(plan.problem.dtype);
  s.BAND = plan.problem.banded();
  s.D_BLOCKS = uint32_t(l.d_blocks);
  s.DV_BLOCKS = uint32_t(l.dv_blocks);
  s.FEATURE_PARTS = l.feature_parts;
  const MatrixLaunch& own = l.of<MatrixLaunch>();
  s.RQ = uint32_t(l.tile.quads() * l.tile.br / std::max(l.tile.tr, 1));
  s.PAIRED = l.tile.pairs;
  s.RM = uint32_t(l.as<MatrixLaunch>() ? own.row_blocks : l.tile.br / l.tile.tr);
  s.SUBGROUP = own.subgroup;
  s.MM = uint32_t(own.matrix.m);
  s.MN = uint32_t(own.matrix.n);
  s.LEFT_SHARED = uint32_t(own.left_shared);
  s.REGISTER_PREFETCH = own.register_prefetch;
  s.COPIES = own.copies;
  s.WHOLE = is_whole(plan.problem, l);
  s.FOLDED = is_folded(plan.problem);
  s.BIAS_WIDE = bias_code(plan.problem, l);
  s.NT_VEC = uint32_t(std::max(l.tile.br * l.tile.dk / 4 / l.tile.invocations(), 1));
  s.NN_VEC = uint32_t(l.tile.kc * l.tile.tc / l.tile.invocations());
  set_features(plan.problem, &s);
  return s;
}

template <typename Block>
Block tile_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  Block b{};
  b.q = p.q;
  b.k = p.k;
  b.v = p.v;
  b.seq_q = int(p.seq_q);
  b.seq_kv = int(p.seq_kv);
  b.head_dim = int(p.head_dim);
  b.head_dim_v = int(p.head_dim_v);
  b.heads_q = int(p.heads_q);
  b.group = p.heads_kv ? int(p.group()) : 0;
  // bwd_dkv still zeroes d_k and d_v, as if each kv head had an empty query head
  if (p.heads_q == 0) {
    b.heads_q = int(p.heads_kv);
    b.group = 1;
    b.seq_q = 0;
  }
  b.band_left = p.band.left;
  b.band_right = p.band.right;
  b.band_off = p.band.off;
  b.scale = p.scale;
  b.tiles = l.tiles * l.feature_parts;
  b.total = l.total;
  return b;
}

// Strides of o's parts, [B * splits, Hq, Sq, part_pitch()].
Strides part_strides(const Problem& p) {
  const int64_t row = part_pitch(p.head_dim_v), head = p.seq_q * row;
  return {p.heads_q * head, head, row, 1};
}

// Members of the blocks of all kernels that form both products, S and dP.
template <typename Block>
Block pair_block(const Plan& plan, const Launch& l) {
  Block b = tile_block<Block>(plan, l);
  b.d_o = plan.problem.d_o;
  return b;
}

}  // namespace

ExtraBlock extra_block(const Problem& p) {
  ExtraBlock b{};
  b.bias = p.bias.strides;
  b.keep = p.keep.strides;
  const Spans& spans = p.spans;
  const int64_t key = 2 * spans.count;
  b.spans = {spans.heads * p.seq_kv * key, p.seq_kv * key, key, 1};
  b.spans_heads = int(spans.heads);
  b.spans_group = spans.heads ? int(p.heads_q / spans.heads) : 0;
  b.spans_entries = spans.batch ? int(p.batch / spans.batch) : 0;
  b.map_q_blocks = tandem_map_blocks(int(p.seq_q));
  b.map_kv_blocks = tandem_map_blocks(int(p.seq_kv));
  b.bias_group = p.bias.heads ? int(p.heads_q / p.bias.heads) : 0;
  b.keep_group = p.keep.heads ? int(p.heads_q / p.keep.heads) : 0;
  b.bias_entries = p.is_grouped(p.bias) ? int(p.batch / p.bias.batch) : 1;
  b.keep_entries = p.is_grouped(p.keep) ? int(p.batch / p.keep.batch) : 1;
  b.slope_entries = slope_entries(p);
  b.dist_window = int(p.dist_window);
  b.bottom_right = p.bottom_right;
  b.softcap = p.softcap;
  if (p.normalizer == Normalizer::entmax) {
    b.entmax_scale = p.alpha - 1;
    b.entmax_exponent = float(1 / (double(p.alpha) - 1));
  }
  b.drop_scale = float(1 / (1 - double(p.dropout)));
  b.drop_below = dropout_threshold(p.dropout);
  b.total_q = int(p.total_q);
  b.total_kv = int(p.total_kv);
  return b;
}

PackBiasBlock pack_bias_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  const PackedBias copy = packed_bias(p, bias_box_rows(p, l));
  PackBiasBlock b{};
  b.bias = p.bias.strides;
  b.seq_kv = int(p.seq_kv);
  b.rows = int(copy.rows);
  b.chunks = int(copy.pitch / 8);
  b.heads = int(copy.heads);
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

PackKeepBlock pack_keep_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  const PackedKeep copy = packed_keep(p);
  PackKeepBlock b{};
  b.keep = p.keep.strides;
  b.seq_q = int(p.seq_q);
  b.seq_kv = int(p.seq_kv);
  b.heads = int(copy.heads);
  b.has_keep = bool(p.keep);
  b.keep_entries = int(std::max<int64_t>(copy.batch / std::max<int64_t>(p.keep.batch, 1), 1));
  b.keep_group = int(std::max<int64_t>(copy.heads / std::max<int64_t>(p.keep.heads, 1), 1));
  if (p.bias && p.spans) {
    const Spans& spans = p.spans;
    b.spans = spans.count;
    b.spans_heads = int(spans.heads);
    b.spans_entries = int(std::max<int64_t>(copy.batch / spans.batch, 1));
    b.spans_group = int(copy.heads / spans.heads);
  }
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

PlaceEntriesSpec place_entries_spec(const Plan&, const Launch& l) {
  PlaceEntriesSpec s;
  s.WG = uint32_t(l.invocations());
  return s;
}

PlaceEntriesBlock place_entries_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  PlaceEntriesBlock b{};
  b.batch = int(p.batch);
  b.seq_q = int(p.seq_q);
  b.seq_kv = int(p.seq_kv);
  b.total_q = int(p.total_q);
  b.total_kv = int(p.total_kv);
  b.ranks = plan.scratch[Scratch::d_q_accum].present;
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

ExpandBlocksSpec expand_blocks_spec(const Plan&, const Launch& l) {
  ExpandBlocksSpec s;
  s.WG = uint32_t(l.invocations());
  return s;
}

ExpandBlocksBlock expand_blocks_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  ExpandBlocksBlock b{};
  b.seq_q = int(p.seq_q);
  b.seq_kv = int(p.seq_kv);
  b.block_q = int(p.blocks.q);
  b.block_kv = int(p.blocks.kv);
  b.width = int(p.blocks.width);
  b.bits = int(p.blocks.bits);
  b.pitch = int(keep_pitch(p.seq_kv));
  b.packs = !plan.scratch[Scratch::block_keep].present;
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

MaskMapSpec mask_map_spec(const Plan&, const Launch& l) {
  MaskMapSpec s;
  s.WG = uint32_t(l.invocations());
  s.BOUNDS = 2 * s.WG;
  return s;
}

MaskMapBlock mask_map_block(const Plan& plan, const Launch& l) {
  MaskMapBlock b{};
  b.spans = plan.problem.spans.count;
  b.seq_q = int(plan.problem.seq_q);
  b.seq_kv = int(plan.problem.seq_kv);
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

ExpandTableSpec expand_table_spec(const Plan& plan, const Launch& l) {
  ExpandTableSpec s;
  s.WG = uint32_t(l.invocations());
  s.INDEX = uint32_t(plan.problem.table.index_bytes());
  return s;
}

ExpandTableBlock expand_table_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  ExpandTableBlock b{};
  b.heads = int(p.heads_q);
  b.size = int(p.table.size);
  b.seq_q = int(p.seq_q);
  b.seq_kv = int(p.seq_kv);
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

ReduceTableSpec reduce_table_spec(const Plan& plan, const Launch& l) {
  ReduceTableSpec s;
  s.WG = uint32_t(l.invocations());
  s.INDEX = uint32_t(plan.problem.table.index_bytes());
  s.PAIRS = TANDEM_TABLE_PAIRS;
  s.ENTRIES = TANDEM_TABLE_ENTRIES;
  return s;
}

ReduceTableBlock reduce_table_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  ReduceTableBlock b{};
  b.heads = int(p.heads_q);
  b.size = int(p.table.size);
  b.seq_q = int(p.seq_q);
  b.seq_kv = int(p.seq_kv);
  b.chunks = p.table.batch > 0 ? int(l.members / p.table.batch) : 0;
  b.members = int(l.members);
  b.splits = int(l.splits);
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

MergeSpec merge_spec(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  MergeSpec s;
  s.WG = uint32_t(l.invocations());
  s.DTYPE = uint32_t(p.dtype);
  s.OTHER_DTYPE = uint32_t(p.parts.dtype);
  s.LANES = uint32_t(merge_lanes(p.head_dim_v));
  static_assert(4 * kMergeQuads * merge_lanes(kMaxHeadDim) >= kMaxHeadDim, "whole rows");
  static_assert(4 * kHeadQuads == kMaxHeadDim, "whole rows");
  s.INTO = p.parts.into;
  return s;
}

MergeBlock merge_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  MergeBlock b{};
  b.o = p.o;
  b.part_o = p.part_o;
  b.part_step = {p.parts.stride, 0, 0, 0};
  set_merged_rows(p, l, &b);
  return b;
}

BwdMergeSpec bwd_merge_spec(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdMergeSpec s;
  s.WG = uint32_t(l.invocations());
  s.DTYPE = uint32_t(p.parts.dtype);
  s.OTHER_DTYPE = uint32_t(p.dtype);
  s.LANES = uint32_t(merge_lanes(p.head_dim_v));
  static_assert(4 * kMergeQuads * merge_lanes(kMaxHeadDim) >= kMaxHeadDim, "whole rows");
  static_assert(4 * kHeadQuads == kMaxHeadDim, "whole rows");
  s.D_LSE = p.d_lse;
  return s;
}

BwdMergeBlock bwd_merge_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdMergeBlock b{};
  b.d_o = p.d_o;
  b.part_o = p.part_o;
  b.d_part_o = p.d_part_o;
  b.part_step = {p.parts.stride, 0, 0, 0};
  b.d_part_step = {p.parts.d_stride, 0, 0, 0};
  set_merged_rows(p, l, &b);
  return b;
}

FwdSpec fwd_spec(const Plan& plan, const Launch& l) {
  FwdSpec s = tile_spec<FwdSpec>(plan, l);
  s.REDO = l.has(trait::redo);
  const MatrixLaunch::PlainLoop loop =
      s.REDO ? MatrixLaunch::PlainLoop() : l.of<MatrixLaunch>().plain_loop;
  s.PLAIN_LOOP = loop.runs;
  s.K_ROW = loop.k_row;
  s.V_ROW = loop.v_row;
  s.KEYS_EXIST = loop.keys_exist;
  s.SPLIT = l.splits > 1;
  s.MAX_LOGIT = plan.problem.max_logit_batch > 0;
  s.SINK = l.splits == 1 ? sinks_of(plan.problem) : 0;
  return s;
}

FwdBlock fwd_block(const Plan& plan, const Launch& l) {
  FwdBlock b = tile_block<FwdBlock>(plan, l);
  b.o = l.splits > 1 ? part_strides(plan.problem) : plan.problem.o;
  b.splits = int(l.splits);
  b.sink_entries = sink_entries(plan.problem);
  const int64_t max_logits = plan.problem.max_logit_batch;
  b.max_logit_entries = max_logits > 0 ? int(plan.problem.batch / max_logits) : 1;
  b.slack = max_logits > 0 && !l.as<Sm90Launch>() ? 0.f : TANDEM_ORIGIN_SLACK;
  return b;
}

FwdCombineSpec fwd_combine_spec(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  const CombineShape shape(l.splits, p.head_dim_v);
  FwdCombineSpec s;
  s.WG = kCombineGroup;
  s.DTYPE = uint32_t(p.dtype);
  s.LANES = uint32_t(shape.lanes);
  s.SLICES = uint32_t(shape.slices);
  s.SINK = sinks_of(p);
  s.LENGTHS_Q = uint32_t(p.lengths_q);
  return s;
}

FwdCombineBlock fwd_combine_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  FwdCombineBlock b{};
  b.o = p.o;
  b.o_parts = part_strides(p);
  b.seq_q = int(p.seq_q);
  b.total_q = int(p.total_q);
  b.head_dim_v = int(p.head_dim_v);
  b.heads_q = int(p.heads_q);
  b.splits = int(l.splits);
  b.sink_entries = sink_entries(p);
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

BwdDotSpec bwd_dot_spec(const Plan& plan, const Launch&) {
  BwdDotSpec s;
  s.WG = kDotRows * kDotLanes;
  s.ROWS = kDotRows;
  s.LANES = kDotLanes;
  s.DTYPE = uint32_t(plan.problem.dtype);
  s.LENGTHS_Q = uint32_t(plan.problem.lengths_q);
  s.D_LSE = plan.problem.d_lse;
  return s;
}

BwdDotBlock bwd_dot_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdDotBlock b{};
  b.o = p.o;
  b.d_o = p.d_o;
  b.seq_q = int(p.seq_q);
  b.total_q = int(p.total_q);
  b.head_dim_v = int(p.head_dim_v);
  b.heads_q = int(p.heads_q);
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

BwdOriginSpec bwd_origin_spec(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdOriginSpec s;
  s.WG = uint32_t(l.invocations());
  s.DTYPE = uint32_t(p.dtype);
  s.BAND = p.banded();
  s.DELTA = plan.find(Stem::bwd_dot) != nullptr && !p.part_of_keys;
  s.PART = p.part_of_keys;
  s.TF32 = std::any_of(plan.launches.begin(), plan.launches.end(),
                       [](const Launch& of) { return of.rounds_to_tf32(); });
  s.SINK = sinks_of(p);
  set_features(p, &s);
  return s;
}

BwdOriginBlock bwd_origin_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdOriginBlock>(plan, l);
  const Problem& p = plan.problem;
  b.sink_entries = sink_entries(p);
  b.part_slack = tandem_part_slack(int(p.head_dim), p.dtype == TANDEM_F32);
  b.slack = plan.sums_scores_exactly() ? 0.f : tandem_far_slack(p.head_dim, p.dtype == TANDEM_F32);
  return b;
}

BwdRowSumsSpec bwd_row_sums_spec(const Plan& plan, const Launch& l) {
  BwdRowSumsSpec s = tile_spec<BwdRowSumsSpec>(plan, l);
  s.ROW_TAU = plan.problem.wants(TANDEM_GRAD_TAU);
  s.ROW_SLOPE = plan.problem.wants(TANDEM_GRAD_SLOPE);
  return s;
}

BwdRowSumsBlock bwd_row_sums_block(const Plan& plan, const Launch& l) {
  return pair_block<BwdRowSumsBlock>(plan, l);
}

namespace {
// Kernels that own keys: their rows are keys, and they store d_k and d_v.
template <typename Spec>
Spec key_spec(const Plan& plan, const Launch& l) {
  Spec s = tile_spec<Spec>(plan, l);
  s.ROWS = uint32_t(l.tile.bc);
  s.COLS = uint32_t(l.tile.br);
  return s;
}

template <typename Block>
Block key_block(const Plan& plan, const Launch& l) {
  Block b = pair_block<Block>(plan, l);
  b.d_k = plan.problem.d_k;
  b.d_v = plan.problem.d_v;
  return b;
}

// Offset of an array from delta, in 256 bytes, so that kernels need no address of their own for it.
uint32_t from_delta(const Plan& plan, Scratch name) {
  return uint32_t((plan.scratch[name].offset - plan.scratch[Scratch::delta].offset) /
                  kWorkspaceAlignment);
}
}  // namespace

BwdDkvSpec bwd_dkv_spec(const Plan& plan, const Launch& l) {
  BwdDkvSpec s = key_spec<BwdDkvSpec>(plan, l);
  s.GRAD_K = plan.problem.wants(TANDEM_GRAD_K);
  s.GRAD_V = plan.problem.wants(TANDEM_GRAD_V);
  s.LEAVES_DS = l.has(trait::ds);
  return s;
}

BwdDkvBlock bwd_dkv_block(const Plan& plan, const Launch& l) {
  auto b = key_block<BwdDkvBlock>(plan, l);
  const MatrixLaunch& own = l.of<MatrixLaunch>();
  if (l.has(trait::parts)) {
    b.work = from_delta(plan, Scratch::d_k_parts);
    b.own_1 = int(from_delta(plan, Scratch::d_v_parts));
    b.own_2 = int(l.splits);
    b.batches = int(plan.problem.batch);
  }
  if (!l.has(trait::ds)) return b;
  b.work = from_delta(plan, Scratch::ds);
  b.own_1 = own.first_head;
  b.own_2 = own.heads;
  b.batches = int(plan.problem.batch);
  return b;
}

BwdRowSumsDqSpec bwd_row_sums_dq_spec(const Plan& plan, const Launch& l) {
  BwdRowSumsDqSpec s = tile_spec<BwdRowSumsDqSpec>(plan, l);
  s.ROW_TAU = plan.problem.wants(TANDEM_GRAD_TAU);
  return s;
}

BwdRowSumsDqBlock bwd_row_sums_dq_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdRowSumsDqBlock>(plan, l);
  b.d_q = plan.problem.d_q;
  return b;
}

BwdDkvDistSpec bwd_dkv_dist_spec(const Plan& plan, const Launch& l) {
  return key_spec<BwdDkvDistSpec>(plan, l);
}

BwdDkvDistBlock bwd_dkv_dist_block(const Plan& plan, const Launch& l) {
  return key_block<BwdDkvDistBlock>(plan, l);
}

BwdDkvDqBlock bwd_dkv_dq_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdDkvDqBlock>(plan, l);
  b.deterministic = plan.problem.deterministic;
  b.d_k = plan.problem.d_k;
  b.d_v = plan.problem.d_v;
  return b;
}

BwdDqCastBlock bwd_dq_cast_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdDqCastBlock b{};
  b.d_q = p.d_q;
  b.seq_q = int(p.seq_q);
  b.head_dim = int(p.head_dim);
  b.heads_q = int(p.heads_q);
  if (const Sm80Launch* own = l.as<Sm80Launch>()) {
    b.row_blocks = int(ampere_row_blocks(p.seq_q));
    b.panels = own->tile().panels();
  } else {
    const BwdShape& shape = kBwdShapes[l.of<Sm90Launch>().row];
    b.row_blocks = int(bwd_row_blocks(shape, p.seq_q));
    b.panels = bwd_panels(shape);
  }
  b.scale = p.scale;
  b.total = l.total;
  return b;
}

BwdDqSpec bwd_dq_spec(const Plan& plan, const Launch& l) {
  BwdDqSpec s = tile_spec<BwdDqSpec>(plan, l);
  s.D_BIAS = l.stores_d_bias ? uint32_t(plan.problem.d_bias_dtype) : 0;
  s.D_BIAS_WIDE = l.stores_d_bias && is_chunked(plan.problem, plan.problem.d_bias);
  const MatrixLaunch& own = l.of<MatrixLaunch>();
  s.SUMS = !own.sums_d_bias ? 0 : plan.problem.batch > own.entries ? 1 : 2;
  s.ENTRIES = uint32_t(own.entries);
  s.TAKES_DS = l.has(trait::ds);
  return s;
}

BwdDqBlock bwd_dq_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdDqBlock>(plan, l);
  b.d_q = plan.problem.d_q;
  if (l.stores_d_bias) b.d_bias = plan.problem.d_bias;
  const MatrixLaunch& own = l.of<MatrixLaunch>();
  b.batches = own.sums_d_bias || l.has(trait::ds) ? int(plan.problem.batch) : 1;
  b.work = from_delta(plan, l.has(trait::ds) ? Scratch::ds : Scratch::bias_sums);
  b.first = own.first_head;
  b.heads = own.heads;
  return b;
}

namespace {
// Strides of what bwd_dbias stores: d_bias or, with splits, a partial sum, which is contiguous.
Strides d_bias_strides(const Problem& p, const Launch& l) {
  const Overlay& bias = p.bias;
  if (l.splits == 1) return p.d_bias;
  return {bias.heads * bias.rows * p.seq_kv, bias.rows * p.seq_kv, p.seq_kv, 1};
}
}  // namespace

BwdDbiasSpec bwd_dbias_spec(const Plan& plan, const Launch& l) {
  BwdDbiasSpec s = tile_spec<BwdDbiasSpec>(plan, l);
  s.D_BIAS = uint32_t(l.splits > 1 ? TANDEM_F32 : plan.problem.d_bias_dtype);
  s.ONE_ROW = plan.problem.bias.rows == 1;
  s.TAKES_DS = !l.has(trait::ds) ? 0 : plan.problem.batch > plan.problem.bias.batch ? 2 : 1;
  s.D_BIAS_WIDE = l.as<MatrixLaunch>() && is_chunked(plan.problem, d_bias_strides(plan.problem, l));
  return s;
}

BwdDbiasBlock bwd_dbias_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  auto b = pair_block<BwdDbiasBlock>(plan, l);
  b.seq_q = int(p.seq_q);  // zeros are written to all rows, also without query heads
  b.d_bias = d_bias_strides(p, l);
  b.bias_heads = int(p.bias.heads);
  b.bias_batch = int(p.bias.batch);
  b.q_tiles = p.bias.rows == 1 ? int((p.seq_q + l.tile.br - 1) / l.tile.br) : 1;
  b.members = int(l.members);
  b.splits = int(l.splits);
  b.part = uint32_t(gradient_elements(p, TANDEM_GRAD_BIAS));
  if (l.has(trait::ds)) {
    b.work = from_delta(plan, Scratch::ds);
    b.first = l.of<MatrixLaunch>().first_head;
    b.batches = int(p.batch);
  }
  return b;
}

BwdDistBiasSpec bwd_dist_bias_spec(const Plan& plan, const Launch& l) {
  return tile_spec<BwdDistBiasSpec>(plan, l);
}

BwdDistBiasBlock bwd_dist_bias_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdDistBiasBlock>(plan, l);
  b.q_tiles = int((plan.problem.seq_q + l.tile.br - 1) / l.tile.br);
  b.members = int(l.members);
  b.splits = int(l.splits);
  return b;
}

BwdSumSplitsSpec bwd_sum_splits_spec(const Plan& plan, const Launch& l) {
  BwdSumSplitsSpec s;
  if (l.of<ScalarLaunch>().joined_heads > 0) {
    s.GRAD_TAU = plan.problem.wants(TANDEM_GRAD_TAU);
    s.GRAD_SLOPE = plan.problem.wants(TANDEM_GRAD_SLOPE);
    s.GRAD_SINK = plan.problem.wants(TANDEM_GRAD_SINK);
  }
  s.WG = kLineGroup;
  s.DTYPE = uint32_t(l.gradient == TANDEM_GRAD_BIAS ? plan.problem.d_bias_dtype
                     : l.gradient == TANDEM_GRAD_DIST_BIAS || l.gradient == TANDEM_GRAD_BIAS_TABLE
                         ? TANDEM_F32
                         : plan.problem.dtype);
  return s;
}

BwdSumSplitsBlock bwd_sum_splits_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdSumSplitsBlock b{};
  const bool bias = l.gradient == TANDEM_GRAD_BIAS;
  const Launch* fused = plan.find(Stem::bwd_dkv_dq);
  b.to = bias ? p.d_bias : Strides{0, 0, p.dist_window, 1};
  b.heads = bias ? int(p.bias.heads) : 1;
  b.rows = int(bias ? p.bias.rows : p.heads_q);
  b.cols = int(bias ? p.seq_kv : p.dist_window);
  if (l.gradient == TANDEM_GRAD_BIAS_TABLE) b.cols = int(p.table.size), b.to.s = p.table.size;
  if (l.gradient == TANDEM_GRAD_K || l.gradient == TANDEM_GRAD_V) {
    const bool k = l.gradient == TANDEM_GRAD_K;
    b.to = k ? p.d_k : p.d_v;
    b.heads = int(p.heads_kv);
    b.rows = int(p.seq_kv);
    b.cols = int(k ? p.head_dim : p.head_dim_v);
  }
  b.pitch = bias ? int(fused && fused->splits > 1 ? bias_parts_pitch(b.cols) : b.cols) : b.cols;
  b.splits = int(l.splits);
  b.part = uint32_t(gradient_elements(p, l.gradient));
  b.total = l.total;
  b.head_total = l.of<ScalarLaunch>().joined_heads;
  b.slope_entries = slope_entries(p), b.sink_entries = sink_entries(p);
  b.batch = int(p.batch);
  b.heads_q = int(p.heads_q);
  b.seq_q = int(p.seq_q);
  return b;
}

BwdHeadSumsSpec bwd_head_sums_spec(const Plan& plan, const Launch&) {
  BwdHeadSumsSpec s;
  s.WG = kLineGroup;
  s.GRAD_TAU = plan.problem.wants(TANDEM_GRAD_TAU);
  s.GRAD_SLOPE = plan.problem.wants(TANDEM_GRAD_SLOPE);
  s.GRAD_SINK = plan.problem.wants(TANDEM_GRAD_SINK);
  return s;
}

BwdHeadSumsBlock bwd_head_sums_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdHeadSumsBlock b{};
  b.batch = int(p.batch);
  b.heads_q = int(p.heads_q);
  b.seq_q = int(p.seq_q);
  b.slopes = int(plan.slope_parts);
  b.slope_entries = slope_entries(p), b.sink_entries = sink_entries(p);
  b.total = l.total;
  return b;
}

}  // namespace tandem
