// SPDX-License-Identifier: MIT OR Apache-2.0
// A tile of the matrix paths of Vulkan, and the bytes of shared memory on which planner, shaders
// and tests agree. The table is tiles.h: a launch has a tile, and need not know the others.
#ifndef TANDEM_SRC_PLAN_COOPMAT_TILE_H
#define TANDEM_SRC_PLAN_COOPMAT_TILE_H
#include <cstdint>

#include "base/host_memory.h"
#include "kernels/stems.h"

namespace tandem {

constexpr int kMatrixStep = 4;  // matrices of features that bwd_dbias stages at a time

// Edges of cooperative matrices: left operands are m x k, right ones k x n, accumulators m x n.
struct MatrixDims {
  int m = 0, n = 0, k = 0;
  String name() const;  // "16x16x16"
};

// Shapes that shaders/coopmat takes, in order of preference. Edges are multiples of 8, and k is n
// or twice n, so that one or two accumulators make a left operand. A right operand loaded from
// shared memory serves m rows, and a product k n columns.
constexpr MatrixDims kMatrixDims[] = {
    {16, 16, 16}, {16, 8, 16}, {8, 16, 16}, {16, 8, 8}, {8, 8, 8}};

struct MatrixTile {
  const char* name;
  Stem stem;
  int max_d, subgroups, row_blocks, cols;
  int left = 0, register_prefetch = 1, size = 0, waves = 0;
  bool doubled = false;  // for operands that take twice the registers
  // the tile's own rows are loaded and stored by tensor addressing, not through shared memory
  bool tensors = false;
  bool ds = false;    // bwd_dq whose dS comes from the workspace
  int registers = 0;  // of an invocation, that a lean tile is made for; 0: the tile is not lean
  bool pair = false;  // rows belong to pairs of subgroups
  // Subgroups that own the same rows, each a slice of the features (shaders/coopmat/split_d.glsl):
  // tiles for heads over 256.
  int owners = 1;
  // the tile's own rows pass through the room of the streamed tiles by strips of features
  bool strips = false;
  constexpr bool splits_d() const { return owners > 1; }
  // Slices of left operands: in the backward half of the owners have those of one, half of another.
  constexpr int slices() const { return stem == Stem::fwd || ds ? owners : owners / 2; }
  constexpr bool is_lean() const { return registers > 0; }
  constexpr int rows(const MatrixDims& shape) const {
    return subgroups * row_blocks * shape.m / (pair ? 2 : owners);
  }
  // Streamed rows of a step; half as many with 8 x 8 matrices, so that there are as many matrices.
  constexpr int step(const MatrixDims& shape) const {
    return shape.m * shape.n > 64 ? cols : cols / 2;
  }
  // Steps of streamed rows in shared memory at a time (shaders/coopmat/pair.glsl).
  constexpr int stages() const { return pair ? 2 : 1; }
};

// Left operands that cover d features.
constexpr int matrix_blocks(int64_t d, const MatrixDims& shape) {
  return int((d + shape.k - 1) / shape.k);
}

// The same with a tile: where features are split, whole slices; in the backward of the wider of the
// two tensors. other: the other tensor's features.
constexpr int matrix_blocks(const MatrixTile& t, int64_t d, int64_t other,
                            const MatrixDims& shape) {
  if (!t.splits_d()) return matrix_blocks(d, shape);
  const bool fwd = t.stem == Stem::fwd;
  const int blocks = matrix_blocks(fwd || d > other ? d : other, shape);
  return (blocks + t.owners - 1) / t.owners * t.owners;
}
// uvec4s of a streamed row.
constexpr int streamed_pitch(const MatrixTile& t, int64_t d, int64_t dv, const MatrixDims& shape) {
  return matrix_blocks(t, d > dv ? d : dv, 0, shape) * shape.k / 8 + 1;
}
// Whether a block of each owner's features fits the room of the streamed tiles, through which rows
// pass.
constexpr bool passes_rows(const MatrixTile& t, int64_t d, int64_t dv, const MatrixDims& shape) {
  const int pitch = streamed_pitch(t, d, dv, shape), rows = t.rows(shape),
            streamed = t.step(shape) * (t.ds ? pitch + rows / 8 + 1 : 2 * pitch);
  return streamed / rows - 1 >= t.owners * shape.n / 8;
}

// Lean tiles: words of the workgroup, and numbers of each subgroup that are not in registers
// (shaders/coopmat/lean.glsl): in fwd m and l, else origin, delta and share of its rows.
constexpr int kLeanWords = 32;
constexpr int lean_bytes(const MatrixTile& t, const MatrixDims& shape) {
  if (!t.is_lean()) return 0;
  const int numbers = t.stem == Stem::fwd ? shape.m * shape.n + shape.m : 3 * shape.m;
  return 4 * (kLeanWords + t.subgroups * t.row_blocks * numbers);
}

// With keep, the bits of 32 keys, and, unless the scratch has room for them, each subgroup's bits
// of a tile: 32 keys of a query row a word (shaders/coopmat/skip.glsl).
constexpr int keep_shared_bytes(const MatrixTile& t, const MatrixDims& shape, bool scratch_idle) {
  if (t.is_lean() || t.pair || t.ds || t.splits_d()) return 0;
  const int step = t.step(shape), own = t.row_blocks * shape.m;
  const int words = t.stem == Stem::bwd_dkv ? step : own * ((step + 31) / 32);
  return 4 * (32 + (scratch_idle ? 0 : t.subgroups * words));
}

// Bytes of the shared arrays of shaders/coopmat/<stem>.comp. Rows of 16-bit elements lie in uvec4s,
// padded by one. entries: batch entries that share a workgroup's rows, each with its own streamed
// tiles.
constexpr int matrix_shared_bytes(const MatrixTile& t, int64_t d, int64_t dv,
                                  const MatrixDims& shape, int entries = 1) {
  const int row = streamed_pitch(t, d, dv, shape) * 16;
  const int edge = shape.m > shape.n ? shape.m : shape.n;
  // K and V, in bwd_dkv Q and dO; and whole tiles of rows as they are loaded or stored
  const int two = 2 * t.step(shape) * entries * t.stages(), rows = t.rows(shape);
  const int ds_two = t.step(shape) * (row + (rows / 8 + 1) * 16);  // K and dS
  const int streamed =
      t.stem == Stem::bwd_dbias ? (rows + t.step(shape)) * (kMatrixStep * shape.k / 8 + 1) * 16
      : t.ds                    ? !t.pair || ds_two > rows * row ? ds_two : rows * row
      : t.left > 0 || t.tensors || t.strips || t.splits_d() || two > rows ? two * row
                                                                          : rows * row;
  const int held = t.left * rows * row;
  // numbers passed between matrices and rows
  const int scratch = t.ds ? 16 : t.subgroups * (shape.m * shape.n + 4 * edge) * 4;
  // numbers of rows as well
  const int iota = edge * 4 + (entries > 1 ? t.subgroups * shape.m * 8 : 0);
  // numbers of each row, streamed as well
  const int stats = t.stem == Stem::bwd_dkv ? 3 * t.step(shape) * 4 * t.stages() : 0;
  return streamed + held + scratch + iota + stats + lean_bytes(t, shape);
}

// dS in the workspace, from bwd_dkv to bwd_dq and bwd_dbias (shaders/coopmat/ds.glsl): blocks of
// kDsBlock keys and query rows. A workgroup of bwd_dbias reads kDsSumKeys keys, and has these
// shared arrays.
constexpr int kDsBlock = 128, kDsSumKeys = 64;
constexpr int ds_sum_shared_bytes(int subgroups, const MatrixDims& shape) {
  const int edge = shape.m > shape.n ? shape.m : shape.n;
  return kDsBlock / 2 * (kDsSumKeys + 1) * 4 + subgroups * (shape.m * shape.n + 4 * edge) * 4 +
         edge * 4;
}

}  // namespace tandem
#endif
