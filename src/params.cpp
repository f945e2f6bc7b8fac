// SPDX-License-Identifier: MIT OR Apache-2.0
// The one place where a plan becomes the numbers that kernels read.
#include "params.h"

namespace tandem {
namespace {

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
  s.POOL = uint32_t(tile_pool_vec4(l.tile));
  s.PTILE = uint32_t(tile_ptile_vec4(l.tile));
  s.DTYPE = uint32_t(plan.problem.dtype);
  s.BAND = plan.problem.banded();
  s.D_BLOCKS = uint32_t(l.d_blocks);
  s.DV_BLOCKS = uint32_t(l.dv_blocks);
  s.RM = uint32_t(l.matrix > 0 ? l.row_blocks : l.tile.br / l.tile.tr);
  s.SUBGROUP = l.subgroup;
  s.MATRIX = uint32_t(l.matrix);
  s.NT_VEC = uint32_t(l.tile.br * l.tile.dk / 4 / l.tile.invocations());
  s.NN_VEC = uint32_t(l.tile.kc * l.tile.tc / l.tile.invocations());
  const Features features = features_of(plan.problem);
#define TANDEM_SPEC(id, name, fallback) s.name = features.name;
#include "interface/features.inc"
#undef TANDEM_SPEC
  return s;
}

// Calls each(slot member of Features, address member of Addresses) for the optional inputs that a problem
// has, in the order of their slots.
template <typename Each>
void for_each_extra(const Problem& p, Each&& each) {
  if (p.bias) each(&Features::AT_BIAS, &Addresses::bias);
  if (p.dist_window > 0) each(&Features::AT_DIST, &Addresses::dist_bias);
  if (p.alibi) each(&Features::AT_SLOPE, &Addresses::slope);
  if (p.normalizer == Normalizer::elastic) each(&Features::AT_TAU, &Addresses::tau);
  if (p.keep) each(&Features::AT_KEEP, &Addresses::keep);
  if (p.lengths_q != Lengths::full) each(&Features::AT_LENGTHS_Q, &Addresses::lengths_q);
  if (p.lengths_kv != Lengths::full) each(&Features::AT_LENGTHS_KV, &Addresses::lengths_kv);
  if (p.dropout > 0) each(&Features::AT_SEED, &Addresses::dropout_seed);
}

// The members that every tiled kernel's push block has.
template <typename Push>
void set_extra(const Plan& plan, const Addresses& a, Push* push) {
  int slot = 0;
  for_each_extra(plan.problem, [&](auto, auto address) { push->extra[slot++] = a.*address; });
  push->drop_offset = a.dropout_offset;
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
  // bwd_dkv still zeroes d_k and d_v: as if each kv head had an empty query head
  if (p.heads_q == 0) {
    b.heads_q = int(p.heads_kv);
    b.group = 1;
    b.seq_q = 0;
  }
  b.band_left = p.band.left;
  b.band_right = p.band.right;
  b.band_off = p.band.off;
  b.scale = p.scale;
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

// Whether n elements may be read or written at once from every multiple of n features. A dimension of size 1 has
// no step, whatever its stride says.
bool is_wide(uint64_t address, const Strides& s, int64_t batch, int64_t heads, int64_t seq,
             int64_t element, int n) {
  return s.d == 1 && (batch == 1 || s.b % n == 0) && (heads == 1 || s.h % n == 0) &&
         (seq == 1 || s.s % n == 0) && address % uint64_t(n * element) == 0;
}

// Of o's parts, [B * splits, Hq, Sq, part_pitch()].
Strides part_strides(const Problem& p) {
  const int64_t row = part_pitch(p.head_dim_v), head = p.seq_q * row;
  return {p.heads_q * head, head, row, 1};
}

class Wide {  // builds the `wide` word in the order in which an interface file names its strides
 public:
  Wide(const Problem& p, int elements) : p_(p), elements_(elements) {}
  Wide(const Plan& plan, const Launch& l) : Wide(plan.problem, l.matrix > 0 ? 8 : 4) {}
  Wide& q(uint64_t address, const Strides& s) {
    return add(address, s, p_.heads_q, rows(p_.lengths_q, p_.total_q, p_.seq_q));
  }
  Wide& kv(uint64_t address, const Strides& s) {
    return add(address, s, p_.heads_kv, rows(p_.lengths_kv, p_.total_kv, p_.seq_kv));
  }
  uint32_t bits() const { return bits_; }

 private:
  static int64_t rows(Lengths lengths, int64_t total, int64_t seq) {
    return lengths == Lengths::packed ? total : seq;
  }
  Wide& add(uint64_t address, const Strides& s, int64_t heads, int64_t rows) {
    if (is_wide(address, s, p_.batch, heads, rows, p_.element_size(), elements_))
      bits_ |= 1u << next_;
    ++next_;
    return *this;
  }
  const Problem& p_;
  const int elements_;
  uint32_t bits_ = 0, next_ = 0;
};

// What kernels that form both products, S and dP, have in common in their blocks and push blocks.
template <typename Block>
Block pair_block(const Plan& plan, const Launch& l) {
  Block b = tile_block<Block>(plan, l);
  b.d_o = plan.problem.d_o;
  return b;
}
template <typename Push>
Push pair_push(const Plan& plan, const Addresses& a) {
  Push push{};
  push.q = a.q;
  push.k = a.k;
  push.v = a.v;
  push.d_o = a.d_o;
  push.lse = a.lse;
  push.delta = a.delta;
  set_extra(plan, a, &push);
  return push;
}
Wide& pair_wide(Wide&& wide, const Problem& p, const Addresses& a) {
  return wide.q(a.q, p.q).kv(a.k, p.k).kv(a.v, p.v).q(a.d_o, p.d_o);
}

}  // namespace

std::string narrow_inputs(const Problem& p, int elements) {
  constexpr const char* kNames[] = {"q", "k", "v", "d_o"};
  std::string names;
  // An address of 0 is as aligned as can be: what remains are the strides.
  const uint32_t wide = pair_wide(Wide(p, elements), p, Addresses()).bits();
  for (uint32_t n = 0; n < (p.backward ? 4u : 3u); ++n)
    if ((wide >> n & 1) == 0) names += text("%s%s", names.empty() ? "" : ", ", kNames[n]);
  if (p.head_dim % elements != 0) names += text("%shead_dim", names.empty() ? "" : ", ");
  if (p.head_dim_v % elements != 0) names += text("%shead_dim_v", names.empty() ? "" : ", ");
  return names;
}

int extra_addresses(const Problem& p) {
  int count = 0;
  for_each_extra(p, [&](auto, auto) { ++count; });
  return count;
}

Features features_of(const Problem& p) {
  Features f;
  f.NORM = uint32_t(p.normalizer);
  f.ALPHA = p.normalizer != Normalizer::entmax ? 0 : p.alpha == 1.5f ? 1 : p.alpha == 2.f ? 2 : 3;
  f.SOFTCAP = p.softcap > 0;
  f.BIAS = uint32_t(p.bias.dtype);
  f.DIST = p.dist_window > 0;
  f.ALIBI = p.alibi;
  f.KEEP = bool(p.keep);
  f.DROPOUT = p.dropout > 0;
  f.LENGTHS_Q = uint32_t(p.lengths_q);
  f.LENGTHS_KV = uint32_t(p.lengths_kv);
  f.SKIP = !p.visit_all && (p.keep || p.normalizer == Normalizer::entmax);
  uint32_t slot = 0;
  for_each_extra(p, [&](auto at, auto) { f.*at = slot++; });
  return f;
}

ExtraBlock extra_block(const Problem& p) {
  ExtraBlock b{};
  b.bias = p.bias.strides;
  b.keep = p.keep.strides;
  b.bias_group = p.bias.heads ? int(p.heads_q / p.bias.heads) : 0;
  b.keep_group = p.keep.heads ? int(p.heads_q / p.keep.heads) : 0;
  b.dist_window = int(p.dist_window);
  b.bottom_right = p.bottom_right;
  b.softcap = p.softcap;
  if (p.normalizer == Normalizer::entmax) {
    b.entmax_scale = p.alpha - 1;
    b.entmax_exponent = float(1 / (double(p.alpha) - 1));
  }
  b.drop_scale = float(1 / (1 - double(p.dropout)));
  b.drop_below = dropout_threshold(p.dropout);
  return b;
}

FwdSpec fwd_spec(const Plan& plan, const Launch& l) {
  FwdSpec s = tile_spec<FwdSpec>(plan, l);
  s.SPLIT = l.splits > 1;
  s.SINK = plan.problem.sink && l.splits == 1;
  return s;
}

FwdBlock fwd_block(const Plan& plan, const Launch& l) {
  FwdBlock b = tile_block<FwdBlock>(plan, l);
  b.o = l.splits > 1 ? part_strides(plan.problem) : plan.problem.o;
  b.splits = int(l.splits);
  return b;
}

FwdPush fwd_push(const Plan& plan, const Launch& l, const Addresses& a) {
  const Problem& p = plan.problem;
  FwdPush push{};
  push.q = a.q;
  push.k = a.k;
  push.v = a.v;
  const bool split = l.splits > 1;
  push.o = split ? a.o_parts : a.o;
  push.lse = split ? a.lse_parts : a.lse;
  push.sink = a.sink;
  set_extra(plan, a, &push);
  const Strides o = split ? part_strides(p) : p.o;
  push.wide = Wide(plan, l).q(a.q, p.q).kv(a.k, p.k).kv(a.v, p.v).q(push.o, o).bits();
  return push;
}

FwdJoinSpec fwd_join_spec(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  const JoinShape shape(l.splits, p.head_dim_v);
  FwdJoinSpec s;
  s.WG = kJoinGroup;
  s.DTYPE = uint32_t(p.dtype);
  s.LANES = uint32_t(shape.lanes);
  s.SLICES = uint32_t(shape.slices);
  s.SINK = p.sink;
  s.LENGTHS_Q = uint32_t(p.lengths_q);
  return s;
}

FwdJoinBlock fwd_join_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  FwdJoinBlock b{};
  b.o = p.o;
  b.o_parts = part_strides(p);
  b.seq_q = int(p.seq_q);
  b.head_dim_v = int(p.head_dim_v);
  b.heads_q = int(p.heads_q);
  b.splits = int(l.splits);
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

FwdJoinPush fwd_join_push(const Plan& plan, const Launch& l, const Addresses& a) {
  FwdJoinPush push{};
  push.o = a.o;
  push.lse = a.lse;
  push.sink = a.sink;
  push.lengths_q = a.lengths_q;
  push.o_parts = a.o_parts;
  push.lse_parts = a.lse_parts;
  push.wide = Wide(plan, l).q(a.o, plan.problem.o).bits();
  return push;
}

BwdDotSpec bwd_dot_spec(const Plan& plan, const Launch&) {
  BwdDotSpec s;
  s.WG = kDotRows * kDotLanes;
  s.ROWS = kDotRows;
  s.LANES = kDotLanes;
  s.DTYPE = uint32_t(plan.problem.dtype);
  s.LENGTHS_Q = uint32_t(plan.problem.lengths_q);
  return s;
}

BwdDotBlock bwd_dot_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdDotBlock b{};
  b.o = p.o;
  b.d_o = p.d_o;
  b.seq_q = int(p.seq_q);
  b.head_dim_v = int(p.head_dim_v);
  b.heads_q = int(p.heads_q);
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

BwdDotPush bwd_dot_push(const Plan& plan, const Launch& l, const Addresses& a) {
  const Problem& p = plan.problem;
  BwdDotPush push{};
  push.o = a.o;
  push.d_o = a.d_o;
  push.delta = a.delta;
  push.lengths_q = a.lengths_q;
  push.wide = Wide(plan, l).q(a.o, p.o).q(a.d_o, p.d_o).bits();
  return push;
}

BwdRowSpec bwd_row_spec(const Plan& plan, const Launch& l) {
  BwdRowSpec s = tile_spec<BwdRowSpec>(plan, l);
  s.ROW_TAU = plan.problem.wants(TANDEM_GRAD_TAU);
  s.ROW_SLOPE = plan.problem.wants(TANDEM_GRAD_SLOPE);
  return s;
}

BwdRowBlock bwd_row_block(const Plan& plan, const Launch& l) {
  return pair_block<BwdRowBlock>(plan, l);
}

BwdRowPush bwd_row_push(const Plan& plan, const Launch& l, const Addresses& a) {
  auto push = pair_push<BwdRowPush>(plan, a);
  push.tau_rows = a.tau_rows;
  push.slope_rows = a.slope_rows;
  push.wide = pair_wide(Wide(plan, l), plan.problem, a).bits();
  return push;
}

BwdDkvSpec bwd_dkv_spec(const Plan& plan, const Launch& l) {
  BwdDkvSpec s = tile_spec<BwdDkvSpec>(plan, l);
  s.ROWS = uint32_t(l.tile.bc);
  s.COLS = uint32_t(l.tile.br);
  s.GRAD_K = plan.problem.wants(TANDEM_GRAD_K);
  s.GRAD_V = plan.problem.wants(TANDEM_GRAD_V);
  return s;
}

BwdDkvBlock bwd_dkv_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdDkvBlock>(plan, l);
  b.d_k = plan.problem.d_k;
  b.d_v = plan.problem.d_v;
  return b;
}

BwdDkvPush bwd_dkv_push(const Plan& plan, const Launch& l, const Addresses& a) {
  const Problem& p = plan.problem;
  auto push = pair_push<BwdDkvPush>(plan, a);
  push.d_k = a.d_k;
  push.d_v = a.d_v;
  push.wide = pair_wide(Wide(plan, l), p, a).kv(a.d_k, p.d_k).kv(a.d_v, p.d_v).bits();
  return push;
}

BwdDqSpec bwd_dq_spec(const Plan& plan, const Launch& l) { return tile_spec<BwdDqSpec>(plan, l); }

BwdDqBlock bwd_dq_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdDqBlock>(plan, l);
  b.d_q = plan.problem.d_q;
  return b;
}

BwdDqPush bwd_dq_push(const Plan& plan, const Launch& l, const Addresses& a) {
  auto push = pair_push<BwdDqPush>(plan, a);
  push.d_q = a.d_q;
  push.wide = pair_wide(Wide(plan, l), plan.problem, a).q(a.d_q, plan.problem.d_q).bits();
  return push;
}

BwdDbiasSpec bwd_dbias_spec(const Plan& plan, const Launch& l) {
  BwdDbiasSpec s = tile_spec<BwdDbiasSpec>(plan, l);
  s.D_BIAS = uint32_t(l.splits > 1 ? TANDEM_F32 : plan.problem.d_bias_dtype);
  s.ONE_ROW = plan.problem.bias.rows == 1;
  return s;
}

BwdDbiasBlock bwd_dbias_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  auto b = pair_block<BwdDbiasBlock>(plan, l);
  const Overlay& bias = p.bias;
  b.seq_q = int(p.seq_q);  // rows to write zeros to, also where there are no query heads
  b.d_bias = p.d_bias;
  if (l.splits > 1)
    b.d_bias = {bias.heads * bias.rows * p.seq_kv, bias.rows * p.seq_kv, p.seq_kv, 1};
  b.bias_heads = int(bias.heads);
  b.bias_batch = int(bias.batch);
  b.q_tiles = bias.rows == 1 ? int((p.seq_q + l.tile.br - 1) / l.tile.br) : 1;
  b.members = int(l.members);
  b.splits = int(l.splits);
  b.part = uint32_t(gradient_elements(p, TANDEM_GRAD_BIAS));
  return b;
}

BwdDbiasPush bwd_dbias_push(const Plan& plan, const Launch& l, const Addresses& a) {
  auto push = pair_push<BwdDbiasPush>(plan, a);
  push.d_bias = l.splits > 1 ? a.bias_parts : a.d_bias;
  push.wide = pair_wide(Wide(plan, l), plan.problem, a).bits();
  return push;
}

BwdDdistSpec bwd_ddist_spec(const Plan& plan, const Launch& l) {
  return tile_spec<BwdDdistSpec>(plan, l);
}

BwdDdistBlock bwd_ddist_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdDdistBlock>(plan, l);
  b.q_tiles = int((plan.problem.seq_q + l.tile.br - 1) / l.tile.br);
  b.members = int(l.members);
  b.splits = int(l.splits);
  return b;
}

BwdDdistPush bwd_ddist_push(const Plan& plan, const Launch& l, const Addresses& a) {
  auto push = pair_push<BwdDdistPush>(plan, a);
  push.d_dist = l.splits > 1 ? a.dist_parts : a.d_dist_bias;
  push.wide = pair_wide(Wide(plan, l), plan.problem, a).bits();
  return push;
}

BwdSumSpec bwd_sum_spec(const Plan& plan, const Launch& l) {
  BwdSumSpec s;
  s.WG = kLineGroup;
  s.DTYPE = uint32_t(l.gradient == TANDEM_GRAD_BIAS ? plan.problem.d_bias_dtype : TANDEM_F32);
  return s;
}

BwdSumBlock bwd_sum_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdSumBlock b{};
  const bool bias = l.gradient == TANDEM_GRAD_BIAS;
  b.to = bias ? p.d_bias : Strides{0, 0, p.dist_window, 1};
  b.heads = bias ? int(p.bias.heads) : 1;
  b.rows = int(bias ? p.bias.rows : p.heads_q);
  b.cols = int(bias ? p.seq_kv : p.dist_window);
  b.splits = int(l.splits);
  b.part = uint32_t(gradient_elements(p, l.gradient));
  b.total = l.total;
  return b;
}

BwdSumPush bwd_sum_push(const Plan&, const Launch& l, const Addresses& a) {
  BwdSumPush push{};
  const bool bias = l.gradient == TANDEM_GRAD_BIAS;
  push.parts = bias ? a.bias_parts : a.dist_parts;
  push.to = bias ? a.d_bias : a.d_dist_bias;
  return push;
}

BwdHeadSpec bwd_head_spec(const Plan& plan, const Launch&) {
  BwdHeadSpec s;
  s.WG = kLineGroup;
  s.GRAD_TAU = plan.problem.wants(TANDEM_GRAD_TAU);
  s.GRAD_SLOPE = plan.problem.wants(TANDEM_GRAD_SLOPE);
  s.GRAD_SINK = plan.problem.wants(TANDEM_GRAD_SINK);
  return s;
}

BwdHeadBlock bwd_head_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdHeadBlock b{};
  b.batch = int(p.batch);
  b.heads_q = int(p.heads_q);
  b.seq_q = int(p.seq_q);
  b.total = l.total;
  return b;
}

BwdHeadPush bwd_head_push(const Plan&, const Launch&, const Addresses& a) {
  BwdHeadPush push{};
  push.lse = a.lse;
  push.delta = a.delta;
  push.tau_rows = a.tau_rows;
  push.slope_rows = a.slope_rows;
  push.sink = a.sink;
  push.d_tau = a.d_tau;
  push.d_slope = a.d_slope;
  push.d_sink = a.d_sink;
  return push;
}

}  // namespace tandem
