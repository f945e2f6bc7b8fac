// SPDX-License-Identifier: MIT OR Apache-2.0
// Tries the paths of a backend in order, and records why one is not taken.
#include <algorithm>
#include <cstring>

#include "params.h"
#include "planner.h"
#include "quirks.h"

namespace tandem {

String candidate(const PathRow& row) { return String(backend_name(row.backend)) + "." + row.name; }

bool is_path(const PathRow& row, Backend backend, const char* name) {
  return row.backend == backend && std::strcmp(row.name, name) == 0;
}

bool is_matrix_path(const PathRow& row) {
  return is_path(row, Backend::vulkan, "coopmat2") || is_path(row, Backend::vulkan, "coopmat");
}

bool is_sm80(const PathRow& row) { return is_path(row, Backend::cuda, "sm80"); }
bool is_sm90(const PathRow& row) { return is_path(row, Backend::cuda, "sm90"); }

bool is_disabled(const Caps& caps, const String& name) {
  return std::find(caps.disabled.begin(), caps.disabled.end(), name) != caps.disabled.end();
}

// Bytes of shared memory that a tiled kernel needs besides its tile: if tiles may be skipped, the
// votes, and for the search of entmax the live tiles (shaders/mask.glsl, shaders/entmax.glsl). CUDA
// votes without shared memory.
uint32_t skip_shared_bytes(const Problem& p, const PathRow& row, Stem stem) {
  const bool entmax = p.normalizer == Normalizer::entmax, skip = !p.visit_all;
  if (row.backend == Backend::cuda) return entmax && skip && stem == Stem::fwd ? kLiveBytes : 0;
  const uint32_t votes = (p.keep && skip) || entmax ? 4 : 1, live = entmax && skip ? 64 : 1;
  return 4 * (votes + (stem == Stem::fwd ? 2 * live : 0));
}

bool forced_size(const Problem& p, const Tile& t) {
  return (p.tile_rows == 0 || p.tile_rows == t.br) && (p.tile_cols == 0 || p.tile_cols == t.bc);
}

namespace {

// Capability that a path needs for every problem and the device lacks; "" if it lacks none.
String missing_capability(const PathRow& row, const Caps& caps) {
  if (row.backend == Backend::vulkan) {
    if (!caps.buffer_address) return "the device lacks bufferDeviceAddress";
    if (!caps.inline_uniform) return "the device lacks inline uniform blocks";
    if (caps.push_bytes < 128)
      return text("the device has %u bytes of push constants, 128 are needed", caps.push_bytes);
  }
  if (is_matrix_path(row)) {
    const bool nv = is_path(row, Backend::vulkan, "coopmat2");
    const struct {
      bool has;
      const char* feature;
    } needs[] = {{caps.coopmat, "cooperativeMatrix"},
                 {caps.coopmat_reductions || !nv, "cooperativeMatrixReductions"},
                 {caps.coopmat_conversions || !nv, "cooperativeMatrixConversions"},
                 {caps.coopmat_per_element || !nv, "cooperativeMatrixPerElementOperations"},
                 {caps.float16, "shaderFloat16"},
                 {caps.storage16, "storageBuffer16BitAccess"},
                 {caps.maintenance4 || !nv, "maintenance4"},
                 {caps.memory_model, "vulkanMemoryModel and vulkanMemoryModelDeviceScope"},
                 {caps.subgroup_control, "subgroupSizeControl"},
                 {caps.full_subgroups, "computeFullSubgroups"}};
    for (const auto& need : needs)
      if (!need.has) return text("the device did not enable %s", need.feature);
    if (nv && caps.api_version < (1u << 22 | 3u << 12)) return "it needs Vulkan 1.3";
    // Where there is but one size, it need not be stated (NVK).
    if (!caps.subgroup_pin && caps.subgroup_min != caps.subgroup_max)
      return "the device's compute pipelines cannot state a subgroup size";
    if (const Quirk* quirk = find_quirk(caps, QuirkAction::no_matrices))
      return text("not with this driver: %s (%s)", quirk->reason, quirk->link);
  }
  if (is_sm80(row)) {
    if (caps.compute_major < 8)
      return text("compute capability %d.%d is below 8.0", caps.compute_major, caps.compute_minor);
    if (!caps.sm80_code) return "this build holds no code of this path for the device";
  }
  if (is_sm90(row)) {
    if (caps.compute_major != 9 || caps.compute_minor != 0)
      return text("compute capability %d.%d is not 9.0", caps.compute_major, caps.compute_minor);
    if (!caps.sm90_code) return "this build holds no code for sm_90a";
  }
  if (is_path(row, Backend::cuda, "simt") && caps.compute_major < 7)
    return text("compute capability %d.%d is below 7.0", caps.compute_major, caps.compute_minor);
  return "";
}

// Why a row of the tile table is not taken; "" if it is.
String tile_refusal(const Problem& p, const Caps& caps, const PathRow& row, const Tile& t) {
  if (is_disabled(caps, t.name)) return kDisabled;
  if (!forced_size(p, t))
    return text("%dx%d is not the tile %dx%d that the problem asks for", t.br, t.bc, p.tile_rows,
                p.tile_cols);
  if (t.max_d < std::max(p.head_dim, p.head_dim_v))
    return text("head size %lld is beyond its %d", (long long)std::max(p.head_dim, p.head_dim_v),
                t.max_d);
  const uint32_t shared = uint32_t(tile_shared_bytes(t)) +
                          skip_shared_bytes(p, row, p.backward ? Stem::bwd_dq : Stem::fwd);
  if (shared > caps.shared_bytes)
    return text("needs %u bytes of shared memory, the device has %u", shared, caps.shared_bytes);
  if (uint32_t(t.invocations()) > caps.max_invocations)
    return text("needs workgroups of %d, the device has %u", t.invocations(), caps.max_invocations);
  // Half of the tile's rows or more would not exist. A forced size is not refused.
  if (p.tile_rows == 0 && p.seq_q * 2 <= t.br && t.br > 32)
    return text("%lld query rows would leave half of it empty", (long long)p.seq_q);
  return "";
}

// Input of a problem that a path does not compute; "" if there is none.
String missing_feature(const PathRow& row, const Problem& p, const Caps& caps) {
  // Backward has no splits, and neither has the CPU, whose results are the same without.
  if (row.backend != Backend::cpu && !p.backward && p.splits > 1 &&
      p.normalizer != Normalizer::softmax)
    return text("splits, of which the problem asks for %d, are for softmax alone", p.splits);
  if (is_matrix_path(row)) {
    const String type = matrix_type_refusal(p, caps, row);
    if (!type.empty()) return type;
  }
  if (is_sm90(row)) return sm90_refusal(p, caps);
  if (is_sm80(row)) {
    const String why = sm80_refusal(p);
    if (!why.empty()) return why;
  }
  const bool plain = is_path(row, Backend::cpu, "simd");
  if (plain && !p.extras().empty())
    return "it knows plain softmax attention, this problem has " + p.extras();
  // CUDA has the same block of parameters.
  if (row.backend != Backend::cpu && extra_addresses(p) > kExtraAddresses)
    return text("%d optional inputs at once, at most %d fit 128 bytes of push constants",
                extra_addresses(p), kExtraAddresses);
  return "";
}

TileOn tiles_of(const PathRow& row) {
  return row.backend == Backend::cuda ? TileOn::cuda : TileOn::vulkan;
}

}  // namespace

const Tile* plain_tile(Problem p, const Caps& caps, const PathRow& row) {
  p.tile_rows = p.tile_cols = 0;
  for (const Tile& tile : kTiles)
    if (tile_on(tile, tiles_of(row)) && tile_refusal(p, caps, row, tile).empty()) return &tile;
  return nullptr;
}

void form_plain(const Problem& p, const PathRow& row, const Tile& tile, Launch* launch) {
  launch->tile = tile;
  launch->d_blocks = tile.blocks(p.head_dim);
  launch->dv_blocks = tile.blocks(p.head_dim_v);
  launch->shared_bytes =
      uint32_t(tile_shared_bytes(tile)) + skip_shared_bytes(p, row, launch->stem);
}

namespace {

// Fills in plan if the path takes the problem; otherwise adds to its refusals.
bool try_path(const Problem& p, const Caps& caps, const PathRow& row, Plan* plan) {
  const String name = candidate(row);
  const Refuse refuse = [&](const String& who, const String& why) {
    plan->refusals.push_back({who, why});
    return false;
  };
  if (is_disabled(caps, name)) return refuse(name, kDisabled);
  const String missing = missing_capability(row, caps);
  if (!missing.empty()) return refuse(name, missing);
  const String feature = missing_feature(row, p, caps);
  if (!feature.empty()) return refuse(name, feature);

  auto take = [&](const Form& form, const String& who, int fixed = -1, bool fused_q = false) {
    Vec<Launch> launches;
    const String why = make_launches(p, caps, row, fixed, form, &launches, fused_q);
    if (!why.empty()) return refuse(who, why);
    plan->path = row.name;
    plan->launches = launches;
    return true;
  };
  if (row.backend == Backend::cpu) {
    // The tile sizes of the GPU paths, so that the CPU can be compared with them tile by tile. The
    // CPU uses only the sizes of a row. The reference has no tiles, and accepts any of these sizes.
    const bool ref = is_path(row, Backend::cpu, "ref");
    const auto sizes = [&](int br, int bc) {
      return take(
          [&](Launch* launch) {
            if (!ref) launch->tile = Tile{"", br, bc, 0, 0, 0, 0, 256, TileOn::both};
          },
          name);
    };
    for (const Tile& tile : kTiles)
      if (forced_size(p, tile)) return sizes(tile.br, tile.bc);
    return refuse(name, text("has no tile %dx%d", p.tile_rows, p.tile_cols));
  }
  if (is_matrix_path(row)) {
    Form form;
    return choose_matrix_tiles(p, caps, row, refuse, &form) && take(form, name);
  }
  if (is_sm80(row)) {
    for (bool fused_q : {true, false}) {
      Form form;
      if (fused_q && !sm80_fuses(p)) continue;
      if (choose_sm80_tiles(p, caps, row, fused_q, refuse, &form) && take(form, name, -1, fused_q))
        return true;
    }
    return false;
  }
  if (is_sm90(row)) {
    Form form;
    return choose_sm90_tiles(p, caps, row, refuse, &form) && take(form, name);
  }
  int fixed = -1;
  if (is_path(row, Backend::cuda, "simt"))
    for (const FixedRow& f : kFixed) {
      if (p.normalizer != f.normalizer) continue;
      const String more = p.extras(f.may);
      if (is_disabled(caps, f.candidate()))
        refuse(f.candidate(), kDisabled);
      else if (!more.empty())
        refuse(f.candidate(), "this problem has " + more + ", which its kernels do without");
      else
        fixed = int(&f - kFixed);
    }
  for (const Tile& tile : kTiles) {
    if (!tile_on(tile, tiles_of(row))) continue;
    const String who = name + " " + tile.name;
    const String why = tile_refusal(p, caps, row, tile);
    const auto form = [&](Launch* launch) { form_plain(p, row, tile, launch); };
    if (!why.empty()) {
      refuse(who, why);
    } else if (take(form, who, fixed)) {
      return true;
    }
  }
  return false;
}

}  // namespace

namespace {

// Adds the plan for executes with addresses that TMA does not accept. It is by another path, also
// where other paths are disabled, as a plan cannot know the addresses. It ignores a forced tile
// size and has no partial outputs in the workspace.
void add_unaligned(const Caps& caps, Plan* plan) {
  Caps others = caps;
  others.disabled = {String(backend_name(plan->backend)) + "." + plan->path};
  Problem p = plan->problem;
  p.tile_rows = p.tile_cols = 0;
  if (!p.backward) p.splits = 1;
  // If this plan sums in a fixed order, so does the other, which then has no dQ accumulator either.
  if (p.backward && plan->unordered() == 0) p.deterministic = true;
  auto unaligned = make_host_shared<Plan>();
  if (!make_plan(p, others, unaligned.get()).ok()) return;
  plan->workspace_size = std::max(plan->workspace_size, unaligned->workspace_size);
  plan->unaligned = std::move(unaligned);
}

}  // namespace

Status make_plan(const Problem& problem, const Caps& caps, Plan* plan) {
  *plan = Plan();
  const Problem p = caps.backend == Backend::cpu ? problem : problem.with_heads_as_rows();
  plan->problem = p;
  plan->backend = caps.backend;
  for (const PathRow& row : kPaths) {
    if (row.backend != caps.backend) continue;
    if (!try_path(p, caps, row, plan)) continue;
    lay_out_workspace(plan);
    if (is_sm90(row)) add_unaligned(caps, plan);
    return Status();
  }
  String message = text("no %s path takes this problem:", backend_name(caps.backend));
  for (const Refusal& r : plan->refusals) message += " " + r.candidate + ": " + r.reason + ";";
  message.pop_back();
  return fail(TANDEM_ERROR_UNSUPPORTED, "%s", message.c_str());
}

}  // namespace tandem
