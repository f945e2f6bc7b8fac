// SPDX-License-Identifier: MIT OR Apache-2.0
// tiles.inc as C++ values, and the bytes of shared memory on which planner, kernels and tests
// agree.
#ifndef TANDEM_SRC_PLAN_TILES_H
#define TANDEM_SRC_PLAN_TILES_H
#include <cstdint>

#include "base/host_memory.h"
#include "kernels/stems.h"
#include "problem/problem.h"

namespace tandem {

enum class TileOn : uint8_t { vulkan = 1, cuda = 2, both = 3 };
enum class TileUse : uint8_t { all, plain, fwd };  // tiles.inc

struct Tile {
  const char* name;
  int br, bc, tr, tc, dk, kc, max_d;
  TileOn on;
  int registers = 0;  // of an invocation; 0: not a row of tiles.inc
  bool pairs = false;
  TileUse use = TileUse::all;
  constexpr int invocations() const { return tr * tc; }
  constexpr int block_cols() const { return 4 * tc; }  // columns of one accumulator block
  constexpr int quads() const { return tc > 0 ? bc / (4 * tc) : 1; }  // of columns an invocation
  // The kernels save registers (LEAN, shaders/parts/tile.glsl).
  constexpr bool is_lean() const { return registers > 0 && registers < 255; }
  constexpr int blocks(int64_t d) const { return int((d + block_cols() - 1) / block_cols()); }
};

constexpr bool tile_on(const Tile& t, TileOn backend) {
  return (uint8_t(t.on) & uint8_t(backend)) != 0;
}

// Staged rows are padded by one vec4 so that 16-byte reads down a column hit different banks.
constexpr int tile_pool_vec4(const Tile& t) {
  const int products = (t.br + t.bc) * (t.dk / 4 + 1);
  // With several quads the P tile is in the pool (shaders/parts/tile.glsl).
  const int gathers = (t.kc + (t.quads() > 1 ? t.br : 0)) * (t.tc + 1);
  // The row maxima of fwd pass through the pool.
  const int row_stats = t.tr > 0 ? t.invocations() * ((t.br / t.tr + 3) / 4) : 0;
  return products > gathers ? (products > row_stats ? products : row_stats)
                            : (gathers > row_stats ? gathers : row_stats);
}
constexpr int tile_ptile_vec4(const Tile& t) {
  return t.quads() > 1 ? 1 : t.br * (t.bc / 4 + 1);  // an array has an element at least
}
// A zero and four views (shaders/parts/tile.glsl).
constexpr int kLeanBytes = 4 * (1 + 4 * 6);
constexpr int tile_shared_bytes(const Tile& t) {
  return 16 * (tile_pool_vec4(t) + tile_ptile_vec4(t)) + (t.is_lean() ? kLeanBytes : 0);
}

// In CUDA, fwd of entmax has a bitmap of live tiles of keys, for the first kLiveTiles of them.
constexpr int kLiveTiles = 4096;
constexpr int kLiveBytes = kLiveTiles / 8;

#define TANDEM_TILE(name, Br, Bc, TR, TC, DK, KC, max_d, registers, on, pairs, use)             \
  static_assert(Br == Bc || TileUse::use == TileUse::fwd, "roles swap in bwd_dkv");             \
  static_assert(Bc % (4 * TC) == 0 && Br % TR == 0, "whole quads of columns, and whole rows");  \
  static_assert(Bc == 4 * TC || (TileUse::use == TileUse::fwd && max_d <= 8 * TC),              \
                "several quads: fwd, with two accumulator blocks at most");                     \
  static_assert(!pairs || (TR % 2 == 0 && registers == 255), "pairs of rows, not lean");        \
  static_assert(DK % 4 == 0 && KC % 4 == 0 && Bc % KC == 0, "steps are whole vec4s and tiles"); \
  static_assert((Br + Bc) * DK / 4 % (TR * TC) == 0, "every invocation stages equally much");   \
  static_assert(KC * TC % (TR * TC) == 0, "every invocation stages equally much");              \
  static_assert(TR * TC <= (registers < 255 ? 512 : 256), "256 exist nearly everywhere");
#include "tiles.inc"

constexpr Tile kTiles[] = {
#define TANDEM_TILE(name, Br, Bc, TR, TC, DK, KC, max_d, registers, on, pairs, use) \
  {#name, Br, Bc, TR, TC, DK, KC, max_d, TileOn::on, registers, pairs != 0, TileUse::use},
#include "tiles.inc"
};
constexpr int kTileCount = int(sizeof(kTiles) / sizeof(kTiles[0]));

// ---- tiles of the matrix paths ----
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
  constexpr bool is_lean() const { return registers > 0; }
  constexpr int rows(const MatrixDims& shape) const {
    return subgroups * row_blocks * shape.m / (pair ? 2 : 1);
  }
  // Streamed rows of a step; half as many with 8 x 8 matrices, so that there are as many matrices.
  constexpr int step(const MatrixDims& shape) const {
    return shape.m * shape.n > 64 ? cols : cols / 2;
  }
  // Steps of streamed rows in shared memory at a time (shaders/coopmat/pair.glsl).
  constexpr int stages() const { return pair && !ds ? 2 : 1; }
};

// Left operands that cover d features.
constexpr int matrix_blocks(int64_t d, const MatrixDims& shape) {
  return int((d + shape.k - 1) / shape.k);
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
  if (t.is_lean() || t.pair || t.ds) return 0;
  const int step = t.step(shape), own = t.row_blocks * shape.m;
  const int words = t.stem == Stem::bwd_dkv ? step : own * ((step + 31) / 32);
  return 4 * (32 + (scratch_idle ? 0 : t.subgroups * words));
}

// Bytes of the shared arrays of shaders/coopmat/<stem>.comp. Rows of 16-bit elements lie in uvec4s,
// padded by one. entries: batch entries that share a workgroup's rows, each with its own streamed
// tiles.
constexpr int matrix_shared_bytes(const MatrixTile& t, int64_t d, int64_t dv,
                                  const MatrixDims& shape, int entries = 1) {
  const int row = (matrix_blocks(d > dv ? d : dv, shape) * shape.k / 8 + 1) * 16;
  const int edge = shape.m > shape.n ? shape.m : shape.n;
  // K and V, in bwd_dkv Q and dO; and whole tiles of rows as they are loaded or stored
  const int two = 2 * t.step(shape) * entries * t.stages(), rows = t.rows(shape);
  const int ds_two = t.step(shape) * (row + (rows / 8 + 1) * 16);  // K and dS
  const int streamed = t.stem == Stem::bwd_dbias
                           ? (rows + t.step(shape)) * (kMatrixStep * shape.k / 8 + 1) * 16
                       : t.ds ? ds_two > rows * row ? ds_two : rows * row
                              : (t.left > 0 || t.tensors || two > rows ? two : rows) * row;
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

constexpr MatrixTile kMatrixTiles[] = {
#define TANDEM_MATRIX_TILE(name, stem, max_d, subgroups, row_blocks, cols) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols},
#define TANDEM_DOUBLED_TILE(name, stem, max_d, subgroups, row_blocks, cols, left, prefetch, size, \
                            waves)                                                                \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols, left, prefetch, size, waves, true},
#define TANDEM_TENSOR_TILE(name, stem, max_d, subgroups, row_blocks, cols) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols, 0, 1, 0, 0, false, true},
#define TANDEM_DS_TILE(name, stem, max_d, subgroups, row_blocks, cols) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols, 0, 1, 0, 0, false, false, true},
#define TANDEM_PAIR_TILE(name, stem, max_d, subgroups, row_blocks, cols, ds) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols, 0,   1,            \
   0,     0,          false, false,     ds != 0,    0,    true},
#define TANDEM_LEAN_TILE(name, stem, max_d, subgroups, row_blocks, cols, left, registers) \
  {#name, Stem::stem, max_d, subgroups, row_blocks, cols,  left,                          \
   0,     0,          0,     false,     false,      false, registers},
#include "plan/coopmat/tiles.inc"
};

constexpr bool matrix_tiles_fit() {
  for (const MatrixTile& t : kMatrixTiles) {
    if (t.cols % 16 != 0) return false;         // steps are whole matrices
    if (t.subgroups * 64 > 1024) return false;  // workgroups of subgroups of 64
    // fwd has Q only
    if (t.left > (t.stem == Stem::fwd ? 1 : 2)) return false;
    if (t.doubled != (t.waves > 0)) return false;
    if (t.tensors && (t.stem != Stem::fwd || t.left > 0)) return false;
    if (t.pair && (t.subgroups % 2 != 0 || t.left > 0 || t.row_blocks > 1)) return false;
    // limits of AMD, and of NVIDIA; lean tiles with 16 rows a matrix are last resorts
    const int most = (t.doubled || t.is_lean() ? 64 : 48) * 1024;
    for (const MatrixDims& shape : kMatrixDims) {
      if (matrix_shared_bytes(t, t.max_d, t.max_d, shape) > most) return false;
      if (t.step(shape) % shape.k != 0) return false;
      // a subgroup's keys of a query row are a word of keep
      if (t.stem == Stem::bwd_dkv && t.row_blocks * shape.m > 32) return false;
    }
  }
  for (const MatrixDims& s : kMatrixDims)
    if (s.m % 8 != 0 || s.n % 8 != 0 || (s.k != s.n && s.k != 2 * s.n)) return false;
  return true;
}
static_assert(matrix_tiles_fit(), "a row of plan/coopmat/tiles.inc breaks one of the rules above");

// Where bwd_dkv_dq sums d_bias in slices of the batch: the pitch of a row of a slice's sums, whole
// chunks of eight floats.
constexpr int64_t bias_parts_pitch(int64_t seq_kv) { return (seq_kv + 7) / 8 * 8; }

// ---- tiles of cuda.sm80 ----
struct AmpereTile {
  const char* name;
  Stem stem;
  int width, br, bc, warps, stages, halves, held, groups;
  TileTable table;
  int bytes = 2;  // of an element
  constexpr int threads() const { return 32 * warps; }
  constexpr bool owns_keys() const { return stem == Stem::bwd_dkv || stem == Stem::bwd_dkv_dq; }
  constexpr int owned() const { return owns_keys() ? bc : br; }
  constexpr int streamed() const { return owns_keys() ? br : bc; }
  constexpr int row_blocks() const { return owned() * halves / warps / 16; }  // of a warp
  constexpr int panels() const { return (width + 63) / 64; }  // of the dQ accumulator
};

// Whole heads: pitch in bytes of a row of the bias in shared memory. Eight rows of a tile begin in
// different banks.
constexpr int whole_bias_pitch(int bc, int element_bytes) { return bc * element_bytes + 16; }
// Columns of P and dS in shared memory: whole rows of chunks to swizzle.
constexpr int whole_p_cols(int bc) { return (bc + 31) / 32 * 32; }
// Whether their backward may sum d_bias over batch entries, in registers.
constexpr bool whole_sums_bias(const AmpereTile& t) { return t.bc <= 64 || t.width <= 32; }
// Bytes of the shared arrays of cuda/sm80/<stem>.cu: the owned rows, of both tensors except in fwd;
// the streamed rows; in bwd_dkv three numbers for each streamed row; P and dS if warps share them;
// and f32 numbers that two warps exchange.
constexpr int ampere_shared_bytes(const AmpereTile& t) {
  // Whole heads: stages of all rows; in the backward P, dS, and rows that outputs pass through;
  // without the bias.
  if (t.table == TileTable::ampere_whole_heads) {
    const int rows = (t.owns_keys() ? 2 : 1) * t.br + 2 * t.bc;
    return t.bytes * (t.stages * rows * t.width +
                      (t.owns_keys() ? 2 * t.br * whole_p_cols(t.bc) + t.br * t.width : 0));
  }
  // bwd_dbias streams rows and keys of all tensors, and three numbers of a row.
  if (t.stem == Stem::bwd_dbias)
    return t.stages * (2 * (t.br + t.bc) * t.bytes * t.width + 3 * 4 * t.br);
  const int row = t.bytes * t.width, owned = t.owned() * row * (t.stem == Stem::fwd ? 1 : 2);
  const int streamed = t.stages * 2 * t.streamed() * row;
  const int numbers = t.owns_keys() ? t.stages * 3 * 4 * t.streamed() : 0;
  if (t.stem == Stem::fwd && t.halves > 1)  // P, and numbers that warps exchange
    return owned + streamed + t.bytes * t.br * t.bc + 4 * t.halves * t.br;
  const int pairs = (t.halves > 2                 ? 4
                     : t.halves > 1               ? 2
                     : t.stem == Stem::bwd_dkv_dq ? 1
                                                  : 0) *
                    t.bytes * t.owned() * t.streamed();
  return owned + streamed + numbers + pairs;
}

// The dQ accumulator of bwd_dkv_dq, f32: for each head blocks of 64 rows, each of panels of 64
// features.
constexpr int64_t ampere_row_blocks(int64_t seq_q) { return (seq_q + 63) / 64; }

constexpr AmpereTile kAmpereTiles[] = {
#define TANDEM_AMPERE_TILE(name, stem, width, Br, Bc, warps, stages, halves, held, groups, kind) \
  {#name, Stem::stem, width, Br, Bc, warps, stages, halves, held, groups, TileTable::ampere_##kind},
#define TANDEM_AMPERE_F32(name, stem, width, Br, Bc, warps, stages, halves, held, groups)          \
  {#name, Stem::stem, width, Br, Bc, warps, stages, halves, held, groups, TileTable::ampere_plain, \
   4},
#define TANDEM_AMPERE_INPUTS(name, stem, width, Br, Bc, warps, stages, halves, held, groups) \
  {#name,                                                                                    \
   Stem::stem,                                                                               \
   width,                                                                                    \
   Br,                                                                                       \
   Bc,                                                                                       \
   warps,                                                                                    \
   stages,                                                                                   \
   halves,                                                                                   \
   held,                                                                                     \
   groups,                                                                                   \
   TileTable::ampere_f32_inputs,                                                             \
   4},
#include "plan/sm80/tiles.inc"
};
constexpr int kAmpereTileCount = int(sizeof(kAmpereTiles) / sizeof(kAmpereTiles[0]));

constexpr bool ampere_tiles_fit() {
  for (const AmpereTile& t : kAmpereTiles) {
    if (t.owned() * t.halves % (16 * t.warps) != 0) return false;  // warps own whole blocks of 16
    if (t.streamed() % (16 * t.halves) != 0 || t.width % 32 != 0) return false;
    // An H100 has 227 KiB, an A100 163 KiB, others 99.
    if (ampere_shared_bytes(t) > 227 * 1024) return false;
  }
  return true;
}
static_assert(ampere_tiles_fit(), "a row of plan/sm80/tiles.inc breaks one of the rules above");

}  // namespace tandem
#endif
