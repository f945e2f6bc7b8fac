// SPDX-License-Identifier: MIT OR Apache-2.0
// A tile without matrices (tiles.inc), and the bytes of shared memory on which planner, kernels and
// tests agree. No table is here: kernels of CUDA include this, and not what Vulkan alone has.
#ifndef TANDEM_SRC_PLAN_TILE_H
#define TANDEM_SRC_PLAN_TILE_H
#include <cstdint>

namespace tandem {

// Heads up to this size have their accumulators in one workgroup on every path. Tiles without
// matrices that are as wide take wider heads in parts (Launch::feature_parts).
constexpr int64_t kWholeFeatures = 256;

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

}  // namespace tandem
#endif
