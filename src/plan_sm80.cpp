// SPDX-License-Identifier: MIT OR Apache-2.0
// Which problems the path cuda.sm80 takes, and which tiles (ampere_tiles.inc) its kernels get. A
// stem without a row there has the kernel of cuda.simt.
#include <algorithm>

#include "hopper_tiles.h"
#include "planner.h"

namespace tandem {
namespace {

bool is_for(const AmpereTile& t, Stem stem, const Problem& p) {
  return t.stem == stem && (t.full != 0) == !p.extras().empty() && t.bytes == p.element_size();
}

bool has_ampere_tiles(Stem stem, const Problem& p) {
  for (const AmpereTile& t : kAmpereTiles)
    if (is_for(t, stem, p)) return true;
  return false;
}

int widest_tile(Stem stem, const Problem& p) {
  int widest = 0;
  for (const AmpereTile& t : kAmpereTiles)
    if (is_for(t, stem, p)) widest = std::max(widest, t.width);
  return widest;
}

// Why a row is not taken; "" if it is.
String row_refusal(const Problem& p, const Caps& caps, const PathRow& row, const AmpereTile& t) {
  const int64_t wider = std::max(p.head_dim, p.head_dim_v);
  if (is_disabled(caps, t.name)) return kDisabled;
  if ((p.tile_rows != 0 && p.tile_rows != t.br) || (p.tile_cols != 0 && p.tile_cols != t.bc))
    return text("%dx%d is not the tile %dx%d that the problem asks for", t.br, t.bc, p.tile_rows,
                p.tile_cols);
  if (t.width < wider) return text("head size %lld is beyond its %d", (long long)wider, t.width);
  const uint32_t shared = uint32_t(ampere_shared_bytes(t)) + skip_shared_bytes(p, row, t.stem);
  if (shared > caps.shared_bytes)
    return text("needs %u bytes of shared memory, the device has %u", shared, caps.shared_bytes);
  if (uint32_t(t.threads()) > caps.max_invocations)
    return text("needs workgroups of %d, the device has %u", t.threads(), caps.max_invocations);
  return "";
}

}  // namespace

String sm80_refusal(const Problem& p) {
  if (p.dtype == TANDEM_F32 && !p.extras().empty())
    return "of f32 problems it knows plain attention, this one has " + p.extras();
  const int64_t wider = std::max(p.head_dim, p.head_dim_v);
  const int widest = widest_tile(p.backward ? Stem::bwd_dq : Stem::fwd, p);
  if (wider > widest)
    return text("of such problems, head size %lld is beyond its %d", (long long)wider, widest);
  return "";
}

bool sm80_fuses(const Problem& p) {
  return p.backward && p.extras().empty() && !p.deterministic && p.wants(TANDEM_GRAD_Q) &&
         p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V) && !p.is_empty();
}

// f32 only: the other kernels have no registers for it. A launch of its own would be faster, but a
// small problem has fewer launches to record.
bool sm80_rounds(const Problem& p) {
  const int64_t bytes = p.heads_q * p.seq_q * p.head_dim * 4;
  return p.dtype == TANDEM_F32 && bytes <= kFewPostprocessBytes * p.heads_kv &&
         p.batch * bytes <= kAllPostprocessBytes;
}

bool choose_sm80_tiles(const Problem& p, const Caps& caps, const PathRow& row, bool fused_q,
                       const Refuse& refuse, Form* form) {
  const String name = candidate(row);
  Vec<int> chosen(kStemCount, -1);  // rows of kAmpereTiles
  const Tile* plain = nullptr;      // for the kernels of cuda.simt
  for (Stem stem : stems_of(p, caps, row, -1, fused_q)) {
    if (!has_ampere_tiles(stem, p)) {
      if (!is_tiled(stem) || plain) continue;
      plain = plain_tile(p, caps, row);
      if (!plain) return refuse(name, text("no tile of %s fits the device", stem_name(stem)));
      continue;
    }
    // The first tile that fits. A smaller one for the same head sizes is better if it holds all
    // rows, or if the first has so few workgroups that some SMs get none (fwd, D 256, S 512, 8
    // heads: 0.024 ms instead of 0.028). A tile for wider heads multiplies zeros, and has a wider
    // dQ accumulator.
    const int64_t length = stem == Stem::bwd_dkv || stem == Stem::bwd_dkv_dq ? p.seq_kv : p.seq_q;
    const bool forced = p.tile_rows != 0 || p.tile_cols != 0;
    int& best = chosen[size_t(stem)];
    const auto is_better = [&](const AmpereTile& t) {
      if (best < 0) return true;
      const AmpereTile& b = kAmpereTiles[best];
      const int64_t tiles = (length + b.owned() - 1) / b.owned() * p.heads_q * p.batch;
      const bool few = stem == Stem::fwd && tiles * (p.banded() ? 1 : 2) <= int64_t(caps.cores);
      return !forced && t.width == b.width && t.owned() < b.owned() &&
             (length <= t.owned() || (few && t.owned() * 2 >= b.owned()));
    };
    for (int n = 0; n < kAmpereTileCount; ++n) {
      const AmpereTile& t = kAmpereTiles[n];
      if (!is_for(t, stem, p)) continue;
      const String why = row_refusal(p, caps, row, t);
      if (!why.empty())
        refuse(name + " " + t.name, why);
      else if (is_better(t))
        best = n;
    }
    if (best < 0) return false;
  }
  *form = [=, &p](Launch* launch) {
    if (launch->stem == Stem::bwd_dq_cast) {
      launch->ampere = chosen[size_t(Stem::bwd_dkv_dq)];
      return;
    }
    const int n = chosen[size_t(launch->stem)];
    if (n < 0) return form_plain(p, row, *plain, launch);
    const AmpereTile& t = kAmpereTiles[n];
    launch->ampere = n;
    launch->tf32 = p.tf32;
    launch->tile = Tile{t.name, t.br, t.bc, t.warps, 32, 0, 0, t.width, TileOn::cuda};
    launch->shared_bytes =
        uint32_t(ampere_shared_bytes(t)) + skip_shared_bytes(p, row, launch->stem);
  };
  return true;
}

}  // namespace tandem
