// SPDX-License-Identifier: MIT OR Apache-2.0
// The launches of a plan once its path and tiles are chosen: which kernels, how many workgroups,
// and how sums are split.
#include <algorithm>

#include "dot_tiles.h"
#include "fwd_stream_k.h"
#include "hopper_tiles.h"
#include "number.h"
#include "planner.h"

namespace tandem {
namespace {

bool is_fused(Stem stem) { return stem == Stem::bwd_row_dq || stem == Stem::bwd_dkv_ddist; }

int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

struct Extent {  // workgroups of a launch
  int64_t tiles, heads, batch;
  int64_t members = 0;  // members of a sum that may be split
};

Extent extent_of(const Problem& p, const Launch& l) {
  const int64_t Br = std::max(l.tile.br, 1), Bc = std::max(l.tile.bc, 1),
                q_tiles = ceil_div(p.seq_q, Br);
  switch (l.stem) {
    case Stem::bwd_dot:
      return {ceil_div(p.seq_q, kDotRows), p.heads_q, p.batch};
    case Stem::bwd_origin:
      return {ceil_div(p.seq_q, kLineGroup), p.heads_q, p.batch};
    case Stem::bwd_dkv:
    case Stem::bwd_dkv_ddist:
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
    case Stem::bwd_ddist:
      return {ceil_div(p.dist_window, Br), p.heads_q, 1, p.batch * q_tiles};
    case Stem::bwd_head:
      return {1, p.heads_q, 1};
    case Stem::bwd_dq_cast:
      if (l.ampere >= 0)
        return {kAmpereTiles[l.ampere].panels() * ampere_row_blocks(p.seq_q), p.heads_q, p.batch};
      return {bwd_panels(kBwdShapes[l.hopper]) * ceil_div(p.seq_q, 64), p.heads_q, p.batch};
    default:
      return {q_tiles, p.heads_q, p.batch};
  }
}

// Whether o and d_o have the layout that bwd_dot_fast reads (cuda/bwd_dot.h), addresses aside.
bool has_fast_dot(const Problem& p) {
  const auto wide = [&](const Strides& s) {
    return s.d == 1 && (p.batch == 1 || s.b % 8 == 0) && (p.heads_q == 1 || s.h % 8 == 0) &&
           (p.seq_q == 1 || s.s % 8 == 0);
  };
  return p.dtype != TANDEM_F32 && !p.has_lengths() && p.head_dim_v % 8 == 0 &&
         p.head_dim_v <= 256 && wide(p.o) && wide(p.d_o);
}

// Whether bwd_dkv_ddist sums d_dist_bias as well. Without pairs it would not run, and would not
// store zeros.
bool fuses_dist(const Problem& p) {
  return p.wants(TANDEM_GRAD_DIST_BIAS) && p.dist_window <= kFusedWindow &&
         p.batch * p.heads_q * p.seq_q != 0 && p.heads_kv * p.seq_kv != 0;
}

// Whether each element of bias has one reader and d_q is wanted. bwd_dq with matrices then stores
// its dS as d_bias, so that no product is formed twice.
bool stores_ds(const Problem& p, const PathRow& row) {
  const Overlay& b = p.bias;
  return (is_matrix_path(row) || is_sm80(row)) && p.wants(TANDEM_GRAD_BIAS) &&
         p.wants(TANDEM_GRAD_Q) && p.seq_kv > 0 && b.batch == p.batch && b.heads == p.heads_q &&
         b.rows == p.seq_q;
}

// The device's number of SMs, or a guess if it reports none.
int64_t cores_of(const Caps& caps) { return caps.cores ? caps.cores : 32; }

// The sums of a block are loaded two blocks ahead, so each step of the kernel must be one block.
bool sums_matrices(const Problem& p, const Caps& caps, const PathRow& row) {
  const MatrixDims shape = matrix_shape(p, caps, row);
  return shape.k == shape.n;
}
constexpr int kSumRows = 128, kSumKeys = 64;  // of most tiles that sum

// Whether bwd_dq sums dS over the batch in the workspace. The batch shares one bias and all entries
// have the same tiles. The tiles of the heads, of kSumRows rows, have to fill the device. The sums,
// a tile for each workgroup that runs, may have at most four times as many elements as d_q.
bool sums_ds(const Problem& p, const Caps& caps, const PathRow& row) {
  const Overlay& b = p.bias;
  return is_matrix_path(row) && p.wants(TANDEM_GRAD_BIAS) && p.wants(TANDEM_GRAD_Q) &&
         p.seq_kv > 0 && b.batch == 1 && p.batch > 1 && b.heads == p.heads_q && b.rows == p.seq_q &&
         p.lengths_q == Lengths::full && p.lengths_kv == Lengths::full &&
         double(cores_of(caps)) * kSumRows * double(ceil_div(p.seq_kv, kSumKeys) * kSumKeys) <=
             4.0 * double(p.batch * p.heads_q * p.seq_q) * double(p.head_dim) &&
         p.heads_q * ceil_div(p.seq_q, kSumRows) >= cores_of(caps) && sums_matrices(p, caps, row);
}

// Deterministic dQ semaphores: how many heads have their tiles of keys interleaved. Workgroups that
// add to the same rows then start one after another, each later by the time that one add takes,
// about 1.2 times that of a tile's products. With a mask to the right (not open) each tile of keys
// starts at queries of its own, where it is the first to add. q_tiles: query tiles of a Q loop.
int64_t heads_beside(bool open, int64_t cores, int64_t tiles, int64_t q_tiles) {
  const int64_t least = tiles < q_tiles ? tiles : q_tiles;
  return open && least > 0 && 5 * cores >= 8 * least ? 5 * cores / (4 * least) : 1;
}

}  // namespace

int64_t ds_bytes(const Problem& p) {
  const auto whole = [](int64_t n) { return ceil_div(n, kDsBlock) * kDsBlock; };
  return 2 * whole(p.seq_kv) * whole(p.seq_q);
}

namespace {

// All stems but bwd_origin.
Vec<Stem> own_stems_of(const Problem& p, const Caps& caps, const PathRow& row, int fixed,
                       bool fused_q) {
  if (!p.backward) return {Stem::fwd};
  if (is_sm90(row) && p.normalizer != Normalizer::elastic) {
    const bool softmax = p.normalizer == Normalizer::softmax;
    Vec<Stem> stems = {softmax ? Stem::bwd_dot : Stem::bwd_row};
    if (std::max(p.head_dim, p.head_dim_v) > kMaxFusedHeadDim) {
      if (p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V)) stems.push_back(Stem::bwd_dkv);
      if (p.wants(TANDEM_GRAD_Q)) stems.push_back(Stem::bwd_dq);
    } else {
      if (p.gradients != TANDEM_GRAD_SINK) stems.push_back(Stem::bwd_dkv_dq);
      if (p.wants(TANDEM_GRAD_Q) && !fuses_dq_postprocess(p, cores_of(caps)))
        stems.push_back(Stem::bwd_dq_cast);
    }
    if (p.wants(TANDEM_GRAD_SLOPE | TANDEM_GRAD_SINK)) stems.push_back(Stem::bwd_head);
    return stems;
  }
  if (fused_q) {
    Vec<Stem> stems = {Stem::bwd_dot, Stem::bwd_dkv_dq};
    if (!sm80_rounds(p)) stems.push_back(Stem::bwd_dq_cast);
    return stems;
  }
  const bool fuses = fixed >= 0 || is_sm90(row), fused_k = fuses && p.wants(TANDEM_GRAD_K);
  Vec<Stem> stems;
  bool dq = p.wants(TANDEM_GRAD_Q);
  if (p.wants(TANDEM_GRAD_TAU) || (p.needs_delta() && !p.delta_is_dot())) {
    const bool fused = fuses && dq;
    stems.push_back(fused ? Stem::bwd_row_dq : Stem::bwd_row);
    if (fused) dq = false;
  } else if (p.needs_delta()) {
    stems.push_back(Stem::bwd_dot);
  }
  if (p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V))
    stems.push_back(fused_k ? Stem::bwd_dkv_ddist : Stem::bwd_dkv);
  if (dq) stems.push_back(Stem::bwd_dq);
  if (p.wants(TANDEM_GRAD_BIAS) && !stores_ds(p, row) && !sums_ds(p, caps, row))
    stems.push_back(Stem::bwd_dbias);
  if (p.wants(TANDEM_GRAD_DIST_BIAS) && !(fused_k && fuses_dist(p)))
    stems.push_back(Stem::bwd_ddist);
  if (p.wants(TANDEM_GRAD_TAU | TANDEM_GRAD_SLOPE | TANDEM_GRAD_SINK))
    stems.push_back(Stem::bwd_head);
  return stems;
}

}  // namespace

Vec<Stem> stems_of(const Problem& p, const Caps& caps, const PathRow& row, int fixed,
                   bool fused_q) {
  Vec<Stem> stems = own_stems_of(p, caps, row, fixed, fused_q);
  // Kernels that read lse need the origins of far rows. bwd_origin overwrites the delta that
  // bwd_dot leaves for far rows. The CPU device handles far rows itself.
  if (p.backward && row.backend != Backend::cpu && !stems.empty() && p.heads_kv * p.seq_kv > 0)
    stems.insert(stems.begin() + (stems.front() == Stem::bwd_dot ? 1 : 0), Stem::bwd_origin);
  return stems;
}

namespace {

// How many workgroups share the keys of a row of fwd. Few query tiles leave most of the device
// idle, so there are as many workgroups as give each SM kCoreInvocations, which is what fits an
// NVIDIA SM with 168 registers for each. On cuda.sm80 there are no more than shared memory has room
// for at once, as a last partial wave takes as long as a whole one. Each has at least kSplitKeys
// keys of the longest row, as the combine takes a launch of its own. Elastic softmax and entmax
// need the whole row's origin before the first weight, and are not split.
constexpr int64_t kCoreInvocations = 384, kSplitKeys = 256;
uint32_t key_splits(const Problem& p, const Caps& caps, const Launch& l, const Extent& e) {
  if (caps.backend == Backend::cpu || l.hopper >= 0 || p.normalizer != Normalizer::softmax)
    return 1;
  if (p.splits > 0) return uint32_t(p.splits);
  if (caps.max_invocations < uint32_t(kJoinGroup)) return 1;
  int64_t wanted = kCoreInvocations * cores_of(caps) / l.invocations();
  // CUDA reserves 1 KiB for each workgroup.
  if (l.ampere >= 0) {
    const int64_t together = caps.shared_bytes / (l.shared_bytes + 1024);
    wanted = std::min(wanted, std::max<int64_t>(together, 1) * cores_of(caps));
  }
  const int64_t groups = e.tiles * e.heads * e.batch;
  if (groups * 2 > wanted) return 1;
  int most = 0;  // key tiles of a query tile
  for (int64_t n = 0; n < e.tiles; ++n) {
    const TandemTiles t = tandem_key_tiles(p.band, int(n * l.tile.br), l.tile.br, l.tile.bc,
                                           int(p.seq_q), int(p.seq_kv));
    most = std::max(most, t.end - t.begin);
  }
  const int64_t splits = std::min(wanted / groups, int64_t(most) * l.tile.bc / kSplitKeys);
  return uint32_t(std::max<int64_t>(splits, 1));
}

// Several workgroups share a sum with few outputs and many members, as many as fill the device, and
// bwd_sum adds their partial sums. The number of workgroups bounds the partial sums by a few tiles
// for each SM, whatever the problem.
uint32_t splits_of(const Extent& e, const Caps& caps) {
  if (caps.backend == Backend::cpu || caps.max_invocations < uint32_t(kLineGroup)) return 1;
  const int64_t wanted = 4 * cores_of(caps);
  const int64_t groups = e.tiles * e.heads * e.batch;
  return uint32_t(std::max<int64_t>(1, std::min(wanted / std::max<int64_t>(groups, 1), e.members)));
}

// Numbers the launch's workgroups; returns why it cannot, "" if it can.
String set_groups(Launch* launch, double total, const Caps& caps) {
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

// On CUDA a launch takes the host three microseconds, so earlier launches do the work of a few
// small ones.
void join_launches(const Problem& p, const Caps& caps, const PathRow& row, Vec<Launch>* launches) {
  const auto find = [&](Stem stem) {
    Launch* found = nullptr;
    for (Launch& l : *launches)
      if (!found && l.stem == stem) found = &l;
    return found;
  };
  // Workgroups of `l` come behind those of `to` and of launches that it has already joined.
  uint64_t total = 0;
  const auto join = [&](Launch* l, const Launch* to) {
    if (!l || !to) return;
    if (total == 0) total = to->total;
    l->joins = total + l->total <= caps.max_groups_x;
    if (l->joins) total += l->total;
  };
  const Launch* dkv = find(Stem::bwd_dkv);
  Launch* head = find(Stem::bwd_head);
  Launch* dq = find(Stem::bwd_dq);
  if (is_sm80(row) && dkv && dkv->ampere >= 0 && kAmpereTiles[dkv->ampere].full) {
    // bwd_head sums up what the first kernel has left, so it can run with bwd_dkv. bwd_dq joined to
    // bwd_dkv has more threads than it uses, which is harmless while there are SMs for all
    // workgroups of both.
    if (dq && dq->ampere >= 0 && dkv->total + uint64_t(dq->total) <= uint64_t(cores_of(caps)) &&
        kAmpereTiles[dq->ampere].width == kAmpereTiles[dkv->ampere].width)
      join(dq, dkv);
    join(head, dkv);
  }
  if (!is_sm90(row)) return;
  // Heads over kMaxFusedHeadDim.
  join(dq, dkv);
  join(head, dkv ? dkv : dq ? dq : find(Stem::bwd_dq_cast));
  // Small problems: the last workgroup of a kv head does the work of bwd_head. Counting finished
  // workgroups takes each of them a microsecond or two.
  const Launch* narrow = find(Stem::bwd_dkv_dq);
  if (head && narrow && !find(Stem::bwd_dq_cast))
    head->joins = narrow->total <= uint64_t(cores_of(caps));
  if (!find(Stem::bwd_dkv_ddist)) return;
  // Elastic softmax: the row sums of d_tau, and the sums of d_dist_bias if they are few.
  if (head) head->joins = true;
  if (Launch* sum = find(Stem::bwd_sum))
    sum->joins = sums_at_once(p.group() * ceil_div(p.dist_window, 64), sum->splits);
}

// On Vulkan a dispatch takes the host about a microsecond, and a barrier almost as long. So the
// last bwd_sum does the work of bwd_head, which then comes behind it. If dS is shared, bwd_ddist
// comes before the barrier between bwd_dkv and bwd_dq, so that bwd_sum needs no barrier of its own.
void order_launches(const Caps& caps, Vec<Launch>* launches) {
  const auto find = [&](Stem stem) {
    return std::find_if(launches->begin(), launches->end(),
                        [&](const Launch& l) { return l.stem == stem; });
  };
  const auto dist = find(Stem::bwd_ddist);
  const auto dkv = find(Stem::bwd_dkv);
  const bool early = dist != launches->end() && dkv < dist && dkv->shares_ds;
  if (early) {
    dkv->waits = dkv->chunks > 1;
    dist->waits = true;
    std::rotate(dkv, dist, dist + 1);
  }
  if (launches->empty() || launches->back().stem != Stem::bwd_sum) return;
  if (early && find(Stem::bwd_sum)->gradient == TANDEM_GRAD_DIST_BIAS)
    find(Stem::bwd_sum)->waits = false;
  const auto head = find(Stem::bwd_head);
  if (head == launches->end()) return;
  std::rotate(head, head + 1, launches->end());
  Launch& last = launches->back();
  Launch& sum = *(launches->end() - 2);
  const uint64_t total = uint64_t(sum.total) + last.total;
  if (total > caps.max_groups_x) return;
  last.joins = true;
  sum.joined_heads = last.total;
  sum.groups_x = uint32_t(total);
}

// How many kv heads have their dS in the workspace at a time (a chunk); 0: dS is not shared. bwd_dq
// multiplies this dS with k, so S and dP are not formed twice. That pays where a product costs more
// than reading and writing dS. A chunk has to fill the device, unless it holds all heads.
constexpr int kDsWidth = 64;  // tiles for heads up to this size do not share dS
int64_t ds_heads(const Problem& p, const Caps& caps, const PathRow& row, const Launch& dkv,
                 const Launch& dq) {
  const Overlay& bias = p.bias;
  const int64_t heads = p.batch * p.heads_kv;
  const bool plain = (p.normalizer == Normalizer::softmax || p.normalizer == Normalizer::elastic) &&
                     !p.has_lengths() && !p.keep && p.wants(TANDEM_GRAD_K);
  // over the batch entries of a head
  const bool sums = p.wants(TANDEM_GRAD_BIAS) && bias.batch == 1;
  // bwd_dq multiplies dS after the derivative of softcap; d_bias is dS before it.
  if (p.wants(TANDEM_GRAD_BIAS) && !(p.softcap == 0 && bias.heads == p.heads_q &&
                                     bias.rows == p.seq_q && (sums || bias.batch == p.batch)))
    return 0;
  const auto divides = [](int n) { return n > 0 && kDsBlock % n == 0; };
  const auto fits = [&](const Launch& l) {
    return l.matrix.k == l.matrix.n && l.register_prefetch && l.left_shared == 0 &&
           divides(l.tile.br) && divides(l.tile.bc);
  };
  if (!is_matrix_path(row) || String(row.name) != "coopmat2" || is_disabled(caps, kDsWord) ||
      !plain || dkv.tile.max_d <= kDsWidth || !fits(dkv) || !fits(dq) ||
      dq.tile.br > std::max(dq.d_blocks, dq.dv_blocks) * dq.matrix.k)
    return 0;
  const int64_t step = sums ? p.batch : 1;
  const int64_t most = kDsBytes / std::max<int64_t>(ds_bytes(p) * p.group() * step, 1) * step;
  if (most >= heads) return heads;
  if (most * dkv.tiles * 10 < cores_of(caps) * 19) return 0;
  const int64_t steps = heads / step, chunks = ceil_div(heads, most);
  return ceil_div(steps, chunks) * step;
}

// Heads of a launch that belong to so many kv heads: those with dS, or with a d_bias of their own.
int64_t chunk_heads(const Problem& p, Stem stem, int64_t kv_heads) {
  if (stem == Stem::bwd_dkv) return kv_heads;
  const bool sums = stem == Stem::bwd_dbias && p.bias.batch == 1;
  return kv_heads * p.group() / (sums ? p.batch : 1);
}

// Makes bwd_dkv, bwd_dq and, for d_bias, bwd_dbias alternate, chunk by chunk.
String share_ds(const Problem& p, const Caps& caps, const PathRow& row, const Form& form,
                Vec<Launch>* launches) {
  size_t at = 0;
  while (at + 1 < launches->size() &&
         !((*launches)[at].stem == Stem::bwd_dkv && (*launches)[at + 1].stem == Stem::bwd_dq))
    ++at;
  if (at + 1 >= launches->size() || (*launches)[at].matrix.m == 0) return "";
  const Launch dkv = (*launches)[at];
  Launch dq = (*launches)[at + 1];
  dq.stores_d_bias = dq.sums_d_bias = false;
  dq.entries = 1;
  dq.shares_ds = true;
  dq.tile = Tile();  // form() chooses a tile for shared dS
  form(&dq);
  dq.tiles = uint32_t(extent_of(p, dq).tiles);
  const int64_t heads = p.batch * p.heads_kv, most = ds_heads(p, caps, row, dkv, dq);
  if (most == 0) return "";
  Launch dbias = dq;  // it has the same workgroups
  dbias.stem = Stem::bwd_dbias;
  dbias.kernel = find_kernel(dbias.stem, row.backend, row.name);
  dbias.shared_bytes = uint32_t(ds_sum_shared_bytes(dbias.tile.tr, dbias.matrix));
  dbias.tiles = uint32_t(ceil_div(p.seq_q, kDsBlock) * ceil_div(p.seq_kv, kDsSumKeys));
  Vec<Launch> shared(launches->begin(), launches->begin() + int64_t(at));
  for (Launch l : {dkv, dq, dbias}) {
    if (l.stem == Stem::bwd_dbias && !p.wants(TANDEM_GRAD_BIAS)) continue;
    l.shares_ds = true;
    l.kv_heads = int(most);
    l.heads = int(chunk_heads(p, l.stem, most));
    l.chunks = uint32_t(ceil_div(heads, most));
    l.waits = l.stem != Stem::bwd_dbias;
    const String why = set_groups(&l, double(l.tiles) * l.heads, caps);
    if (!why.empty()) return why;
    shared.push_back(l);
  }
  for (size_t n = at + 2; n < launches->size(); ++n)
    if ((*launches)[n].stem != Stem::bwd_dbias) shared.push_back((*launches)[n]);
  *launches = shared;
  return "";
}

}  // namespace

String make_launches(const Problem& p, const Caps& caps, const PathRow& row, int fixed,
                     const Form& form, Vec<Launch>* launches, bool fused_q) {
  const bool cpu = row.backend == Backend::cpu;
  for (Stem stem : stems_of(p, caps, row, fixed, fused_q)) {
    Launch launch;
    launch.stem = stem;
    launch.sums_d_bias = stem == Stem::bwd_dq && sums_ds(p, caps, row);
    launch.stores_d_bias = launch.sums_d_bias || (stem == Stem::bwd_dq && stores_ds(p, row));
    launch.kernel = find_kernel(stem, row.backend, row.name);
    if (launch.kernel < 0) return text("it has no %s kernel", stem_name(stem));
    const bool tiled = is_tiled(stem);
    if (tiled || stem == Stem::bwd_dq_cast) form(&launch);
    if (is_fused(stem) || stem == Stem::fwd) launch.fixed = fixed;
    if (is_fused(stem) && launch.hopper < 0)
      launch.shared_bytes += uint32_t(16 * tile_ptile_vec4(launch.tile));  // a second tile of P
    if (!cpu && launch.shared_bytes > caps.shared_bytes)
      return text("%s needs %u bytes of shared memory, the device has %u", stem_name(stem),
                  launch.shared_bytes, caps.shared_bytes);
    Extent e = extent_of(p, launch);
    if (launch.sums_d_bias) e.batch = 1;
    if (e.tiles * e.heads * e.batch == 0) continue;
    // A launch waits for bwd_dot, bwd_origin or bwd_row, which come first. The others are
    // independent.
    if (!launches->empty()) {
      const Stem before = launches->back().stem;
      launch.waits = before == Stem::bwd_dot || before == Stem::bwd_origin ||
                     before == Stem::bwd_row || before == Stem::bwd_row_dq;
    }
    launch.members = e.members;
    launch.splits = stem == Stem::fwd ? key_splits(p, caps, launch, e) : splits_of(e, caps);
    const int64_t shares = launch.splits;  // workgroups in place of one
    if (stem == Stem::bwd_dkv_ddist && fuses_dist(p)) {
      launch.members = e.tiles * e.batch;
      launch.splits = uint32_t(launch.members);
    }
    launch.tiles = uint32_t(e.tiles);
    if (!cpu) {
      if (launch.members >= int64_t(1) << 31)
        return text("%s sums over %lld tiles, beyond 2^31", stem_name(stem),
                    (long long)launch.members);
      const String why = set_groups(
          &launch, double(e.tiles) * double(e.heads) * double(e.batch) * double(shares), caps);
      if (!why.empty()) return why;
      if (stem == Stem::bwd_dkv_dq && launch.hopper >= 0 && p.deterministic)
        launch.interleaved_heads =
            uint32_t(heads_beside(p.band.right == TANDEM_BAND_OPEN, cores_of(caps), e.tiles,
                                  p.group() * ceil_div(p.seq_q, kBwdShapes[launch.hopper].br)));
      if (stem == Stem::bwd_dot && caps.backend == Backend::cuda && has_fast_dot(p)) {
        launch.fast_tiles = uint32_t(ceil_div(p.seq_q, bwd_dot_rows(int(p.head_dim_v))));
        launch.fast_total = uint32_t(launch.fast_tiles * e.heads * e.batch);
      }
      // bwd_dq_cast may start early, as bwd_dkv_dq signals when it may and counts the finished
      // tiles of a head. fwd waits before it reads or writes.
      const HopperVariant set = hopper_variant(p);
      launch.programmatic_launch =
          caps.early_launches && launch.hopper >= 0 &&
          (stem == Stem::bwd_dq_cast ||
           (stem == Stem::fwd && (set == HopperVariant::plain || set == HopperVariant::bias)));
      if (stem == Stem::bwd_dkv_dq && launch.hopper >= 0) {
        launch.cooperative_postprocess = uses_cooperative_postprocess(p, cores_of(caps));
        launch.two_cta_clusters = caps.early_launches && reduces_dbias_in_clusters(p) &&
                                  uses_two_cta_clusters(p, launch.total / p.batch);
        launch.eager_zero_heads =
            uint32_t(launch.two_cta_clusters
                         ? eager_zero_heads_per_entry(p, cores_of(caps), e.tiles)
                         : eager_zero_heads(p, cores_of(caps), e.tiles, launch.interleaved_heads));
      }
      if (stem == Stem::bwd_dkv_dq && launch.hopper >= 0)
        launch.persistent = is_persistent(p, cores_of(caps));
      // Persistent workgroups. bwd_origin checks many rows, and few of them are far.
      if (stem == Stem::bwd_origin && caps.backend == Backend::cuda) {
        launch.groups_x = uint32_t(std::min<int64_t>(launch.total, 4 * cores_of(caps)));
        launch.groups_y = 1;
      }
      if ((stem == Stem::fwd && launch.hopper >= 0) || launch.sums_d_bias || launch.persistent) {
        launch.groups_x = uint32_t(std::min<int64_t>(launch.total, cores_of(caps)));
        launch.groups_y = 1;
      }
      launch.scales_q = stem == Stem::fwd && launch.hopper >= 0 && set == HopperVariant::bias &&
                        p.dtype == TANDEM_BF16 && fwd_scales_q(kFwdTiles[launch.hopper]) &&
                        has_exact_scale(p.scale);
      if (stem == Stem::fwd && launch.hopper >= 0 && p.bias && !p.banded()) {
        const int64_t steps = ceil_div(p.seq_kv, launch.tile.bc);
        const int64_t shorts = fwd_short_tiles(kFwdTiles[launch.hopper], p.batch * p.heads_q,
                                               p.seq_q, launch.groups_x, steps);
        const FwdStreamK tail =
            fwd_stream_k(launch.total - shorts, launch.groups_x, p.batch, steps);
        launch.stream_k_units = tail.units, launch.stream_k_unit = tail.unit;
        launch.short_tiles = int(shorts);
      }
      if (!tiled) {
        const auto group = uint32_t(launch.invocations());
        if (group > caps.max_invocations)
          return text("%s needs workgroups of %u, the device has %u", stem_name(stem), group,
                      caps.max_invocations);
        launch.shared_bytes = stem == Stem::bwd_dq_cast ? (launch.ampere >= 0 ? 64 * 64 * 2 : 0)
                                                        : uint32_t(sizeof(float)) * group;
        if (stem == Stem::bwd_origin) launch.shared_bytes += 128 * 4 * sizeof(float);  // rows
      }
    }
    launches->push_back(launch);
  }
  for (const Launch& l : *launches)
    if (l.tf32 && launches->front().stem == Stem::bwd_dot) launches->front().tf32 = true;
  const String why_not = share_ds(p, caps, row, form, launches);
  if (!why_not.empty()) return why_not;
  // The kernels that add up the parts of splits come after all kernels that leave parts.
  for (size_t n = 0, kernels = launches->size(); n < kernels; ++n) {
    const Launch parts = (*launches)[n];
    if (parts.splits == 1) continue;
    const bool join = parts.stem == Stem::fwd;
    Launch sum;
    sum.stem = join ? Stem::fwd_join : Stem::bwd_sum;
    sum.kernel = find_kernel(sum.stem, row.backend, row.name);
    if (sum.kernel < 0) return text("it has no %s kernel", stem_name(sum.stem));
    sum.splits = parts.splits;
    sum.waits = launches->size() == kernels;  // the first one waits for both
    if (uint32_t(sum.invocations()) > caps.max_invocations)
      return text("%s needs workgroups of %d, the device has %u", stem_name(sum.stem),
                  sum.invocations(), caps.max_invocations);
    int64_t tiles = 0, heads = 1;
    if (join) {
      tiles = ceil_div(p.seq_q, JoinShape(sum.splits, p.head_dim_v).rows());
      heads = p.heads_q * p.batch;
      sum.shared_bytes = 5 * sizeof(float) * kJoinGroup;
    } else {
      if (row.backend == Backend::vulkan)  // for bwd_head, whose work it may do
        sum.shared_bytes = sizeof(float) * kLineGroup;
      sum.gradient = parts.stem == Stem::bwd_dbias ? TANDEM_GRAD_BIAS : TANDEM_GRAD_DIST_BIAS;
      tiles = ceil_div(gradient_elements(p, sum.gradient), kLineGroup);
    }
    const String why = set_groups(&sum, double(tiles) * double(heads), caps);
    if (!why.empty()) return why;
    sum.tiles = uint32_t(tiles);
    launches->push_back(sum);
  }
  join_launches(p, caps, row, launches);
  if (row.backend == Backend::vulkan) order_launches(caps, launches);
  return "";
}

Vec<Piece> pieces_of(const Plan& plan) {
  const Problem& p = plan.problem;
  Vec<Piece> pieces;
  for (size_t n = 0; n < plan.launches.size();) {
    size_t end = n + 1;  // end of the launches that alternate
    while (plan.launches[n].shares_ds && end < plan.launches.size() && plan.launches[end].shares_ds)
      ++end;
    const uint32_t chunks = plan.launches[n].chunks;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      for (size_t i = n; i < end; ++i) {
        Piece piece{plan.launches[i], chunk + 1 == chunks ? i + 1 : 0};
        Launch& l = piece.launch;
        if (l.shares_ds) {
          l.first_head = int(chunk) * l.kv_heads;
          const int64_t left = p.batch * p.heads_kv - l.first_head;
          l.heads = int(chunk_heads(p, l.stem, std::min<int64_t>(l.kv_heads, left)));
          l.total = l.tiles * uint32_t(l.heads);
          l.groups_x = std::min(l.groups_x, l.total);
          l.groups_y = (l.total + l.groups_x - 1) / l.groups_x;
        }
        pieces.push_back(piece);
      }
    }
    n = end;
  }
  return pieces;
}

}  // namespace tandem
