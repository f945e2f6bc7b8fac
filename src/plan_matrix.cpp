// SPDX-License-Identifier: MIT OR Apache-2.0
// The tiles of the matrix paths (matrix_tiles.inc) on a device, and the choice among them.
#include <algorithm>
#include <array>
#include <cstring>

#include "planner.h"
#include "quirks.h"

namespace tandem {

String MatrixDims::name() const { return text("%dx%dx%d", m, n, k); }

// SPIR-V module of a launch. shaders/coopmat is compiled for each path and type; once more for k
// twice n; and fwd for tensor addressing of rows.
String module_name(const Plan& plan, const Launch& launch) {
  String name = stem_name(launch.stem);
  if (launch.matrix.m > 0)
    name += text("_%s_%s%s", plan.path, dtype_name(plan.problem.dtype),
                 launch.matrix.k > launch.matrix.n ? "_k2"
                 : launch.tensors                  ? "_tensor"
                 : launch.shares_ds                ? "_ds"
                                                   : "");
  return name;
}

namespace {

// Why a path does not take a shape that the device has; "" if it does.
String shape_refusal(const Problem& p, const Caps& caps, const PathRow& row,
                     const MatrixDims& shape) {
  const String name = shape.name();
  if (is_disabled(caps, name)) return name + " is " + kDisabled;
  const uint32_t number = shape_number(shape.m, shape.n, shape.k);
  if (const Quirk* q = find_quirk(caps, QuirkAction::no_shape, number))
    return text("%s is not for this driver: %s (%s)", name.c_str(), q->reason, q->link);
  if (std::strcmp(row.name, "coopmat2") == 0 && shape.k != shape.n)
    return name + " would change its edges where an accumulator becomes an operand";
  if (p.dtype != TANDEM_F16 && shape.k != shape.n) return name + " is taken for f16 alone";
  return "";
}

bool has_shape(const Caps& caps, const char* operands, const MatrixDims& shape) {
  for (const MatrixShape& m : caps.matrices)
    if (m.m == shape.m && m.n == shape.n && m.k == shape.k &&
        std::strcmp(m.operands, operands) == 0)
      return true;
  return false;
}

// The subgroup size that pipelines of the matrix paths request.
uint32_t pinned_subgroup(const Caps& caps, const MatrixTile& t) {
  if (t.size > 0) return uint32_t(t.size);
  const Quirk* quirk = find_quirk(caps, QuirkAction::pin);
  const bool possible =
      quirk && quirk->number >= caps.subgroup_min && quirk->number <= caps.subgroup_max;
  return possible ? quirk->number : caps.subgroup_size;
}

}  // namespace

MatrixDims matrix_shape(const Problem& p, const Caps& caps, const PathRow& row) {
  const auto taken = [&](const MatrixDims& shape) {
    return has_shape(caps, dtype_name(p.dtype), shape) &&
           shape_refusal(p, caps, row, shape).empty();
  };
  const bool scores = p.bias || p.alibi || p.dist_window > 0 || p.softcap > 0;
  for (const MatrixDims& s : kMatrixDims)
    if (!p.backward && !scores &&
        find_quirk(caps, QuirkAction::fwd_shape, shape_number(s.m, s.n, s.k)) && taken(s))
      return s;
  for (const MatrixDims& shape : kMatrixDims)
    if (taken(shape)) return shape;
  return MatrixDims();
}

String matrix_type_refusal(const Problem& p, const Caps& caps, const PathRow& row) {
  if (p.dtype == TANDEM_F32) return "its operands are f16 or bf16";
  if (p.dtype == TANDEM_BF16) {
    if (!caps.bfloat16) return "the device did not enable shaderBFloat16Type";
    if (!caps.bfloat16_coopmat) return "the device did not enable shaderBFloat16CooperativeMatrix";
    if (const Quirk* quirk = find_quirk(caps, QuirkAction::no_bf16))
      return text("not with this driver: %s (%s)", quirk->reason, quirk->link);
  }
  if (matrix_shape(p, caps, row).m > 0) return "";
  const char* operands = dtype_name(p.dtype);
  String taken, shapes, why;
  for (const MatrixDims& shape : kMatrixDims) {
    taken += (taken.empty() ? "" : ", ") + shape.name();
    if (has_shape(caps, operands, shape)) why += "; " + shape_refusal(p, caps, row, shape);
  }
  for (const MatrixShape& m : caps.matrices)
    if (std::strcmp(m.operands, operands) == 0)
      shapes += text("%s%dx%dx%d", shapes.empty() ? "" : ", ", m.m, m.n, m.k);
  return text("it needs matrices of %s of one of these shapes: %s; the device has %s%s", operands,
              taken.c_str(), shapes.empty() ? "none" : shapes.c_str(), why.c_str());
}

namespace {

// A row of the matrix tiles on a device, as Launch::tile holds it.
Tile tile_of(const MatrixTile& t, const MatrixDims& shape, uint32_t subgroup) {
  const bool keys = t.stem == Stem::bwd_dkv;
  const int rows = t.rows(shape), cols = t.step(shape);
  return Tile{t.name,  keys ? cols : rows, keys ? rows : cols, t.subgroups, int(subgroup), 0, 0,
              t.max_d, TileOn::vulkan};
}

// Why tensor addressing cannot access the rows of q and o; "" if it can. It needs rows that do not
// overlap, and 32-bit indices.
String rows_refusal(const Problem& p) {
  const auto suits = [&](const Strides& s, int64_t width) {
    return s.d == 1 && s.s >= width && s.s < 1 << 23;
  };
  if (!suits(p.q, p.head_dim) || !suits(p.o, p.head_dim_v))
    return "rows of q or o overlap, have strided features or lie too far apart for tensor "
           "addressing";
  return "";
}

// Why a row of the matrix tiles is not taken; "" if it is.
String tile_refusal(const Problem& p, const Caps& caps, const PathRow& row, const MatrixTile& t,
                    const MatrixDims& shape) {
  const uint32_t subgroup = pinned_subgroup(caps, t);
  const Tile as_tile = tile_of(t, shape, subgroup);
  const int64_t wider = std::max(p.head_dim, p.head_dim_v);
  if (is_disabled(caps, t.name)) return kDisabled;
  if (!forced_size(p, as_tile))
    return text("%dx%d is not the tile %dx%d that the problem asks for", as_tile.br, as_tile.bc,
                p.tile_rows, p.tile_cols);
  if (t.max_d < wider) return text("head size %lld is beyond its %d", (long long)wider, t.max_d);
  if (subgroup < caps.subgroup_min || subgroup > caps.subgroup_max)
    return text("needs subgroups of %u, the device has %u to %u", subgroup, caps.subgroup_min,
                caps.subgroup_max);
  if (t.tensors) {
    if (std::strcmp(row.name, "coopmat2") != 0) return "tensor addressing belongs to coopmat2";
    if (!caps.coopmat_tensors) return "the device did not enable cooperativeMatrixTensorAddressing";
    const String why = rows_refusal(p);
    if (!why.empty()) return why;
  }
  const uint32_t shared = uint32_t(matrix_shared_bytes(t, p.head_dim, p.head_dim_v, shape)) +
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

// How many batch entries a workgroup of bwd_dq takes at once where it sums d_bias over the batch.
// Two entries halve the reads and writes of the sums. They share a tile's rows, and each sums one
// of its two blocks of keys, through a scratch that dropout and, without VK_NV_cooperative_matrix2,
// the next operand need as well.
int entries_at_once(const Problem& p, const Caps& caps, const PathRow& row, const MatrixTile& t,
                    const MatrixDims& shape) {
  const bool fits =
      matrix_shared_bytes(t, p.head_dim, p.head_dim_v, shape, 2) <= int64_t(caps.shared_bytes);
  const bool halves = t.row_blocks == 1 && t.step(shape) == 2 * shape.n && t.subgroups % 2 == 0;
  return p.batch % 2 == 0 && halves && fits && p.tile_rows == 0 && !(p.dropout > 0) &&
                 std::strcmp(row.name, "coopmat2") == 0
             ? 2
             : 1;
}

// The first tile of bwd_dq that takes two entries at once. For narrow heads that is worth more than
// having the rows of one entry (D 64, H100: 2.07 ms instead of 2.48).
const MatrixTile* tile_for_two(const Problem& p, const Caps& caps, const PathRow& row,
                               const MatrixDims& shape) {
  for (const MatrixTile& t : kMatrixTiles)
    if (t.stem == Stem::bwd_dq && !t.ds && entries_at_once(p, caps, row, t, shape) == 2 &&
        tile_refusal(p, caps, row, t, shape).empty())
      return &t;
  return nullptr;
}

const MatrixTile* tile_for_ds(const Problem& p, const Caps& caps, const PathRow& row,
                              const MatrixDims& shape) {
  for (const MatrixTile& t : kMatrixTiles)
    if (t.ds && tile_refusal(p, caps, row, t, shape).empty()) return &t;
  return nullptr;
}

bool has_matrix_tiles(Stem stem) {
  for (const MatrixTile& t : kMatrixTiles)
    if (t.stem == stem) return true;
  return false;
}

// The first tile for such operands that fits and is not half empty, or else the one with the fewest
// rows. Calls no(tile, why) for each tile before it that does not fit. nullptr: no tile fits.
template <typename No>
const MatrixTile* choose_tile(Stem stem, bool doubled, const Problem& p, const Caps& caps,
                              const PathRow& row, const MatrixDims& shape, const No& no) {
  const int64_t length = stem == Stem::bwd_dkv ? p.seq_kv : p.seq_q;
  const bool forced = p.tile_rows != 0 || p.tile_cols != 0;
  const MatrixTile* best = nullptr;
  for (const MatrixTile& t : kMatrixTiles) {
    if (t.stem != stem || t.doubled != doubled || t.ds) continue;
    const String why = tile_refusal(p, caps, row, t, shape);
    if (!why.empty()) {
      no(t, why);
      continue;
    }
    if (!best || t.rows(shape) < best->rows(shape)) best = &t;
    if (forced || length * 2 > best->rows(shape)) return best;
  }
  return best;
}

}  // namespace

bool choose_matrix_tiles(const Problem& p, const Caps& caps, const PathRow& row,
                         const Refuse& refuse, Form* form) {
  const String name = candidate(row);
  const MatrixDims shape = matrix_shape(p, caps, row);
  const Quirk* doubled = find_quirk(caps, QuirkAction::doubled);
  std::array<const MatrixTile*, kStemCount> chosen{};
  const Tile* plain = nullptr;  // for the kernels without matrices
  for (Stem stem : stems_of(p, caps, row, -1)) {
    if (!has_matrix_tiles(stem)) {
      if (!is_tiled(stem) || plain) continue;
      plain = plain_tile(p, caps, row);
      if (!plain) return refuse(name, text("no tile of %s fits the device", stem_name(stem)));
      continue;
    }
    const auto no = [&](const MatrixTile& t, const String& why) {
      refuse(name + " " + t.name, why);
    };
    const MatrixTile*& tile = chosen[size_t(stem)];
    tile = choose_tile(stem, doubled != nullptr, p, caps, row, shape, no);
    if (!tile && !doubled) tile = choose_tile(stem, true, p, caps, row, shape, no);
    if (!tile && doubled)  // the tiles for other devices would spill registers
      return refuse(name, text("no %s tile fits a device with this quirk: %s (%s)", stem_name(stem),
                               doubled->reason, doubled->link));
    if (!tile) return false;
  }
  *form = [=, &p, &caps, &row](Launch* launch) {
    const MatrixTile* t = chosen[size_t(launch->stem)];
    if (!t) return form_plain(p, row, *plain, launch);
    if (launch->sums_d_bias && !t->doubled)
      if (const MatrixTile* two = tile_for_two(p, caps, row, shape)) t = two;
    if (launch->shares_ds) t = tile_for_ds(p, caps, row, shape);
    if (!t) return;
    launch->subgroup = pinned_subgroup(caps, *t);
    launch->tile = tile_of(*t, shape, launch->subgroup);
    launch->matrix = shape;
    launch->row_blocks = t->row_blocks;
    launch->left_shared = t->left;
    launch->register_prefetch = t->register_prefetch != 0;
    launch->tensors = t->tensors;
    launch->d_blocks = matrix_blocks(p.head_dim, shape);
    launch->dv_blocks = matrix_blocks(p.head_dim_v, shape);
    if (launch->sums_d_bias) launch->entries = entries_at_once(p, caps, row, *t, shape);
    launch->tile.br /= launch->entries;
    launch->shared_bytes =
        uint32_t(matrix_shared_bytes(*t, p.head_dim, p.head_dim_v, shape, launch->entries)) +
        skip_shared_bytes(p, row, t->stem);
  };
  return true;
}

}  // namespace tandem
