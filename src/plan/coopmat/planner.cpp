// SPDX-License-Identifier: MIT OR Apache-2.0
// The paths vulkan.coopmat2 and vulkan.coopmat: their tiles (tiles.inc) on a device, and the
// choice among them.
#include "plan/planner.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>

#include "heuristics.h"
#include "plan/quirks.h"
#include "plan/thrift.h"
#include "shapes.h"
#include "tiles.h"

namespace tandem {

namespace {

// The subgroup size that pipelines of a tile request.
uint32_t pinned_subgroup(const Caps& caps, const MatrixTile& t) {
  return t.size > 0 ? uint32_t(t.size) : matrix_subgroup(caps);
}

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

// The rows of the matrix tiles: for any device, for operands that take twice the registers, lean
// ones, and those for heads over 256.
enum class Rows { any, doubled, lean, split_d };
Rows rows_of(const MatrixTile& t) {
  if (t.splits_d()) return Rows::split_d;
  return t.is_lean() ? Rows::lean : t.doubled ? Rows::doubled : Rows::any;
}

// Traits of the kernel of a tile.
uint32_t traits_of(const MatrixTile& t, const MatrixDims& shape) {
  return (shape.k > shape.n ? trait::k2 : trait::none) | (t.is_lean() ? trait::lean : trait::none) |
         (t.tensors ? trait::tensor : trait::none) | (t.strips ? trait::strips : trait::none) |
         (t.pair ? trait::pair : trait::none) | (t.splits_d() ? trait::split_d : trait::none);
}

bool has_split_d_tiles(Stem stem) {
  for (const MatrixTile& t : kMatrixTiles)
    if (t.stem == stem && t.splits_d()) return true;
  return false;
}

bool has_matrix_tiles(Stem stem) {
  for (const MatrixTile& t : kMatrixTiles)
    if (t.stem == stem) return true;
  return false;
}

int64_t ds_bytes(const Problem& p) {  // of the dS of a head
  const auto whole = [](int64_t n) { return ceil_div(n, kDsBlock) * kDsBlock; };
  return 2 * whole(p.seq_kv) * whole(p.seq_q);
}

class MatrixPlanner final : public VulkanPlanner {
 public:
  MatrixPlanner(const PathRow& path, const Problem& problem, const Caps& device, bool coopmat2)
      : VulkanPlanner(path, problem, device), coopmat2_(coopmat2) {}
  String refuse() const override;
  bool choose(const Refuse& refuse) override;
  String unfit() const override;
  void scratch(Plan* plan, ScratchExtents* extents) const override;

 protected:
  Vec<Stem> stems() const override {
    return with_origin(separate_stems(false, stores_ds() || sums_ds()));
  }
  void form(Launch* launch) const override;
  Extent extent(const Launch& launch) const override;
  void complete(Launch* launch, const Extent& extent) const override;
  bool may_leave_parts(const Launch& launch) const;
  uint32_t sum_splits(const Launch& launch, const Extent& extent) const override;
  int64_t workgroups_at_once(const Launch& launch) const override;
  String share(Vec<Launch>* launches) const override;
  void arrange(Vec<Launch>* launches) const override;

 private:
  String missing_feature() const;
  // Why the path does not take the problem's element type; "" if it does.
  String type_refusal() const;
  String width_refusal() const;
  uint32_t mask_shared_bytes(const MatrixTile& t, const MatrixDims& shape) const;
  String tile_refusal(const MatrixTile& tile, const MatrixDims& shape) const;
  String pair_refusal(const MatrixTile& tile, const MatrixDims& shape) const;
  String split_refusal(const MatrixTile& tile, const MatrixDims& shape) const;
  int entries_at_once(const MatrixTile& tile) const;
  const MatrixTile* tile_for_two() const;
  bool over_256() const { return std::max(p.head_dim, p.head_dim_v) > kWholeFeatures; }
  bool fills(int64_t length, const MatrixTile& tile) const {
    return !in_force(caps, coopmat_rule::filled_tiles) || fills_tile(length, tile.rows(shape_));
  }
  const MatrixTile* tile_for_ds() const;
  const MatrixTile* first_tile(Stem stem, Rows rows, const Refuse& refuse) const;
  const MatrixTile* or_narrower(const MatrixTile* tile) const;
  const MatrixTile* choose_tile(Stem stem, const Refuse& refuse) const;
  void form_matrix(const MatrixTile& tile, uint32_t more_traits, Launch* launch) const;
  bool stores_ds() const;
  bool sums_ds() const;
  int64_t shared_heads(const Launch& dkv, const Launch& dq) const;

  const bool coopmat2_;
  bool chosen_ = false;
  MatrixDims shape_;
  std::array<const MatrixTile*, kStemCount> tiles_{};
  const Tile* plain_ = nullptr;  // for the kernels without matrices
};

}  // namespace

String MatrixPlanner::missing_feature() const {
  const struct {
    bool has;
    const char* feature;
  } needs[] = {{caps.coopmat, "cooperativeMatrix"},
               {caps.coopmat_reductions || !coopmat2_, "cooperativeMatrixReductions"},
               {caps.coopmat_conversions || !coopmat2_, "cooperativeMatrixConversions"},
               {caps.coopmat_per_element || !coopmat2_, "cooperativeMatrixPerElementOperations"},
               {caps.float16, "shaderFloat16"},
               {caps.storage16, "storageBuffer16BitAccess"},
               {caps.maintenance4 || !coopmat2_, "maintenance4"},
               {caps.memory_model, "vulkanMemoryModel and vulkanMemoryModelDeviceScope"},
               {caps.subgroup_control, "subgroupSizeControl"},
               {caps.full_subgroups, "computeFullSubgroups"}};
  for (const auto& need : needs)
    if (!need.has) return text("the device did not enable %s", need.feature);
  if (!caps.coopmat_compute) return "the device has no cooperative matrices in compute shaders";
  if (!caps.subgroup_votes) return "the device's subgroups do not vote in compute shaders";
  if (coopmat2_ && caps.api_version < (1u << 22 | 3u << 12))
    return "it needs Vulkan 1.3, of the GPU and in tandem_vk_device_desc.api_version";
  // Where there is but one size, it need not be stated (NVK).
  if (!caps.subgroup_pin && caps.subgroup_min != caps.subgroup_max)
    return "the device's compute pipelines cannot state a subgroup size";
  if (const Quirk* quirk = find_quirk(caps, QuirkAction::no_matrices))
    return text("not with this driver: %s (%s)", quirk->reason, quirk->link);
  return "";
}

String MatrixPlanner::refuse() const {
  for (const String& why : {missing_capability(caps), missing_feature(), splits_refusal(),
                            type_refusal(), addresses_refusal(), width_refusal()})
    if (!why.empty()) return why;
  return "";
}

// Why no tile takes heads over 256, whatever its size; "" if one may.
String MatrixPlanner::width_refusal() const {
  if (!over_256()) return "";
  if (p.normalizer != Normalizer::softmax)
    return text("heads over %d are for softmax alone", int(kWholeFeatures));
  if (p.wants(TANDEM_GRAD_SLOPE))
    return text("it forms no d_slope of heads over %d", int(kWholeFeatures));
  const MatrixDims shape = matrix_shape(p, caps, coopmat2_);
  for (const MatrixTile& t : kMatrixTiles)
    if (t.splits_d() && !t.ds && (shape.k != shape.n || t.step(shape) != shape.n))
      return text("matrices of %s serve heads up to %d", shape.name().c_str(), int(kWholeFeatures));
  if (const Quirk* few = find_quirk(caps, QuirkAction::few_registers))
    return text("heads over %d have more registers than the device: %s (%s)", int(kWholeFeatures),
                few->reason, few->link);
  return "";
}

String MatrixPlanner::type_refusal() const {
  if (p.dtype == TANDEM_F32) return "its operands are f16 or bf16";
  if (p.dtype == TANDEM_BF16) {
    if (!caps.bfloat16) return "the device did not enable shaderBFloat16Type";
    if (!caps.bfloat16_coopmat) return "the device did not enable shaderBFloat16CooperativeMatrix";
    if (const Quirk* quirk = find_quirk(caps, QuirkAction::no_bf16))
      return text("not with this driver: %s (%s)", quirk->reason, quirk->link);
  }
  if (matrix_shape(p, caps, coopmat2_).m > 0) return "";
  const char* operands = dtype_name(p.dtype);
  String taken, shapes, why;
  for (const MatrixDims& shape : kMatrixDims) {
    taken += (taken.empty() ? "" : ", ") + shape.name();
    if (has_shape(caps, operands, shape)) why += "; " + shape_refusal(p, caps, coopmat2_, shape);
  }
  for (const MatrixShape& m : caps.matrices)
    if (std::strcmp(m.operands, operands) == 0)
      shapes += text("%s%dx%dx%d", shapes.empty() ? "" : ", ", m.m, m.n, m.k);
  return text("it needs matrices of %s of one of these shapes: %s; the device has %s%s", operands,
              taken.c_str(), shapes.empty() ? "none" : shapes.c_str(), why.c_str());
}

// Besides the tile itself: for skipped tiles, and for keep.
uint32_t MatrixPlanner::mask_shared_bytes(const MatrixTile& t, const MatrixDims& shape) const {
  const bool idle = coopmat2_ && p.normalizer == Normalizer::softmax && !p.bias && !(p.dropout > 0);
  return skip_shared_bytes(t.stem) + (p.keep ? keep_shared_bytes(t, shape, idle) : 0);
}

// Why a row of the matrix tiles is not taken; "" if it is.
String MatrixPlanner::tile_refusal(const MatrixTile& t, const MatrixDims& shape) const {
  const uint32_t subgroup = pinned_subgroup(caps, t);
  const Tile as_tile = tile_of(t, shape, subgroup);
  const int64_t wider = std::max(p.head_dim, p.head_dim_v);
  if (is_disabled(caps, t.name)) return kDisabled;
  const String forced = size_refusal(p, as_tile.br, as_tile.bc);
  if (!forced.empty()) return forced;
  if (t.max_d < wider) return text("head size %lld is beyond its %d", (long long)wider, t.max_d);
  if (subgroup < caps.subgroup_min || subgroup > caps.subgroup_max)
    return text("needs subgroups of %u, the device has %u to %u", subgroup, caps.subgroup_min,
                caps.subgroup_max);
  const Quirk* few = find_quirk(caps, QuirkAction::few_registers);
  if (t.is_lean() && few && t.registers > int(few->number))
    return text("made for %d registers of an invocation, the device has %u: %s (%s)", t.registers,
                few->number, few->reason, few->link);
  if (t.is_lean() && few) {
    const int inputs = int(std::bitset<32>(p.inputs() & kLeanInputs).count());
    if (inputs > lean_inputs(wider))
      return text("with %d optional inputs it would spill registers", inputs);
  }
  if (t.is_lean() && coopmat2_) return "lean tiles belong to coopmat";
  if (t.is_lean() && shape.k != shape.n)
    return "lean tiles have operands as deep as accumulators are wide";
  if (t.tensors) {
    if (!coopmat2_) return "tensor addressing belongs to coopmat2";
    if (!caps.coopmat_tensors) return "the device did not enable cooperativeMatrixTensorAddressing";
    const String why = rows_refusal(p);
    if (!why.empty()) return why;
  }
  if (t.strips && !passes_rows(t, p.head_dim, p.head_dim_v, shape))
    return "a block of features does not fit the room that the tile's rows pass through";
  if (t.pair) {
    const String why = pair_refusal(t, shape);
    if (!why.empty()) return why;
  }
  if (t.splits_d()) {
    const String why = split_refusal(t, shape);
    if (!why.empty()) return why;
  }
  const uint32_t shared = uint32_t(matrix_shared_bytes(t, p.head_dim, p.head_dim_v, shape)) +
                          mask_shared_bytes(t, shape);
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

// Why a tile whose rows belong to pairs of subgroups is not taken; "" if it is.
String MatrixPlanner::pair_refusal(const MatrixTile& t, const MatrixDims& shape) const {
  if (shape.k != shape.n || t.step(shape) != shape.n)
    return "pairs of subgroups take one block of columns at a time";
  if (t.rows(shape) < 2 * t.stages() * t.step(shape))
    return "two steps do not fit the room that the tile's rows pass through";
  const auto reaches = [](const Strides& s, int64_t rows) {
    return s.s * std::max<int64_t>(rows, 1) < int64_t(1) << 33;
  };
  if (!(reaches(p.q, p.seq_q) && reaches(p.d_o, p.seq_q) && reaches(p.k, p.seq_kv) &&
        reaches(p.v, p.seq_kv)))
    return "rows lie too far apart for 32 bits of index";
  if (matrix_blocks(std::max(p.head_dim, p.head_dim_v), shape) < 2)
    return "heads of one matrix have no halves";
  if (t.stem == Stem::bwd_dkv && !(p.wants(TANDEM_GRAD_K) && p.wants(TANDEM_GRAD_V)))
    return "one of the pair would have nothing to do without d_k or d_v";
  if (t.stem == Stem::bwd_dq && (stores_ds() || sums_ds()))
    return "pairs of subgroups do not store d_bias";
  return "";
}

// Why a tile whose features are split over subgroups is not taken; "" if it is.
String MatrixPlanner::split_refusal(const MatrixTile& t, const MatrixDims& shape) const {
  if (!over_256()) return text("it is for heads over %d", int(kWholeFeatures));
  const Quirk* doubled = find_quirk(caps, QuirkAction::doubled);
  if (doubled && !t.doubled)
    return text("it has more registers than the device: %s (%s)", doubled->reason, doubled->link);
  if (!passes_rows(t, p.head_dim, p.head_dim_v, shape))
    return "a block of each slice does not fit the room that the tile's rows pass through";
  return "";
}

// How many batch entries a workgroup of bwd_dq takes at once where it sums d_bias over the batch.
// Two entries halve the reads and writes of the sums. They share a tile's rows, and each sums one
// of its two blocks of keys, through a scratch that dropout and, without VK_NV_cooperative_matrix2,
// the next operand need as well.
int MatrixPlanner::entries_at_once(const MatrixTile& t) const {
  const bool fits =
      matrix_shared_bytes(t, p.head_dim, p.head_dim_v, shape_, 2) + mask_shared_bytes(t, shape_) <=
      caps.shared_bytes;
  const bool halves = t.row_blocks == 1 && t.step(shape_) == 2 * shape_.n && t.subgroups % 2 == 0;
  return p.batch % 2 == 0 && halves && fits && p.tile_rows == 0 && !(p.dropout > 0) && coopmat2_
             ? 2
             : 1;
}

// The first tile of bwd_dq that takes two entries at once. For narrow heads that is worth more than
// having the rows of one entry (D 64, H100: 2.07 ms instead of 2.48).
const MatrixTile* MatrixPlanner::tile_for_two() const {
  for (const MatrixTile& t : kMatrixTiles)
    if (t.stem == Stem::bwd_dq && !t.ds && entries_at_once(t) == 2 &&
        tile_refusal(t, shape_).empty())
      return &t;
  return nullptr;
}

// The first tile of bwd_dq for shared dS that is not half empty, of those for the narrowest heads.
const MatrixTile* MatrixPlanner::tile_for_ds() const {
  const MatrixTile* best = nullptr;
  for (const MatrixTile& t : kMatrixTiles) {
    if (!t.ds || (best && t.max_d > best->max_d) || !tile_refusal(t, shape_).empty()) continue;
    if (fills(p.seq_q, t)) return &t;
    if (!best || t.rows(shape_) < best->rows(shape_)) best = &t;
  }
  return best;
}

// The first of these tiles that fits and is not half empty, or else the one with the fewest
// rows. nullptr: no tile fits.
const MatrixTile* MatrixPlanner::first_tile(Stem stem, Rows rows, const Refuse& refuse) const {
  const int64_t length = stem == Stem::bwd_dkv ? p.seq_kv : p.seq_q;
  const bool forced = p.tile_rows != 0 || p.tile_cols != 0;
  const MatrixTile* best = nullptr;
  for (const MatrixTile& t : kMatrixTiles) {
    if (t.stem != stem || rows_of(t) != rows || t.ds) continue;
    const String why = tile_refusal(t, shape_);
    if (!why.empty()) {
      refuse(name() + " " + t.name, why);
      continue;
    }
    if (!best || t.rows(shape_) < best->rows(shape_)) best = &t;
    if (forced) return best;
    if (fills(length, *best)) return or_narrower(best);
  }
  return best;
}

// A tile, or the next one for heads of the same width, of fewer rows, where it is faster.
const MatrixTile* MatrixPlanner::or_narrower(const MatrixTile* tile) const {
  const bool keys = tile->stem == Stem::bwd_dkv;
  const int64_t own = keys ? p.seq_kv : p.seq_q, streamed = keys ? p.seq_q : p.seq_kv;
  if (rows_of(*tile) != Rows::any || !in_force(caps, coopmat_rule::narrow_tiles))
    return tile;  // the others are not measured
  const auto work = [&](const MatrixTile& t) {
    return padded_work(own, streamed, t.rows(shape_), t.step(shape_));
  };
  for (const MatrixTile& t : kMatrixTiles) {
    if (&t <= tile || t.stem != tile->stem || rows_of(t) != Rows::any || t.max_d != tile->max_d ||
        t.ds || t.pair || t.tensors || t.strips || t.subgroups == 1 ||
        t.rows(shape_) >= tile->rows(shape_) || !tile_refusal(t, shape_).empty())
      continue;
    const int64_t heads = keys ? p.heads_kv : p.heads_q, tiles = ceil_div(own, t.rows(shape_));
    return narrow_pays(tile->stem, std::max(p.head_dim, p.head_dim_v), bool(p.bias),
                       double(own) / tile->rows(shape_), work(*tile) / work(t),
                       double(p.batch * heads) * double(tiles), cores_of(caps))
               ? &t
               : tile;
  }
  return tile;
}

// The tile of a kernel: of the rows that are made for the device, where a quirk tells its
// registers, or else of the first rows that have one. nullptr: there is none, and why is said.
const MatrixTile* MatrixPlanner::choose_tile(Stem stem, const Refuse& refuse) const {
  if (over_256() && has_split_d_tiles(stem)) return first_tile(stem, Rows::split_d, refuse);
  const Quirk* doubled = find_quirk(caps, QuirkAction::doubled);
  const Quirk* few = find_quirk(caps, QuirkAction::few_registers);
  if (const Quirk* quirk = doubled ? doubled : few) {
    const MatrixTile* own = first_tile(stem, doubled ? Rows::doubled : Rows::lean, refuse);
    if (!own)  // the tiles for other devices would spill registers
      refuse(name(), text("no %s tile fits a device with this quirk: %s (%s)", stem_name(stem),
                          quirk->reason, quirk->link));
    return own;
  }
  for (Rows rows : {Rows::any, Rows::doubled, Rows::lean})
    if (const MatrixTile* tile = first_tile(stem, rows, refuse)) return tile;
  return nullptr;
}

bool MatrixPlanner::choose(const Refuse& refuse) {
  if (chosen_) return false;
  chosen_ = true;
  shape_ = matrix_shape(p, caps, coopmat2_);
  for (Stem stem : stems()) {
    if (!has_matrix_tiles(stem)) {
      if (!is_tiled(stem) || plain_) continue;
      plain_ = plain_tile();
      if (!plain_) return refuse(name(), text("no tile of %s fits the device", stem_name(stem)));
      continue;
    }
    const MatrixTile*& tile = tiles_[size_t(stem)];
    tile = choose_tile(stem, refuse);
    if (!tile) return false;
  }
  return true;
}

String MatrixPlanner::unfit() const {
  for (const MatrixTile* t : tiles_)
    if (const String why = t ? tile_refusal(*t, shape_) : ""; !why.empty())
      return text("%s: %s", t->name, why.c_str());
  return "";
}

void MatrixPlanner::form_matrix(const MatrixTile& t, uint32_t more_traits, Launch* launch) const {
  launch->kernel = kernel(launch->stem, traits_of(t, shape_) | more_traits);
  MatrixLaunch l;
  l.matrix = shape_;
  l.subgroup = pinned_subgroup(caps, t);
  l.row_blocks = t.row_blocks;
  l.left_shared = t.left;
  l.copies = !coopmat2_ && !t.is_lean() && shape_.k == shape_.n &&
             l.subgroup == matrix_subgroup(caps) && has_copies(caps, dtype_name(p.dtype), shape_);
  l.register_prefetch = t.register_prefetch != 0;
  l.sums_d_bias = !launch->has(trait::ds) && launch->stem == Stem::bwd_dq && sums_ds();
  if (l.sums_d_bias) l.entries = entries_at_once(t);
  launch->tile = tile_of(t, shape_, l.subgroup);
  launch->tile.br /= l.entries;
  launch->d_blocks = matrix_blocks(t, p.head_dim, p.head_dim_v, shape_);
  launch->dv_blocks = matrix_blocks(t, p.head_dim_v, p.head_dim, shape_);
  launch->shared_bytes =
      uint32_t(matrix_shared_bytes(t, p.head_dim, p.head_dim_v, shape_, l.entries)) +
      mask_shared_bytes(t, shape_);
  launch->path = l;
  if (launch->stem == Stem::fwd)
    launch->as<MatrixLaunch>()->plain_loop = plain_loop(p, caps, *launch);
}

void MatrixPlanner::form(Launch* launch) const {
  VulkanPlanner::form(launch);
  if (!is_tiled(launch->stem)) return;
  const MatrixTile* t = tiles_[size_t(launch->stem)];
  if (!t) return form_plain(*plain_, launch);
  if (launch->stem == Stem::bwd_dq) {
    launch->stores_d_bias = stores_ds() || sums_ds();
    if (sums_ds() && rows_of(*t) == Rows::any)
      if (const MatrixTile* two = tile_for_two()) t = two;
  }
  form_matrix(*t, trait::none, launch);
}

Extent MatrixPlanner::extent(const Launch& launch) const {
  Extent e = VulkanPlanner::extent(launch);
  if (launch.of<MatrixLaunch>().sums_d_bias) e.batch = 1;
  if (launch.stem == Stem::bwd_dkv && may_leave_parts(launch))
    e.members = p.group() * ceil_div(p.seq_q, launch.tile.br);
  return e;
}

// Whether several workgroups of bwd_dkv may share the query rows of a tile of keys. Their partial
// sums are whole matrices.
bool MatrixPlanner::may_leave_parts(const Launch& l) const {
  const MatrixLaunch& of = l.of<MatrixLaunch>();
  return !p.batch_invariant && !is_disabled(caps, kPartsWord) && of.left_shared == 0 &&
         !l.has(trait::pair | trait::lean | trait::split_d) && of.matrix.k == of.matrix.n &&
         !p.has_lengths() && p.seq_kv % l.tile.bc == 0 && p.head_dim % of.matrix.k == 0 &&
         p.head_dim_v % of.matrix.k == 0;
}

// What shared memory has room for: on an H100 (580.159.04) the workgroups of an SM share what one
// may have. One query, B 8, 8,192 keys, D 64: 0.070 ms with 512 workgroups, 0.077 with 1,536.
int64_t MatrixPlanner::workgroups_at_once(const Launch& l) const {
  return cores_of(caps) * std::max<int64_t>(caps.shared_bytes / std::max(l.shared_bytes, 1u), 1);
}

uint32_t MatrixPlanner::sum_splits(const Launch& launch, const Extent& e) const {
  if (launch.stem != Stem::bwd_dkv) return VulkanPlanner::sum_splits(launch, e);
  return dkv_parts(e.tiles * e.heads * e.batch, e.members, cores_of(caps));
}

void MatrixPlanner::complete(Launch* launch, const Extent&) const {
  if (launch->stem == Stem::bwd_dkv && launch->splits > 1)
    launch->kernel = kernel(launch->stem, launch->row().traits | trait::parts);
  if (!launch->of<MatrixLaunch>().sums_d_bias) return;
  launch->groups_x = uint32_t(std::min<int64_t>(launch->total, cores_of(caps)));  // persistent
  launch->groups_y = 1;
}

// Whether each element of bias has one reader and d_q is wanted. bwd_dq then stores its dS as
// d_bias, so that no product is formed twice.
bool MatrixPlanner::stores_ds() const {
  const Overlay& b = p.bias;
  if (over_256()) return false;
  return p.wants(TANDEM_GRAD_BIAS) && p.wants(TANDEM_GRAD_Q) && p.seq_kv > 0 &&
         b.batch == p.batch && b.heads == p.heads_q && b.rows == p.seq_q;
}

// Whether bwd_dq sums dS over the batch in the workspace. The batch shares one bias and all entries
// have the same tiles. The sums of a block are loaded two blocks ahead, so each step of the kernel
// must be one block.
bool MatrixPlanner::sums_ds() const {
  const Overlay& b = p.bias;
  if (!(p.wants(TANDEM_GRAD_BIAS) && p.wants(TANDEM_GRAD_Q) && p.seq_kv > 0 && b.batch == 1 &&
        p.batch > 1 && b.heads == p.heads_q && b.rows == p.seq_q && !p.has_lengths()))
    return false;
  if (over_256()) return false;
  if (p.slices) return false;  // its workgroups are persistent, and are not cut
  return !saves(p, Saving::bias_sums) && in_force(caps, coopmat_rule::sums_in_dq) &&
         sums_pay(p, cores_of(caps)) && shape_.k == shape_.n;
}

// How many kv heads have their dS in the workspace at a time (a chunk); 0: dS is not shared.
int64_t MatrixPlanner::shared_heads(const Launch& dkv, const Launch& dq) const {
  const Overlay& bias = p.bias;
  // Otherwise bwd_dbias forms S and dP, too.
  const bool thrice = p.wants(TANDEM_GRAD_BIAS) && !stores_ds() && !sums_ds();
  const bool plain = (p.normalizer == Normalizer::softmax || p.normalizer == Normalizer::elastic) &&
                     !p.has_lengths() && (thrice || !p.keep) && p.wants(TANDEM_GRAD_K);
  const bool narrow = dq.tile.max_d < 128, pays = thrice || dkv.tile.max_d > kDsWidth;
  const double fills = !in_force(caps, coopmat_rule::chunks_of_ds) ? 0
                       : narrow && !thrice && p.banded()           ? kDsFillsNarrowBand
                                                                   : kDsFills;
  // over the batch entries of a head
  const bool sums = p.wants(TANDEM_GRAD_BIAS) && bias.batch == 1;
  // bwd_dq multiplies dS after the derivative of softcap; d_bias is dS before it.
  if (p.wants(TANDEM_GRAD_BIAS) && !(p.softcap == 0 && bias.heads == p.heads_q &&
                                     bias.rows == p.seq_q && (sums || bias.batch == p.batch)))
    return 0;
  const auto divides = [](int n) { return n > 0 && kDsBlock % n == 0; };
  const auto fits = [&](const Launch& l) {
    const MatrixLaunch& of = l.of<MatrixLaunch>();
    return of.matrix.k == of.matrix.n && of.register_prefetch && of.left_shared == 0 &&
           !l.has(trait::lean) && divides(l.tile.br) && divides(l.tile.bc);
  };
  if (p.batch_invariant || is_disabled(caps, kDsWord) || saves(p, Saving::stored_ds) || !plain ||
      !pays || dkv.splits > 1 || !fits(dkv) || !fits(dq))
    return 0;
  return ds_heads(p.batch * p.heads_kv, sums ? p.batch : 1, ds_bytes(p) * p.group(), dkv.tiles,
                  fills * double(cores_of(caps)));
}

// Makes bwd_dkv, bwd_dq and, for d_bias, bwd_dbias alternate, chunk by chunk.
String MatrixPlanner::share(Vec<Launch>* launches) const {
  size_t at = 0;
  while (at + 1 < launches->size() &&
         !((*launches)[at].stem == Stem::bwd_dkv && (*launches)[at + 1].stem == Stem::bwd_dq))
    ++at;
  const MatrixTile* t = at + 1 < launches->size() ? tile_for_ds() : nullptr;
  if (!t) return "";
  const Launch dkv = (*launches)[at];
  Launch dq = (*launches)[at + 1];
  dq.stores_d_bias = false;
  form_matrix(*t, trait::ds, &dq);
  dq.tiles = uint32_t(extent(dq).tiles);
  const int64_t heads = p.batch * p.heads_kv, most = shared_heads(dkv, dq);
  if (most == 0) return "";
  Launch dbias = dq;  // it has the same workgroups
  dbias.stem = Stem::bwd_dbias;
  dbias.kernel = kernel(Stem::bwd_dbias, trait::ds);
  dbias.shared_bytes =
      uint32_t(ds_sum_shared_bytes(dbias.tile.tr, shape_)) + skip_shared_bytes(Stem::bwd_dbias);
  if (p.wants(TANDEM_GRAD_BIAS) && dbias.shared_bytes > caps.shared_bytes) return "";
  dbias.tiles = uint32_t(ceil_div(p.seq_q, kDsBlock) * ceil_div(p.seq_kv, kDsSumKeys));
  const bool sums = p.wants(TANDEM_GRAD_BIAS) && p.bias.batch == 1;
  dbias.members = sums ? p.batch : 1;
  if (caps.max_invocations >= uint32_t(kLineGroup) && !saves(p, Saving::partial_sums))
    dbias.splits = splits_of_sum(dbias.tiles * chunk_heads(p, Stem::bwd_dbias, most), dbias.members,
                                 cores_of(caps));
  Vec<Launch> shared(launches->begin(), launches->begin() + int64_t(at));
  for (Launch l : {dkv, dq, dbias}) {
    if (l.stem == Stem::bwd_dbias && !p.wants(TANDEM_GRAD_BIAS)) continue;
    MatrixLaunch& of = *l.as<MatrixLaunch>();
    l.kernel = kernel(l.stem, l.row().traits | trait::ds);
    of.kv_heads = int(most);
    of.heads = int(chunk_heads(p, l.stem, most));
    of.chunks = uint32_t(ceil_div(heads, most));
    l.waits = l.stem != Stem::bwd_dbias;
    const String why = set_groups(&l, double(l.tiles) * of.heads * l.splits);
    if (!why.empty()) return why;
    shared.push_back(l);
  }
  for (size_t n = at + 2; n < launches->size(); ++n)
    if ((*launches)[n].stem != Stem::bwd_dbias) shared.push_back((*launches)[n]);
  *launches = shared;
  return "";
}

// A launch behind fwd recomputes the rows for which matrices do not suffice.
void MatrixPlanner::arrange(Vec<Launch>* launches) const {
  VulkanPlanner::arrange(launches);
  const Launch* fwd = find_launch(launches, Stem::fwd);
  if (!fwd) return;
  Launch redo = *fwd;
  redo.as<MatrixLaunch>()->redoes = redo.kernel;
  redo.kernel = kernel(Stem::fwd, trait::redo);
  redo.waits = true;
  launches->insert(launches->begin() + (fwd - launches->data()) + 1, redo);
}

void MatrixPlanner::scratch(Plan* plan, ScratchExtents* x) const {
  VulkanPlanner::scratch(plan, x);
  const Launch* fwd = plan->find(Stem::fwd);
  if (fwd && fwd->splits == 1) x->own_lse = {p.batch * p.heads_q * p.seq_q};
  const Launch* dq = plan->find(Stem::bwd_dq);
  if (!dq) return;
  const MatrixLaunch& of = dq->of<MatrixLaunch>();
  if (of.sums_d_bias) x->bias_sums = {d_bias_sums(p, *dq)};
  // Room for the first chunk, which is the largest.
  if (dq->has(trait::ds)) x->ds = {of.heads * ds_bytes(p) / 2};
}

std::unique_ptr<PathPlanner> make_vulkan_coopmat2(const PathRow& row, const Problem& p,
                                                  const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new MatrixPlanner(row, p, caps, true));
}
std::unique_ptr<PathPlanner> make_vulkan_coopmat(const PathRow& row, const Problem& p,
                                                 const Caps& caps) {
  return std::unique_ptr<PathPlanner>(new MatrixPlanner(row, p, caps, false));
}

}  // namespace tandem
