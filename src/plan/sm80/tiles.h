// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles of cuda.sm80 (tiles.inc) as C++ values, and what the planner, the kernels and tests derive
// from a row.
#ifndef TANDEM_SRC_PLAN_SM80_TILES_H
#define TANDEM_SRC_PLAN_SM80_TILES_H
#include <cstdint>

#include "kernels/stems.h"

namespace tandem {

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
