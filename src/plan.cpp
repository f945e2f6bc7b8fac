// SPDX-License-Identifier: MIT OR Apache-2.0
#include "plan.h"

#include <algorithm>
#include <cstring>

#include "params.h"

namespace tandem {
namespace {

std::string candidate(const PathRow& row) {
  return std::string(backend_name(row.backend)) + "." + row.name;
}

bool is_path(const PathRow& row, Backend backend, const char* name) {
  return row.backend == backend && std::strcmp(row.name, name) == 0;
}

constexpr const char* kDisabled = "disabled by TANDEM_DISABLE or the device's options";

bool is_disabled(const Caps& caps, const std::string& name) {
  return std::find(caps.disabled.begin(), caps.disabled.end(), name) != caps.disabled.end();
}

// What a path needs of the device whatever the problem; "" if the device has it.
std::string missing_capability(const PathRow& row, const Caps& caps) {
  if (is_path(row, Backend::vulkan, "scalar")) {
    if (!caps.buffer_address) return "the device lacks bufferDeviceAddress";
    if (!caps.inline_uniform) return "the device lacks inline uniform blocks";
    if (caps.push_bytes < 128)
      return text("the device has %u bytes of push constants, 128 are needed", caps.push_bytes);
  }
  if (is_path(row, Backend::cuda, "simt") && caps.compute_major < 7)
    return text("compute capability %d.%d is below 7.0", caps.compute_major, caps.compute_minor);
  return "";
}

bool forced_size(const Problem& p, const Tile& t) {
  return (p.tile_rows == 0 || p.tile_rows == t.br) && (p.tile_cols == 0 || p.tile_cols == t.bc);
}

// Why a row of the tile table does not do; "" if it does.
std::string tile_refusal(const Problem& p, const Caps& caps, const Tile& t) {
  if (is_disabled(caps, t.name)) return kDisabled;
  if (!forced_size(p, t))
    return text("%dx%d is not the tile %dx%d that the problem asks for", t.br, t.bc, p.tile_rows,
                p.tile_cols);
  if (t.max_d < std::max(p.head_dim, p.head_dim_v))
    return text("head size %lld is beyond its %d", (long long)std::max(p.head_dim, p.head_dim_v),
                t.max_d);
  if (uint32_t(tile_shared_bytes(t)) > caps.shared_bytes)
    return text("needs %d bytes of shared memory, the device has %u", tile_shared_bytes(t),
                caps.shared_bytes);
  if (uint32_t(t.invocations()) > caps.max_invocations)
    return text("needs workgroups of %d, the device has %u", t.invocations(), caps.max_invocations);
  // Half of a tile or more would be rows that do not exist. Not when the size is forced.
  if (p.tile_rows == 0 && p.seq_q * 2 <= t.br && t.br > 32)
    return text("%lld query rows would leave half of it empty", (long long)p.seq_q);
  return "";
}

struct Extent {  // workgroups of a launch
  int64_t rows, rows_per_group, heads;
};

Extent extent_of(Stem stem, const Problem& p, const Tile& tile) {
  switch (stem) {
    case Stem::bwd_dot:
      return {p.seq_q, kDotRows, p.heads_q};
    case Stem::bwd_dkv:
      return {p.seq_kv, std::max(tile.bc, 1), p.heads_kv};
    default:
      return {p.seq_q, std::max(tile.br, 1), p.heads_q};
  }
}

// The launches of a problem on one path with one tile; a launch whose output is empty is left out.
std::string make_launches(const Problem& p, const Caps& caps, const PathRow& row, const Tile& tile,
                          std::vector<Launch>* launches) {
  std::vector<Stem> stems;
  if (!p.backward) stems = {Stem::fwd};
  if (p.backward && p.needs_delta()) stems.push_back(Stem::bwd_dot);
  if (p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V)) stems.push_back(Stem::bwd_dkv);
  if (p.wants(TANDEM_GRAD_Q)) stems.push_back(Stem::bwd_dq);
  for (Stem stem : stems) {
    Launch launch;
    launch.stem = stem;
    launch.kernel = find_kernel(stem, row.backend, row.name);
    if (launch.kernel < 0) return text("it has no %s kernel", stem_name(stem));
    const Extent extent = extent_of(stem, p, tile);
    const int64_t tiles = (extent.rows + extent.rows_per_group - 1) / extent.rows_per_group;
    if (tiles * extent.heads * p.batch == 0) continue;
    if (row.backend != Backend::cpu) {
      // Kernels number their workgroups in 32 bits; 2^31 of them leaves room for the part of the last
      // row of groups that has no work.
      const double limit = std::min(double(caps.max_groups_x) * caps.max_groups_y, 2147483648.0);
      const double total = double(tiles) * double(extent.heads) * double(p.batch);
      if (total > limit)
        return text("%s needs %.0f workgroups, the device dispatches %.0f", stem_name(stem), total,
                    limit);
      launch.total = uint32_t(tiles * extent.heads * p.batch);
      launch.groups_x = std::min(launch.total, caps.max_groups_x);
      launch.groups_y = uint32_t((uint64_t(launch.total) + launch.groups_x - 1) / launch.groups_x);
    }
    launch.tiles = uint32_t(tiles);
    if (stem != Stem::bwd_dot && tile.br > 0) {
      launch.tile = tile;
      if (row.backend != Backend::cpu) {  // the CPU's tiles are sizes and nothing else
        launch.d_blocks = tile.blocks(p.head_dim);
        launch.dv_blocks = tile.blocks(p.head_dim_v);
        launch.shared_bytes = uint32_t(tile_shared_bytes(tile));
      }
    } else if (stem == Stem::bwd_dot && row.backend != Backend::cpu) {
      launch.shared_bytes = kDotRows * kDotLanes * sizeof(float);
    }
    launches->push_back(launch);
  }
  return "";
}

// Fills in plan if this path takes the problem; otherwise adds to its refusals.
bool try_path(const Problem& p, const Caps& caps, const PathRow& row, Plan* plan) {
  const std::string name = candidate(row);
  auto refuse = [&](const std::string& who, const std::string& why) {
    plan->refusals.push_back({who, why});
    return false;
  };
  if (is_disabled(caps, name)) return refuse(name, kDisabled);
  const std::string missing = missing_capability(row, caps);
  if (!missing.empty()) return refuse(name, missing);

  std::vector<Launch> launches;
  auto take = [&](const Tile& tile, const std::string& who) {
    launches.clear();
    const std::string why = make_launches(p, caps, row, tile, &launches);
    if (!why.empty()) return refuse(who, why);
    plan->path = row.name;
    plan->launches = launches;
    return true;
  };
  if (row.backend == Backend::cpu) {
    // The tile sizes of the GPU paths, so that the CPU can be compared with them tile by tile; nothing
    // in the rows but the sizes matters to it. The reference has no tiles, and takes any of these sizes.
    const bool ref = is_path(row, Backend::cpu, "ref");
    for (const Tile& tile : kTiles)
      if (forced_size(p, tile))
        return take(ref ? Tile{} : Tile{"", tile.br, tile.bc, 0, 0, 0, 0, 256, TileOn::both}, name);
    return refuse(name, text("has no tile %dx%d", p.tile_rows, p.tile_cols));
  }
  const TileOn backend = row.backend == Backend::cuda ? TileOn::cuda : TileOn::vulkan;
  for (const Tile& tile : kTiles) {
    if (!tile_on(tile, backend)) continue;
    const std::string who = name + " " + tile.name;
    const std::string why = tile_refusal(p, caps, tile);
    if (!why.empty()) {
      refuse(who, why);
    } else if (take(tile, who)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string Plan::name() const {
  std::string s = std::string(backend_name(backend)) + "." + path;
  for (const Launch& launch : launches)
    if (launch.tile.br > 0) return s + text(" %dx%d", launch.tile.br, launch.tile.bc);
  return s;
}

Status make_plan(const Problem& problem, const Caps& caps, Plan* plan) {
  *plan = Plan();
  plan->problem = problem;
  plan->backend = caps.backend;
  for (const PathRow& row : kPaths) {
    if (row.backend != caps.backend) continue;
    if (!try_path(problem, caps, row, plan)) continue;
    const bool dot = !plan->launches.empty() && plan->launches[0].stem == Stem::bwd_dot;
    if (dot) plan->workspace_size = uint64_t(problem.batch * problem.heads_q * problem.seq_q) * 4;
    return Status();
  }
  std::string message = text("no %s path takes this problem:", backend_name(caps.backend));
  for (const Refusal& r : plan->refusals) message += " " + r.candidate + ": " + r.reason + ";";
  message.pop_back();
  return fail(TANDEM_ERROR_UNSUPPORTED, "%s", message.c_str());
}

std::string explain(const Problem& problem, const Caps& caps) {
  Plan plan;
  const Status status = make_plan(problem, caps, &plan);
  std::string s;
  for (const Refusal& r : plan.refusals)
    s += text("%-24s refused: %s\n", r.candidate.c_str(), r.reason.c_str());
  if (!status.ok()) return s;
  s += text("%-24s taken", plan.name().c_str());
  if (!plan.launches.empty() && plan.launches.back().tile.name)
    s += text(" (%s)", plan.launches.back().tile.name);
  s += text(", workspace %llu bytes\n", (unsigned long long)plan.workspace_size);
  const std::string narrow = narrow_inputs(problem);
  if (plan.backend != Backend::cpu && !narrow.empty())
    s += text("  slower: element by element, no multiple of 4: %s\n", narrow.c_str());
  for (const Launch& l : plan.launches) {
    s += text("  %-10s", stem_name(l.stem));
    if (l.groups_x)
      s += text(" %u x %u workgroups, %u bytes shared", l.groups_x, l.groups_y, l.shared_bytes);
    s += "\n";
  }
  return s;
}

}  // namespace tandem
