// SPDX-License-Identifier: MIT OR Apache-2.0
#include "plan.h"

#include <algorithm>
#include <cstring>

#include "params.h"
#include "quirks.h"

namespace tandem {
namespace {

std::string candidate(const PathRow& row) {
  return std::string(backend_name(row.backend)) + "." + row.name;
}

bool is_path(const PathRow& row, Backend backend, const char* name) {
  return row.backend == backend && std::strcmp(row.name, name) == 0;
}

bool is_matrix_path(const PathRow& row) {
  return is_path(row, Backend::vulkan, "coopmat2") || is_path(row, Backend::vulkan, "coopmat");
}

constexpr const char* kDisabled = "disabled by TANDEM_DISABLE or the device's options";

bool is_disabled(const Caps& caps, const std::string& name) {
  return std::find(caps.disabled.begin(), caps.disabled.end(), name) != caps.disabled.end();
}

// What a path needs of the device whatever the problem; "" if the device has it.
std::string missing_capability(const PathRow& row, const Caps& caps) {
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
                 {caps.float16, "shaderFloat16"},
                 {caps.storage16, "storageBuffer16BitAccess"},
                 {caps.maintenance4 || !nv, "maintenance4"},
                 {caps.memory_model, "vulkanMemoryModel and vulkanMemoryModelDeviceScope"},
                 {caps.subgroup_control, "subgroupSizeControl"},
                 {caps.full_subgroups, "computeFullSubgroups"}};
    for (const auto& need : needs)
      if (!need.has) return text("the device did not enable %s", need.feature);
    if (nv && caps.api_version < (1u << 22 | 3u << 12)) return "it needs Vulkan 1.3";
    if (!caps.subgroup_pin) return "the device's compute pipelines cannot state a subgroup size";
    if (const Quirk* quirk = find_quirk(caps, QuirkAction::no_matrices))
      return text("not with this driver: %s (%s)", quirk->reason, quirk->link);
  }
  if (is_path(row, Backend::cuda, "simt") && caps.compute_major < 7)
    return text("compute capability %d.%d is below 7.0", caps.compute_major, caps.compute_minor);
  return "";
}

// Shared memory of a tiled kernel beside its tile's: where tiles may be left out, the words of votes, and
// for entmax's search the tiles that still count (shaders/mask.glsl, shaders/entmax.glsl). CUDA votes without.
uint32_t skip_shared_bytes(const Problem& p, const PathRow& row, Stem stem) {
  const bool entmax = p.normalizer == Normalizer::entmax, skip = !p.visit_all;
  if (is_path(row, Backend::cuda, "simt"))
    return entmax && skip && stem == Stem::fwd ? kLiveBytes : 0;
  const uint32_t votes = (p.keep && skip) || entmax ? 3 : 1, live = entmax && skip ? 64 : 1;
  return 4 * (votes + (stem == Stem::fwd ? 2 * live : 0));
}

bool is_fused(Stem stem) { return stem == Stem::bwd_row_dq || stem == Stem::bwd_dkv_ddist; }

bool forced_size(const Problem& p, const Tile& t) {
  return (p.tile_rows == 0 || p.tile_rows == t.br) && (p.tile_cols == 0 || p.tile_cols == t.bc);
}

// Why a row of the tile table does not do; "" if it does.
std::string tile_refusal(const Problem& p, const Caps& caps, const PathRow& row, const Tile& t) {
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
  // Half of a tile or more would be rows that do not exist. Not when the size is forced.
  if (p.tile_rows == 0 && p.seq_q * 2 <= t.br && t.br > 32)
    return text("%lld query rows would leave half of it empty", (long long)p.seq_q);
  return "";
}

// The device's square matrices for operands of this type: the preferred edge, 0 if there are none.
int matrix_edge(const Caps& caps, const char* operands) {
  for (int edge : kMatrixEdges)
    for (const MatrixShape& m : caps.matrices)
      if (m.m == edge && m.n == edge && m.k == edge && std::strcmp(m.operands, operands) == 0)
        return edge;
  return 0;
}

// The subgroup size that the matrix paths' pipelines ask for.
uint32_t pinned_subgroup(const Caps& caps, const MatrixTile& t) {
  if (t.size > 0) return uint32_t(t.size);
  const Quirk* quirk = find_quirk(caps, QuirkAction::pin);
  const bool possible =
      quirk && quirk->number >= caps.subgroup_min && quirk->number <= caps.subgroup_max;
  return possible ? quirk->number : caps.subgroup_size;
}

// What of a problem's element type keeps the matrix paths from it; "" if nothing.
std::string matrix_type_refusal(const Problem& p, const Caps& caps) {
  if (p.dtype == TANDEM_F32) return "its operands are f16 or bf16";
  if (p.dtype == TANDEM_BF16) {
    if (!caps.bfloat16) return "the device did not enable shaderBFloat16Type";
    if (!caps.bfloat16_coopmat) return "the device did not enable shaderBFloat16CooperativeMatrix";
    if (const Quirk* quirk = find_quirk(caps, QuirkAction::no_bf16))
      return text("not with this driver: %s (%s)", quirk->reason, quirk->link);
  }
  const char* operands = dtype_name(p.dtype);
  if (matrix_edge(caps, operands) > 0) return "";
  std::string shapes;
  for (const MatrixShape& m : caps.matrices)
    if (std::strcmp(m.operands, operands) == 0)
      shapes += text("%s%dx%dx%d", shapes.empty() ? "" : ", ", m.m, m.n, m.k);
  return text("it needs 16x16x16 or 8x8x8 matrices of %s, the device has %s", operands,
              shapes.empty() ? "none" : shapes.c_str());
}

// A row of the matrix tiles on a device, as a launch sees it.
Tile tile_of(const MatrixTile& t, int edge, uint32_t subgroup) {
  const bool keys = t.stem == Stem::bwd_dkv;
  const int rows = t.rows(edge), cols = t.step(edge);
  return Tile{t.name,  keys ? cols : rows, keys ? rows : cols, t.subgroups, int(subgroup), 0, 0,
              t.max_d, TileOn::vulkan};
}

// Why a row of the matrix tiles does not do; "" if it does.
std::string tile_refusal(const Problem& p, const Caps& caps, const PathRow& row,
                         const MatrixTile& t, int edge) {
  const uint32_t subgroup = pinned_subgroup(caps, t);
  const Tile as_tile = tile_of(t, edge, subgroup);
  const int64_t wider = std::max(p.head_dim, p.head_dim_v);
  if (is_disabled(caps, t.name)) return kDisabled;
  if (!forced_size(p, as_tile))
    return text("%dx%d is not the tile %dx%d that the problem asks for", as_tile.br, as_tile.bc,
                p.tile_rows, p.tile_cols);
  if (t.max_d < wider) return text("head size %lld is beyond its %d", (long long)wider, t.max_d);
  if (subgroup < caps.subgroup_min || subgroup > caps.subgroup_max)
    return text("needs subgroups of %u, the device has %u to %u", subgroup, caps.subgroup_min,
                caps.subgroup_max);
  const uint32_t shared = uint32_t(matrix_shared_bytes(t, p.head_dim, p.head_dim_v, edge)) +
                          skip_shared_bytes(p, row, t.stem);
  if (shared > caps.shared_bytes)
    return text("needs %u bytes of shared memory, the device has %u", shared, caps.shared_bytes);
  if (uint32_t(as_tile.invocations()) > caps.max_invocations)
    return text("needs workgroups of %d, the device has %u", as_tile.invocations(),
                caps.max_invocations);
  if (uint32_t(t.subgroups) > caps.max_subgroups)
    return text("needs workgroups of %d subgroups, the device has %u", t.subgroups,
                caps.max_subgroups);
  return "";
}

int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

struct Extent {  // workgroups of a launch
  int64_t tiles, heads, batch;
  int64_t members = 0;  // of a sum that may be split
};

Extent extent_of(Stem stem, const Problem& p, const Tile& tile) {
  const int64_t Br = std::max(tile.br, 1), Bc = std::max(tile.bc, 1),
                q_tiles = ceil_div(p.seq_q, Br);
  switch (stem) {
    case Stem::bwd_dot:
      return {ceil_div(p.seq_q, kDotRows), p.heads_q, p.batch};
    case Stem::bwd_dkv:
    case Stem::bwd_dkv_ddist:
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
    default:
      return {q_tiles, p.heads_q, p.batch};
  }
}

// Whether bwd_dkv_ddist sums d_dist_bias as well. Where there is no pair it would not run, and leave no zeros.
bool fuses_dist(const Problem& p) {
  return p.wants(TANDEM_GRAD_DIST_BIAS) && p.dist_window <= kFusedWindow &&
         p.batch * p.heads_q * p.seq_q * p.heads_kv * p.seq_kv != 0;
}

// Whether each element of bias has one reader and d_q is wanted: with matrices bwd_dq then stores its ds, and nothing is
// multiplied twice.
bool stores_ds(const Problem& p, const PathRow& row) {
  const Overlay& b = p.bias;
  return is_matrix_path(row) && p.wants(TANDEM_GRAD_BIAS) && p.wants(TANDEM_GRAD_Q) &&
         p.seq_kv > 0 && b.batch == p.batch && b.heads == p.heads_q && b.rows == p.seq_q;
}

// What a device is taken for that does not tell.
int64_t cores_of(const Caps& caps) { return caps.cores ? caps.cores : 32; }

// Whether bwd_dq sums ds over the batch, as one bias serves all of it and the heads' tiles, of the most rows that it has, are
// enough for the device. Each entry must have the same tiles; and the sums may be no more than twice what d_q has numbers,
// so that the workspace does not grow with the square of the lengths.
bool sums_ds(const Problem& p, const Caps& caps, const PathRow& row) {
  const Overlay& b = p.bias;
  return is_matrix_path(row) && p.wants(TANDEM_GRAD_BIAS) && p.wants(TANDEM_GRAD_Q) &&
         p.seq_kv > 0 && b.batch == 1 && p.batch > 1 && b.heads == p.heads_q && b.rows == p.seq_q &&
         p.lengths_q == Lengths::full && p.lengths_kv == Lengths::full &&
         p.seq_kv <= 2 * p.batch * p.head_dim &&
         p.heads_q * ceil_div(p.seq_q, 128) >= cores_of(caps);
}

// fixed: a row of kFixed, -1 for none.
std::vector<Stem> stems_of(const Problem& p, const Caps& caps, const PathRow& row, int fixed) {
  if (!p.backward) return {Stem::fwd};
  const bool fused_k = fixed >= 0 && p.wants(TANDEM_GRAD_K);
  std::vector<Stem> stems;
  bool dq = p.wants(TANDEM_GRAD_Q);
  if (p.wants(TANDEM_GRAD_TAU) || (p.needs_delta() && !p.delta_is_dot())) {
    const bool fused = fixed >= 0 && dq;
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

// How many workgroups share the keys of a row of fwd. Few query tiles leave most of the device idle: then as many
// as give each of its cores kCoreInvocations, what fits one with 168 registers each on NVIDIA, but no less than
// kSplitKeys of the longest row each, as joining the parts takes a launch of its own. Elastic softmax and entmax need the
// whole row's origin before the first weight, and are not split.
constexpr int64_t kCoreInvocations = 384, kSplitKeys = 256;
uint32_t key_splits(const Problem& p, const Caps& caps, const Launch& l, const Extent& e) {
  if (caps.backend == Backend::cpu || p.normalizer != Normalizer::softmax) return 1;
  if (p.splits > 0) return uint32_t(p.splits);
  if (caps.max_invocations < uint32_t(kJoinGroup)) return 1;
  const int64_t wanted = kCoreInvocations * cores_of(caps) / l.invocations();
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

// A sum with few outputs and many members is shared by several workgroups, enough to fill the device;
// bwd_sum then adds their parts. With that many workgroups and no more, the parts stay below a few times
// the device's tiles, whatever the problem.
uint32_t splits_of(const Extent& e, const Caps& caps) {
  if (caps.backend == Backend::cpu || caps.max_invocations < uint32_t(kLineGroup)) return 1;
  const int64_t wanted = 4 * cores_of(caps);
  const int64_t groups = e.tiles * e.heads * e.batch;
  return uint32_t(std::max<int64_t>(1, std::min(wanted / std::max<int64_t>(groups, 1), e.members)));
}

// "" once the launch's workgroups are numbered; otherwise why they cannot be.
std::string set_groups(Launch* launch, double total, const Caps& caps) {
  // Kernels number their workgroups in 32 bits; 2^31 of them leaves room for the part of the last row of
  // groups that has no work.
  const double limit = std::min(double(caps.max_groups_x) * caps.max_groups_y, 2147483648.0);
  if (total > limit)
    return text("%s needs %.0f workgroups, the device dispatches %.0f", stem_name(launch->stem),
                total, limit);
  launch->total = uint32_t(total);
  launch->groups_x = std::min(launch->total, caps.max_groups_x);
  launch->groups_y = uint32_t((uint64_t(launch->total) + launch->groups_x - 1) / launch->groups_x);
  return "";
}

// The launches of a problem on one path; a launch whose output is empty is left out. form() gives a tiled kernel its
// tile and what follows from it.
template <typename Form>
std::string make_launches(const Problem& p, const Caps& caps, const PathRow& row, int fixed,
                          const Form& form, std::vector<Launch>* launches) {
  const bool cpu = row.backend == Backend::cpu;
  for (Stem stem : stems_of(p, caps, row, fixed)) {
    Launch launch;
    launch.stem = stem;
    launch.sums_d_bias = stem == Stem::bwd_dq && sums_ds(p, caps, row);
    launch.stores_d_bias = launch.sums_d_bias || (stem == Stem::bwd_dq && stores_ds(p, row));
    launch.kernel = find_kernel(stem, row.backend, row.name);
    if (launch.kernel < 0) return text("it has no %s kernel", stem_name(stem));
    const bool tiled = is_tiled(stem);
    if (tiled) form(&launch);
    if (is_fused(stem) || stem == Stem::fwd) launch.fixed = fixed;
    if (is_fused(stem))
      launch.shared_bytes += uint32_t(16 * tile_ptile_vec4(launch.tile));  // a second P tile
    if (!cpu && launch.shared_bytes > caps.shared_bytes)
      return text("%s needs %u bytes of shared memory, the device has %u", stem_name(stem),
                  launch.shared_bytes, caps.shared_bytes);
    Extent e = extent_of(stem, p, launch.tile);
    if (launch.sums_d_bias) e.batch = 1;
    if (e.tiles * e.heads * e.batch == 0) continue;
    // On bwd_dot or bwd_row, which come first; the others do not know of each other.
    launch.waits = launches->size() == 1 && (launches->front().stem == Stem::bwd_dot ||
                                             launches->front().stem == Stem::bwd_row ||
                                             launches->front().stem == Stem::bwd_row_dq);
    launch.members = e.members;
    launch.splits = stem == Stem::fwd ? key_splits(p, caps, launch, e) : splits_of(e, caps);
    const int64_t shares = launch.splits;  // workgroups where one would do
    if (stem == Stem::bwd_dkv_ddist && fuses_dist(p)) {
      launch.members = e.tiles * e.batch;
      launch.splits = uint32_t(launch.members);
    }
    launch.tiles = uint32_t(e.tiles);
    if (!cpu) {
      if (launch.members >= int64_t(1) << 31)
        return text("%s sums over %lld tiles, beyond 2^31", stem_name(stem),
                    (long long)launch.members);
      const std::string why = set_groups(
          &launch, double(e.tiles) * double(e.heads) * double(e.batch) * double(shares), caps);
      if (!why.empty()) return why;
      if (!tiled) {
        const auto group = uint32_t(launch.invocations());
        if (group > caps.max_invocations)
          return text("%s needs workgroups of %u, the device has %u", stem_name(stem), group,
                      caps.max_invocations);
        launch.shared_bytes = uint32_t(sizeof(float)) * group;
      }
    }
    launches->push_back(launch);
  }
  // What adds the parts of splits, all after the kernels that leave them.
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
      sum.gradient = parts.stem == Stem::bwd_dbias ? TANDEM_GRAD_BIAS : TANDEM_GRAD_DIST_BIAS;
      tiles = ceil_div(gradient_elements(p, sum.gradient), kLineGroup);
    }
    const std::string why = set_groups(&sum, double(tiles) * double(heads), caps);
    if (!why.empty()) return why;
    sum.tiles = uint32_t(tiles);
    launches->push_back(sum);
  }
  return "";
}

void lay_out_workspace(Plan* plan) {
  const Problem& p = plan->problem;
  uint64_t end = 0;
  const auto place = [&](bool needed, uint64_t* offset, uint64_t floats) {
    if (!needed) return;
    *offset = (end + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    end = *offset + 4 * floats;
  };
  const auto rows = uint64_t(p.batch * p.heads_q * p.seq_q);
  const bool row_kernel =
      plan->find(Stem::bwd_row) || plan->find(Stem::bwd_row_dq) || plan->find(Stem::bwd_dot);
  // bwd_row writes delta whoever asks.
  place(row_kernel, &plan->delta_offset, rows);
  place(row_kernel && p.wants(TANDEM_GRAD_TAU), &plan->tau_rows_offset, rows);
  place(row_kernel && p.wants(TANDEM_GRAD_SLOPE), &plan->slope_rows_offset, rows);
  for (const Launch& l : plan->launches)
    if (l.stem == Stem::bwd_sum)
      place(true,
            l.gradient == TANDEM_GRAD_BIAS ? &plan->bias_parts_offset : &plan->dist_parts_offset,
            l.splits * uint64_t(gradient_elements(p, l.gradient)));
  if (const Launch* d_q = plan->find(Stem::bwd_dq))
    place(d_q->sums_d_bias, &plan->bias_sums_offset, uint64_t(d_q->sums(p)));
  if (const Launch* join = plan->find(Stem::fwd_join)) {
    place(true, &plan->o_parts_offset, join->splits * rows * uint64_t(part_pitch(p.head_dim_v)));
    place(true, &plan->lse_parts_offset, join->splits * rows);
  }
  plan->workspace_size = end;
}

// What of a problem a path does not compute; "" if nothing.
std::string missing_feature(const PathRow& row, const Problem& p, const Caps& caps) {
  // Backward has none, and neither has the CPU, whose results are the same without.
  if (row.backend != Backend::cpu && !p.backward && p.splits > 1 &&
      p.normalizer != Normalizer::softmax)
    return text("splits, of which the problem asks for %d, are for softmax alone", p.splits);
  if (is_matrix_path(row)) {
    const std::string type = matrix_type_refusal(p, caps);
    if (!type.empty()) return type;
  }
  const bool plain = is_path(row, Backend::cpu, "simd");
  if (plain && !p.extras().empty())
    return "it knows plain softmax attention, this problem has " + p.extras();
  // CUDA shares the push block.
  if (row.backend != Backend::cpu && extra_addresses(p) > kExtraAddresses)
    return text("%d optional inputs at once, at most %d fit 128 bytes of push constants",
                extra_addresses(p), kExtraAddresses);
  return "";
}

bool has_matrix_tiles(Stem stem) {
  for (const MatrixTile& t : kMatrixTiles)
    if (t.stem == stem) return true;
  return false;
}

// Of the tiles for such operands, the first that fits and is not empty by half, or else the one with the fewest rows;
// no(tile, why) hears of those before it that do not do. nullptr if none does.
template <typename No>
const MatrixTile* choose_tile(Stem stem, bool doubled, const Problem& p, const Caps& caps,
                              const PathRow& row, int edge, const No& no) {
  const int64_t length = stem == Stem::bwd_dkv ? p.seq_kv : p.seq_q;
  const bool forced = p.tile_rows != 0 || p.tile_cols != 0;
  const MatrixTile* best = nullptr;
  for (const MatrixTile& t : kMatrixTiles) {
    if (t.stem != stem || t.doubled != doubled) continue;
    const std::string why = tile_refusal(p, caps, row, t, edge);
    if (!why.empty()) {
      no(t, why);
      continue;
    }
    if (!best || t.rows(edge) < best->rows(edge)) best = &t;
    if (forced || length * 2 > best->rows(edge)) return best;
  }
  return best;
}

// The tile of kernels without matrices on a path that has them, whatever size the problem asks of the others; nullptr
// if the device has room for none.
const Tile* plain_tile(Problem p, const Caps& caps, const PathRow& row) {
  p.tile_rows = p.tile_cols = 0;
  for (const Tile& tile : kTiles)
    if (tile_on(tile, TileOn::vulkan) && tile_refusal(p, caps, row, tile).empty()) return &tile;
  return nullptr;
}

void form_plain(const Problem& p, const PathRow& row, const Tile& tile, Launch* launch) {
  launch->tile = tile;
  launch->d_blocks = tile.blocks(p.head_dim);
  launch->dv_blocks = tile.blocks(p.head_dim_v);
  launch->shared_bytes =
      uint32_t(tile_shared_bytes(tile)) + skip_shared_bytes(p, row, launch->stem);
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
  const std::string feature = missing_feature(row, p, caps);
  if (!feature.empty()) return refuse(name, feature);

  auto take = [&](const auto& form, const std::string& who, int fixed = -1) {
    std::vector<Launch> launches;
    const std::string why = make_launches(p, caps, row, fixed, form, &launches);
    if (!why.empty()) return refuse(who, why);
    plan->path = row.name;
    plan->launches = launches;
    return true;
  };
  if (row.backend == Backend::cpu) {
    // The tile sizes of the GPU paths, so that the CPU can be compared with them tile by tile; nothing
    // in the rows but the sizes matters to it. The reference has no tiles, and takes any of these sizes.
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
    const int edge = matrix_edge(caps, dtype_name(p.dtype));
    const Quirk* doubled = find_quirk(caps, QuirkAction::doubled);
    const MatrixTile* chosen[kStemCount] = {};
    const Tile* plain = nullptr;  // of the kernels without matrices
    for (Stem stem : stems_of(p, caps, row, -1)) {
      if (!has_matrix_tiles(stem)) {
        if (!is_tiled(stem) || plain) continue;
        plain = plain_tile(p, caps, row);
        if (!plain) return refuse(name, text("no tile of %s fits the device", stem_name(stem)));
        continue;
      }
      const auto no = [&](const MatrixTile& t, const std::string& why) {
        refuse(name + " " + t.name, why);
      };
      const MatrixTile*& tile = chosen[int(stem)];
      tile = choose_tile(stem, doubled != nullptr, p, caps, row, edge, no);
      if (!tile && !doubled) tile = choose_tile(stem, true, p, caps, row, edge, no);
      if (!tile && doubled)  // those of other devices would spill
        return refuse(name, text("no %s tile fits a device with this quirk: %s (%s)",
                                 stem_name(stem), doubled->reason, doubled->link));
      if (!tile) return false;
    }
    return take(
        [&](Launch* launch) {
          const MatrixTile* t = chosen[int(launch->stem)];
          if (!t) return form_plain(p, row, *plain, launch);
          launch->subgroup = pinned_subgroup(caps, *t);
          launch->tile = tile_of(*t, edge, launch->subgroup);
          launch->matrix = edge;
          launch->row_blocks = t->row_blocks;
          launch->left_shared = t->left;
          launch->flies = t->flies != 0;
          launch->d_blocks = matrix_blocks(p.head_dim, edge);
          launch->dv_blocks = matrix_blocks(p.head_dim_v, edge);
          launch->shared_bytes = uint32_t(matrix_shared_bytes(*t, p.head_dim, p.head_dim_v, edge)) +
                                 skip_shared_bytes(p, row, t->stem);
        },
        name);
  }
  int fixed = -1;
  if (is_path(row, Backend::cuda, "simt"))
    for (const FixedRow& f : kFixed) {
      if (p.normalizer != f.normalizer) continue;
      const std::string more = p.extras(f.may);
      if (is_disabled(caps, f.candidate()))
        refuse(f.candidate(), kDisabled);
      else if (!more.empty())
        refuse(f.candidate(), "this problem has " + more + ", which its kernels do without");
      else
        fixed = int(&f - kFixed);
    }
  const TileOn backend = row.backend == Backend::cuda ? TileOn::cuda : TileOn::vulkan;
  for (const Tile& tile : kTiles) {
    if (!tile_on(tile, backend)) continue;
    const std::string who = name + " " + tile.name;
    const std::string why = tile_refusal(p, caps, row, tile);
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

int Launch::invocations() const {
  if (tile.br > 0) return tile.invocations();
  if (stem == Stem::bwd_dot) return kDotRows * kDotLanes;
  return stem == Stem::fwd_join ? kJoinGroup : kLineGroup;
}

int64_t Launch::sums(const Problem& p) const {
  return p.heads_q * tiles * tile.br * ceil_div(p.seq_kv, tile.bc) * tile.bc;
}

JoinShape::JoinShape(uint32_t splits, int64_t head_dim_v) {
  while (lanes * 4 < head_dim_v) lanes *= 2;
  // As many as each have two splits to add.
  while (slices * lanes < kJoinGroup && uint32_t(slices) * 4 <= splits) slices *= 2;
}

std::string Plan::name() const {
  std::string s = std::string(backend_name(backend)) + "." + path;
  const Tile t = tile();
  return t.br > 0 ? s + text(" %dx%d", t.br, t.bc) : s;
}

Tile Plan::tile() const {
  for (bool matrices : {true, false})
    for (const Launch& launch : launches)
      if (launch.tile.br > 0 && (launch.matrix > 0 || !matrices)) return launch.tile;
  return Tile{};
}

bool Plan::stores_d_bias() const {
  for (const Launch& launch : launches)
    if (launch.stem == Stem::bwd_dbias || launch.stores_d_bias) return true;
  return false;
}

int Plan::wide_elements() const {
  int elements = 4;
  for (const Launch& launch : launches) elements = std::max(elements, launch.wide_elements());
  return elements;
}

const Launch* Plan::find(Stem stem) const {
  for (const Launch& launch : launches)
    if (launch.stem == stem) return &launch;
  return nullptr;
}

bool Plan::sums_dist() const {
  const Launch* fused = find(Stem::bwd_dkv_ddist);
  return find(Stem::bwd_ddist) || (fused && fused->members > 0);
}

Status make_plan(const Problem& problem, const Caps& caps, Plan* plan) {
  *plan = Plan();
  plan->problem = problem;
  plan->backend = caps.backend;
  for (const PathRow& row : kPaths) {
    if (row.backend != caps.backend) continue;
    if (!try_path(problem, caps, row, plan)) continue;
    lay_out_workspace(plan);
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
  if (const char* tile = plan.tile().name; tile && *tile) s += text(" (%s)", tile);
  s += text(", workspace %llu bytes\n", (unsigned long long)plan.workspace_size);
  const std::string narrow = narrow_inputs(problem, plan.wide_elements());
  if (plan.backend != Backend::cpu && !narrow.empty())
    s += text("  slower: element by element, no multiple of %d: %s\n", plan.wide_elements(),
              narrow.c_str());
  for (const Launch& l : plan.launches) {
    s += text("  %-14s", stem_name(l.stem));
    if (l.groups_x)
      s += text(" %u x %u workgroups, %u bytes shared", l.groups_x, l.groups_y, l.shared_bytes);
    if (l.splits > 1) s += text(", %u splits", l.splits);
    if (l.fixed >= 0) s += text(", of %s", kFixed[l.fixed].candidate().c_str());
    if (l.stores_d_bias) s += ", and d_bias";
    if (l.sums_d_bias) s += ", a sum over the batch";
    if (plan.wide_elements() > l.wide_elements() && l.tile.br > 0)
      s += text(", without matrices (%s)", l.tile.name);
    s += "\n";
  }
  return s;
}

}  // namespace tandem
