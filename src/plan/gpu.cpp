// SPDX-License-Identifier: MIT OR Apache-2.0
// What the paths of all GPUs share: tiles without matrices (tiles.inc), and splits of keys.
#include <algorithm>

#include "heuristics.h"
#include "kernels/params.h"
#include "plan/quirks.h"
#include "planner.h"
#include "tiles.h"

namespace tandem {

String GpuPlanner::splits_refusal() const {
  // Backward has no splits.
  if (p.backward || p.splits <= 1 || p.normalizer == Normalizer::softmax) return "";
  return text("splits, of which the problem asks for %d, are for softmax alone", p.splits);
}

String GpuPlanner::addresses_refusal() const {
  // CUDA has the same block of parameters.
  if (extra_addresses(p) <= kExtraAddresses) return "";
  return text("%d addresses of optional inputs%s, at most %d fit 128 bytes of push constants",
              extra_addresses(p), has_mask_map(p) ? ", one of them of a mask map" : "",
              kExtraAddresses);
}

Vec<Stem> GpuPlanner::with_origin(Vec<Stem> stems) const {
  // Kernels that read lse need the origins of far rows. bwd_origin overwrites the delta that
  // bwd_dot leaves for far rows. The CPU device handles far rows itself.
  if (p.backward && !stems.empty() && p.heads_kv * p.seq_kv > 0)
    stems.insert(stems.begin() + (stems.front() == Stem::bwd_dot ? 1 : 0), Stem::bwd_origin);
  return stems;
}

String GpuPlanner::tile_refusal(const Problem& problem, const Tile& t) const {
  if (is_disabled(caps, t.name)) return kDisabled;
  const String forced = size_refusal(problem, t.br, t.bc);
  if (!forced.empty()) return forced;
  const int64_t wider = std::max(p.head_dim, p.head_dim_v);
  // Wider heads are summed in parts.
  if (t.max_d < std::min(wider, kWholeFeatures))
    return text("head size %lld is beyond its %d", (long long)wider, t.max_d);
  const Quirk* few = find_quirk(caps, QuirkAction::few_registers);
  if (few && t.registers > int(few->number))
    return text("made for %d registers of an invocation, the device has %u: %s (%s)", t.registers,
                few->number, few->reason, few->link);
  if (t.use != TileUse::all && p.inputs() != 0)
    return "it is for plain softmax attention, this problem has " + p.extras();
  if (t.use == TileUse::fwd && p.backward) return "it is for forwards";
  const uint32_t shared =
      uint32_t(tile_shared_bytes(t)) + skip_shared_bytes(p.backward ? Stem::bwd_dq : Stem::fwd);
  if (shared > caps.shared_bytes)
    return text("needs %u bytes of shared memory, the device has %u", shared, caps.shared_bytes);
  if (uint32_t(t.invocations()) > caps.max_invocations)
    return text("needs workgroups of %d, the device has %u", t.invocations(), caps.max_invocations);
  // Half of the tile's rows or more would not exist. A forced size is not refused.
  if (problem.tile_rows == 0 && p.seq_q * 2 <= t.br && t.br > 32)
    return text("%lld query rows would leave half of it empty", (long long)p.seq_q);
  return "";
}

const Tile* GpuPlanner::plain_tile() const {
  Problem any = p;
  any.tile_rows = any.tile_cols = 0;
  for (const Tile& tile : kTiles)
    if (tile_on(tile, tiles()) && tile.use == TileUse::all && tile_refusal(any, tile).empty())
      return &tile;
  return nullptr;
}

void GpuPlanner::form_plain(const Tile& tile, Launch* launch) const {
  launch->tile = tile;
  const bool sums_d = launch->stem == Stem::bwd_dkv || launch->stem == Stem::bwd_dq,
             sums_dv = launch->stem == Stem::bwd_dkv || launch->stem == Stem::fwd;
  const int64_t sums = std::max(sums_d ? p.head_dim : 0, sums_dv ? p.head_dim_v : 0);
  const int64_t parts = std::max<int64_t>(ceil_div(sums, tile.max_d), 1);
  launch->feature_parts = uint32_t(parts);
  launch->d_blocks = int(ceil_div(tile.blocks(p.head_dim), parts));
  launch->dv_blocks = int(ceil_div(tile.blocks(p.head_dim_v), parts));
  launch->shared_bytes = uint32_t(tile_shared_bytes(tile)) + skip_shared_bytes(launch->stem);
}

const Tile* GpuPlanner::next_tile(const Refuse& refuse) {
  while (++tried_ < kTileRanks * kTileCount) {
    const Tile& tile = kTiles[tried_ % kTileCount];
    if (!tile_on(tile, tiles()) || rank(tile) != tried_ / kTileCount) continue;
    const String why = tile_refusal(p, tile);
    if (why.empty()) return &tile;
    refuse(name() + " " + tile.name, why);
  }
  return nullptr;
}

uint32_t GpuPlanner::key_splits(const Launch& l, const Extent& e) const {
  // Elastic softmax and entmax need the whole row's origin before the first weight.
  if (p.normalizer != Normalizer::softmax) return 1;
  if (p.batch_invariant) return 1;
  if (p.splits > 0) return uint32_t(p.splits);
  if (caps.max_invocations < uint32_t(kCombineGroup)) return 1;
  const int64_t wanted =
      std::min(kCoreInvocations * cores_of(caps) / l.invocations(), workgroups_at_once(l));
  const int64_t groups = e.tiles * l.feature_parts * e.heads * e.batch;
  if (groups * 2 > wanted) return 1;
  int most = 0;  // key tiles of a query tile
  for (int64_t n = 0; n < e.tiles; ++n) {
    const TandemTiles t = tandem_key_tiles(p.band, int(n * l.tile.br), l.tile.br, l.tile.bc,
                                           int(p.seq_q), int(p.seq_kv));
    most = std::max(most, t.end - t.begin);
  }
  return splits_of_keys(groups, wanted, int64_t(most) * l.tile.bc);
}

}  // namespace tandem
