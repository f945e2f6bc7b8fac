// SPDX-License-Identifier: MIT OR Apache-2.0
// The one place where a plan becomes the numbers that kernels read.
#include "params.h"

#include <algorithm>
#include <cstring>

#include "hopper_tiles.h"

namespace tandem {
namespace {

// Whether a tensor of bias's shape has rows of 16-byte chunks, 8 elements each, as far as its strides say.
bool is_chunked(const Problem& p, const Strides& s) {
  return s.d == 1 && p.seq_kv % 8 == 0 && s.b % 8 == 0 && s.h % 8 == 0 && s.s % 8 == 0 &&
         s.s < int64_t(1) << 22;  // rows of a tile by 32 bits of index
}

// Of launch l: 0, or 1 where bias has such rows, 2 where blocks of matrices are whole, too: as many rows, or one for all,
// and, of 16-bit elements, twice as many keys. Draws of dropout are of four keys in a row, which such pairs of blocks part.
uint32_t bias_code(const Problem& p, const Launch& l) {
  const Strides& s = p.bias.strides;
  if (l.matrix.m == 0 || !is_chunked(p, s)) return 0;
  const int64_t keys = l.matrix.n * (p.bias.dtype == TANDEM_F32 ? 1 : 2);
  const bool rows = p.seq_q % l.matrix.m == 0 || s.s == 0;
  return rows && p.seq_kv % keys == 0 && l.tile.bc % keys == 0 && !(p.dropout > 0) ? 2 : 1;
}

// Whether all rows of every streamed tile of a kernel with matrices exist: keys, or query rows in bwd_dkv.
bool tiles_exist(const Problem& p, const Launch& l) {
  const bool keys = l.stem != Stem::bwd_dkv;
  return l.matrix.m > 0 && !p.has_lengths() &&
         (keys ? p.seq_kv % l.tile.bc : p.seq_q % l.tile.br) == 0;
}

// Whether no streamed tile needs a mask.
bool is_whole(const Problem& p, const Launch& l) { return tiles_exist(p, l) && !p.banded(); }

// Whether hidden scores, -1e34, stay finite and far below all others when the scale is folded into that of exp2.
bool is_folded(const Problem& p) { return p.scale >= 1e-3f && p.scale <= 1e3f; }

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
  s.RM = uint32_t(l.matrix.m > 0 ? l.row_blocks : l.tile.br / l.tile.tr);
  s.SUBGROUP = l.subgroup;
  s.MM = uint32_t(l.matrix.m);
  s.MN = uint32_t(l.matrix.n);
  s.LEFT_SHARED = uint32_t(l.left_shared);
  s.FLIES = l.flies;
  s.WHOLE = is_whole(plan.problem, l);
  s.FOLDED = is_folded(plan.problem);
  s.BIAS_WIDE = bias_code(plan.problem, l);
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

// The tensors of the interface files' TANDEM_STRIDES whose elements may be accessed several at once.
struct Tensor {
  const char* name = nullptr;
  Strides Problem::*strides = nullptr;
  uint64_t Addresses::*address = nullptr;
  bool kv = false;
};
namespace tensors {
#define TANDEM_TENSOR(name, kv) constexpr Tensor name{#name, &Problem::name, &Addresses::name, kv};
TANDEM_TENSOR(q, false)
TANDEM_TENSOR(k, true)
TANDEM_TENSOR(v, true)
TANDEM_TENSOR(o, false)
TANDEM_TENSOR(d_o, false)
TANDEM_TENSOR(d_q, false)
TANDEM_TENSOR(d_k, true)
TANDEM_TENSOR(d_v, true)
#undef TANDEM_TENSOR
constexpr Tensor d_bias, to, o_parts;  // one way, always
}  // namespace tensors

// Of o's parts, [B * splits, Hq, Sq, part_pitch()].
Strides part_strides(const Problem& p) {
  const int64_t row = part_pitch(p.head_dim_v), head = p.seq_q * row;
  return {p.heads_q * head, head, row, 1};
}

// Whether n elements may be read or written at once from every multiple of n features. A dimension of size 1 has
// no step, whatever its stride says. Kernels with matrices reach all rows of a tile by 32 bits of index.
constexpr int64_t kMostRowBytes = (1 << 24) - 1;
bool is_wide(const Problem& p, const Tensor& t, uint64_t address, int n) {
  const Strides& s = p.*t.strides;
  const bool packed = (t.kv ? p.lengths_kv : p.lengths_q) == Lengths::packed;
  const int64_t heads = t.kv ? p.heads_kv : p.heads_q;
  const int64_t rows = packed ? (t.kv ? p.total_kv : p.total_q) : t.kv ? p.seq_kv : p.seq_q;
  return s.d == 1 && (p.batch == 1 || s.b % n == 0) && (heads == 1 || s.h % n == 0) &&
         (rows == 1 || (s.s % n == 0 && s.s <= kMostRowBytes / p.element_size())) &&
         address % uint64_t(n * p.element_size()) == 0;
}

// Whether a launch accesses a tensor of its interface at all: bwd_dkv may be asked for one gradient alone.
bool is_accessed(const Problem& p, Stem stem, const Tensor& t) {
  if (stem != Stem::bwd_dkv) return true;
  if (t.strides == &Problem::v || t.strides == &Problem::d_k) return p.wants(TANDEM_GRAD_K);
  return t.strides != &Problem::d_v || p.wants(TANDEM_GRAD_V);
}

// What the members of push blocks are, by their names in the interface files.
struct PushValues : Addresses {
  PushValues(const Plan& plan, const Launch& l, const Addresses& a)
      : Addresses(a), drop_offset(a.dropout_offset), plan_(plan), launch_(l) {
    const bool bias_sum = l.gradient == TANDEM_GRAD_BIAS, split = l.splits > 1;
    parts = bias_sum ? a.bias_parts : a.dist_parts;
    to = bias_sum ? a.d_bias : a.d_dist_bias;
    d_dist = split ? a.dist_parts : a.d_dist_bias;
    if (l.stem == Stem::bwd_dkv_ddist && l.members == 0) d_dist = 0;
    if (split) d_bias = a.bias_parts;
    if (leaves_parts()) o = a.o_parts, lse = a.lse_parts;
    int slot = 0;
    for_each_extra(plan.problem, [&](auto, auto address) { extra[slot++] = a.*address; });
  }
  // Called for each tensor, in the order of the interface file.
  void add_tensor(const Tensor& t) {
    if (!t.strides) return;
    const bool fits = (leaves_parts() && t.strides == &Problem::o) ||
                      is_wide(plan_.problem, t, this->*t.address, launch_.wide_elements());
    wide |= uint32_t(fits) << count_;
    accessed_ |= uint32_t(is_accessed(plan_.problem, launch_.stem, t)) << count_++;
  }
  // Whether all that is accessed is wide: nothing goes by element then.
  bool all_wide() const {
    const Problem& p = plan_.problem;
    const int n = launch_.wide_elements();
    return p.head_dim % n == 0 && p.head_dim_v % n == 0 && (~wide & accessed_) == 0;
  }
  uint64_t parts, to, d_dist, extra[TANDEM_EXTRA_ADDRESSES] = {};
  uint32_t wide = 0, drop_offset;

 private:
  // Of o and lse: part_strides() are those of whole chunks.
  bool leaves_parts() const { return launch_.stem == Stem::fwd && launch_.splits > 1; }
  const Plan& plan_;
  const Launch& launch_;
  uint32_t accessed_ = 0, count_ = 0;
};

#define TANDEM_INTERFACE(Name) constexpr auto fill_##Name = [](PushValues& from, Name##Push& push) {
#define TANDEM_STRIDES(name) from.add_tensor(tensors::name);
#define TANDEM_ADDRESS(name) push.name = from.name;
#define TANDEM_ADDRESSES(name, count) std::copy_n(from.name, count, push.name);
#define TANDEM_PUSH(type, name) push.name = from.name;
#include "interface/all.inc"

// What kernels that form both products, S and dP, have in common in their blocks.
template <typename Block>
Block pair_block(const Plan& plan, const Launch& l) {
  Block b = tile_block<Block>(plan, l);
  b.d_o = plan.problem.d_o;
  return b;
}

}  // namespace

bool takes_chunks(const Plan& plan, const Launch& l, const Addresses& a) {
  const Problem& p = plan.problem;
  return l.matrix.m == 0 || ((!is_chunked(p, p.bias.strides) || a.bias % 16 == 0) &&
                             ((l.stem != Stem::bwd_dbias && !l.stores_d_bias) || l.splits > 1 ||
                              !is_chunked(p, p.d_bias) || a.d_bias % 16 == 0));
}

#define TANDEM_STEM(Name, name)                                                          \
  Name##Push name##_push_and_wide(const Plan& plan, const Launch& l, const Addresses& a, \
                                  bool* wide) {                                          \
    PushValues from(plan, l, a);                                                         \
    Name##Push push{};                                                                   \
    fill_##Name(from, push);                                                             \
    *wide = from.all_wide() && takes_chunks(plan, l, a);                                 \
    return push;                                                                         \
  }                                                                                      \
  Name##Push name##_push(const Plan& plan, const Launch& l, const Addresses& a) {        \
    PushValues from(plan, l, a);                                                         \
    Name##Push push{};                                                                   \
    fill_##Name(from, push);                                                             \
    return push;                                                                         \
  }
#include "stems.inc"

String narrow_inputs(const Problem& p, int elements) {
  String names;
  const auto add = [&](bool narrow, const char* name) {
    if (narrow) names += text("%s%s", names.empty() ? "" : ", ", name);
  };
  // An address of 0 is as aligned as can be: what remains are the strides.
  for (const Tensor& t : {tensors::q, tensors::k, tensors::v, tensors::d_o})
    add((p.backward || t.strides != &Problem::d_o) && !is_wide(p, t, 0, elements), t.name);
  add(p.head_dim % elements != 0, "head_dim");
  add(p.head_dim_v % elements != 0, "head_dim_v");
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

// The stride of rows of k and v, in 8 elements, where fwd has nothing but products and exponentials in its loop and takes
// one made for that (shaders/coopmat/plain.glsl). Elsewhere 0.
uint32_t plain_row(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  if (std::strcmp(plan.path, "coopmat2") != 0 || !tiles_exist(p, l) || p.k.s != p.v.s) return 0;
  const int biases =
      p.bias && bias_code(p, l) > 0;  // a dense one by chunks: products begin with it
  const bool plain = p.normalizer == Normalizer::softmax && p.softcap == 0 && !(p.dropout > 0) &&
                     extra_addresses(p) == biases && l.splits == 1 && is_folded(p);
  const int64_t chunks = l.tile.bc * (std::max(p.head_dim, p.head_dim_v) / 8);
  // With two blocks of rows it pays where tiles are masked (H100, 580.159.04).
  const bool pays = l.row_blocks == 1 ? l.tile.max_d == 128 : p.banded();
  return plain && l.flies && pays && chunks <= 8 * l.tile.invocations() && p.k.s % 8 == 0 &&
                 p.k.s > 0 && p.k.s < int64_t(1) << 24
             ? uint32_t(p.k.s / 8)
             : 0;
}

FwdSpec fwd_spec(const Plan& plan, const Launch& l) {
  FwdSpec s = tile_spec<FwdSpec>(plan, l);
  s.KV_ROW = plain_row(plan, l);
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

BwdRowSpec bwd_row_spec(const Plan& plan, const Launch& l) {
  BwdRowSpec s = tile_spec<BwdRowSpec>(plan, l);
  s.ROW_TAU = plan.problem.wants(TANDEM_GRAD_TAU);
  s.ROW_SLOPE = plan.problem.wants(TANDEM_GRAD_SLOPE);
  return s;
}

BwdRowBlock bwd_row_block(const Plan& plan, const Launch& l) {
  return pair_block<BwdRowBlock>(plan, l);
}

namespace {
// Of the kernels that own keys: their rows are keys, and they leave d_k and d_v.
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

// What kernels find from delta on, in 256 bytes: no address of its own.
uint32_t from_delta(const Plan& plan, uint64_t offset) {
  return uint32_t((offset - plan.delta_offset) / kWorkspaceAlignment);
}
}  // namespace

BwdDkvSpec bwd_dkv_spec(const Plan& plan, const Launch& l) {
  BwdDkvSpec s = key_spec<BwdDkvSpec>(plan, l);
  s.GRAD_K = plan.problem.wants(TANDEM_GRAD_K);
  s.GRAD_V = plan.problem.wants(TANDEM_GRAD_V);
  s.LEAVES_DS = l.shares_ds;
  return s;
}

BwdDkvBlock bwd_dkv_block(const Plan& plan, const Launch& l) {
  auto b = key_block<BwdDkvBlock>(plan, l);
  if (!l.shares_ds) return b;
  b.ds = from_delta(plan, plan.ds_offset);
  b.first = l.first_head;
  b.heads = l.heads;
  b.batches = int(plan.problem.batch);
  return b;
}

BwdRowDqSpec bwd_row_dq_spec(const Plan& plan, const Launch& l) {
  BwdRowDqSpec s = tile_spec<BwdRowDqSpec>(plan, l);
  s.ROW_TAU = plan.problem.wants(TANDEM_GRAD_TAU);
  return s;
}

BwdRowDqBlock bwd_row_dq_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdRowDqBlock>(plan, l);
  b.d_q = plan.problem.d_q;
  return b;
}

BwdDkvDdistSpec bwd_dkv_ddist_spec(const Plan& plan, const Launch& l) {
  return key_spec<BwdDkvDdistSpec>(plan, l);
}

BwdDkvDdistBlock bwd_dkv_ddist_block(const Plan& plan, const Launch& l) {
  return key_block<BwdDkvDdistBlock>(plan, l);
}

BwdDkvDqSpec bwd_dkv_dq_spec(const Plan&, const Launch&) { return {}; }

BwdDkvDqBlock bwd_dkv_dq_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdDkvDqBlock>(plan, l);
  b.in_turn = plan.problem.deterministic;
  b.d_k = plan.problem.d_k;
  b.d_v = plan.problem.d_v;
  return b;
}

BwdDqCastSpec bwd_dq_cast_spec(const Plan&, const Launch&) { return {}; }

BwdDqCastBlock bwd_dq_cast_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdDqCastBlock b{};
  b.d_q = p.d_q;
  b.seq_q = int(p.seq_q);
  b.head_dim = int(p.head_dim);
  b.heads_q = int(p.heads_q);
  if (l.ampere >= 0) {
    b.row_blocks = int(ampere_row_blocks(p.seq_q));
    b.panels = kAmpereTiles[l.ampere].panels();
  } else {
    b.row_blocks = int(bwd_row_blocks(kBwdShapes[l.hopper], p.seq_q));
    b.panels = bwd_panels(kBwdShapes[l.hopper]);
  }
  b.scale = p.scale;
  b.total = l.total;
  return b;
}

BwdDqSpec bwd_dq_spec(const Plan& plan, const Launch& l) {
  BwdDqSpec s = tile_spec<BwdDqSpec>(plan, l);
  s.D_BIAS = l.stores_d_bias ? uint32_t(plan.problem.d_bias_dtype) : 0;
  s.D_BIAS_WIDE = l.stores_d_bias && is_chunked(plan.problem, plan.problem.d_bias);
  s.SUMS = !l.sums_d_bias ? 0 : plan.problem.batch > l.entries ? 1 : 2;
  s.ENTRIES = uint32_t(l.entries);
  s.TAKES_DS = l.shares_ds;
  return s;
}

BwdDqBlock bwd_dq_block(const Plan& plan, const Launch& l) {
  auto b = pair_block<BwdDqBlock>(plan, l);
  b.d_q = plan.problem.d_q;
  if (l.stores_d_bias) b.d_bias = plan.problem.d_bias;
  b.batches = l.sums_d_bias || l.shares_ds ? int(plan.problem.batch) : 1;
  b.sums = from_delta(plan, l.shares_ds ? plan.ds_offset : plan.bias_sums_offset);
  b.first = l.first_head;
  b.heads = l.heads;
  return b;
}

namespace {
// Of what bwd_dbias stores: d_bias or, where there are splits, a part of it, which is contiguous.
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
  s.TAKES_DS = !l.shares_ds ? 0 : plan.problem.batch > plan.problem.bias.batch ? 2 : 1;
  s.D_BIAS_WIDE = l.matrix.m > 0 && is_chunked(plan.problem, d_bias_strides(plan.problem, l));
  return s;
}

BwdDbiasBlock bwd_dbias_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  auto b = pair_block<BwdDbiasBlock>(plan, l);
  b.seq_q = int(p.seq_q);  // rows to write zeros to, also where there are no query heads
  b.d_bias = d_bias_strides(p, l);
  b.bias_heads = int(p.bias.heads);
  b.bias_batch = int(p.bias.batch);
  b.q_tiles = p.bias.rows == 1 ? int((p.seq_q + l.tile.br - 1) / l.tile.br) : 1;
  b.members = int(l.members);
  b.splits = int(l.splits);
  b.part = uint32_t(gradient_elements(p, TANDEM_GRAD_BIAS));
  if (l.shares_ds) {
    b.ds = from_delta(plan, plan.ds_offset);
    b.first = l.first_head;
    b.batches = int(p.batch);
  }
  return b;
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

BwdSumSpec bwd_sum_spec(const Plan& plan, const Launch& l) {
  BwdSumSpec s;
  if (l.joined_heads > 0) {
    s.GRAD_TAU = plan.problem.wants(TANDEM_GRAD_TAU);
    s.GRAD_SLOPE = plan.problem.wants(TANDEM_GRAD_SLOPE);
    s.GRAD_SINK = plan.problem.wants(TANDEM_GRAD_SINK);
  }
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
  b.head_total = l.joined_heads;
  b.batch = int(p.batch);
  b.heads_q = int(p.heads_q);
  b.seq_q = int(p.seq_q);
  return b;
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
  b.slopes = int(plan.slope_parts());
  b.total = l.total;
  return b;
}

}  // namespace tandem
