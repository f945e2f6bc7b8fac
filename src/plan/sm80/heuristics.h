// SPDX-License-Identifier: MIT OR Apache-2.0
// What the path cuda.sm80 decides by measured times. Notebook: bench/lab/2026-11.md.
#ifndef TANDEM_SRC_PLAN_SM80_HEURISTICS_H
#define TANDEM_SRC_PLAN_SM80_HEURISTICS_H
#include <algorithm>

#include "plan/caps.h"
#include "plan/thrift.h"
#include "plan/tiles.h"
#include "problem/problem.h"
#include "rules.h"

namespace tandem {

// Whether bwd_dkv_dq stores d_q itself, by the last workgroup of a head, so that there is no
// bwd_dq_cast. f32 only: the other kernels have no registers for it. There is a small limit for a
// head, and one for all heads.
inline bool sm80_postprocesses_dq(const Problem& p, const Caps& caps) {
  const int64_t bytes = p.heads_q * p.seq_q * p.head_dim * 4;
  // bwd_dq_cast does not know where the entries of a packed tensor lie.
  if (is_packed(p.lengths_q)) return true;
  return in_force(caps, sm80_rule::dq_postprocess) && p.dtype == TANDEM_F32 &&
         bytes <= (int64_t(1) << 18) * p.heads_kv && p.batch * bytes <= int64_t(4) << 20;
}

// Whether bwd_dbias has a kernel without the other optional inputs, of which a sink is part of lse.
constexpr uint32_t kSimpleInputs = kHasBias | kHasKeep | kHasLengths | kHasSink;
inline bool sm80_is_simple_bias(const Problem& p) { return (p.inputs() & ~kSimpleInputs) == 0; }

// The same of bwd_dbias as sm80_is_better(). A tile of half the rows and keys reads twice the bytes
// for an element, and these bound the kernel (docs/kernels/sm80.md). So it has to save a fourth of
// the elements of tiles, or the larger one leaves SMs without any work. Not measured.
inline bool sm80_is_better_for_dbias(const Problem& p, int64_t cores, const AmpereTile& t,
                                     const AmpereTile& best) {
  const auto tiles = [&](const AmpereTile& of) {
    return (p.seq_q + of.br - 1) / of.br * ((p.seq_kv + of.bc - 1) / of.bc);
  };
  const auto elements = [&](const AmpereTile& of) { return tiles(of) * of.br * of.bc; };
  return t.width == best.width &&
         (elements(t) * 4 <= elements(best) * 3 ||
          (t.br < best.br &&
           double(tiles(best)) * double(p.heads_q) * double(p.batch) < double(cores)));
}

// Workgroups that share the members of a sum of d_bias: as many as finish first, if a member takes
// a workgroup one unit of time and all workgroups begin together. groups: without splits; at_once:
// that the device has room for. A partial sum takes a unit to store and one to read, of f32 numbers
// as many bytes as a member of D 64, and its kernel four. The units are bytes, not measured.
inline uint32_t sm80_splits_of_dbias(int64_t groups, int64_t members, int64_t at_once) {
  int64_t best = 1, least = INT64_MAX;
  for (int64_t n = 1; n <= std::max<int64_t>(members, 1); ++n) {
    if (n > 1 && groups * n > 4 * at_once) break;
    const int64_t waves = (groups * n + at_once - 1) / at_once, each = (members + n - 1) / n;
    const int64_t time = n == 1 ? waves * (each + 1) : waves * (each + 2) + 4;
    if (time < least) least = time, best = n;
  }
  return uint32_t(best);
}

// Whether the kernel of few rows with lengths of keys takes a problem, if it has a tile for it.
inline bool sm80_takes_few_lengths(const Problem& p, const Caps& caps) {
  return p.lengths_q == Lengths::full && p.seq_q <= kFewRows && !p.batch_invariant &&
         in_force(caps, sm80_rule::few_lengths);
}

// Workgroups that the device has room for at a time. There are no more splits of keys of fwd than
// that, as a last partial wave takes as long as a whole one. H100, decoding: 4 to 10 % where there
// were more. CUDA reserves 1 KiB of shared memory for each workgroup. Kernels with all optional
// inputs take 250 registers or more, so an SM has room for eight warps of them.
constexpr int64_t kFullWarps = 8;
inline int64_t sm80_workgroups_at_once(uint32_t device_bytes, uint32_t bytes, int64_t cores,
                                       const AmpereTile& t) {
  const int64_t by_bytes = device_bytes / (bytes + 1024),
                by_registers = t.table == TileTable::ampere_full ? kFullWarps / t.warps : by_bytes;
  return std::max<int64_t>(std::min(by_bytes, by_registers), 1) * cores;
}

// ---- key warps: all warps of a workgroup have the same rows, and each its own keys ----
// Tiles with key warps are measured on an H200, one query, D 128 (sm80_rule::key_warps has more).
constexpr int64_t kManySteps = 8;

// Whether a tile with key warps is better than one whose warps are workgroups of their own: fewer
// parts of a row are to be combined. An SM has room for one workgroup like it, so there are no more
// of them than SMs: 8 heads, B 20, which is two waves, take longer.
inline bool sm80_pays_key_warps(const Problem& p, const Caps& caps, const AmpereTile& t,
                                double groups) {
  return in_force(caps, sm80_rule::key_warps) && groups <= double(cores_of(caps)) &&
         p.seq_kv >= kManySteps * t.bc * t.key_warps;
}
// Whether its workgroups are enough, one for all keys of a row. 64 of 132 SMs read as fast as all
// of them. 8,192 keys, ms: 64 heads with a workgroup each 0.0668, with two 0.0698; 32 heads with
// one 0.0608, two 0.0415, four 0.0406.
inline bool sm80_reads_whole_keys(const AmpereTile& t, int64_t groups, int64_t cores) {
  return t.key_warps > 1 && groups * 17 >= cores * 8;
}

// Whether fwd is launched with programmatic dependent launch: kernels of few rows wait for the grid
// before them. With key warps and no parts to be combined it is slower (sm80_rule::programmatic).
inline bool sm80_starts_early(const AmpereTile& t, uint32_t splits) {
  return t.br <= kFewRows &&
         (t.table == TileTable::ampere_plain || t.table == TileTable::ampere_lengths) &&
         (splits > 1 || t.key_warps == 1);
}

// Whether a later tile of a kernel is better than the best one so far, for the same head sizes: it
// is smaller, and holds all rows, or the other has so few workgroups that some SMs get none. A tile
// for wider heads multiplies zeros, and has a wider dQ accumulator.
inline bool sm80_is_better(const Problem& p, const Caps& caps, const AmpereTile& t,
                           const AmpereTile& best) {
  const int64_t cores = caps.cores;
  if (t.stem == Stem::bwd_dbias)
    return in_force(caps, sm80_rule::dbias_tiles) && sm80_is_better_for_dbias(p, cores, t, best);
  // All keys of a head in one workgroup, which then stores d_q.
  if (t.table == TileTable::ampere_inputs && t.stem == Stem::bwd_dkv_dq)
    return in_force(caps, sm80_rule::all_keys) && t.width == best.width && p.seq_kv > best.bc &&
           p.seq_kv <= t.bc;
  const int64_t length = t.owns_keys() ? p.seq_kv : p.seq_q;
  // May be beyond 64 bits, as no launch has been refused yet.
  const double tiles =
      double((length + best.owned() - 1) / best.owned()) * double(p.heads_q) * double(p.batch);
  if (t.stem == Stem::fwd && t.width == best.width && t.owned() == best.owned() &&
      t.table == best.table && t.key_warps >= best.key_warps) {
    // More tiles of keys in flight, if an SM has room for two workgroups, as with fewer.
    if (t.key_warps == best.key_warps && t.stages > best.stages)
      return in_force(caps, sm80_rule::deep_stages) && p.seq_kv >= kManySteps * t.bc &&
             sm80_workgroups_at_once(caps.shared_bytes, uint32_t(ampere_shared_bytes(t)), 1, t) > 1;
    if (t.key_warps > best.key_warps) return sm80_pays_key_warps(p, caps, t, tiles);
  }
  const bool few = t.stem == Stem::fwd && tiles * (p.banded() ? 1 : 2) <= double(cores);
  return in_force(caps, sm80_rule::small_tiles) && t.width == best.width &&
         t.owned() < best.owned() &&
         (length <= t.owned() || (few && t.owned() * 2 >= best.owned()));
}

// Splits of keys of fwd: no more than kManySplits, where these give each SM two workgroups. Parts
// are read again by fwd_combine.
constexpr int64_t kManySplits = 48;
inline uint32_t sm80_splits_of_keys(const Caps& caps, int64_t splits, int64_t groups,
                                    int64_t cores) {
  if (!in_force(caps, sm80_rule::few_splits)) return uint32_t(splits);
  const int64_t two_each = (2 * cores + groups - 1) / groups;
  return uint32_t(std::min(splits, std::max(kManySplits, two_each)));
}

// Whether the workgroups of bwd_dq follow those of bwd_dkv in one launch, which spares the host
// three microseconds. bwd_dq then has more threads than it uses, which is harmless while there are
// SMs for all workgroups of both.
inline bool sm80_joins_dq(const Caps& caps, uint32_t dkv_total, uint32_t dq_total, int64_t cores) {
  return in_force(caps, sm80_rule::joins_dq) && dkv_total + uint64_t(dq_total) <= uint64_t(cores);
}

// Whether the kernels of whole heads take a problem, if a tile of theirs holds its heads. H200:
// Swin's windows (49 x 49, D 32, 12,288 of them) 0.095 ms forward and 0.20 backward; with the other
// kernels of this path an H100 took 0.55 and 1.35.
constexpr int64_t kFewWholeRows = 16;
inline bool sm80_takes_whole(const Problem& p, const Caps& caps) {
  if (p.element_size() != 2 || p.normalizer != Normalizer::softmax || p.d_lse || p.part_of_keys ||
      p.max_logit_batch > 0 ||  // the largest tiles have no register left for it
      (p.inputs() & ~uint32_t(kHasBias | kHasKeep)) != 0 || p.is_empty() || p.splits > 1)
    return false;
  if (p.is_grouped(p.bias) || p.is_grouped(p.keep)) return false;  // its kernels do not divide
  if (p.batch * p.heads_q >= int64_t(1) << 31) return false;       // pairs are an int
  if (!p.backward)
    return p.inputs() != 0 || p.seq_q > kFewWholeRows || !in_force(caps, sm80_rule::whole_few_rows);
  if (p.heads_q != p.heads_kv) return false;
  const Overlay& b = p.bias;
  // The slices of a batch that shares its bias have sums of their own.
  if (b.batch == 1 && p.batch > 1 && saves(p, Saving::partial_sums) && p.wants(TANDEM_GRAD_BIAS))
    return false;
  return !p.wants(TANDEM_GRAD_BIAS) || (b.heads == p.heads_q && b.rows == p.seq_q);
}
// Whether workgroups of whole heads have a slice of the batch of one head: where all entries share
// a bias.
inline bool sm80_slices_batch(const Problem& p) {
  return p.bias && p.bias.batch == 1 && p.batch > 1;
}
// Whether a tile of theirs holds a problem's heads. Larger ones than 64 x 64 x 64 are for so many
// heads that each SM has several: one workgroup has all of a head.
inline bool sm80_holds_whole(const Problem& p, const Caps& caps, const AmpereTile& t) {
  const bool small = t.br <= 64 && t.bc <= 64 && t.width <= 64;
  // Up to 128 x 128, tiles of cuda.sm90 waste no more than that of 144 x 144.
  if (t.bc > 128 && p.seq_q <= 128 && p.seq_kv <= 128) return false;
  if (!p.backward && t.br == 128 && p.bias && in_force(caps, sm80_rule::whole_forward_bias))
    return false;
  if (!whole_sums_bias(t) && p.wants(TANDEM_GRAD_BIAS) && sm80_slices_batch(p)) return false;
  return p.seq_q <= t.br && p.seq_kv <= t.bc && std::max(p.head_dim, p.head_dim_v) <= t.width &&
         (small || p.batch * p.heads_q >= 2 * cores_of(caps) ||
          !in_force(caps, sm80_rule::whole_few_heads));
}
// The first row of kAmpereTiles for whole heads that takes a problem on a device; -1: there is
// none.
int sm80_whole_row(const Problem& p, const Caps& caps);

// Whether the query heads that share keys are rows of one tile of its fwd, where cuda.sm90 would
// have a tile for each head. H100: one query, 16 heads, 48 keys, B 2048 0.159 ms instead of 0.901;
// one query, 20 heads, 1500 keys, B 16 0.051 instead of 0.057; 8 queries, 32 heads of 8 kv heads,
// 8192 keys, B 4 0.068 instead of 0.088. One query of the same heads, B 8: 0.100 and 0.099; with
// padded lengths, B 64, 0.080 and 0.102, and 4 queries, B 8, 0.042 and 0.092. H200, heads of
// several queries as rows: 4 queries of the same heads, B 8, 0.075 and 0.090; of 64 heads of 8,
// which are 32 rows, 4096 keys, B 32, 0.203 and 0.143. Since the sm80 kernels of few rows have more
// bytes in flight, H200, one query, D 128, 32 heads of 8: B 8, 8192 keys 0.067 and 0.090; B 16,
// 4096 0.066 and 0.074; B 20, 4096 0.087 and 0.119; B 32, 2048 0.071 and 0.078; B 64, 512 0.037 and
// 0.042; D 64, 64 heads of 8, B 8, 8192 keys 0.041 and 0.076.
constexpr int64_t kFewRowsKeys = 512, kFewRowsFeatures = 128;
inline bool sm80_packs_rows(const Problem& p) {
  const int64_t rows = p.seq_q * p.group();
  return !p.backward && p.element_size() == 2 && (p.inputs() & ~uint32_t(kHasLengths)) == 0 &&
         !is_packed(p.lengths_q) && !is_packed(p.lengths_kv) && p.heads_kv > 0 &&
         ((p.group() > 1 && p.seq_q > 1 && rows <= 32) || (p.packed_queries > 1 && p.seq_q <= 16) ||
          (p.has_lengths() && rows <= 16) ||
          (p.group() == 1 && rows <= kFewRows && p.seq_kv >= kFewRowsKeys &&
           std::max(p.head_dim, p.head_dim_v) <= kFewRowsFeatures) ||
          (rows <= 4 && p.seq_kv <= 2048));
}
// Workgroups of whole heads: of a head if sm80_slices_batch(), else of all; a (head, batch entry)
// pair each at least. at_once: that the device runs at a time. As many fetch ahead all the time,
// but for their first pair. H100, 2,048 pairs of 128 x 128, D 8: 8 workgroups for each SM 0.133 ms.
// Slices of the batch are eight for each SM, so that heads end together.
inline int64_t sm80_whole_slices(const Problem& p, int64_t cores, int64_t at_once) {
  // An SM runs several at a time; a problem that limits the SMs means few workgroups.
  if (p.cores > 0) at_once = std::min<int64_t>(at_once, cores);
  if (!sm80_slices_batch(p)) return std::min(at_once, p.batch * p.heads_q);
  const int64_t wanted =
      at_once > cores ? (8 * cores + p.heads_q - 1) / p.heads_q : at_once / p.heads_q;
  return std::max<int64_t>(std::min(wanted, p.batch), 1);
}

}  // namespace tandem
#endif
